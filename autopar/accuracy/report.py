"""Accuracy as a person reads it in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from rich.text import Text

from autopar.report.tables import bullet_list, plain_table

from . import view
from .metrics import ErrorSummary
from .score import NOT_STATED, Accuracy

if TYPE_CHECKING:
    from rich.console import RenderableType

SHOWN_SETS, SHOWN_WORST, SHOWN_REASONS, SHOWN_GROUPS = 12, 10, 15, 60


def accuracy_report(accuracy: Accuracy) -> Iterator[RenderableType]:
    """The whole of ``autopar accuracy``: errors over all and by group, ranking, the worst rows, what was skipped."""
    yield Text(view.headline(accuracy), style="bold")
    if accuracy.predictions:
        yield _overall(accuracy)
        yield from (Text(line) for line in view.memory_lines(accuracy))
        yield from _group_tables("step time", accuracy.step_time_groups)
        yield from _group_tables("peak memory", accuracy.memory_groups)
        yield from _ranking(accuracy)
        yield from _worst(accuracy)
    if accuracy.skipped:
        yield _skipped(accuracy)


def _overall(accuracy: Accuracy) -> RenderableType:
    table = plain_table("error, predicted against measured", "", *view.ERROR_COLUMNS)
    for name, summary in (("step time", accuracy.step_time), ("peak memory", accuracy.memory)):
        if summary.rows:
            table.add_row(name, *view.error_row(summary))
    return table


def _group_tables(what: str, groups: Mapping[str, Mapping[str, ErrorSummary]]) -> Iterator[RenderableType]:
    for column, members in groups.items():
        if not members or set(members) == {NOT_STATED}:
            continue
        table = plain_table(f"{what} by {column}", column, *view.ERROR_COLUMNS)
        shown = sorted(members.items(), key=lambda item: -item[1].rows)[:SHOWN_GROUPS]
        for value, summary in sorted(shown):
            table.add_row(Text(value), *view.error_row(summary))
        if len(shown) < len(members):
            table.caption = f"the {len(shown)} largest of {len(members)} groups; --json has all"
        yield table


def _ranking(accuracy: Accuracy) -> Iterator[RenderableType]:
    if not accuracy.ranking:
        return
    mean = view.RankingMean.of(accuracy.ranking)
    table = plain_table(f"ranking of strategies in {mean.sets:,} sets of runs that differ in strategy alone", *view.RANKING_COLUMNS)
    table.columns[0].no_wrap = False
    figures = (view.figure(mean.spearman), view.figure(mean.kendall), view.percent(mean.pairwise), view.percent(mean.regret))
    table.add_row("mean over the sets", str(sum(each.rows for each in accuracy.ranking)), *figures, style="bold")
    shown = sorted(accuracy.ranking, key=lambda each: (-each.regret, each.group))[:SHOWN_SETS]
    for each in shown:
        set_name, *cells = view.ranking_row(each)
        table.add_row(Text(set_name), *cells)
    table.caption = "pairs right: of those more than 5 % apart. regret: measured time of the strategy ranked first over the best's, minus 1"
    if len(shown) < mean.sets:
        table.caption += f"\nthe {len(shown)} sets of largest regret; --json has all"
    table.caption_justify = "left"
    yield table


def _worst(accuracy: Accuracy) -> Iterator[RenderableType]:
    rows = view.worst_times(accuracy, SHOWN_WORST)
    if rows:
        table = plain_table("largest errors of step time", *view.WORST_COLUMNS)
        table.columns[-1].justify = "left"
        for row in rows:
            table.add_row(*(Text(cell) for cell in view.worst_row(accuracy, row)))
        yield table


def _skipped(accuracy: Accuracy) -> RenderableType:
    found = view.reasons(accuracy.skipped)
    texts = [
        f"{reason.rows:,} x {reason.text} ({', '.join(reason.examples)}{', …' if reason.rows > len(reason.examples) else ''})"
        for reason in found[:SHOWN_REASONS]
    ]
    if len(found) > SHOWN_REASONS:
        rest = sum(reason.rows for reason in found[SHOWN_REASONS:])
        texts.append(f"{rest:,} x other reasons; --json has all")
    return bullet_list(f"skipped ({len(accuracy.skipped):,} rows)", texts)
