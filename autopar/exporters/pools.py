"""Plans over pools of unlike devices in frameworks: which take one, what is written for it, and why another does not.

Stages by pool are an explicit layer split whose hosts start in the order of the pools; a framework's own rules decide as for one kind of
GPU. Replicas by pool run unequal numbers of micro-batches, or recompute otherwise, in each pool: no framework has that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autopar.costmodel.mixed import lane_strategy
from autopar.costmodel.mixed_estimate import mixed_estimate
from autopar.costmodel.spec.errors import AutoparError, Fault, InvalidInputError, NoPlanError
from autopar.costmodel.spec.mixed import Lane, MixedStrategy
from autopar.costmodel.spec.schedule import stage_holders
from autopar.costmodel.spec.strategy import PipelineSchedule
from autopar.costmodel.spec.units import format_seconds
from autopar.host_order import host_order
from autopar.mixed_problem import estimate_of, mixed_of, on_one_pool
from autopar.request import problem_of
from autopar.search.mixed_rules import MIXED_RULES, mixed_faults
from autopar.search.pool_space import whole_problem

from . import exporter, exporter_names
from .export import Export, Refusal, broken_rules, exported, in_place, refused
from .nearest import Nearest, respelled
from .question import Question
from .rule import BrokenRule, Enforcement, inexpressible

if TYPE_CHECKING:
    from autopar.costmodel.pools import MixedProblem
    from autopar.costmodel.problem import Problem
    from autopar.costmodel.spec.estimate import Estimate
    from autopar.costmodel.spec.plan import Plan
    from autopar.costmodel.spec.strategy import Strategy

    from .exporter import Exporter

UNEQUAL = "unequal_replicas"
"""The rule that keeps replicas by pool from every framework."""


def who_runs_it(plan: Plan) -> tuple[str, ...]:
    """Which of the frameworks that autopar exports to take a plan over pools, and by which rule the others do not."""
    assert plan.mixed is not None, "asked of plans for a mixed cluster"
    if len(plan.mixed.lanes) > 1:
        return (str(_unequal(plan)),)
    order = tuple(dict.fromkeys(plan.mixed.lanes[0].pools))
    takes = f"takes it: start the hosts of {', then '.join(order)}" if len(order) > 1 else f"takes it, on {order[0]} alone"
    stages, alone, found = _Stages.of(plan), on_one_pool(plan), []
    for name in exporter_names():
        target = exporter(name)
        broken = stages.refused_by(target) if alone is None else broken_rules(target, Question.of(problem_of(alone), alone.strategy))
        found.append(f"{name} {takes}" if not broken else f"{name} does not: {broken[0]}")
    return tuple(found)


def export_pools(plan: Plan, target: Exporter, *, take_nearest: bool) -> Export:
    """The files of a plan that uses several pools.

    Raises:
        NoPlanError: the framework does not take it; names the rules, and the nearest plan on the same pools that it takes.
    """
    assert plan.mixed is not None, "asked of plans for a mixed cluster"
    if len(plan.mixed.lanes) > 1:
        return _in_place_of_replicas(plan, target, take_nearest=take_nearest)
    stages = _Stages.of(plan)
    if not (broken := stages.refused_by(target)):
        question = stages.question(target, stages.plan.strategy)
        return exported(plan, target, question, stages.estimate(target, question))
    found = _nearest(stages, target)
    plain = stages.unplaced(stages.plan.strategy)
    if found is None or not take_nearest:
        on = f" on {found[1].describe()}" if found and found[1] != stages.lane else ""
        raise refused(plan, target, plain, broken, found and found[0], _instead(stages, target, broken), on)
    nearest, lane = found
    question = stages.question(target, nearest.strategy, lane)
    return in_place(plan, plain, exported(plan, target, question, stages.estimate(target, question, lane)))


def _as_its_lane(plan: Plan) -> Plan:
    """``plan`` with its lane's recomputation as the strategy's."""
    assert plan.mixed is not None, "asked of plans for a mixed cluster"
    (lane,) = plan.mixed.lanes
    plain = replace(plan.mixed, lanes=(replace(lane, stage_recompute_layers=()),))
    return replace(plan, strategy=lane_strategy(plan.strategy, lane), mixed=plain)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stages:
    """A plan of one lane, with its problem; the same for all frameworks."""

    plan: Plan
    problem: MixedProblem
    whole: Problem
    """As if all GPUs were of one kind: what frameworks' rules look at."""
    lane: Lane

    @classmethod
    def of(cls, plan: Plan) -> _Stages:
        plan = _as_its_lane(plan)
        problem, mixed = mixed_of(plan)
        whole = whole_problem(problem, tuple(problem.place(name) for name in mixed.pools))
        return cls(plan=plan, problem=problem, whole=whole, lane=mixed.lanes[0])

    def unplaced(self, strategy: Strategy) -> Question:
        """``strategy`` as exporters work on it, without hosts."""
        return Question.of(self.whole, strategy)

    def kept(self, target: Exporter) -> tuple[str, ...]:
        """Settings that the plan was imported with from the same framework."""
        return self.plan.inputs.kept_settings if self.plan.inputs.imported_from == target.name else ()

    def question(self, target: Exporter, strategy: Strategy, lane: Lane | None = None) -> Question:
        """``strategy`` as ``target`` works on it, with its hosts in the order of ranks.

        Raises:
            InvalidInputError: the ranks of a node would be in two pools.
        """
        assert self.plan.mixed is not None, "asked of plans for a mixed cluster"
        on = replace(self.plan.mixed, lanes=(lane or self.lane,))
        return replace(self.unplaced(strategy), hosts=host_order(on, strategy), kept=self.kept(target))

    def refused_by(self, target: Exporter, strategy: Strategy | None = None, lane: Lane | None = None) -> tuple[BrokenRule, ...]:
        """Why ``target`` does not take ``strategy``, the plan's own if left out; empty where it does."""
        strategy = strategy or self.plan.strategy
        try:
            mixed = MixedStrategy(strategy=strategy, lanes=(lane or self.lane,))
            unsound = [fault for rule in MIXED_RULES for fault in rule.check(self.problem, mixed)]
            return inexpressible(unsound) or broken_rules(target, self.question(target, strategy, lane))
        except InvalidInputError as error:
            return inexpressible(error.faults)

    def under(self, target: Exporter, question: Question) -> MixedProblem:
        """The problem as the target framework runs it."""
        profile = target.profile(question)
        pools = (replace(pool, problem=replace(pool.problem, framework=profile)) for pool in self.problem.pools)
        return replace(self.problem, pools=tuple(pools))

    def estimate(self, target: Exporter, question: Question, lane: Lane | None = None) -> Estimate:
        return mixed_estimate(self.under(target, question), MixedStrategy(strategy=question.strategy, lanes=(lane or self.lane,)))


def _nearest(stages: _Stages, target: Exporter) -> tuple[Nearest, Lane] | None:
    """The fastest strategy that the framework takes, that no rule refuses and that fits, with its lane.

    As few changes away as there is one. The pipeline stays in its pools: single fields are respelled, then two; the plan's runners-up
    come last.
    """
    once = list(_one_change(stages, stages.plan.strategy))
    twice = [strategy for between in once for strategy in _one_change(stages, between)]
    others = [(other.strategy, other.lanes[0]) for other in stages.plan.alternatives if _is_staged(other.lanes)]
    for near in ([(each, stages.lane) for each in once], [(each, stages.lane) for each in twice], others):
        found = [taken for strategy, lane in dict.fromkeys(near) if (taken := _taken(stages, target, strategy, lane)) is not None]
        if found:
            return min(found, key=lambda each: each[0].step_time_seconds)
    return None


def _is_staged(lanes: tuple[Lane, ...]) -> bool:
    """Whether one pipeline runs through several pools."""
    return len(lanes) == 1 and len(set(lanes[0].pools)) > 1


def _taken(stages: _Stages, target: Exporter, strategy: Strategy, lane: Lane) -> tuple[Nearest, Lane] | None:
    """What ``strategy`` takes under the framework; None where that does not take it, a rule refuses it, or it does not fit."""
    try:
        if stages.refused_by(target, strategy, lane):
            return None
        question = stages.question(target, strategy, lane)
        problem = stages.under(target, question)
        if mixed_faults(problem, MixedStrategy(strategy=question.strategy, lanes=(lane,))):
            return None
        result = stages.estimate(target, question, lane)
    except AutoparError:
        return None
    if not result.fits:
        return None
    nearest = Nearest(
        strategy=question.strategy,
        framework=problem.question.framework.id,
        step_time_seconds=result.step_time_seconds,
        peak_memory_bytes=result.peak_memory_bytes,
    )
    return nearest, lane


def _one_change(stages: _Stages, strategy: Strategy) -> Iterator[Strategy]:
    """Changes of one field that keep every stage on its GPUs, each rank with its layers."""
    yield replace(strategy, sequence_parallel=False)
    yield from _rescheduled(strategy, stages.unplaced(strategy).layers)
    yield from (candidate for candidate in respelled(stages.unplaced(strategy), strategy) if candidate.pipeline_layers)


def _rescheduled(strategy: Strategy, layers: tuple[int, ...]) -> Iterator[Strategy]:
    """Plain 1F1B, and interleaved where ranks have several stages: each rank with the layers it has."""
    ranks, virtual = strategy.pipeline_parallel_size, strategy.virtual_pipeline_stages
    holders = stage_holders(strategy.pipeline_schedule, ranks, virtual)
    held = [[count for count, holder in zip(layers, holders, strict=False) if holder == rank] for rank in range(ranks)]
    if sum(map(len, held)) != len(holders) or strategy.stage_recompute_layers:
        return
    plain = {"pipeline_schedule": PipelineSchedule.ONE_F_ONE_B, "virtual_pipeline_stages": 1, "pipeline_layers": tuple(map(sum, held))}
    yield replace(strategy, **plain)  # type: ignore[arg-type]
    if virtual > 1:
        dealt = tuple(held[rank][chunk] for chunk in range(virtual) for rank in range(ranks))
        yield replace(strategy, pipeline_schedule=PipelineSchedule.INTERLEAVED, pipeline_layers=dealt)


def _instead(stages: _Stages, target: Exporter, broken: Sequence[BrokenRule]) -> str:
    """What to do where nothing near the plan is taken: another framework, or another plan."""
    profile = target.profile(stages.unplaced(stages.plan.strategy)).id
    if not any(part in rule.fault.field for rule in broken for part in ("pipeline_parallel", "pipeline_layers")):
        return f"`autopar plan` with the same pools, --pools-as stages and --framework {profile} looks for one that it takes"
    takers = [name for name in exporter_names() if not stages.refused_by(exporter(name))]
    to = f"; {', '.join(takers)} {'takes' if len(takers) == 1 else 'take'} this plan as it is" if takers else ""
    alone = f"; for one pool alone: {_alone(stages.plan, profile)}"
    return f"{target.name} runs no stages that are sized to their pool{to}{alone}"


def _alone(plan: Plan, profile: str) -> str:
    """The command that plans for the pool that is fastest by itself."""
    from autopar.catalog.hardware import device_aliases, device_names

    assert plan.mixed is not None, "asked of plans for a mixed cluster"
    sizes = {pool.name: pool.cluster.num_gpus for pool in plan.mixed.pools}
    times = {each.name.removesuffix(" alone"): each.step_time_seconds for each in plan.mixed.references if each.step_time_seconds}
    name = min(sizes, key=lambda pool: times.get(pool, float("inf")))
    flag = "--gpu" if name.lower() in (*device_names(), *device_aliases()) else "--cluster"
    return f"`autopar plan {flag} {name} --gpus {sizes[name]} --framework {profile}`"


def _unequal(plan: Plan) -> BrokenRule:
    """The rule that replicas by pool break, with the fastest plan that does not."""
    assert plan.mixed is not None, "asked of plans for a mixed cluster"
    beside = ""
    if (one_lane := next((each for each in plan.alternatives if len(each.lanes) == 1), None)) is not None:
        said = MixedStrategy(strategy=one_lane.strategy, lanes=one_lane.lanes).describe()
        slower = one_lane.step_time_seconds / plan.estimate.step_time_seconds - 1
        beside = f" (the fastest that one runs is {slower:.1%} slower: {said})"
    runs = ", ".join(f"{lane.num_microbatches} on {'/'.join(dict(lane.ranks_by_pool))}" for lane in plan.mixed.lanes)
    why = "no framework that autopar exports to, nor its own runtime, gives replicas unequal micro-batches or recomputation"
    fault = Fault(field="micro-batches", given=runs, required=why, fix=f"plan with --pools-as stages{beside}")
    return BrokenRule(rule=UNEQUAL, enforcement=Enforcement.HARD, fault=fault)


def _in_place_of_replicas(plan: Plan, target: Exporter, *, take_nearest: bool) -> Export:
    """The export of the fastest runner-up of stages that ``target`` takes, where that is wanted.

    Raises:
        NoPlanError: the rule of unequal replicas, and that runner-up.
    """
    assert plan.mixed is not None, "asked of plans for a mixed cluster"
    found = next(_runners_up(plan, target), None)
    if found is not None and take_nearest:
        other, done = found
        said = f"in place of the plan's own replicas by pool: {MixedStrategy(strategy=done.strategy, lanes=other).describe()}"
        return replace(done, replaces=plan.strategy, notes=(said, *done.notes))
    broken = _unequal(plan)
    reasons = [
        f"{target.name} ({target.version}) does not take this plan:"
        f" {MixedStrategy(strategy=plan.strategy, lanes=plan.mixed.lanes).describe()}",
        f"  {broken}",
    ]
    nearest = None
    if found is not None:
        lanes, done = found
        nearest = Nearest(
            strategy=done.strategy,
            framework=target.profile(Question.of(mixed_of(plan)[0].question, done.strategy)).id,
            step_time_seconds=done.estimate.step_time_seconds,
            peak_memory_bytes=done.estimate.peak_memory_bytes,
        )
        reasons += [
            f"nearest that it takes: {MixedStrategy(strategy=done.strategy, lanes=lanes).describe()}",
            f"  {format_seconds(nearest.step_time_seconds)} a step under {nearest.framework}; --nearest writes it",
        ]
    answer = Refusal(
        framework=target.name,
        version=target.version,
        strategy=plan.strategy,
        broken=(broken,),
        planned_step_time_seconds=plan.estimate.step_time_seconds,
        nearest=nearest,
        reasons=tuple(reasons),
    )
    raise NoPlanError("\n".join(reasons), answer)


def _runners_up(plan: Plan, target: Exporter) -> Iterator[tuple[tuple[Lane, ...], Export]]:
    """The runners-up of stages over several pools that ``target`` takes, as exports, the fastest first."""
    assert plan.mixed is not None, "asked of plans for a mixed cluster"
    for each in plan.alternatives:
        if _is_staged(each.lanes):
            other = replace(plan, strategy=each.strategy, mixed=replace(plan.mixed, lanes=each.lanes), alternatives=())
            other = replace(other, estimate=estimate_of(other))
            with contextlib.suppress(NoPlanError):
                yield each.lanes, export_pools(other, target, take_nearest=False)
