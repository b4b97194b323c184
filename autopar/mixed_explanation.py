"""Why a plan for a mixed cluster is as it is: what each pool's stages take, and what every near way to use the pools would."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby, permutations
from math import lcm

from autopar.costmodel.mixed_estimate import mixed_estimate
from autopar.costmodel.pools import MixedProblem
from autopar.costmodel.spec.errors import AutoparError, Fault
from autopar.costmodel.spec.estimate import Estimate
from autopar.costmodel.spec.mixed import Lane, MixedStrategy, Reference
from autopar.costmodel.spec.plan import Plan
from autopar.costmodel.spec.schedule import stage_holders
from autopar.costmodel.spec.strategy import PipelineSchedule, Recompute, Strategy
from autopar.mixed_problem import mixed_of
from autopar.search.feasibility import memory_fault
from autopar.search.mixed_rules import mixed_faults

MIXED_EXPLANATION_SCHEMA_VERSION = "1.0"
MAX_ENDS = 4
"""Stages of a pool that a layer is taken from, or given to."""
MAX_ORDERS = 5
"""Other orders of the pools."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLoad:
    """One pipeline rank of one lane."""

    pool: str
    pipeline_rank: int
    num_layers: int
    microbatch_seconds: float
    """Forward and backward of one micro-batch through all its stages."""
    of_busiest: float
    """Its work of the step over that of the busiest rank: where it is below one, the pool waits."""
    peak_memory_bytes: float
    memory_capacity_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedChange:
    """One thing changed, layers and shares of the batch else as they are, and what comes of it."""

    change: str
    strategy: Strategy
    lanes: tuple[Lane, ...]
    fits: bool
    step_time_seconds: float
    peak_memory_bytes: float
    memory_capacity_bytes: float
    """Of the GPU whose memory is fullest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedExplanation:
    """``estimate`` is None where a rule other than memory refuses the strategy; ``changes`` are fastest first."""

    strategy: Strategy
    lanes: tuple[Lane, ...]
    refused_by: tuple[Fault, ...]
    fits: bool
    estimate: Estimate | None
    loads: tuple[StageLoad, ...]
    changes: tuple[MixedChange, ...]
    references: tuple[Reference, ...]
    """What planning as if all GPUs were alike would come to."""
    schema_version: str = MIXED_EXPLANATION_SCHEMA_VERSION


def explain_mixed(plan: Plan) -> MixedExplanation:
    """The estimate of a plan for a mixed cluster by this release, the load of every rank, and single changes with what they would take.

    Raises:
        InvalidInputError: the plan is for one kind of GPU.
    """
    problem, mixed = mixed_of(plan)
    refused = mixed_faults(problem, mixed)
    now = None if refused else mixed_estimate(problem, mixed)
    if now is not None and (too_large := memory_fault(now.peak_memory_bytes, now.memory_capacity_bytes)) is not None:
        refused = (too_large,)
    return MixedExplanation(
        strategy=mixed.strategy,
        lanes=mixed.lanes,
        refused_by=refused,
        fits=not refused,
        estimate=now,
        loads=() if now is None else tuple(_loads(mixed, now)),
        changes=tuple(sorted(_changes(problem, mixed), key=lambda change: change.step_time_seconds)),
        references=plan.mixed.references if plan.mixed is not None else (),
    )


def _loads(mixed: MixedStrategy, now: Estimate) -> Iterator[StageLoad]:
    """A row for each stage of the estimate, whose rows go lane by lane."""
    counts = [lane.num_microbatches for lane in mixed.lanes for _ in lane.pools]
    seconds = [stage.forward_seconds + stage.backward_seconds for stage in now.stages]
    busiest = max(count * each for count, each in zip(counts, seconds, strict=True))
    for count, each, stage in zip(counts, seconds, now.stages, strict=True):
        yield StageLoad(
            pool=stage.pool,
            pipeline_rank=stage.pipeline_rank,
            num_layers=stage.num_layers,
            microbatch_seconds=each,
            of_busiest=count * each / busiest,
            peak_memory_bytes=stage.peak_memory_bytes,
            memory_capacity_bytes=stage.memory_capacity_bytes or now.memory_capacity_bytes,
        )


def _changes(problem: MixedProblem, mixed: MixedStrategy) -> Iterator[MixedChange]:
    """The fastest of each kind of change, one that fits before one that does not."""
    found = [change for label, other in _near(problem, mixed) if (change := _evaluated(problem, label, other)) is not None]
    for _, alike in groupby(sorted(found, key=lambda change: change.change), key=lambda change: change.change):
        yield min(alike, key=lambda change: (not change.fits, change.step_time_seconds))


def _evaluated(problem: MixedProblem, label: str, other: MixedStrategy) -> MixedChange | None:
    try:
        if mixed_faults(problem, other):
            return None
        result = mixed_estimate(problem, other)
    except AutoparError:
        return None
    return MixedChange(
        change=label,
        strategy=other.strategy,
        lanes=other.lanes,
        fits=result.fits,
        step_time_seconds=result.step_time_seconds,
        peak_memory_bytes=result.peak_memory_bytes,
        memory_capacity_bytes=result.memory_capacity_bytes,
    )


def _near(problem: MixedProblem, mixed: MixedStrategy) -> Iterator[tuple[str, MixedStrategy]]:
    yield from _moved_layers(problem, mixed)
    yield from _other_orders(problem, mixed)
    yield from _moved_microbatches(mixed)
    for change in (*_sizes(mixed.strategy), *_recomputes(mixed.strategy)):
        yield from _with(mixed, *change)


def _with(mixed: MixedStrategy, label: str, strategy: Strategy) -> Iterator[tuple[str, MixedStrategy]]:
    """``mixed`` under another strategy of as many ranks a stage; another micro-batch changes their number."""
    before, after = mixed.strategy, strategy
    lanes = []
    for lane in mixed.lanes:
        replicas, rest = divmod(lane.data_parallel_size * after.data_parallel_size, before.data_parallel_size)
        runs, odd = divmod(
            lane.num_microbatches * before.micro_batch_size * before.data_parallel_size, after.micro_batch_size * after.data_parallel_size
        )
        if rest or odd or not replicas or not runs or lane.short_replicas:
            return
        recompute = lane.stage_recompute_layers if after.recompute is Recompute.FULL else ()
        lanes.append(replace(lane, data_parallel_size=replicas, num_microbatches=runs, stage_recompute_layers=recompute))
    try:
        yield label, MixedStrategy(strategy=strategy, lanes=tuple(lanes))
    except AutoparError:
        return


def _moved_layers(problem: MixedProblem, mixed: MixedStrategy) -> Iterator[tuple[str, MixedStrategy]]:
    """A layer more on one pool and one less on another, from and to any of their stages."""
    layers = _layers(problem, mixed.strategy)
    if len(mixed.lanes) > 1 or not layers:
        return
    pools = _stage_pools(mixed)
    for source, target in permutations(mixed.pools, 2):
        givers = sorted(
            (stage for stage, pool in enumerate(pools) if pool == source and layers[stage] > 1), key=lambda stage: -layers[stage]
        )
        takers = sorted((stage for stage, pool in enumerate(pools) if pool == target), key=lambda stage: layers[stage])
        for giver in givers[:MAX_ENDS]:
            for taker in takers[:MAX_ENDS]:
                moved = list(layers)
                moved[giver] -= 1
                moved[taker] += 1
                strategy = replace(mixed.strategy, pipeline_layers=tuple(moved))
                yield f"a layer from {source} to {target}", replace(mixed, strategy=strategy)


def _stage_pools(mixed: MixedStrategy) -> list[str]:
    """The pool of every virtual stage."""
    strategy = mixed.strategy
    holders = stage_holders(strategy.pipeline_schedule, strategy.pipeline_parallel_size, strategy.virtual_pipeline_stages)
    return [mixed.lanes[0].pools[rank] for rank in holders]


def _layers(problem: MixedProblem, strategy: Strategy) -> tuple[int, ...]:
    """Decoder layers of every virtual stage; empty where an even split leaves some over."""
    each, over = divmod(problem.question.model.num_layers, strategy.num_virtual_stages)
    return strategy.pipeline_layers or (() if over else (each,) * strategy.num_virtual_stages)


def _other_orders(problem: MixedProblem, mixed: MixedStrategy) -> Iterator[tuple[str, MixedStrategy]]:
    """The pools in another order, each with the layers it has."""
    layers, strategy = _layers(problem, mixed.strategy), mixed.strategy
    if len(mixed.lanes) > 1 or not layers or strategy.stage_recompute_layers or mixed.lanes[0].stage_recompute_layers:
        return
    (lane,) = mixed.lanes
    holders = stage_holders(strategy.pipeline_schedule, strategy.pipeline_parallel_size, strategy.virtual_pipeline_stages)
    held = {rank: [layers[stage] for stage, holder in enumerate(holders) if holder == rank] for rank in set(holders)}
    ranks = {pool: [rank for rank, each in enumerate(lane.pools) if each == pool] for pool in mixed.pools}
    others = [order for order in permutations(mixed.pools) if order != mixed.pools]
    for order in others[:MAX_ORDERS]:
        moved = [rank for pool in order for rank in ranks[pool]]
        seen: Counter[int] = Counter()
        split = []
        for holder in holders:
            split.append(held[moved[holder]][seen[holder]])
            seen[holder] += 1
        pools = tuple(lane.pools[rank] for rank in moved)
        changed = replace(strategy, pipeline_layers=tuple(split))
        yield f"stages in the order {', '.join(order)}", MixedStrategy(strategy=changed, lanes=(replace(lane, pools=pools),))


def _moved_microbatches(mixed: MixedStrategy) -> Iterator[tuple[str, MixedStrategy]]:
    """The least share of the batch that can go from the replicas of one pool to those of another."""
    if any(lane.short_replicas for lane in mixed.lanes):
        return
    for source, target in permutations(range(len(mixed.lanes)), 2):
        here, there = mixed.lanes[source], mixed.lanes[target]
        share = lcm(here.data_parallel_size, there.data_parallel_size) * mixed.round_size
        fewer, more = share // here.data_parallel_size, share // there.data_parallel_size
        if here.num_microbatches > fewer:
            lanes = list(mixed.lanes)
            lanes[source] = replace(here, num_microbatches=here.num_microbatches - fewer)
            lanes[target] = replace(there, num_microbatches=there.num_microbatches + more)
            label = f"micro-batches from {'/'.join(dict(here.ranks_by_pool))} to {'/'.join(dict(there.ranks_by_pool))}"
            yield label, replace(mixed, lanes=tuple(lanes))


def _sizes(strategy: Strategy) -> Iterator[tuple[str, Strategy]]:
    """Other sizes that leave every stage its GPUs."""
    for axis in ("tensor", "context"):
        for grown in (True, False):
            yield from _traded(strategy, axis, grown=grown)
    micro = strategy.micro_batch_size
    yield f"mbs {micro} -> {2 * micro}", replace(strategy, micro_batch_size=2 * micro)
    if micro % 2 == 0:
        yield f"mbs {micro} -> {micro // 2}", replace(strategy, micro_batch_size=micro // 2)
    if strategy.zero_stage < 2:
        other = 1 - strategy.zero_stage
        yield f"zero {strategy.zero_stage} -> {other}", replace(strategy, zero_stage=other)


def _traded(strategy: Strategy, axis: str, *, grown: bool) -> Iterator[tuple[str, Strategy]]:
    """Twice the ranks on ``axis`` for half of the replicas, or the reverse."""
    field = f"{axis}_parallel_size"
    size, data = getattr(strategy, field), strategy.data_parallel_size
    if (data if grown else size) % 2:
        return
    now, replicas = (2 * size, data // 2) if grown else (size // 2, 2 * data)
    changed = replace(strategy, **{field: now, "data_parallel_size": replicas})
    if axis == "tensor":
        changed = replace(changed, sequence_parallel=now > 1 and (strategy.sequence_parallel or size == 1))
    yield f"{axis[0]}p {size} -> {now} (dp {data} -> {replicas})", changed


def _recomputes(strategy: Strategy) -> Iterator[tuple[str, Strategy]]:
    """The other kinds of recomputation, of all layers; and 1F1B in place of an interleaved schedule, each rank with its layers."""
    for kind in Recompute:
        if kind is not strategy.recompute:
            plain = replace(strategy, recompute=kind, num_recompute_layers=0, stage_recompute_layers=())
            yield f"recompute {strategy.recompute.value} -> {kind.value}", plain
    if strategy.pipeline_schedule is PipelineSchedule.INTERLEAVED and strategy.pipeline_layers and not strategy.stage_recompute_layers:
        ranks = strategy.pipeline_parallel_size
        held = tuple(sum(strategy.pipeline_layers[rank::ranks]) for rank in range(ranks))
        plain_1f1b = {"pipeline_schedule": PipelineSchedule.ONE_F_ONE_B, "virtual_pipeline_stages": 1, "pipeline_layers": held}
        yield "interleaved_1f1b -> 1f1b", replace(strategy, **plain_1f1b)  # type: ignore[arg-type]
