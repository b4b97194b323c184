"""Replicas by pool: every pool runs the whole pipeline, with as many micro-batches a replica as its speed is worth.

Symbols: pool i has D_i replicas and takes T_i(n) seconds for n micro-batches; N micro-batches (or whole rounds of an interleaved schedule)
are to be run in all. Step time grows with the slowest replica, so that the shares sought minimise max T_i(n_i).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autopar.costmodel.columns import Floats, Ints, StrategyColumns, distinct_rows
from autopar.costmodel.mixed import Machine
from autopar.costmodel.pipeline_shape import PipelineShape
from autopar.costmodel.spec.mixed import Lane, MixedStrategy
from autopar.costmodel.spec.strategy import Recompute, Strategy
from autopar.costmodel.stage_budget import StageBudget
from autopar.costmodel.step import overhead_seconds

from .mixed_rules import mixed_faults
from .partition import SAME, placed
from .pool_space import replicas_of
from .pool_stages import Priced, price
from .space import RecomputeChoices

_AMPLE = 4
"""Rounds a replica and pipeline rank, above which no share comes near so few that a pipeline does not fill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Rounds of each replica: ``rounds[i]`` in pool i, one less on ``short[i]`` of its replicas."""

    rounds: tuple[int, ...]
    short: tuple[int, ...]


def shared_rounds(seconds: Sequence[Floats], replicas: Sequence[int], total: int) -> Shares | None:
    """The shares of ``total`` rounds whose slowest replica is fastest; None where there are fewer rounds than replicas.

    The least time within which all replicas together can run ``total`` rounds, each as many as it then has time for; what that is too
    much is taken back one round a replica, from the pool whose last round is slowest. Exact: with any less time there are too few.

    Args:
        seconds: of each pool, of 1, 2, ... rounds, growing.
        replicas: of each pool.
        total: rounds to run; every replica runs one at least.
    """
    if total < sum(replicas):
        return None
    times = np.unique(np.concatenate(list(seconds)))
    low, high = 0, len(times) - 1
    counts = np.array(replicas)
    if (_within(seconds, times[high]) * counts).sum() < total:
        return None
    while low < high:
        middle = (low + high) // 2
        done = _within(seconds, times[middle])
        low, high = (low, middle) if done.all() and (done * counts).sum() >= total else (middle + 1, high)
    rounds = _within(seconds, times[low])
    return _without_surplus(seconds, counts, rounds, int((rounds * counts).sum()) - total)


def _within(seconds: Sequence[Floats], limit: float) -> Ints:
    """Most rounds of a replica of each pool within ``limit`` seconds."""
    return np.array([int(np.searchsorted(each, limit, side="right")) for each in seconds], dtype=np.int64)


def _without_surplus(seconds: Sequence[Floats], counts: Ints, rounds: Ints, surplus: int) -> Shares:
    """``rounds`` with ``surplus`` of them not run, one a replica: from whole pools while that helps, then from some replicas of one."""
    rounds, short = rounds.copy(), np.zeros_like(counts)
    while surplus > 0:
        last = np.array([each[count - 1] if count > 1 else -np.inf for each, count in zip(seconds, rounds.tolist(), strict=True)])
        slowest = int(np.argmax(np.where(short == 0, last, -np.inf)))
        taken = min(surplus, int(counts[slowest]))
        surplus -= taken
        if taken == counts[slowest]:
            rounds[slowest] -= 1
        else:
            short[slowest] = taken
    return Shares(rounds=tuple(rounds.tolist()), short=tuple(short.tolist()))


def placed_replicas(
    machine: Machine,
    budgets: Sequence[StageBudget],
    pools: Sequence[int],
    strategy: Strategy,
    recompute: RecomputeChoices,
    limit: float = float("inf"),
) -> Priced | None:
    """``strategy`` as replicas of ``pools``: each pool recomputes as little as fits it, and the batch is shared by speed.

    Args:
        machine: the constants of every pool.
        budgets: of every pool, for this strategy alone.
        pools: which they are.
        strategy: with its layer split; the data-parallel size is that of all pools.
        recompute: what the constraints leave.
        limit: step time to beat; None comes back where it is not beaten or a pool's memory does not suffice.
    """
    layers = _layers(machine, strategy)
    by_stage = machine.problem.question.framework.recompute_by_stage
    counts = [_fewest(budget, layers, strategy, recompute, by_stage=by_stage) for budget in budgets]
    if any(count is None for count in counts):
        return None
    recomputed = [count for count in counts if count is not None]
    full = any(map(any, recomputed))
    whole = replace(strategy, recompute=Recompute.FULL if full else Recompute.NONE)
    replicas = replicas_of(machine.problem, tuple(pools), strategy)
    step = strategy.pipeline_parallel_size if strategy.virtual_pipeline_stages > 1 else 1
    runs, rest = divmod(machine.problem.question.training.global_batch_size, strategy.micro_batch_size * step)
    if rest or runs < sum(replicas):
        return None
    lanes = tuple(
        Lane(
            pools=(machine.problem.pools[place].name,) * strategy.pipeline_parallel_size,
            data_parallel_size=size,
            num_microbatches=step,
            stage_recompute_layers=count if full else (),
        )
        for place, size, count in zip(pools, replicas, recomputed, strict=True)
    )
    mixed = MixedStrategy(strategy=whole, lanes=lanes)
    few = runs < _AMPLE * strategy.pipeline_parallel_size * sum(replicas)
    seconds = [
        machine.lane_seconds(mixed, lane, step * np.arange(1, (runs - sum(replicas)) // size + 2), simulate=few)
        for lane, size in zip(lanes, replicas, strict=True)
    ]
    shares = shared_rounds(seconds, replicas, runs)
    if shares is None:
        return None
    makespan = np.array([max(each[rounds - 1] for each, rounds in zip(seconds, shares.rounds, strict=True))])
    if float((makespan + overhead_seconds(machine.overhead_inputs(pools), makespan))[0]) >= limit:
        return None
    given = zip(lanes, shares.rounds, shares.short, strict=True)
    lanes = tuple(replace(lane, num_microbatches=step * rounds, short_replicas=short) for lane, rounds, short in given)
    shared = replace(mixed, lanes=lanes)
    return None if mixed_faults(machine.problem, shared) else price(machine, shared, limit)


def _layers(machine: Machine, strategy: Strategy) -> tuple[int, ...]:
    shape = PipelineShape.of(machine.pools[0].own, StrategyColumns.of([strategy]))
    return tuple((shape.dense_layers + shape.moe_layers).tolist())


def _fewest(
    budget: StageBudget, layers: tuple[int, ...], strategy: Strategy, recompute: RecomputeChoices, *, by_stage: bool
) -> tuple[int, ...] | None:
    """Layers to recompute on each stage so that the pool's memory suffices, as few as can be; None where it never does."""
    if by_stage and recompute.full and recompute.none:
        found = placed(budget, layers, None)
        return found.recomputed if np.isfinite(found.slowest_seconds) else None
    for asked in _asked(layers, recompute):
        found = placed(budget, layers, asked * strategy.virtual_pipeline_stages)
        if np.isfinite(found.slowest_seconds):
            return tuple(min(asked, held) for held in layers)
    return None


def _asked(layers: tuple[int, ...], recompute: RecomputeChoices) -> Iterator[int]:
    """Layers recomputed on every stage, fewest first."""
    if recompute.none:
        yield 0
    if recompute.full:
        most = max(layers) if recompute.most is None else min(max(layers), recompute.most)
        yield from range(min(recompute.fewest, most), most + 1)


def replica_bound_seconds(
    machine: Machine, pools: Sequence[int], budgets: Sequence[StageBudget], rows: StrategyColumns, slowest: Floats
) -> Floats:
    """Lower bound of each step whose replicas in pool i have no busiest rank below ``slowest[i]``: ``[N]``.

        (N + sum_i D_i a_i / T_i) / sum_i D_i / T_i

    with the N micro-batches of the batch, D_i replicas, T_i seconds of a micro-batch on the busiest rank and a_i of the stages before it,
    which the first micro-batch passes on its way in and the last on its way out; and the framework's overhead on it.

    Args:
        machine: the constants of every pool.
        pools: those in use.
        budgets: of each of them, for the rows of one pipeline shape.
        rows: the strategies that the budgets are of.
        slowest: seconds of a micro-batch on the busiest rank, at least, ``[pools, N]``.
    """
    rows = rows.take(budgets[0].rows)
    ranks = rows.tensor_parallel_size * rows.context_parallel_size * rows.pipeline_parallel_size
    rate, waiting = np.zeros(len(rows)), np.zeros(len(rows))
    possible = np.isfinite(slowest).all(axis=0)
    first, index = distinct_rows(rows, ("layer_split",))
    layers = np.array([_layers(machine, rows.strategy(row)) for row in first.tolist()])[index]
    for place, budget, least in zip(pools, budgets, slowest, strict=True):
        before, busy = _busiest(budget, layers)
        busy = np.maximum(busy, np.where(possible, least, 1.0))
        replicas = machine.problem.pools[place].num_gpus // ranks
        rate, waiting = rate + replicas / busy, waiting + replicas * before / busy
    runs = machine.problem.question.training.global_batch_size / rows.micro_batch_size
    seconds = np.where(possible, (runs + waiting) / rate, np.inf)
    return np.asarray(seconds + overhead_seconds(machine.overhead_inputs(pools), seconds))


def _busiest(budget: StageBudget, layers: Ints) -> tuple[Floats, Floats]:
    """Seconds of a micro-batch on the busiest rank of ``layers`` (``[N, S]``) and on the stages before its first: each ``[N]``."""
    ends, before = np.cumsum(layers, axis=1), budget.kinds_before()
    stages = budget.seconds.base + (budget.seconds.slope * (before[ends] - before[ends - layers])).sum(axis=-1)
    loads = budget.on_holders(stages)
    # of equal ranks the last, which has most stages before it
    busiest = budget.num_holders - 1 - np.argmax(loads[:, ::-1] >= loads.max(axis=1, keepdims=True) * (1 - SAME), axis=1)
    first = np.array([int(np.flatnonzero(budget.holder == rank)[0]) for rank in range(budget.num_holders)])
    passed = np.cumsum(stages, axis=1) - stages
    rows = np.arange(len(loads))
    return passed[rows, first[busiest]], loads[rows, busiest]
