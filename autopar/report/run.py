"""What a run took, for a person."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autopar.costmodel.spec.units import format_bytes, format_count, format_seconds

from .tables import bullet_list, field_table, plain_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from autopar.run_dry import DryRun
    from autopar.run_result import Comparison, RunResult

RANKS_SHOWN = 16


def run_report(result: RunResult) -> list[RenderableType]:
    """One run: speed, loss and memory, beside what was planned."""
    table = field_table(f"{result.strategy}")
    table.add_row("model", result.model)
    table.add_row("ranks", f"{result.world_size} on {result.device}")
    table.add_row("steps", f"{result.first_step} to {result.first_step + result.steps - 1}")
    table.add_row("loss", f"{result.first_loss:.4f} to {result.last_loss:.4f}")
    planned_for_this = result.mfu is not None
    planned = result.planned_step_time_seconds
    off = f", planned {format_seconds(planned)} ({planned / result.step_time_seconds - 1:+.0%})"
    table.add_row(
        "step time", f"{format_seconds(result.step_time_seconds)} median of {len(result.step_seconds)}{off if planned_for_this else ''}"
    )
    table.add_row("tokens/s", f"{format_count(result.tokens_per_second)}, {format_count(result.tokens_per_second_per_gpu)} a rank")
    if result.mfu is not None:
        table.add_row("MFU", f"{result.mfu:.1%}")
    kind = "tensors" if result.memory_kind == "allocated" else "whole process"
    off = f", planned {format_bytes(result.planned_peak_memory_bytes)}" if planned_for_this else ""
    table.add_row("peak memory", f"{_memory(result.peak_memory_bytes)} ({kind}){off}")
    if result.checkpoint:
        table.add_row("checkpoint", result.checkpoint)
    return [table, *([bullet_list("Notes", result.notes)] if result.notes else [])]


def comparison_report(compared: Comparison) -> list[RenderableType]:
    """Strategies that were run, measured beside planned; the fastest is marked."""
    table = plain_table("", "", "strategy", "measured", "planned", "tokens/s", "peak memory", left=2)
    for index, contender in enumerate(compared.contenders):
        mark, result = "*" if index == compared.best else "", contender.result
        if result is None:
            table.add_row(mark, contender.strategy, "failed", "", "", "")
            continue
        table.add_row(
            mark,
            contender.strategy,
            format_seconds(result.step_time_seconds),
            format_seconds(result.planned_step_time_seconds),
            format_count(result.tokens_per_second),
            format_bytes(max(result.peak_memory_bytes)),
        )
    return [table]


def dry_run_report(found: DryRun) -> list[RenderableType]:
    """One rank as it was built, beside the plan."""
    facts = field_table(found.strategy)
    facts.add_row("model", found.model)
    places = ", ".join(f"{axis} {index}" for axis, index in found.coordinates.items())
    facts.add_row("rank", f"{found.rank} of {found.world_size:,} ({places})")
    facts.add_row("layers", ", ".join(f"{first} to {last - 1}" if last > first else "none" for first, last in found.layers))
    facts.add_row("parameters", f"{found.num_parameters:,}, planned {found.planned_num_parameters:,}")
    table = plain_table("Memory of this rank", "", "built", "planned")
    for each in found.memory:
        table.add_row(each.name, "-" if each.built is None else format_bytes(each.built), format_bytes(each.planned))
    counted = [each for each in found.memory if each.built is not None]
    table.add_row("counted", format_bytes(sum(each.built or 0 for each in counted)), format_bytes(sum(each.planned for each in counted)))
    facts_of_device = f"{format_bytes(found.memory_capacity_bytes)} on the device"
    return [facts, table, bullet_list("Notes", (facts_of_device, *found.notes))]


def _memory(peaks: Sequence[int]) -> str:
    if len(set(peaks)) == 1 or len(peaks) > RANKS_SHOWN:
        return f"{format_bytes(max(peaks))} at most"
    return ", ".join(f"{rank}: {format_bytes(peak)}" for rank, peak in enumerate(peaks))
