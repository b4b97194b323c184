"""What the stages of a pipeline over several pools would take and hold with any layers on them, and what no placement goes below.

A stage's coefficients are those of the pool it is on (:mod:`stage_budget`, asked about each pool as if the whole pipeline were there);
the transfers between stages are put on top. Memories of unlike size are made one: a smaller GPU is a larger one of which the
difference is taken.

Symbols: W seconds of a micro-batch on all stages, T on the busiest rank, m micro-batches, p ranks.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .columns import Floats, Ints, StrategyColumns, distinct
from .mixed import Machine
from .pipeline_shape import PipelineShape
from .pools import hop_seconds, stage_pools
from .sharding import Shard
from .spec.strategy import PipelineSchedule
from .stage_budget import Linear, StageBudget, stage_budgets
from .step import overhead_seconds

_ROUNDS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledBudget:
    """Strategies of one pipeline shape whose ranks sit in pools, their layers not yet placed."""

    budget: StageBudget
    on: tuple[int, ...]
    """The pool of every pipeline rank."""


def pooled_budgets(
    machine: Machine, strategies: StrategyColumns, orders: Mapping[tuple[int, ...], Collection[int]]
) -> Iterator[PooledBudget]:
    """The budgets of ``strategies``, grouped by pipeline shape and order of the pools.

    Args:
        machine: the constants of every pool.
        strategies: pipelines over all GPUs of the pools of an order; a stage's GPUs divide each pool's.
        orders: pools from the first stage to the last, the same ones in each, and the strategies that are asked about in that order;
            others come along where they share the pipeline's shape with one of them.
    """
    used = sorted(next(iter(orders)))
    gpus = {place: machine.problem.pools[place].num_gpus for place in used}
    alone = zip(*(stage_budgets(machine.pools[place].own, strategies, alone=True) for place in used), strict=True)
    for group in alone:
        rows = strategies.take(group[0].rows)
        shape, shard = PipelineShape.of(machine.pools[used[0]].own, rows), Shard.of(machine.pools[used[0]].own, rows)
        stride = shard.tp * shard.cp * shard.dp
        ranks = shape.pipeline_parallel_size
        for order, asked in orders.items():
            if not np.isin(group[0].rows, list(asked)).any():
                continue
            on = tuple(place for place in order for _ in range(ranks * gpus[place] // sum(gpus.values())))
            joined = joined_budget([group[used.index(place)] for place in used], [used.index(place) for place in on], shape)
            yield PooledBudget(budget=_with_hops(joined, hop_seconds(machine.pools, shard, shape, on, stride)), on=on)


def replica_budgets(machine: Machine, strategies: StrategyColumns, pools: Sequence[int]) -> Iterator[tuple[StageBudget, ...]]:
    """The budget of each of ``pools`` for ``strategies`` whose replicas each run in one pool, grouped by pipeline shape.

    The data-parallel sizes are those of all pools together. Memory is that of a pipeline with micro-batches enough to fill it.
    """
    batch = filling_batch(strategies)
    full = {place: machine.pools[place].with_batch(batch) for place in pools}
    for group in zip(*(stage_budgets(full[place].own, strategies, alone=True) for place in pools), strict=True):
        rows = strategies.take(group[0].rows)
        shape, shard = PipelineShape.of(full[pools[0]].own, rows), Shard.of(full[pools[0]].own, rows)
        ranks = shard.tp * shard.cp * shape.pipeline_parallel_size
        found = []
        for place, budget in zip(pools, group, strict=True):
            stride = machine.problem.pools[place].num_gpus // ranks * shard.tp * shard.cp
            hops = hop_seconds(machine.pools, shard, shape, (place,) * shape.pipeline_parallel_size, stride)
            found.append(_with_hops(budget, hops))
        yield tuple(found)


def filling_batch(strategies: StrategyColumns) -> int:
    """A batch that fills every pipeline of ``strategies`` with whole rounds of micro-batches."""
    together = strategies.data_parallel_size * strategies.micro_batch_size * strategies.pipeline_parallel_size
    return _ROUNDS * math.lcm(*distinct(together))


def joined_budget(budgets: Sequence[StageBudget], on: Sequence[int], shape: PipelineShape) -> StageBudget:
    """One budget whose stages are those of ``budgets[on[rank]]``, transfers apart. W is the least that any placement can have."""
    stages, ranks = np.array(stage_pools(shape, on)), np.array(on)
    capacity = max(budget.capacity_bytes for budget in budgets)
    missing = np.array([capacity - budgets[place].capacity_bytes for place in on])
    first = budgets[0]
    seconds = _line([budget.seconds for budget in budgets], stages)
    kinds = first.kinds_before()[-1]
    least = seconds.base.sum(axis=1) + (seconds.slope.min(axis=1) * kinds).sum(axis=1)
    return replace(
        first,
        seconds=seconds,
        recomputed_seconds=_line([budget.recomputed_seconds for budget in budgets], stages),
        bytes=_shifted(_line([budget.bytes for budget in budgets], ranks), missing),
        recomputed_bytes=_shifted(_line([budget.recomputed_bytes for budget in budgets], ranks), missing),
        unfolded_bytes=_columns([budget.unfolded_bytes for budget in budgets], ranks),
        capacity_bytes=capacity,
        work_seconds=least,
        forward_share=np.maximum.reduce([budget.forward_share for budget in budgets]),
        tail_seconds=np.zeros_like(least),
    )


def pooled_bound_seconds(machine: Machine, pooled: PooledBudget, slowest: Floats, work: Floats | None = None) -> Floats:
    """Lower bound of each step where no placement that fits has a busiest rank below ``slowest`` seconds.

        any schedule   m T
        gpipe          W + (m - 1) T
        1f1b           W + (m - 1) T - (p - 1) T / 2,   2 W + (m - p - 1) T where m > p

    and the framework's overhead on it. What follows the last backward is left out. 1F1B: micro-batches enter and leave the busiest rank d
    through the stages above it, and one goes on through those below. Of d itself that path has m - 1 more forwards and m - p + d more
    backwards, or as many the other way round, and the shorter of the two passes is half of T at most. With m > p a path may go round
    the stages below d twice, before and after all that d does in between: 2 W less what the stages up to d take, (d + 1) T at
    most, and m - p + d times T.

    Args:
        machine: the constants of every pool.
        pooled: the strategies.
        slowest: T, at least.
        work: W where it is known; else the least that any placement has.
    """
    budget, p = pooled.budget, pooled.budget.num_holders
    count, work = budget.num_microbatches, budget.work_seconds if work is None else work
    floor = count * slowest
    with np.errstate(invalid="ignore"):
        if budget.schedule is PipelineSchedule.GPIPE:
            floor = work + (count - 1) * slowest
        elif budget.schedule is PipelineSchedule.ONE_F_ONE_B:
            twice = np.where(count > p, 2 * work + (count - p - 1) * slowest, 0)
            ramps = np.maximum(work + (count - 1 - (p - 1) / 2) * slowest, twice)
            floor = np.where(np.isfinite(slowest), np.maximum(floor, ramps), np.inf)
    return np.asarray(floor + overhead_seconds(machine.overhead_inputs(dict.fromkeys(pooled.on)), floor))


def _with_hops(budget: StageBudget, hops: Floats) -> StageBudget:
    """``budget`` whose stages also send to each other, there and back."""
    both = np.pad(hops, ((0, 0), (0, 1))) + np.pad(hops, ((0, 0), (1, 0)))
    lines = {name: replace(line, base=line.base + both) for name in ("seconds", "recomputed_seconds") if (line := getattr(budget, name))}
    return replace(budget, **lines, work_seconds=budget.work_seconds + both.sum(axis=1))


def _line(lines: Sequence[Linear], places: Ints) -> Linear:
    return Linear(base=_columns([line.base for line in lines], places), slope=_columns([line.slope for line in lines], places))


def _columns(parts: Sequence[Floats], places: Ints) -> Floats:
    """Column by column (axis 1) from the part that ``places`` says."""
    return np.stack([parts[place][:, column] for column, place in enumerate(places.tolist())], axis=1)


def _shifted(line: Linear, missing: Floats) -> Linear:
    return replace(line, base=line.base + missing)
