"""Accuracy as one HTML file that stands alone: no script, no network."""

from __future__ import annotations

from collections import defaultdict

from autopar.report.page import Markup, Section, page, paragraph, table

from . import view
from .scatter import Point, by_size, scatter
from .score import NOT_STATED, Accuracy

WORST, REASONS, SETS = 30, 100, 300


def accuracy_page(accuracy: Accuracy, title: str) -> str:
    """The whole report, one document of HTML."""
    sections = (_errors(accuracy), *_plots(accuracy), *_groups(accuracy), _ranking(accuracy), _worst(accuracy), _skipped(accuracy))
    return page(title, [paragraph(f"{view.headline(accuracy)}.")], [section for section in sections if section is not None])


def _errors(accuracy: Accuracy) -> Section:
    named = (("step time", accuracy.step_time), ("peak memory", accuracy.memory))
    rows = [(name, *view.error_row(summary)) for name, summary in named if summary.rows]
    parts = (table(("", *view.ERROR_COLUMNS), rows, caption="Errors"), *map(paragraph, view.memory_lines(accuracy)))
    return Section(id="errors", title="Error, predicted against measured", parts=parts)


def points_by(accuracy: Accuracy, column: str) -> dict[str, list[Point]]:
    """Measured and predicted seconds by the value of ``column``."""
    found: dict[str, list[Point]] = defaultdict(list)
    for case, prediction in zip(accuracy.cases, accuracy.predictions, strict=True):
        if prediction.measured_seconds is not None:
            value = getattr(case.run, column)
            found[NOT_STATED if value in ("", None) else str(value)].append((prediction.measured_seconds, prediction.predicted_seconds))
    return found


def _plots(accuracy: Accuracy) -> list[Section]:
    if not accuracy.step_time.rows:
        return []
    columns = accuracy.step_time_groups or ("device",)
    drawings = (scatter(by_size(points_by(accuracy, column)), title=f"step time by {column}", unit="seconds") for column in columns)
    parts = tuple(
        Markup(f'<div class="paper scroll" role="region" tabindex="0" aria-label="Scatter">{drawing}</div>') for drawing in drawings
    )
    return [Section(id="scatter", title="Predicted against measured", parts=parts)]


def _groups(accuracy: Accuracy) -> list[Section]:
    sections = []
    for what, groups in (("Step time", accuracy.step_time_groups), ("Peak memory", accuracy.memory_groups)):
        for column, members in groups.items():
            if members:
                rows = [(value, *view.error_row(summary)) for value, summary in members.items()]
                name = f"{what} by {column}"
                parts = (table((column, *view.ERROR_COLUMNS), rows, caption="Errors"),)
                sections.append(Section(id=name.lower().replace(" ", "-"), title=name, parts=parts))
    return sections


def _ranking(accuracy: Accuracy) -> Section | None:
    if not accuracy.ranking:
        return None
    mean = view.RankingMean.of(accuracy.ranking)
    text = (
        f"{mean.sets} sets of runs that differ in strategy alone; on average Spearman {view.figure(mean.spearman)}, Kendall"
        f" {view.figure(mean.kendall)}, {view.percent(mean.pairwise)} of the pairs more than 5 % apart in the right order, and the strategy"
        f" ranked first {view.percent(mean.regret)} slower than the best measured."
    )
    shown = sorted(accuracy.ranking, key=lambda each: (-each.regret, each.group))[:SETS]
    parts = (paragraph(text), table(view.RANKING_COLUMNS, map(view.ranking_row, shown)))
    return Section(id="ranking", title="Ranking of strategies", parts=parts)


def _worst(accuracy: Accuracy) -> Section | None:
    rows = [view.worst_row(accuracy, row) for row in view.worst_times(accuracy, WORST)]
    parts = (table(view.WORST_COLUMNS, rows, words=(0, 4)),)
    return Section(id="worst", title="Largest errors of step time", parts=parts) if rows else None


def _skipped(accuracy: Accuracy) -> Section | None:
    if not accuracy.skipped:
        return None
    rows = [(reason.text, f"{reason.rows:,}", ", ".join(reason.examples)) for reason in view.reasons(accuracy.skipped)[:REASONS]]
    parts = (table(("reason", "rows", "such as"), rows, words=(0, 2)),)
    return Section(id="skipped", title=f"Skipped ({len(accuracy.skipped):,} rows)", parts=parts)
