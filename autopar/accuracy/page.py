"""Accuracy as one HTML file that stands alone: no script, no network."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from html import escape

import autopar

from . import view
from .scatter import Point, by_size, scatter
from .score import NOT_STATED, Accuracy

WORST, REASONS, SETS = 30, 100, 300
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; margin: .5rem 0; font-size: .9rem; }
th { text-align: left; border-bottom: 2px solid #888; } td { border-bottom: 1px solid #ddd; }
th, td { padding: .2rem .8rem .2rem 0; vertical-align: top; }
td.figure, th.figure { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
svg { max-width: 100%; height: auto; }
"""


def accuracy_page(accuracy: Accuracy, title: str) -> str:
    """The whole report, one document of HTML."""
    parts = [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(view.headline(accuracy))}. autopar {escape(autopar.__version__)}.</p>",
        *_errors(accuracy),
        *_plots(accuracy),
        *_groups(accuracy),
        *_ranking(accuracy),
        *_worst(accuracy),
        *_skipped(accuracy),
    ]
    return "\n".join([*parts, "</body></html>"]) + "\n"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, text: Sequence[int] = (0,)) -> str:
    """A table; the columns at positions ``text`` hold words, the others figures."""

    def cells(tag: str, values: Sequence[str]) -> str:
        marked = (f"<{tag}>" if index in text else f'<{tag} class="figure">' for index in range(len(values)))
        return "<tr>" + "".join(f"{mark}{escape(value)}</{tag}>" for mark, value in zip(marked, values, strict=True)) + "</tr>"

    return "<table>" + cells("th", columns) + "".join(cells("td", row) for row in rows) + "</table>"


def _errors(accuracy: Accuracy) -> list[str]:
    named = (("step time", accuracy.step_time), ("peak memory", accuracy.memory))
    rows = [(name, *view.error_row(summary)) for name, summary in named if summary.rows]
    lines = "".join(f"<p>{escape(line)}</p>" for line in view.memory_lines(accuracy))
    return ["<h2>Error, predicted against measured</h2>", _table(("", *view.ERROR_COLUMNS), rows), lines]


def points_by(accuracy: Accuracy, column: str) -> dict[str, list[Point]]:
    """Measured and predicted seconds by the value of ``column``."""
    found: dict[str, list[Point]] = defaultdict(list)
    for case, prediction in zip(accuracy.cases, accuracy.predictions, strict=True):
        if prediction.measured_seconds is not None:
            value = getattr(case.run, column)
            found[NOT_STATED if value in ("", None) else str(value)].append((prediction.measured_seconds, prediction.predicted_seconds))
    return found


def _plots(accuracy: Accuracy) -> list[str]:
    if not accuracy.step_time.rows:
        return []
    columns = accuracy.step_time_groups or ("device",)
    drawings = [scatter(by_size(points_by(accuracy, column)), title=f"step time by {column}", unit="seconds") for column in columns]
    return ["<h2>Predicted against measured</h2>", *drawings]


def _groups(accuracy: Accuracy) -> list[str]:
    parts = []
    for what, groups in (("Step time", accuracy.step_time_groups), ("Peak memory", accuracy.memory_groups)):
        for column, members in groups.items():
            if members:
                rows = [(value, *view.error_row(summary)) for value, summary in members.items()]
                parts += [f"<h2>{what} by {escape(column)}</h2>", _table((column, *view.ERROR_COLUMNS), rows)]
    return parts


def _ranking(accuracy: Accuracy) -> list[str]:
    if not accuracy.ranking:
        return []
    mean = view.RankingMean.of(accuracy.ranking)
    text = (
        f"{mean.sets} sets of runs that differ in strategy alone; on average Spearman {view.figure(mean.spearman)}, Kendall"
        f" {view.figure(mean.kendall)}, {view.percent(mean.pairwise)} of the pairs more than 5 % apart in the right order, and the strategy"
        f" ranked first {view.percent(mean.regret)} slower than the best measured."
    )
    shown = sorted(accuracy.ranking, key=lambda each: (-each.regret, each.group))[:SETS]
    return ["<h2>Ranking of strategies</h2>", f"<p>{escape(text)}</p>", _table(view.RANKING_COLUMNS, map(view.ranking_row, shown))]


def _worst(accuracy: Accuracy) -> list[str]:
    rows = view.worst_times(accuracy, WORST)
    table = _table(view.WORST_COLUMNS, (view.worst_row(accuracy, row) for row in rows), text=(0, 4))
    return ["<h2>Largest errors of step time</h2>", table] if rows else []


def _skipped(accuracy: Accuracy) -> list[str]:
    if not accuracy.skipped:
        return []
    rows = [(reason.text, f"{reason.rows:,}", ", ".join(reason.examples)) for reason in view.reasons(accuracy.skipped)[:REASONS]]
    return [f"<h2>Skipped ({len(accuracy.skipped):,} rows)</h2>", _table(("reason", "rows", "such as"), rows, text=(0, 2))]
