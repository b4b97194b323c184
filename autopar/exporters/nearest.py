"""The nearest plan that a framework takes: one field repaired, then two, then the best of all that the search enumerates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from autopar.costmodel.estimate import estimate
from autopar.costmodel.problem import Problem
from autopar.costmodel.spec.errors import AutoparError
from autopar.costmodel.spec.strategy import ContextParallelKind, PipelineSchedule, Recompute, Strategy, split_text
from autopar.explanation import neighbours
from autopar.search import Constraints, search
from autopar.search.feasibility import faults

from .exporter import Exporter
from .question import Question
from .rule import INEXPRESSIBLE, BrokenRule

RANKED = 200
"""Strategies of a search under the framework's profile that are tried in turn."""
PLAINER: tuple[dict[str, int], ...] = (
    {"pipeline_parallel_size": 1, "num_recompute_layers": 0},
    {"pipeline_parallel_size": 2, "num_recompute_layers": 0},
    {"pipeline_parallel_size": 1, "context_parallel_size": 1, "num_recompute_layers": 0},
    {"pipeline_parallel_size": 2, "context_parallel_size": 1, "num_recompute_layers": 0},
    {"pipeline_parallel_size": 1, "tensor_parallel_size": 1, "num_recompute_layers": 0},
)
"""What is fixed in further searches where none of the fastest is taken: plans that every framework comes near to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearest:
    """A strategy that a framework takes, with what it should take there."""

    strategy: Strategy
    framework: str
    """The execution profile of the figures."""
    step_time_seconds: float
    peak_memory_bytes: float


def nearest_plan(target: Exporter, question: Question, broken: Sequence[BrokenRule]) -> Nearest | None:
    """The fastest strategy that ``target`` takes and that fits, as few changes away as there is one; None where there is none.

    No strategy helps against a model or a precision that the framework does not have: ``broken`` says so.
    """
    if any(rule.rule == INEXPRESSIBLE and _is_about_the_question(rule.fault.field) for rule in broken):
        return None
    problem = replace(question.problem, framework=target.profile(question))
    once = list(_one_change(question))
    for strategies in (once, _two_changes(question, once)):
        if (found := _fastest(target, problem, question, strategies)) is not None:
            return found
    if (found := next(_taken(target, problem, question, _ranked(problem, {})), None)) is not None:
        return found
    plainer = (next(_taken(target, problem, question, _ranked(problem, fixed)), None) for fixed in PLAINER)
    return min((found for found in plainer if found), key=lambda found: found.step_time_seconds, default=None)


def _ranked(problem: Problem, fixed: Mapping[str, int]) -> Iterator[Strategy]:
    """The fastest strategies of the search with some fields fixed."""
    try:
        yield from (each.strategy for each in search(problem, Constraints(fixed=fixed), top=RANKED).ranked)
    except AutoparError:
        return


def changed_fields(before: Strategy, after: Strategy) -> str:
    """``context_parallel_kind ring -> all_gather``: every field that two strategies differ in."""
    pairs = [(f.name, getattr(before, f.name), getattr(after, f.name)) for f in fields(Strategy)]
    return ", ".join(f"{name} {_said(old)} -> {_said(new)}" for name, old, new in pairs if old != new)


def _said(value: object) -> str:
    if isinstance(value, tuple):
        return split_text(value) if value else "even"
    return str(value).lower() if isinstance(value, bool) else str(getattr(value, "value", value))


def _is_about_the_question(field: str) -> bool:
    return field.startswith("model") or field in ("precision", "optimizer")


def _fastest(target: Exporter, problem: Problem, question: Question, strategies: Iterable[Strategy]) -> Nearest | None:
    return min(_taken(target, problem, question, strategies), key=lambda found: found.step_time_seconds, default=None)


def _taken(target: Exporter, problem: Problem, question: Question, strategies: Iterable[Strategy]) -> Iterator[Nearest]:
    """Those of ``strategies`` that the framework takes, that no rule refuses and that fit."""
    for strategy in strategies:
        candidate = Question.of(question.problem, strategy, kept=question.kept)
        try:
            under = replace(problem, framework=target.profile(candidate))
            if faults(under, candidate.strategy) or target.broken_rules(candidate):
                continue
            result = estimate(under, candidate.strategy)
        except AutoparError:
            continue
        if result.fits:
            yield Nearest(
                strategy=candidate.strategy,
                framework=under.framework.id,
                step_time_seconds=result.step_time_seconds,
                peak_memory_bytes=result.peak_memory_bytes,
            )


def _one_change(question: Question) -> Iterator[Strategy]:
    """Single fields that a framework may lack, at their other values; then the changes that keep the number of GPUs."""
    strategy = question.strategy
    yield from respelled(question, strategy)
    yield from (candidate for _, candidate in neighbours(strategy))


def respelled(question: Question, strategy: Strategy) -> Iterator[Strategy]:
    """``strategy`` with single fields at the values that other frameworks have for them."""
    yield replace(strategy, pipeline_layers=())
    for kind in ContextParallelKind:
        yield replace(strategy, context_parallel_kind=kind)
    yield replace(strategy, expert_tensor_parallel_size=1)
    yield replace(strategy, shard_group_size=0)
    if strategy.stage_recompute_layers:
        yield replace(strategy, stage_recompute_layers=())
    if strategy.recompute is Recompute.FULL:
        step = strategy.virtual_pipeline_stages
        yield replace(strategy, num_recompute_layers=0)
        yield replace(strategy, num_recompute_layers=-(-strategy.num_recompute_layers // step) * step)
    plain = {"pipeline_schedule": PipelineSchedule.ONE_F_ONE_B, "virtual_pipeline_stages": 1, "pipeline_layers": ()}
    yield replace(strategy, **plain)  # type: ignore[arg-type]
    for virtual in (2, 4):
        if strategy.pipeline_parallel_size * virtual <= question.model.num_layers:
            changes = {"pipeline_schedule": PipelineSchedule.INTERLEAVED, "virtual_pipeline_stages": virtual, "pipeline_layers": ()}
            yield replace(strategy, **changes)  # type: ignore[arg-type]


def _two_changes(question: Question, once: Iterable[Strategy]) -> Iterator[Strategy]:
    seen: set[Strategy] = {question.strategy}
    for between in once:
        for candidate in (*respelled(question, between), *(following for _, following in neighbours(between))):
            if candidate not in seen:
                seen.add(candidate)
                yield candidate
