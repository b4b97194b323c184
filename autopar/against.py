"""A strategy beside the best one: where it loses, term by term."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from autopar.costmodel.separation import CONSTANT_BEHIND
from autopar.costmodel.spec.strategy import Strategy

if TYPE_CHECKING:
    from autopar.costmodel.problem import Problem
    from autopar.costmodel.spec.estimate import Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class TermLoss:
    """One term of the step time in both."""

    term: str
    """A field of the time breakdown."""
    seconds: float
    best_seconds: float
    loses_seconds: float
    """By how much this strategy takes longer in it; below zero where it wins."""
    rests_on: str
    """The constant of the cost model behind the term."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgainstBest:
    """The best strategy of the problem, and the difference. ``terms`` add up to ``loses_seconds``, the largest first."""

    best: Strategy
    step_time_seconds: float
    peak_memory_bytes: float
    loses_seconds: float
    loses_fraction: float
    """Of the best step time."""
    tie: bool
    """Closer than the model orders measured runs reliably; also where the strategy is the best itself."""
    terms: tuple[TermLoss, ...]


def against_best(problem: Problem, strategy: Strategy, now: Estimate) -> AgainstBest | None:
    """``strategy``, whose estimate is ``now``, against what the search finds for ``problem``; None where nothing fits.

    The terms are those of the rank that paces each step, which need not be the same one in both.
    """
    from autopar.costmodel.estimate import estimate
    from autopar.search import search
    from autopar.search.solve import tie_gap

    chosen = search(problem, top=1).best
    if chosen is None:
        return None
    best = now if chosen == strategy else estimate(problem, chosen)
    loses = now.step_time_seconds - best.step_time_seconds
    terms = [
        TermLoss(
            term=field.name,
            seconds=getattr(now.time, field.name),
            best_seconds=getattr(best.time, field.name),
            loses_seconds=getattr(now.time, field.name) - getattr(best.time, field.name),
            rests_on=CONSTANT_BEHIND[field.name],
        )
        for field in fields(now.time)
    ]
    return AgainstBest(
        best=chosen,
        step_time_seconds=best.step_time_seconds,
        peak_memory_bytes=best.peak_memory_bytes,
        loses_seconds=loses,
        loses_fraction=loses / best.step_time_seconds,
        tie=abs(loses) <= best.step_time_seconds * tie_gap(problem),
        terms=tuple(sorted(terms, key=lambda term: -abs(term.loses_seconds))),
    )
