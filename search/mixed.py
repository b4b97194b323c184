"""The search over pools of unlike devices: every way to use them, in the order of what no placement of it can beat.

Pools alone are the uniform search's. For stages by pool and for replicas by pool every strategy of the space gets a lower bound, all of
them at once; then layers are placed and micro-batches shared for one after the other until the next bound is above the best found. What
the cost model says of a placement counts, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from autopar.costmodel.mixed import Machine
from autopar.costmodel.pool_budget import PooledBudget, pooled_bound_seconds, pooled_budgets, replica_budgets
from autopar.costmodel.pools import MixedProblem
from autopar.costmodel.spec.mixed import Lane, MixedStrategy
from autopar.costmodel.spec.plan import SearchSummary
from autopar.costmodel.spec.strategy import Strategy
from autopar.costmodel.stage_budget import StageBudget

from .constraints import NO_CONSTRAINTS, Constraints
from .pool_replicas import placed_replicas, replica_bound_seconds
from .pool_space import Manner, PoolSpace, Use, orders_of, pool_space, uses_of
from .pool_stages import Priced, placed_stages
from .progress import Progress, Stopped, Watch
from .relaxation import relaxed_slowest_seconds
from .solve import search

EXACT_ROWS = 200_000
"""Strategies times orders of the pools up to which all of them are looked at; beyond, the search is genetic."""
WORTH = 1e-3
"""A placement has to be faster by this share than the best so far to be looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedResult:
    """The best strategies that fit, fastest first."""

    ranked: tuple[Priced, ...]
    summary: SearchSummary
    seconds: float = 0.0
    """Wall time; not part of a plan, which has to be the same every time."""

    @property
    def best(self) -> Priced | None:
        return self.ranked[0] if self.ranked else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shell:
    """A strategy in one use of the pools, its layers or micro-batches not placed yet."""

    bound_seconds: float
    strategy: Strategy
    space: PoolSpace
    use: Use
    place: int
    budgets: tuple[StageBudget, ...]
    on: tuple[int, ...] = ()

    def placed(self, machine: Machine, limit: float) -> tuple[list[Priced], float]:
        """What beats ``limit``, fastest last, and the bound of what there is."""
        own = tuple(budget.take(self.place) for budget in self.budgets)
        if self.use.manner is Manner.STAGES:
            pooled = PooledBudget(budget=own[0], on=self.on)
            found, bound = placed_stages(machine, pooled, self.strategy, self.space.recompute, limit)
            return found, max(bound, self.bound_seconds)
        one = placed_replicas(machine, own, self.use.pools, self.strategy, self.space.recompute, limit)
        return ([one] if one else []), one.step_time_seconds if one else self.bound_seconds


@dataclass(slots=True)
class Found:
    """The best so far, and how much was looked at. Not frozen: a search that is cut short hands out what is in it."""

    top: int
    ranked: list[Priced] = field(default_factory=list)
    evaluated: int = 0
    refused: int = 0
    bounds: list[float] = field(default_factory=list)

    @property
    def limit(self) -> float:
        """Step time to beat: a runner-up is what was the best on the way, or beside it."""
        return self.best_seconds * (1 - WORTH)

    @property
    def best_seconds(self) -> float:
        return self.ranked[0].step_time_seconds if self.ranked else float("inf")

    def add(self, found: list[Priced]) -> None:
        """Keep what is among the best; strategies that differ in their placement alone count once."""
        whole = sorted([*self.ranked, *found], key=lambda each: (each.step_time_seconds, each.mixed.describe()))
        kept: dict[object, Priced] = {}
        for each in whole:
            kept.setdefault(_sizes(each.mixed), each)
        self.ranked = list(kept.values())[: self.top]


def _sizes(mixed: MixedStrategy) -> object:
    """What tells two strategies apart besides layers and recomputation."""
    lanes = tuple((lane.pools, lane.data_parallel_size) for lane in mixed.lanes)
    return Shells.plain(mixed.strategy), lanes


class Shells:
    """The strategies of every use of the pools, by their bounds."""

    def __init__(self, machine: Machine, constraints: Constraints) -> None:
        self.machine, self.uses = machine, uses_of(machine.problem)
        sets = dict.fromkeys((use.manner, tuple(sorted(use.pools))) for use in self.uses)
        self.spaces = [pool_space(machine.problem, manner, pools, constraints) for manner, pools in sets]

    @staticmethod
    def plain(strategy: Strategy) -> Strategy:
        """``strategy`` without what is found and not enumerated: its layers and its recomputation."""
        from dataclasses import replace

        from autopar.costmodel.spec.strategy import Recompute

        return replace(strategy, pipeline_layers=(), stage_recompute_layers=(), num_recompute_layers=0, recompute=Recompute.NONE)

    @property
    def size(self) -> int:
        """Strategies times orders."""
        return sum(len(space.rows) * len(self.orders(space)) for space in self.spaces)

    def orders(self, space: PoolSpace) -> list[tuple[int, ...]]:
        return list(orders_of(self.uses, space.pools)) if space.manner is Manner.STAGES else [space.pools]

    def below(self, limit: float) -> list[Shell]:
        """Those that could be faster than ``limit``, by their bounds."""
        found = [shell for space in self.spaces if len(space.rows) for shell in self._of(space, limit)]
        return sorted(found, key=lambda shell: (shell.bound_seconds, shell.use.manner, shell.use.pools, shell.strategy.describe()))

    def _of(self, space: PoolSpace, limit: float) -> Iterator[Shell]:
        of = self._stages if space.manner is Manner.STAGES else self._replicas
        yield from of(space, limit)

    def _stages(self, space: PoolSpace, limit: float) -> Iterator[Shell]:
        for pooled in pooled_budgets(self.machine, space.rows, self.orders(space)):
            bounds = pooled_bound_seconds(self.machine, pooled, relaxed_slowest_seconds(pooled.budget))
            use = Use(manner=space.manner, pools=tuple(dict.fromkeys(pooled.on)))
            yield from self._kept(space, use, bounds, limit, (pooled.budget,), pooled.on)

    def _replicas(self, space: PoolSpace, limit: float) -> Iterator[Shell]:
        use = Use(manner=space.manner, pools=space.pools)
        for budgets in replica_budgets(self.machine, space.rows, space.pools):
            slowest = np.stack([relaxed_slowest_seconds(budget) for budget in budgets])
            bounds = replica_bound_seconds(self.machine, space.pools, budgets, space.rows, slowest)
            yield from self._kept(space, use, bounds, limit, budgets, ())

    @staticmethod
    def _kept(
        space: PoolSpace, use: Use, bounds: np.ndarray, limit: float, budgets: tuple[StageBudget, ...], on: tuple[int, ...]
    ) -> Iterator[Shell]:
        for place in np.flatnonzero(bounds < limit).tolist():
            strategy = space.rows.strategy(int(budgets[0].rows[place]))
            yield Shell(bound_seconds=float(bounds[place]), strategy=strategy, space=space, use=use, place=place, budgets=budgets, on=on)


def mixed_search(
    problem: MixedProblem, constraints: Constraints = NO_CONSTRAINTS, *, top: int = 5, watch: Watch | None = None
) -> MixedResult:
    """The ``top`` fastest ways to use the pools of ``problem``, all of them looked at.

    Args:
        problem: what to train, on what.
        constraints: sizes the user fixed, bounded or forbade; of a mixed strategy the pipeline ranks and replicas are those of all pools.
        top: how many to rank.
        watch: asked between strategies; once it stops (or on KeyboardInterrupt) the best so far comes back.
    """
    watch = watch or Watch()
    found = Found(top=top)
    try:
        alone(problem, constraints, found, watch)
        if not watch.stops():
            _look(Machine.of(problem), constraints, found, watch)
    except KeyboardInterrupt:
        watch.stopped = Stopped.INTERRUPTED
    bound = min([found.best_seconds, *found.bounds]) if watch.stopped is None and found.ranked else None
    summary = SearchSummary(
        evaluated=found.evaluated,
        rejected={"rules": found.refused} if found.refused else {},
        method="every use of the pools, then dynamic programming over stages and shares by speed",
        optimality=_optimality(found, bound, watch.stopped),
        interrupted=watch.stopped is Stopped.INTERRUPTED,
        bound_seconds=bound,
    )
    return MixedResult(ranked=tuple(found.ranked), summary=summary, seconds=watch.seconds)


def alone(problem: MixedProblem, constraints: Constraints, found: Found, watch: Watch) -> None:
    """The best strategies of every pool by itself."""
    for pool in problem.pools:
        result = search(pool.problem, constraints, top=found.top, watch=watch)
        found.evaluated += result.summary.evaluated
        found.refused += sum(result.summary.rejected.values())
        capacity = pool.problem.cluster.device.memory_bytes
        found.add(
            [
                Priced(
                    mixed=on_one_pool(pool.name, each.strategy, pool.problem.training.global_batch_size),
                    step_time_seconds=each.step_time_seconds,
                    fullest_share=each.peak_memory_bytes / capacity,
                )
                for each in result.ranked
            ]
        )


def on_one_pool(name: str, strategy: Strategy, global_batch_size: int) -> MixedStrategy:
    """A uniform strategy as a lane of one pool."""
    lane = Lane(
        pools=(name,) * strategy.pipeline_parallel_size,
        data_parallel_size=strategy.data_parallel_size,
        num_microbatches=strategy.num_microbatches(global_batch_size),
    )
    return MixedStrategy(strategy=strategy, lanes=(lane,))


def _look(machine: Machine, constraints: Constraints, found: Found, watch: Watch) -> None:
    """Place the strategies of every use in the order of their bounds, until none could still rank."""
    shells = Shells(machine, constraints)
    found.refused += sum(space.refused for space in shells.spaces)
    found.evaluated += shells.size
    for shell in shells.below(found.limit):
        if shell.bound_seconds >= found.limit:
            found.bounds.append(shell.bound_seconds)
            return
        if watch.stops():
            return
        placed, bound = shell.placed(machine, found.limit)
        found.bounds.append(bound)
        found.add(placed)
        watch.tell(_progress(found))


def _progress(found: Found) -> Callable[[], Progress]:
    best = found.best_seconds if found.ranked else None
    return lambda: Progress(evaluated=found.evaluated, rejected={}, best_seconds=best, bound_seconds=None)


def _optimality(found: Found, bound: float | None, stopped: Stopped | None) -> str:
    if stopped is not None:
        return f"{stopped.value}: {'the best of the strategies evaluated so far' if found.ranked else 'nothing fitted so far'}"
    if bound is None:
        return "nothing fits"
    gap = max(1 - bound / found.best_seconds, 0.0)
    return f"every use of the pools looked at; no placement is faster by more than {gap:.1%}"
