"""``autopar compare`` as a person reads it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.text import Text

from . import compare_view as view
from .tables import plain_table, wrapped_table
from .text import lines

if TYPE_CHECKING:
    from rich.console import RenderableType

    from autopar.comparison import Comparison


def comparison_report(comparison: Comparison) -> Iterator[RenderableType]:
    """Who is who, the figures, what differs, where time and memory moved, what is not comparable."""
    if same := view.one_question(comparison):
        yield Text(same, style="bold")
    yield _legend(comparison)
    yield _headline(comparison)
    yield Text(view.verdict(comparison), style="bold")
    yield _costs(comparison)
    yield from lines("what to keep in mind", comparison.notes, style="yellow")
    if comparison.differences:
        table = plain_table("what differs", "", *(plan.label for plan in comparison.plans), left=1 + len(comparison.plans))
        for difference in comparison.differences:
            table.add_row(difference.field, *difference.values)
        yield table
    yield from _moved(comparison)


def _legend(comparison: Comparison) -> RenderableType:
    table = plain_table("plans", "", "name", "strategy", left=3)
    for row in view.legend(comparison):
        table.add_row(*row)
    return table


def _headline(comparison: Comparison) -> RenderableType:
    table = plain_table("side by side", *view.COLUMNS)
    for plan in comparison.plans:
        style = "red" if not plan.estimate.fits else "bold" if plan is comparison.plans[comparison.fastest] else ""
        table.add_row(*view.headline_row(comparison, plan), style=style)
    return table


def _costs(comparison: Comparison) -> RenderableType:
    table = plain_table("what a token takes", *view.cost_columns(comparison))
    for plan in comparison.plans:
        table.add_row(*view.cost_row(plan))
    return table


def _moved(comparison: Comparison) -> Iterator[RenderableType]:
    for title, movements, row in (
        (view.time_title(comparison), comparison.time, view.time_row),
        ("where the memory moved (fullest pipeline rank of each)", comparison.memory, view.memory_row),
    ):
        table = wrapped_table(title, *view.moved_columns(comparison, "term" if row is view.time_row else "kind"))
        for movement in view.moved(movements):
            table.add_row(*row(movement))
        table.add_row(*row(view.total(movements)), style="bold")
        yield table
