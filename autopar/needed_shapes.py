"""The shapes that models and plans ask of a device, for a profiler that has little time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from autopar.costmodel.estimate import shapes_asked
from autopar.costmodel.spec.errors import AutoparError
from autopar.request import build_problem, problem_of

if TYPE_CHECKING:
    from autopar.api import Inputs
    from autopar.costmodel.measured import Use
    from autopar.costmodel.problem import Problem
    from autopar.costmodel.spec.cluster import ClusterSpec
    from autopar.costmodel.spec.measured import MeasuredProfile
    from autopar.costmodel.spec.plan import Plan
    from autopar.costmodel.spec.strategy import Strategy

TOP_STRATEGIES = 8
"""Of a model's search: the strategies whose shapes are measured."""


def of_plan(plan: Plan, profile: MeasuredProfile | None = None) -> tuple[Use, ...]:
    """What the plan's strategy and its runners-up ask for, judged by ``profile`` where one is given, else by the plan's own."""
    problem = problem_of(plan if profile is None else replace(plan, inputs=replace(plan.inputs, measured=profile)))
    return _of_strategies(problem, [plan.strategy, *(other.strategy for other in plan.alternatives)])


def of_model(model: str | Path, cluster: ClusterSpec, profile: MeasuredProfile, inputs: Inputs) -> tuple[Use, ...]:
    """What the fastest strategies for ``model`` on ``cluster`` ask for; of those that fit nowhere, none."""
    from autopar.search import search

    inputs = {**inputs, "cluster": cluster, "profile": profile}
    problem, _ = build_problem(model, **inputs)
    ranked = search(problem, top=TOP_STRATEGIES).ranked
    return _of_strategies(problem, [each.strategy for each in ranked])


def _of_strategies(problem: Problem, strategies: Sequence[Strategy]) -> tuple[Use, ...]:
    found: dict[object, Use] = {}
    for strategy in strategies:
        for use in _asked(problem, strategy):
            found.setdefault(use.key, use)
    return tuple(found.values())


def _asked(problem: Problem, strategy: Strategy) -> Iterable[Use]:
    try:
        return shapes_asked(problem, strategy)
    except AutoparError:
        return ()
