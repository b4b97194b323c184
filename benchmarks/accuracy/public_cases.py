"""Public bug reports, questions and measured configurations: how many are tests, and why the others are not.

The tests: ``tests/autopar/accuracy/test_public_cases.py``.
"""

from __future__ import annotations

import csv

from .tables import FOLDER, markdown

FILE = FOLDER / "public_cases.csv"


def read_cases() -> list[dict[str, str]]:
    """Every case, by the columns of the table."""
    with FILE.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def section() -> list[str]:
    """The part of ``docs/accuracy.md`` about these cases."""
    cases = read_cases()
    left = [case for case in cases if case["not_tested"]]
    rows = ((case["id"], case["source"], case["configuration"] or case["what_was_seen"], case["not_tested"]) for case in left)
    return [
        "## Public cases that are not tests",
        "",
        f"{len(cases) - len(left)} of {len(cases)} public reports are tests (refusals, memory, running out of it, step times); those the"
        " model gets wrong are marked there with the measured figures. The others, and why not:",
        "",
        *markdown(("case", "source", "about", "why not"), rows, text=4),
    ]
