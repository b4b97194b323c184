"""Strategies in a use of the pools, their layers or micro-batches not placed yet: in the order of what no placement of them can beat.

All strategies of a space are first asked whether they could beat the best so far at all (:mod:`pool_floor`); the few that could get a
bound each, and what placing layers needs to know of them, in the order of these bounds and no sooner than they come to be placed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from autopar.costmodel.columns import Floats, Ints, StrategyColumns
from autopar.costmodel.mixed import Machine
from autopar.costmodel.pool_budget import PooledBudget, pooled_bound_seconds, pooled_budgets, replica_budgets
from autopar.costmodel.spec.strategy import Strategy
from autopar.costmodel.stage_budget import StageBudget

from .constraints import Constraints
from .pool_floor import Asked, FreeStages, SharedBatch
from .pool_replicas import placed_replicas, replica_bound_seconds
from .pool_space import Manner, PoolSpace, Use, orders_of, pool_space, uses_of
from .pool_stages import Priced, placed_stages
from .rank_floor import least_that_could
from .relaxation import relaxed_slowest_seconds

_AT_ONCE = 20_000
"""Strategies that are asked about together: a few hundred thousand ranks."""
_TOGETHER = 64
"""Strategies that are made ready to be placed together at most: few as long as hardly anything is known."""
_SEEDS = 8
"""Strategies that are placed before all others are asked about: what beats them is little."""
_FEW = 16
"""Of every part of a space so many may come into question for that."""
_CLOSE = 1e-3
"""Relative difference of bounds that is not worth another step towards them."""
_EVER = 1e12
"""Seconds: an upper end of bounds where nothing is known to fit."""

_Found = tuple[float, int, tuple[int, ...], int]
"""A bound, the place of its space, the order of the pools and the row."""


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
        self._asked: dict[tuple[int, int], Asked] = {}

    @property
    def size(self) -> int:
        """Strategies times orders."""
        return sum(len(space.rows) * len(self.orders(space)) for space in self.spaces)

    def orders(self, space: PoolSpace) -> list[tuple[int, ...]]:
        """The orders of the pools in which a strategy of ``space`` may be used; one for replicas."""
        return list(orders_of(self.uses, space.pools)) if space.manner is Manner.STAGES else [space.pools]

    def below(self, limit: Callable[[], float], stops: Callable[[], bool]) -> Iterator[Shell]:
        """Those that could be faster than ``limit``, which may fall meanwhile: a few promising ones first, then all by their bounds.

        Not all of them where ``stops`` came in between.
        """
        first = self._found(lambda place, order: self._promising(place, order, limit()), stops)[:_SEEDS]
        yield from self._ready(first, limit, 2)
        known = {each[1:] for each in first}
        found = self._found(lambda place, order: self.bounds(self.spaces[place], None, order, limit()), stops)
        yield from self._ready([each for each in found if each[1:] not in known], limit, 16)

    def _found(self, asked: Callable[[int, tuple[int, ...]], Iterator[tuple[Ints, Floats]]], stops: Callable[[], bool]) -> list[_Found]:
        """What comes of asking about every space in every order until ``stops``, by bounds."""
        return sorted(
            (bound, place, order, row)
            for place, space in enumerate(self.spaces)
            for order in self.orders(space)
            if not stops()
            for kept, bounds in asked(place, order)
            for bound, row in zip(bounds.tolist(), kept.tolist(), strict=True)
        )

    def _ready(self, found: list[_Found], limit: Callable[[], float], count: int) -> Iterator[Shell]:
        """The strategies of ``found``, which are in order, ``count`` at a time and then more, until none is below ``limit``."""
        start = 0
        while together := [each for each in found[start : start + count] if each[0] < limit()]:
            start, count = start + count, min(2 * count, _TOGETHER)
            for place in sorted({each[1] for each in together}):
                bounds = {(order, row): bound for bound, own, order, row in together if own == place}
                yield from sorted(self.of(self.spaces[place], bounds), key=lambda shell: (shell.bound_seconds, shell.use.pools, shell.row))

    def _promising(self, place: int, order: tuple[int, ...], limit: float) -> Iterator[tuple[Ints, Floats]]:
        """Of every part of a space a few with the least bounds, as far as the least bound of ever smaller samples tells."""
        for rows, asked in self._parts(self.spaces[place], None):
            below, left = min(limit, _EVER), self._open(self.spaces[place], asked, order)
            while len(could := np.flatnonzero(left.could_beat(below))):
                rows, left = rows[could], left.take(could)
                sample = np.unique(np.linspace(0, len(rows) - 1, _FEW).astype(np.int64))
                bounds = least_that_could(left.take(sample).could_beat, np.full(len(sample), below))
                if len(rows) <= _FEW or bounds.min() >= below * (1 - _CLOSE):
                    yield rows[sample], bounds
                    break
                below = float(bounds.min()) * (1 + _CLOSE / 2)

    def bounds(self, space: PoolSpace, rows: Ints | None, order: tuple[int, ...], limit: float) -> Iterator[tuple[Ints, Floats]]:
        """Which of some ``rows`` of a space (None: all) could be faster than ``limit``, and what none of their placements goes below."""
        limit = min(limit, _EVER)
        for own, asked in self._parts(space, rows):
            every = self._open(space, asked, order)
            could = np.flatnonzero(every.could_beat(limit))
            if len(could):
                yield own[could], least_that_could(every.take(could).could_beat, np.full(len(could), limit))

    def _parts(self, space: PoolSpace, rows: Ints | None) -> Iterator[tuple[Ints, Asked]]:
        """Some rows of a space, or all, and what is asked of their layers; of all it is remembered."""
        every = np.arange(len(space.rows)) if rows is None else rows
        for start in range(0, len(every), _AT_ONCE):
            own, key = every[start : start + _AT_ONCE], (id(space), start)
            asked = self._asked.get(key) if rows is None else None
            if asked is None:
                asked = Asked.of(self.machine, space.rows.take(own), space.pools, space.recompute, space.manner)
            if rows is None:
                self._asked[key] = asked
            yield own, asked

    def _open(self, space: PoolSpace, asked: Asked, order: tuple[int, ...]) -> FreeStages | SharedBatch:
        return asked.free_stages(order) if space.manner is Manner.STAGES else asked.shared_batch()

    def least_bound(self, stops: Callable[[], bool], limit: float) -> float | None:
        """What no strategy of any use goes below, or ``limit`` where that is less; None where ``stops`` came first."""
        for space in self.spaces:
            for order in self.orders(space):
                if stops():
                    return None
                for _, bounds in self.bounds(space, None, order, limit):
                    limit = min([limit, *bounds.tolist()])
        return limit

    def of(self, space: PoolSpace, bounds: Mapping[tuple[tuple[int, ...], int], float]) -> Iterator[Shell]:
        """Some rows of a space, each in an order of the pools, whose ``bounds`` are known, with what placing them needs."""
        if not bounds:
            return
        rows = np.array(sorted({row for _, row in bounds}), dtype=np.int64)
        columns, places = space.rows.take(rows), {row: place for place, row in enumerate(rows.tolist())}
        orders: dict[tuple[int, ...], set[int]] = {}
        for order, row in bounds:
            orders.setdefault(order, set()).add(places[row])
        if space.manner is Manner.STAGES:
            for pooled in pooled_budgets(self.machine, columns, orders):
                order = tuple(dict.fromkeys(pooled.on))
                better = pooled_bound_seconds(self.machine, pooled, relaxed_slowest_seconds(pooled.budget))
                yield from _kept(space, rows, columns, order, better, bounds, (pooled.budget,), pooled.on)
            return
        for budgets in replica_budgets(self.machine, columns, space.pools):
            slowest = np.stack([relaxed_slowest_seconds(budget) for budget in budgets])
            better = replica_bound_seconds(self.machine, space.pools, budgets, columns, slowest)
            yield from _kept(space, rows, columns, space.pools, better, bounds, budgets, ())


def _kept(
    space: PoolSpace,
    rows: Ints,
    columns: StrategyColumns,
    order: tuple[int, ...],
    better: Floats,
    bounds: Mapping[tuple[tuple[int, ...], int], float],
    budgets: tuple[StageBudget, ...],
    on: tuple[int, ...],
) -> Iterator[Shell]:
    """Those of ``budgets`` whose bound is asked for, with the ``better`` of both."""
    for place, row in enumerate(budgets[0].rows.tolist()):
        known = bounds.get((order, int(rows[row])))
        if known is None:
            continue
        yield Shell(
            bound_seconds=max(known, float(better[place])),
            strategy=columns.strategy(row),
            space=space,
            use=Use(manner=space.manner, pools=order),
            row=int(rows[row]),
            place=place,
            budgets=budgets,
            on=on,
        )
