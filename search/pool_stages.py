"""Stages by pool: layers placed on a pipeline whose ranks sit in unlike devices, each stage as long and as full as its device allows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from autopar.costmodel.mixed import Machine
from autopar.costmodel.pool_budget import PooledBudget, pooled_bound_seconds
from autopar.costmodel.spec.mixed import Lane, MixedStrategy
from autopar.costmodel.spec.strategy import Recompute, Strategy
from autopar.costmodel.stage_budget import StageBudget

from .mixed_rules import mixed_faults
from .partition import Partition, filled, pareto_partitions, segments, segments_alike
from .relaxation import slowest_alike_seconds
from .space import RecomputeChoices


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """A mixed strategy that fits, with what the cost model says of it."""

    mixed: MixedStrategy
    step_time_seconds: float
    peak_memory_bytes: float
    """Of the GPU with the largest share of its memory taken."""


def placed_stages(
    machine: Machine, pooled: PooledBudget, strategy: Strategy, recompute: RecomputeChoices, limit: float = float("inf")
) -> tuple[list[Priced], float]:
    """The placements of one strategy's layers that are faster than ``limit``, fastest last, and a step time that none goes below.

    Args:
        machine: the constants of every pool.
        pooled: of ``strategy`` alone.
        strategy: sizes; its own split and recomputation do not matter.
        recompute: what the constraints leave.
        limit: step time to beat.
    """
    found: list[Priced] = []
    by_stage = machine.problem.question.framework.recompute_by_stage
    least = np.inf
    for partition in _partitions(machine, pooled, recompute, limit, by_stage=by_stage):
        least = min(least, partition.slowest_seconds)
        if partition_bound(machine, pooled, partition) >= limit:
            continue
        mixed = _mixed(machine, pooled, _strategy(strategy, partition, by_stage=by_stage))
        priced = None if mixed_faults(machine.problem, mixed) else price(machine, mixed, limit)
        if priced is not None:
            limit = priced.step_time_seconds
            found.append(priced)
    bound = float(pooled_bound_seconds(machine, pooled, np.array([least]))[0]) if np.isfinite(least) else np.inf
    return found, bound


def partition_bound(machine: Machine, pooled: PooledBudget, partition: Partition) -> float:
    """Step time that the placement does not go below, by the seconds it was chosen by."""
    found = pooled_bound_seconds(machine, pooled, np.array([partition.slowest_seconds]), np.array([partition.total_seconds]))
    return float(found[0])


def price(machine: Machine, mixed: MixedStrategy, limit: float = float("inf")) -> Priced | None:
    """``mixed`` with its step time, simulated only where its bound is below ``limit``; None where it does not fit or is not faster."""
    costs = machine.costs(mixed)
    if not costs.fits or costs.step_seconds >= limit:
        return None
    if not costs.exact:
        costs = machine.simulated(mixed, costs)
    if costs.step_seconds >= limit:
        return None
    return Priced(mixed=mixed, step_time_seconds=costs.step_seconds, peak_memory_bytes=costs.fullest[0])


def _partitions(
    machine: Machine, pooled: PooledBudget, recompute: RecomputeChoices, limit: float, *, by_stage: bool
) -> Iterator[Partition]:
    """Placements worth pricing: with every count of recomputed layers where it is the same on all stages."""
    budget = pooled.budget
    for asked in _asked(budget, recompute, by_stage=by_stage):
        if asked is not None:
            roomy, least = (slowest_alike_seconds(each, asked) for each in (replace(budget, capacity_bytes=np.inf), budget))
            if asked > 0 and pooled_bound_seconds(machine, pooled, np.array([roomy]))[0] >= limit:
                return  # recomputing more only adds work
            if pooled_bound_seconds(machine, pooled, np.array([least]))[0] >= limit:
                continue
        yield from _cuts(budget, asked)


def _cuts(budget: StageBudget, asked: int | None) -> Iterator[Partition]:
    """The Pareto front of slowest stage and sum of stages with one stage a rank; with several the least busy placement."""
    if budget.num_stages > budget.num_holders:
        found = filled(budget, asked)
        if found is not None and np.isfinite(found.slowest_seconds):
            yield found
        return
    yield from pareto_partitions(budget, segments(budget) if asked is None else segments_alike(budget, asked))


def _asked(budget: StageBudget, recompute: RecomputeChoices, *, by_stage: bool) -> list[int | None]:
    """Layers recomputed on every rank, each count there can be; None: each stage as many as it must."""
    if recompute.full and by_stage:
        return [None]
    whole = -(-budget.num_layers // budget.num_holders)
    most = whole if recompute.most is None else min(recompute.most, whole)
    return [*([0] if recompute.none else []), *(range(min(recompute.fewest, whole), most + 1) if recompute.full else ())]


def _strategy(shell: Strategy, partition: Partition, *, by_stage: bool) -> Strategy:
    """``shell`` with its layers placed; what is the same on all stages is written as such."""
    split, recomputes = partition.layers, any(partition.recomputed)
    counts = partition.recomputed if recomputes and by_stage and partition.recomputed != split else ()
    alike = 0 if by_stage else max(partition.recomputed)
    held = -(-sum(split) // shell.pipeline_parallel_size)
    return replace(
        shell,
        pipeline_layers=() if len(set(split)) == 1 else split,
        recompute=Recompute.FULL if recomputes else Recompute.NONE,
        stage_recompute_layers=counts,
        num_recompute_layers=0 if alike >= held else alike,
    )


def _mixed(machine: Machine, pooled: PooledBudget, strategy: Strategy) -> MixedStrategy:
    pools = tuple(machine.problem.pools[place].name for place in pooled.on)
    count = strategy.num_microbatches(machine.problem.question.training.global_batch_size)
    lane = Lane(pools=pools, data_parallel_size=strategy.data_parallel_size, num_microbatches=count)
    return MixedStrategy(strategy=strategy, lanes=(lane,))
