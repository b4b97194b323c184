"""``autopar explain`` as a person reads it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from autopar.costmodel.spec.units import format_bytes, format_seconds

from .placement import placement_parts
from .tables import plain_table, wrapped_table
from .text import headline, lines, result_parts, strategy_table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from autopar.against import AgainstBest
    from autopar.costmodel.problem import Problem
    from autopar.costmodel.spec.strategy import Strategy
    from autopar.explanation import Explanation

MAX_CHANGES = 12
SHOWN_LOSS = 0.001
"""Terms that differ by a smaller share of the best step are left out."""


def explanation_report(problem: Problem, found: Explanation, assumptions: Sequence[str]) -> Iterator[RenderableType]:
    """Verdict, time and memory, then the changes that help."""
    yield headline(problem.model, problem.cluster, problem.training)
    yield strategy_table(found.strategy, problem.training.global_batch_size, "strategy")
    if found.refused_by:
        yield from lines(f"refused by {len(found.refused_by)} rule{'s' * (len(found.refused_by) > 1)}", _refusals(found), style="red")
    if found.estimate is not None:
        yield from result_parts(found.estimate)
        yield from placement_parts(problem.cluster, found.placement, found.estimate.step_time_seconds)
    yield changes_table(found)
    if found.against_best is not None:
        yield best_table(found.against_best, found.strategy)
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


def best_table(found: AgainstBest, strategy: Strategy) -> RenderableType:
    """Where the strategy loses against the best one, by term."""
    if found.best == strategy:
        return Text("against the best: it is the best of its space", style="bold")
    remark = ", a tie: closer than the model orders measured runs reliably" if found.tie else ""
    if found.loses_seconds < 0 and not found.tie:
        remark = ", faster than all that the search enumerates"
    verdict = f"{found.loses_fraction:+.1%}{remark}"
    title = f"against the best ({found.best.describe()}): {verdict}"
    table = plain_table(title, "term", "this", "best", "loses", "share")
    shown = [term for term in found.terms if abs(term.loses_seconds) >= SHOWN_LOSS * found.step_time_seconds]
    for term in shown:
        times = (format_seconds(seconds) if seconds > 0 else "-" for seconds in (term.seconds, term.best_seconds))
        share = f"{term.loses_seconds / found.step_time_seconds:+.1%}"
        table.add_row(term.term.replace("_", " "), *times, _signed(term.loses_seconds), share)
    total = (format_seconds(found.step_time_seconds + found.loses_seconds), format_seconds(found.step_time_seconds))
    table.add_row("step", *total, _signed(found.loses_seconds), f"{found.loses_fraction:+.1%}", style="bold")
    if shown and shown[0].loses_seconds > 0:
        name = shown[0].term.replace("_", " ")
        table.caption, table.caption_justify = f"most is lost in {name}, which rests on {shown[0].rests_on}", "left"
    return table


def _signed(seconds: float) -> str:
    return f"{'+' if seconds > 0 else '-' if seconds < 0 else ''}{format_seconds(abs(seconds))}"
