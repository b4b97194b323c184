"""Another of a plan's strategies taken for its first."""

from __future__ import annotations

from dataclasses import replace

from autopar.costmodel.estimate import estimate
from autopar.costmodel.spec.errors import Fault, InvalidInputError
from autopar.costmodel.spec.plan import Alternative, Plan
from autopar.costmodel.spec.strategy import Strategy
from autopar.request import problem_of


def strategies(plan: Plan, count: int) -> tuple[Strategy, ...]:
    """The plan's first ``count`` strategies, its choice first."""
    return (plan.strategy, *(other.strategy for other in plan.alternatives))[:count]


def choose(plan: Plan, strategy: Strategy) -> Plan:
    """``plan`` with ``strategy`` as its choice, estimated; the choice before becomes the first alternative.

    Raises:
        InvalidInputError: ``strategy`` is none of the plan's.
    """
    if strategy == plan.strategy:
        return plan
    if strategy not in strategies(plan, 1 + len(plan.alternatives)):
        required = "is neither the plan's strategy nor an alternative"
        raise InvalidInputError(Fault(field="strategy", given=strategy.describe(), required=required))
    before = Alternative(
        strategy=plan.strategy,
        step_time_seconds=plan.estimate.step_time_seconds,
        peak_memory_bytes=plan.estimate.peak_memory_bytes,
        tie=next(other.tie for other in plan.alternatives if other.strategy == strategy),
    )
    others = tuple(other for other in plan.alternatives if other.strategy != strategy)
    return replace(plan, strategy=strategy, estimate=estimate(problem_of(plan), strategy), alternatives=(before, *others))
