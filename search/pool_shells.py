"""Strategies in a use of the pools, their layers or micro-batches not placed yet: in the order of what no placement of them can beat.

All strategies of a space are first asked whether they could beat the best so far at all (:mod:`pool_floor`); the few that could get a
bound each, and what placing layers needs to know of them, in the order of these bounds and no sooner than they come to be placed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from autopar.costmodel.columns import Floats, Ints, StrategyColumns
from autopar.costmodel.mixed import Machine
from autopar.costmodel.pool_budget import PooledBudget, pooled_bound_seconds, pooled_budgets, replica_budgets
from autopar.costmodel.spec.strategy import Strategy
from autopar.costmodel.stage_budget import StageBudget

from .constraints import Constraints
from .pool_floor import Asked
from .pool_replicas import placed_replicas, replica_bound_seconds
from .pool_space import Manner, PoolSpace, Use, orders_of, pool_space, uses_of
from .pool_stages import Priced, placed_stages
from .rank_floor import least_that_could
from .relaxation import relaxed_slowest_seconds

_AT_ONCE = 20_000
"""Strategies that are asked about together: a few hundred thousand ranks."""
_FIRST, _TOGETHER = 2, 8
"""Strategies that are made ready to be placed together: few as long as hardly anything is known."""
_EVER = 1e12
"""Seconds: an upper end of bounds where nothing is known to fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shell:
    """One strategy in one use of the pools."""

    bound_seconds: float
    """No placement has a shorter step; infinite where none fits."""
    strategy: Strategy
    space: PoolSpace
    use: Use
    row: int
    """Of the space."""
    place: int
    """In ``budgets``."""
    budgets: tuple[StageBudget, ...]
    on: tuple[int, ...] = ()
    """The pool of every pipeline rank, where stages are by pool."""

    def placed(self, machine: Machine, limit: float) -> tuple[list[Priced], float]:
        """What beats ``limit``, fastest last, and the bound of what there is."""
        own = tuple(budget.take(self.place) for budget in self.budgets)
        if self.use.manner is Manner.STAGES:
            pooled = PooledBudget(budget=own[0], on=self.on)
            found, bound = placed_stages(machine, pooled, self.strategy, self.space.recompute, limit)
            return found, max(bound, self.bound_seconds)
        one = placed_replicas(machine, own, self.use.pools, self.strategy, self.space.recompute, limit)
        return ([one] if one else []), one.step_time_seconds if one else self.bound_seconds


class Shells:
    """The strategies of every use of the pools in one manner."""

    def __init__(self, machine: Machine, constraints: Constraints, manner: Manner) -> None:
        self.machine, self.manner = machine, manner
        self.uses = tuple(use for use in uses_of(machine.problem) if use.manner is manner)
        sets = dict.fromkeys((use.manner, tuple(sorted(use.pools))) for use in self.uses)
        spaces = [pool_space(machine.problem, manner, pools, constraints) for manner, pools in sets]
        self.refused = sum((Counter(space.refused) for space in spaces), start=Counter[str]())
        self.spaces = [space for space in spaces if len(space.rows)]

    @property
    def size(self) -> int:
        """Strategies times orders."""
        return sum(len(space.rows) * len(self.orders(space)) for space in self.spaces)

    def orders(self, space: PoolSpace) -> list[tuple[int, ...]]:
        """The orders of the pools in which a strategy of ``space`` may be used; one for replicas."""
        return list(orders_of(self.uses, space.pools)) if space.manner is Manner.STAGES else [space.pools]

    def below(self, limit: Callable[[], float]) -> Iterator[Shell]:
        """Those that could be faster than ``limit``, which may fall meanwhile, by their bounds."""
        found: list[tuple[float, int, tuple[int, ...], int]] = []
        for place, space in enumerate(self.spaces):
            rows = np.arange(len(space.rows))
            for order, kept, bounds in self.bounds(space, rows, self.orders(space), limit()):
                found += [(bound, place, order, row) for bound, row in zip(bounds.tolist(), kept.tolist(), strict=True)]
        found.sort()
        start, count = 0, _FIRST
        while together := [each for each in found[start : start + count] if each[0] < limit()]:
            start, count = start + count, _TOGETHER
            yield from sorted(self._shells(together), key=lambda shell: (shell.bound_seconds, shell.use.pools, shell.row))

    def bounds(
        self, space: PoolSpace, rows: Ints, orders: Sequence[tuple[int, ...]], limit: float
    ) -> Iterator[tuple[tuple[int, ...], Ints, Floats]]:
        """Which of some ``rows`` of a space could be faster than ``limit`` in each order, and what none of their placements goes below."""
        limit = min(limit, _EVER)
        for start in range(0, len(rows), _AT_ONCE):
            own = rows[start : start + _AT_ONCE]
            asked = Asked.of(self.machine, space.rows.take(own), space.pools, space.recompute, space.manner)
            for order in orders:
                every = asked.free_stages(order) if space.manner is Manner.STAGES else asked.shared_batch()
                could = np.flatnonzero(every.could_beat(limit))
                if len(could):
                    yield order, own[could], least_that_could(every.take(could).could_beat, np.full(len(could), limit))

    def least_bound(self, stops: Callable[[], bool], limit: float) -> float | None:
        """What no strategy of any use goes below, or ``limit`` where that is less; None where ``stops`` came first."""
        for space in self.spaces:
            for order in self.orders(space):
                if stops():
                    return None
                for _, _, bounds in self.bounds(space, np.arange(len(space.rows)), [order], limit):
                    limit = min([limit, *bounds.tolist()])
        return limit

    def _shells(self, chosen: list[tuple[float, int, tuple[int, ...], int]]) -> Iterator[Shell]:
        """Those of ``chosen`` (bound, place of the space, order of the pools, row) with what placing them needs."""
        for place, order in dict.fromkeys((each[1], each[2]) for each in chosen):
            rows = np.array([each[3] for each in chosen if each[1:3] == (place, order)])
            bounds = np.array([each[0] for each in chosen if each[1:3] == (place, order)])
            yield from self.of(self.spaces[place], rows, order, bounds)

    def of(self, space: PoolSpace, rows: Ints, order: tuple[int, ...], bounds: Floats) -> Iterator[Shell]:
        """The given ``rows`` of a space in one order, whose ``bounds`` are known."""
        columns = space.rows.take(rows)
        use = Use(manner=space.manner, pools=order)
        if space.manner is Manner.STAGES:
            for pooled in pooled_budgets(self.machine, columns, [order]):
                better = pooled_bound_seconds(self.machine, pooled, relaxed_slowest_seconds(pooled.budget))
                yield from _kept(space, rows, columns, use, np.maximum(bounds[pooled.budget.rows], better), (pooled.budget,), pooled.on)
            return
        for budgets in replica_budgets(self.machine, columns, space.pools):
            slowest = np.stack([relaxed_slowest_seconds(budget) for budget in budgets])
            better = replica_bound_seconds(self.machine, space.pools, budgets, columns, slowest)
            yield from _kept(space, rows, columns, use, np.maximum(bounds[budgets[0].rows], better), budgets, ())


def _kept(
    space: PoolSpace,
    rows: Ints,
    columns: StrategyColumns,
    use: Use,
    bounds: Floats,
    budgets: tuple[StageBudget, ...],
    on: tuple[int, ...],
) -> Iterator[Shell]:
    for place in range(len(bounds)):
        row = int(budgets[0].rows[place])
        yield Shell(
            bound_seconds=float(bounds[place]),
            strategy=columns.strategy(row),
            space=space,
            use=use,
            row=int(rows[row]),
            place=place,
            budgets=budgets,
            on=on,
        )
