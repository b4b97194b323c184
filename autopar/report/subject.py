"""What a report is about: one strategy of one question, and all that is told of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autopar.costmodel.spec.errors import InvalidInputError

if TYPE_CHECKING:
    from autopar.costmodel.problem import Problem
    from autopar.costmodel.spec.estimate import Estimate
    from autopar.costmodel.spec.plan import Plan
    from autopar.costmodel.spec.strategy import Strategy
    from autopar.costmodel.step_timeline import StepTimeline
    from autopar.explanation import Change
    from autopar.landscape import Landscape
    from autopar.search import Constraints


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A strategy with its estimate; ``plan`` where a search found it, ``changes`` where somebody wrote it down."""

    problem: Problem
    strategy: Strategy
    estimate: Estimate
    assumptions: tuple[str, ...]
    landscape: Landscape
    timeline: StepTimeline | None
    not_drawn: str
    """Why there is no timeline; empty where there is one."""
    plan: Plan | None = None
    changes: tuple[Change, ...] = ()


def subject_of_plan(plan: Plan, problem: Problem) -> Subject:
    """All that is told of ``plan``, with the numbers that its file has; ``problem`` is the question it answers."""
    from autopar.landscape import landscape

    drawn, why = _timeline(problem, plan.strategy)
    return Subject(
        problem=problem,
        strategy=plan.strategy,
        estimate=plan.estimate,
        assumptions=plan.inputs.assumptions,
        landscape=landscape(problem, _constraints(plan.inputs.constraints)),
        timeline=drawn,
        not_drawn=why,
        plan=plan,
    )


def subject_of_strategy(problem: Problem, strategy: Strategy, estimate: Estimate, assumptions: tuple[str, ...]) -> Subject:
    """All that is told of a strategy that somebody wrote down, with the single changes that would help."""
    from autopar.explanation import explain_strategy
    from autopar.landscape import landscape

    drawn, why = _timeline(problem, strategy)
    return Subject(
        problem=problem,
        strategy=strategy,
        estimate=estimate,
        assumptions=assumptions,
        landscape=landscape(problem),
        timeline=drawn,
        not_drawn=why,
        changes=explain_strategy(problem, strategy).changes,
    )


def _timeline(problem: Problem, strategy: Strategy) -> tuple[StepTimeline | None, str]:
    from autopar.costmodel.step_timeline import step_timeline

    try:
        return step_timeline(problem, strategy), ""
    except InvalidInputError as error:
        return None, str(error)


def _constraints(texts: tuple[str, ...]) -> Constraints:
    """The constraints that a plan file names, as the search takes them: ``tp=8``, ``max tp=8``, ``min pp=2``, ``forbid cp``."""
    from autopar.io.flags import parse_assignments, parse_limits, parse_names
    from autopar.search import Constraints

    def starting(word: str) -> list[str]:
        return [text.removeprefix(f"{word} ") for text in texts if text.startswith(f"{word} ")]

    return Constraints(
        fixed=parse_assignments([text for text in texts if " " not in text], flag="--fix"),
        maximum=parse_limits(starting("max"), flag="--max"),
        minimum=parse_limits(starting("min"), flag="--min"),
        forbidden=frozenset(parse_names(starting("forbid"), flag="--forbid")),
    )
