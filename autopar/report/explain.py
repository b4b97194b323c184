"""``autopar explain`` as a person reads it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from autopar.costmodel.spec.units import format_bytes, format_seconds

from .tables import plain_table, wrapped_table
from .text import headline, lines, result_parts, strategy_table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from autopar.costmodel.problem import Problem
    from autopar.explanation import Explanation

MAX_CHANGES = 12


def explanation_report(problem: Problem, found: Explanation, assumptions: Sequence[str]) -> Iterator[RenderableType]:
    """Verdict, time and memory, then the changes that help."""
    yield headline(problem.model, problem.cluster, problem.training)
    yield strategy_table(found.strategy, problem.training.global_batch_size, "strategy")
    if found.refused_by:
        yield from lines(f"refused by {len(found.refused_by)} rule{'s' * (len(found.refused_by) > 1)}", _refusals(found), style="red")
    if found.estimate is not None:
        yield from result_parts(found.estimate)
    yield changes_table(found)
    if found.unmeasured:
        yield unmeasured_table(found)
    yield from lines("assumed", assumptions)
    if found.estimate is not None:
        yield from lines("warnings", found.estimate.warnings, style="yellow")
        yield from lines("where the numbers come from", [f"{term}: {origin}" for term, origin in found.estimate.provenance.items()])


def _refusals(found: Explanation) -> list[str]:
    names = found.rules if len(found.rules) == len(found.refused_by) else ("",) * len(found.refused_by)
    return [f"{name}: {fault}" if name else str(fault) for name, fault in zip(names, found.refused_by, strict=True)]


def unmeasured_table(found: Explanation) -> RenderableType:
    """The unmeasured shapes that bear most on the order of strategies."""
    table = plain_table(
        "not measured, and most likely to change the ranking (`autopar profile --for-plan` measures them)",
        "kernel", "shape", "of the step", "known to", "swing",
    )  # fmt: skip
    for doubt in found.unmeasured:
        sizes = " x ".join(f"{size:g}" for size in doubt.shape)
        table.add_row(doubt.kernel, sizes, format_seconds(doubt.seconds_a_step), f"{doubt.deviation:.0%}", f"{doubt.swing:.2f}")
    return table


def changes_table(found: Explanation) -> RenderableType:
    """The changes that fit and are faster than now, or that run where the strategy does not."""
    goal = "run faster" if found.runs else "run"
    if found.instead:
        return Text(f"no change of one or two steps makes it run\n{found.instead}", style="bold")
    if not found.changes:
        return Text(f"no single change makes it {goal}; `autopar plan` searches them all", style="bold")
    single = all(", then " not in change.change for change in found.changes)
    title = f"single changes that make it {goal}" if single else "no single change makes it run; two at once that do"
    table = wrapped_table(title, "change", "step", "vs now", "memory")
    now = found.estimate.step_time_seconds if found.estimate else 0.0
    for change in found.changes[:MAX_CHANGES]:
        versus = f"{change.step_time_seconds / now - 1:+.1%}" if now > 0 else "-"
        table.add_row(change.change, format_seconds(change.step_time_seconds), versus, format_bytes(change.peak_memory_bytes))
    return table
