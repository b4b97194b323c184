"""``autopar size`` as a person reads it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.text import Text

from autopar.costmodel.spec.units import format_bytes, format_count, format_seconds
from autopar.io.quantities import format_duration, format_money

from .tables import bullet_list, field_table, wrapped_table
from .text import lines

if TYPE_CHECKING:
    from rich.console import RenderableType

    from autopar.sizing import Missed, Run, Sized, Sizing


def size_report(found: Sizing) -> Iterator[RenderableType]:
    """The question, the clusters in order, the best one's plan, and those that do not make it."""
    yield _headline(found)
    if found.clusters:
        yield clusters_table(found)
        best = found.clusters[0]
        yield run_table(best.fewest, found, f"fewest GPUs on {best.cluster}")
        if best.cheapest.num_gpus != best.fewest.num_gpus:
            yield run_table(best.cheapest, found, f"cheapest on {best.cluster}: fewer GPU-hours, sooner")
    if found.missed:
        yield bullet_list("not by the deadline", [text for each in found.missed for text in _missed_texts(each)])
    yield from lines("assumed", found.assumptions)
    yield from lines("constraints", found.constraints)
    yield from lines("how sure", [_proof(each) for each in found.clusters])


def clusters_table(found: Sizing) -> RenderableType:
    """A cluster's cheapest number of GPUs, and its fewest where that is another one."""
    priced = any(each.cheapest.cost is not None for each in found.clusters)
    title = "cheapest first" if priced else "fewest GPU-hours first (no prices given)"
    table = wrapped_table(title, "cluster", "GPUs", "time", "GPU-hours", *(["cost"] if priced else []), "")
    for each in found.clusters:
        same = each.fewest.num_gpus == each.cheapest.num_gpus
        table.add_row(each.cluster, *_cells(each.cheapest, found.currency, priced), "fewest and cheapest" if same else "cheapest")
        if not same:
            table.add_row("", *_cells(each.fewest, found.currency, priced), "fewest")
    return table


def _cells(run: Run, currency: str, priced: bool) -> tuple[str, ...]:
    money = "-" if run.cost is None else format_money(run.cost, currency)
    cells = f"{run.num_gpus:,}", format_duration(run.wall_seconds), format_count(run.gpu_hours)
    return (*cells, money) if priced else cells


def run_table(run: Run, found: Sizing, title: str) -> RenderableType:
    """One run in full."""
    table = field_table(title)
    table.add_row("GPUs", f"{run.num_gpus:,} x {run.device} ({run.num_nodes:,} node{'s' * (run.num_nodes > 1)})")
    table.add_row("strategy", run.strategy.describe())
    kept = f", {format_seconds(run.expected_step_seconds)} a kept one" if run.expected_step_seconds > run.step_time_seconds else ""
    table.add_row("step time", f"{format_seconds(run.step_time_seconds)}{kept}; peak memory {format_bytes(run.peak_memory_bytes)} a GPU")
    table.add_row("time", f"{format_duration(run.wall_seconds)} for {run.num_steps:,} steps")
    table.add_row("GPU-hours", f"{run.gpu_hours:,.0f}")
    if run.cost is not None:
        table.add_row("cost", format_money(run.cost, found.currency))
    return table


def _headline(found: Sizing) -> Text:
    text = Text(found.model, style="bold")
    return text.append(
        f" on {format_count(found.tokens)} tokens in {format_duration(found.deadline_seconds)}: {found.num_steps:,} steps of"
        f" {found.global_batch_size:,} x {found.sequence_length:,} tokens",
        style="not bold",
    )


def _missed_texts(missed: Missed) -> Iterator[str]:
    for reason in missed.reasons:
        yield f"{missed.cluster}: {reason}"


def _proof(each: Sized) -> str:
    return (
        f"{each.cluster}: planned for {each.looked_at:,} number{'s' * (each.looked_at > 1)} of GPUs; none below {each.fewest.num_gpus:,}"
        f" meets the deadline, and none at all takes fewer than {format_count(each.least_gpu_hours)} GPU-hours"
    )
