"""The shipped tables of measured runs, read and scored; and Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from autopar.accuracy.runs import Run, Skipped, read_runs
from autopar.accuracy.score import Accuracy, score

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
RUN_TABLES = ("h200_steps.csv", "published_runs.csv")
"""The tables of this folder that hold training steps; the others have pages of their own."""


def shipped_runs() -> tuple[tuple[Run, ...], tuple[Skipped, ...]]:
    """Every training step of the tables in this folder."""
    runs: list[Run] = []
    skipped: list[Skipped] = []
    for name in RUN_TABLES:
        found, unread = read_runs(FOLDER / name)
        runs += found
        skipped += unread
    return tuple(runs), tuple(skipped)


def shipped_accuracy(by: Iterable[str] = ("family", "device", "framework")) -> Accuracy:
    """The shipped tables, scored."""
    runs, skipped = shipped_runs()
    return score(runs, skipped, by=by)


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]], *, text: int = 1) -> list[str]:
    """A table; the columns after the first ``text`` are aligned right."""
    rule = ["---" if index < text else "---:" for index in range(len(columns))]
    cells = ([cell.replace("|", "/").replace("\n", " ") for cell in row] for row in rows)
    return ["| " + " | ".join(line) + " |" for line in ([*columns], rule, *cells)] + [""]
