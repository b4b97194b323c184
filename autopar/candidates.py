"""The plans of a comparison: read, understood and estimated by this release."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from autopar.comparison import Candidate
from autopar.costmodel.estimate import estimate
from autopar.costmodel.mixed_estimate import mixed_estimate
from autopar.costmodel.problem import Problem
from autopar.costmodel.spec.errors import Fault, NoPlanError, raise_if
from autopar.costmodel.spec.estimate import Estimate
from autopar.costmodel.spec.plan import Plan
from autopar.costmodel.spec.strategy import Strategy
from autopar.io.plan_file import read_plan
from autopar.mixed_problem import mixed_of, told_as_one
from autopar.no_plan import NoPlan, refusal_text
from autopar.request import gather, problem_of
from autopar.search.feasibility import faults
from autopar.search.mixed_rules import mixed_faults

_Named = tuple[str, Problem, Strategy, Plan | None]
"""Name, problem and strategy, and the plan that they come from."""


def candidates(plans: Iterable[str | Path | Plan | tuple[Problem, Strategy]]) -> tuple[Candidate, ...]:
    """Each plan with its estimate; files go by their names alone where those differ.

    Raises:
        InvalidInputError: files that are no plans, all of them at once.
        NoPlanError: naming every plan whose strategy a rule refuses.
    """
    unreadable: list[Fault] = []
    plans = list(plans)
    names = [Path(each).name for each in plans if isinstance(each, str | Path)]
    short = len(set(names)) == len(names)
    asked = [one for each in plans if (one := gather(unreadable, lambda given=each: _named(given, short))) is not None]  # type: ignore[misc]
    raise_if(unreadable)
    return _estimated(asked)


def _named(given: str | Path | Plan | tuple[Problem, Strategy], short: bool) -> _Named:
    """What one of the plans to compare is.

    Raises:
        InvalidInputError: a file that is no plan.
    """
    if isinstance(given, tuple):
        return given[1].describe(), given[0], given[1], None
    if isinstance(given, Plan):
        return given.strategy.describe(), _question_of(given), given.strategy, given
    plan = read_plan(given)
    return Path(given).name if short else str(given), _question_of(plan), plan.strategy, plan


def _question_of(plan: Plan) -> Problem:
    """The question of ``plan``; of a mixed cluster as tables name it."""
    return problem_of(plan) if plan.mixed is None else told_as_one(plan)


def _estimated(asked: Iterable[_Named]) -> tuple[Candidate, ...]:
    found: list[Candidate] = []
    refused: list[Fault] = []
    messages: list[str] = []
    for name, problem, strategy, plan in asked:
        broken, evaluated, pools = _judged(problem, strategy, plan)
        if evaluated is None:
            refused += broken
            messages.append(f"{name}: {refusal_text(strategy, broken)}")
            continue
        found.append(
            Candidate(
                name=name,
                problem=problem,
                strategy=strategy,
                estimate=evaluated,
                pools=pools,
                stored_step_time_seconds=plan.estimate.step_time_seconds if plan else None,
                autopar_version=plan.autopar_version if plan else "",
            )
        )
    if refused:
        message = "\n".join(messages)
        raise NoPlanError(message, NoPlan(reasons=tuple(message.splitlines()), faults=tuple(refused)))
    return tuple(found)


def _judged(problem: Problem, strategy: Strategy, plan: Plan | None) -> tuple[tuple[Fault, ...], Estimate | None, str]:
    """The rules that refuse a strategy, else its estimate, and on which pools it is."""
    if plan is None or plan.mixed is None:
        broken = faults(problem, strategy)
        return broken, None if broken else estimate(problem, strategy), ""
    asked, mixed = mixed_of(plan)
    broken = mixed_faults(asked, mixed)
    return broken, None if broken else mixed_estimate(asked, mixed), " + ".join(lane.describe() for lane in mixed.lanes)
