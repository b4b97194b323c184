"""A diagnosis as a person reads it: today, what explains a measured step, and what to change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from autopar.costmodel.spec.units import format_bytes, format_seconds

from .tables import bullet_list, field_table, wrapped_table
from .text import headline, result_parts, strategy_table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from autopar.costmodel.problem import Problem
    from autopar.diagnosis import Diagnosis, Gain


def diagnosis_report(problem: Problem, found: Diagnosis, assumptions: Sequence[str]) -> Iterator[RenderableType]:
    """The whole of ``autopar plan --improve``."""
    yield headline(problem.model, problem.cluster, problem.training)
    yield strategy_table(found.strategy, problem.training.global_batch_size, "today")
    if found.refused_by:
        yield bullet_list("refused by", [str(fault) for fault in found.refused_by], style="red")
    if found.estimate is not None:
        yield from result_parts(found.estimate)
    if found.measured_step_time_seconds is not None and found.estimate is not None:
        yield _measured(found)
    if found.causes:
        yield _causes(found)
    if found.terms:
        yield _terms(found)
    yield _gains("one change", found.one_change, found)
    if found.two_changes:
        yield _gains("two changes", found.two_changes, found)
    if assumptions:
        yield bullet_list("assumed", assumptions)


def _measured(found: Diagnosis) -> RenderableType:
    assert found.estimate is not None
    measured = found.measured_step_time_seconds or 0.0
    estimated = found.estimate.step_time_seconds
    table = field_table("measured against estimated")
    table.add_row("measured", format_seconds(measured))
    table.add_row("estimated", format_seconds(estimated))
    table.add_row(
        "difference",
        f"{format_seconds(abs(measured - estimated))} {'more' if measured >= estimated else 'less'} ({measured / estimated - 1:+.1%})",
    )
    verdict = {True: "where 9 in 10 comparable runs lie", False: "outside the range of 9 in 10 comparable runs: look for a cause"}
    if found.within_interval is not None:
        table.add_row("that is", verdict[found.within_interval])
    return table


def _causes(found: Diagnosis) -> RenderableType:
    table = wrapped_table("what would explain the difference, if it were so", "cause", "step", "explains")
    for cause in found.causes:
        table.add_row(cause.cause, format_seconds(cause.step_time_seconds), f"{cause.share_of_difference:.0%}")
    return table


def _terms(found: Diagnosis) -> RenderableType:
    table = wrapped_table("how often its estimate one term would have to take, alone", "term", "estimate", "times")
    for term in found.terms:
        table.add_row(term.term.replace("_", " "), format_seconds(term.estimated_seconds), f"{term.factor:.2f}")
    return table


def _gains(title: str, gains: Sequence[Gain], found: Diagnosis) -> RenderableType:
    if not gains:
        goal = "makes it run" if found.refused_by else "makes it faster"
        return Text(f"{title}: none {goal}", style="bold")
    measured = found.measured_step_time_seconds is not None
    table = wrapped_table(f"{title}, the best first", "change", "step" if measured else "estimate", "saves", "memory")
    for gain in gains:
        saves = f"{gain.saved_share:.1%}" if found.estimate is not None else "-"
        table.add_row(gain.change.change, format_seconds(gain.expected_seconds), saves, format_bytes(gain.change.peak_memory_bytes))
    if measured and found.estimate is not None:
        table.caption = "step: the measured one, changed as the estimates change"
        table.caption_justify = "left"
    return table
