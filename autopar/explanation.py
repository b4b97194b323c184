"""Why a strategy is as it is: the rules that refuse it, its estimate, and what one change would do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from autopar.against import AgainstBest, against_best
from autopar.costmodel.spec.errors import AutoparError, Fault
from autopar.costmodel.spec.estimate import Estimate
from autopar.costmodel.spec.plan import Placement
from autopar.costmodel.spec.strategy import PipelineSchedule, RankOrder, Recompute, Strategy, split_text
from autopar.doubtful import Doubt

if TYPE_CHECKING:
    from autopar.costmodel.problem import Problem

EXPLANATION_SCHEMA_VERSION = "1.2"
WORTHWHILE = 0.002
"""A change that saves a smaller share of the step is noise."""
MAX_PAIRS = 1500
"""Strategies two changes away that are looked at."""
MAX_COMPARED = 6
"""Strategies that unmeasured shapes are weighed against."""
MAX_TWO_STEPS = 12
"""Of those that run, the fastest that are told."""

AXES = {
    "tensor_parallel_size": "tp",
    "pipeline_parallel_size": "pp",
    "context_parallel_size": "cp",
    "expert_parallel_size": "ep",
    "expert_tensor_parallel_size": "etp",
    "virtual_pipeline_stages": "vpp",
    "micro_batch_size": "mbs",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing changed, and what comes of it."""

    change: str
    """``tp 8 -> 4 (dp 8 -> 16)``: the field, and what follows from it at the same number of GPUs."""
    strategy: Strategy
    fits: bool
    step_time_seconds: float
    peak_memory_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """``estimate`` is None where a rule other than memory refuses the strategy; ``changes`` all fit, fastest first.

    ``refused_by`` has every rule that the strategy breaks, memory included.
    """

    strategy: Strategy
    refused_by: tuple[Fault, ...]
    estimate: Estimate | None
    changes: tuple[Change, ...]
    rules: tuple[str, ...] = ()
    """Names of the rules that refuse it, one for each of ``refused_by``."""
    instead: str = ""
    """Where no change of one or two steps makes it run: the best strategy of these GPUs, or the fewest GPUs that hold the model."""
    fits: bool = False
    """The same as ``runs``, for programs: the word that an estimate has too."""
    against_best: AgainstBest | None = None
    """None where a rule refuses the strategy, or where nothing fits these GPUs."""
    unmeasured: tuple[Doubt, ...] = ()
    """Under a measured profile: the shapes without a measurement that could change the order of strategies."""
    placement: Placement | None = None
    """Where the ranks sit, on a network of several levels or on named hosts. Since 1.2."""
    schema_version: str = EXPLANATION_SCHEMA_VERSION

    @property
    def runs(self) -> bool:
        """No rule refuses the strategy and it fits in memory."""
        return not self.refused_by and self.estimate is not None and self.estimate.fits


def explain_strategy(problem: Problem, strategy: Strategy) -> Explanation:
    """Rules, estimate and the single changes that fit and are faster (or, where it does not run, that run).

    Where no single change makes it run, two at once are tried; where those do not either, what else would hold the model.
    """
    from autopar.costmodel.estimate import estimate
    from autopar.placing import placement_of
    from autopar.search.feasibility import MEMORY, RULES, memory_fault

    broken = [(rule.name, fault) for rule in RULES if (fault := rule.fault(problem, strategy)) is not None]
    refused = tuple(fault for _, fault in broken)
    now = None if refused else estimate(problem, strategy)
    too_large = memory_fault(now.peak_memory_bytes, now.memory_capacity_bytes) if now is not None and not now.fits else None
    refused += (too_large,) if too_large is not None else ()
    limit = float("inf") if now is None or refused else now.step_time_seconds * (1 - WORTHWHILE)
    changes = [change for change in single_changes(problem, strategy) if change.fits and change.step_time_seconds < limit]
    if refused and not changes:
        changes = list(two_changes(problem, strategy))
    changes.sort(key=lambda change: change.step_time_seconds)
    return Explanation(
        strategy=strategy,
        refused_by=refused,
        estimate=now,
        changes=tuple(changes),
        rules=(*(name for name, _ in broken), *((MEMORY,) if too_large is not None else ())),
        instead=_instead(problem) if refused and not changes else "",
        fits=not refused,
        against_best=None if now is None else against_best(problem, strategy, now),
        placement=None if refused and now is None else placement_of(problem, strategy),
        unmeasured=_unmeasured(problem, strategy, changes) if now is not None and not broken else (),
    )


def _unmeasured(problem: Problem, strategy: Strategy, changes: Sequence[Change]) -> tuple[Doubt, ...]:
    """Doubts between the strategy and the closest of those one change away; none without a measured profile."""
    from autopar.doubtful import doubtful_shapes

    if problem.measured is None:
        return ()
    near = list(changes) or [change for change in single_changes(problem, strategy) if change.fits]
    near.sort(key=lambda change: change.step_time_seconds)
    return doubtful_shapes(problem, strategy, [change.strategy for change in near[:MAX_COMPARED]])


def neighbours(strategy: Strategy) -> Iterator[tuple[str, Strategy]]:
    """Strategies one change away at the same number of GPUs, each with the words for the change.

    An axis is doubled or halved and data parallelism takes up the difference; where it cannot, another axis
    does. Virtual stages bring the schedule that runs them.
    """
    seen = {strategy}
    for label, candidate in _candidates(strategy):
        if candidate not in seen and candidate.world_size == strategy.world_size:
            seen.add(candidate)
            yield label, candidate


def single_changes(problem: Problem, strategy: Strategy) -> Iterator[Change]:
    yield from _evaluated_ones(problem, (*neighbours(strategy), *_respread(problem, strategy)))


def _evaluated_ones(problem: Problem, candidates: Iterable[tuple[str, Strategy]]) -> Iterator[Change]:
    from autopar.costmodel.estimate import estimate
    from autopar.search.feasibility import faults

    for label, candidate in candidates:
        try:
            if faults(problem, candidate):
                continue
            result = estimate(problem, candidate)
        except AutoparError:
            continue
        yield Change(
            change=label,
            strategy=candidate,
            fits=result.fits,
            step_time_seconds=result.step_time_seconds,
            peak_memory_bytes=result.peak_memory_bytes,
        )


def two_changes(problem: Problem, strategy: Strategy) -> Iterator[Change]:
    """The fastest of the strategies two changes away that run: all are evaluated at once, as the search does it."""
    from autopar.costmodel.columns import StrategyColumns
    from autopar.costmodel.inputs import Inputs
    from autopar.costmodel.step import evaluate
    from autopar.search.feasibility import RULES

    pairs = list(islice(_pairs(strategy), MAX_PAIRS))
    columns = StrategyColumns.of([candidate for _, candidate in pairs])
    kept = np.flatnonzero(np.logical_and.reduce([np.broadcast_to(rule.mask(problem, columns), len(pairs)) for rule in RULES]))
    if not len(kept):
        return
    try:
        found = evaluate(Inputs.of(problem), columns.take(kept))
    except AutoparError:
        return
    rows = np.flatnonzero(found.fits)
    for row in rows[np.argsort(found.step_time_seconds[rows], kind="stable")][:MAX_TWO_STEPS]:
        label, candidate = pairs[int(kept[row])]
        yield from _evaluated_ones(problem, [(label, candidate)])


def _pairs(strategy: Strategy) -> Iterator[tuple[str, Strategy]]:
    """Strategies that two changes lead to and one does not."""
    once = list(neighbours(strategy))
    seen = {strategy, *(candidate for _, candidate in once)}
    for first, between in once:
        for second, candidate in neighbours(between):
            if candidate not in seen:
                seen.add(candidate)
                yield f"{first}, then {second}", candidate


def _instead(problem: Problem) -> str:
    """The best strategy of these GPUs; where there is none, the fewest GPUs that hold the model."""
    from autopar.request import resized
    from autopar.search import search, smallest_cluster

    best = search(problem, top=1).best
    if best is not None:
        return f"`autopar plan` finds for these GPUs: {best.describe()}"
    smallest = smallest_cluster(problem, resize=lambda gpus: resized(problem, gpus))
    if smallest is None:
        return "no strategy of these GPUs fits, and no number of them holds the model with this batch and sequence length"
    on, ranked = smallest
    count = on.cluster.num_gpus
    return f"no strategy of these GPUs fits; the fewest of their kind that hold the model: {count:,} ({ranked.strategy.describe()})"


def _respread(problem: Problem, strategy: Strategy) -> Iterator[tuple[str, Strategy]]:
    """The same pipeline with its layers spread so that the head weighs less on its heaviest rank."""
    from autopar.costmodel.inputs import Inputs
    from autopar.costmodel.pipeline_shape import lighter_split

    sizes = strategy.pipeline_parallel_size, strategy.virtual_pipeline_stages
    if strategy.pipeline_parallel_size == 1 or strategy.num_virtual_stages > problem.model.num_layers:
        return
    lighter = lighter_split(Inputs.of(problem), strategy.pipeline_schedule, *sizes)
    if lighter != strategy.pipeline_layers:
        now, then = (split_text(layers) if layers else "even" for layers in (strategy.pipeline_layers, lighter))
        yield f"layers of stages {now} -> {then}", replace(strategy, pipeline_layers=lighter)


def _candidates(strategy: Strategy) -> Iterator[tuple[str, Strategy]]:
    yield from _resized(strategy)
    for stage in range(4):
        yield f"zero {strategy.zero_stage} -> {stage}", replace(strategy, zero_stage=stage)
    for kind in Recompute:
        modules = strategy.recompute_modules if kind is Recompute.SELECTIVE else ()
        changed = replace(strategy, recompute=kind, num_recompute_layers=0, recompute_modules=modules)
        yield f"recompute {_recompute(strategy)} -> {_recompute(changed)}", changed
    if strategy.recompute is Recompute.FULL:
        for count in _partial_layers(strategy):
            yield f"recompute {_recompute(strategy)} -> full({count} layers)", replace(strategy, num_recompute_layers=count)
    yield from _rescheduled(strategy)
    if strategy.pipeline_parallel_size > 1 and strategy.data_parallel_size > 1:
        for order in RankOrder:
            yield f"order {strategy.rank_order.value} -> {order.value}", replace(strategy, rank_order=order)
    other = not strategy.sequence_parallel
    if strategy.tensor_parallel_size > 1:
        yield f"sequence parallel {'on' if other else 'off'}", replace(strategy, sequence_parallel=other)


def _resized(strategy: Strategy) -> Iterator[tuple[str, Strategy]]:
    data = strategy.data_parallel_size
    for field, short in AXES.items():
        size = getattr(strategy, field)
        for new in (size * 2, size // 2):
            if new < 1 or (new == size // 2 and size % 2):
                continue
            changes: dict[str, object] = {field: new, **_following(strategy, field, new)}
            label = f"{short} {size} -> {new}"
            if field in ("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size"):
                if data * size % new:
                    continue
                changes["data_parallel_size"] = data * size // new
                label += f" (dp {data} -> {data * size // new})"
            yield label, replace(strategy, **changes)  # type: ignore[arg-type]
    tensor, pipeline = strategy.tensor_parallel_size, strategy.pipeline_parallel_size
    for new_tensor, new_pipeline in ((tensor * 2, pipeline // 2), (tensor // 2, pipeline * 2)):
        if new_tensor * new_pipeline == tensor * pipeline and new_tensor and new_pipeline:
            changes = {"tensor_parallel_size": new_tensor, "pipeline_parallel_size": new_pipeline, "pipeline_layers": ()}
            changes |= _following(strategy, "tensor_parallel_size", new_tensor) | _following(
                strategy, "pipeline_parallel_size", new_pipeline
            )
            yield f"tp {tensor} -> {new_tensor} (pp {pipeline} -> {new_pipeline})", replace(strategy, **changes)  # type: ignore[arg-type]


def _following(strategy: Strategy, field: str, new: int) -> dict[str, object]:
    """What has to change along with ``field`` for the strategy to stay of one piece."""
    if field == "tensor_parallel_size":
        return {"sequence_parallel": new > 1 and (strategy.sequence_parallel or strategy.tensor_parallel_size == 1)}
    if field == "virtual_pipeline_stages":
        return {"pipeline_schedule": PipelineSchedule.INTERLEAVED if new > 1 else PipelineSchedule.ONE_F_ONE_B, "pipeline_layers": ()}
    if field == "pipeline_parallel_size":
        single = {"virtual_pipeline_stages": 1, "pipeline_schedule": PipelineSchedule.ONE_F_ONE_B} if new == 1 else {}
        return {"pipeline_layers": (), **single}
    return {}


def _rescheduled(strategy: Strategy) -> Iterator[tuple[str, Strategy]]:
    if strategy.pipeline_parallel_size == 1:
        return
    for schedule in PipelineSchedule:
        chunks = {PipelineSchedule.INTERLEAVED: max(2, strategy.virtual_pipeline_stages), PipelineSchedule.DUALPIPE: 2}.get(schedule, 1)
        for virtual in (1, 2) if schedule is PipelineSchedule.ZERO_BUBBLE else (chunks,):
            layers = strategy.pipeline_layers if virtual == strategy.virtual_pipeline_stages else ()
            changed = replace(strategy, pipeline_schedule=schedule, virtual_pipeline_stages=virtual, pipeline_layers=layers)
            extra = f", vpp {strategy.virtual_pipeline_stages} -> {virtual}" if virtual != strategy.virtual_pipeline_stages else ""
            yield f"schedule {strategy.pipeline_schedule.value} -> {schedule.value}{extra}", changed


def _partial_layers(strategy: Strategy) -> tuple[int, ...]:
    now = strategy.num_recompute_layers
    return (now - 1, now + 1, now // 2, now * 2) if now > 1 else (1, 2, 4, 8)


def _recompute(strategy: Strategy) -> str:
    count = f"({strategy.num_recompute_layers} layers)" if strategy.num_recompute_layers else ""
    if strategy.recompute_modules:
        count = f"({'+'.join(strategy.recompute_modules)})"
    return f"{strategy.recompute.value}{count}"
