"""``autopar explain`` of a plan for a mixed cluster as a person reads it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.text import Text

from autopar.costmodel.spec.units import format_bytes, format_seconds

from .mixed import mixed_report
from .tables import plain_table, wrapped_table
from .text import lines

if TYPE_CHECKING:
    from rich.console import RenderableType

    from autopar.costmodel.spec.plan import Plan
    from autopar.mixed_explanation import MixedExplanation

MAX_ROWS = 32


def mixed_explanation_report(plan: Plan, found: MixedExplanation, runs: Sequence[str]) -> Iterator[RenderableType]:
    """The plan's own report with this release's figures, then the load of its stages and what near uses of the pools would take.

    Args:
        plan: that is explained.
        found: its explanation.
        runs: which frameworks take it.
    """
    if found.refused_by:
        count = len(found.refused_by)
        yield from lines(f"refused by {count} rule{'s' * (count > 1)}", [str(fault) for fault in found.refused_by], style="red")
    if found.estimate is None:
        yield _changes_table(found)
        return
    yield from mixed_report(replace(plan, estimate=found.estimate), runs)
    yield _loads_table(found)
    yield _changes_table(found)
    yield from lines("where the numbers come from", [f"{term}: {origin}" for term, origin in found.estimate.provenance.items()])


def _loads_table(found: MixedExplanation) -> RenderableType:
    """How evenly the work is shared out."""
    table = plain_table("how evenly the pools are loaded", "rank", "pool", "layers", "a micro-batch", "of the busiest", "memory", left=2)
    for load in found.loads[:MAX_ROWS]:
        table.add_row(
            str(load.pipeline_rank),
            load.pool,
            str(load.num_layers),
            format_seconds(load.microbatch_seconds),
            f"{load.of_busiest:.1%}",
            f"{load.peak_memory_bytes / load.memory_capacity_bytes:.0%}",
        )
    least = min(found.loads, key=lambda load: load.of_busiest)
    table.caption = f"least loaded: {least.pool}, rank {least.pipeline_rank}"
    table.caption_justify = "left"
    return table


def _changes_table(found: MixedExplanation) -> RenderableType:
    """What each change would take: slower, too large, or worth while."""
    if not found.changes:
        return Text("no single change runs on these pools", style="bold")
    now = found.estimate.step_time_seconds if found.estimate is not None else float("inf")
    table = wrapped_table("why this one: single changes, layers and shares else as they are", "change", "step", "vs now", "memory")
    for change in found.changes:
        versus = f"{change.step_time_seconds / now - 1:+.1%}" if found.estimate is not None else "-"
        memory = f"{format_bytes(change.peak_memory_bytes)}{'' if change.fits else f' of {format_bytes(change.memory_capacity_bytes)}'}"
        table.add_row(change.change, format_seconds(change.step_time_seconds), versus, Text(memory, style="" if change.fits else "red"))
    better = [change for change in found.changes if change.fits and change.step_time_seconds < now]
    too_large = sum(not change.fits for change in found.changes)
    what = "are faster" if found.estimate is not None else "run"
    said = f"{len(better)} of them fit and {what}" if better else "none of them fits and is faster"
    table.caption = f"{said}{f'; {too_large} do not fit' if too_large else ''}"
    table.caption_justify = "left"
    return table
