"""Strategies in a use of the pools, their layers or micro-batches not placed yet: in the order of what no placement of them can beat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autopar.costmodel.columns import Floats, StrategyColumns
from autopar.costmodel.mixed import Machine
from autopar.costmodel.pool_budget import PooledBudget, pooled_bound_seconds, pooled_budgets, replica_budgets
from autopar.costmodel.spec.strategy import Strategy
from autopar.costmodel.stage_budget import StageBudget

from .constraints import Constraints
from .pool_replicas import placed_replicas, replica_bound_seconds
from .pool_space import Manner, PoolSpace, Use, orders_of, pool_space, uses_of
from .pool_stages import Priced, placed_stages
from .relaxation import relaxed_slowest_seconds


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
        self.machine = machine
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

    def below(self, limit: float) -> list[Shell]:
        """Those that could be faster than ``limit``, by their bounds."""
        found = [shell for space in self.spaces for shell in self.of(space, np.arange(len(space.rows)), self.orders(space), limit)]
        return sorted(found, key=lambda shell: (shell.bound_seconds, shell.use.manner, shell.use.pools, shell.strategy.describe()))

    def least_bound(self, stops: Callable[[], bool]) -> float | None:
        """What no strategy of any use goes below, memory and the order of the pools aside; None where ``stops`` came first.

        The layers over what all ranks together run of them in a second, each at its pool's speed: the ends and the transfers only add.
        """
        least = float("inf")
        for space in self.spaces:
            if stops():
                return None
            for bounds in self._freed(space):
                least = min([least, *bounds.tolist()])
        return least

    def _freed(self, space: PoolSpace) -> Iterator[Floats]:
        """The bounds of the strategies of ``space`` by pipeline shape, without memory."""
        if space.manner is Manner.REPLICAS:
            for budgets in replica_budgets(self.machine, space.rows, space.pools):
                slowest = np.stack([relaxed_slowest_seconds(_roomy(budget)) for budget in budgets])
                yield replica_bound_seconds(self.machine, space.pools, budgets, space.rows, slowest)
            return
        for pooled in pooled_budgets(self.machine, space.rows, [space.pools]):
            budget = _roomy(pooled.budget)
            bare = replace(budget, seconds=replace(budget.seconds, base=0 * budget.seconds.base), work_seconds=0 * budget.work_seconds)
            yield pooled_bound_seconds(self.machine, replace(pooled, budget=bare), relaxed_slowest_seconds(bare))

    def of(self, space: PoolSpace, rows: np.ndarray, orders: Sequence[tuple[int, ...]], limit: float = float("inf")) -> Iterator[Shell]:
        """Those of some ``rows`` of a space, in some orders, that could be faster than ``limit``."""
        columns = space.rows.take(rows)
        if space.manner is Manner.STAGES:
            for pooled in pooled_budgets(self.machine, columns, orders):
                bounds = pooled_bound_seconds(self.machine, pooled, relaxed_slowest_seconds(pooled.budget))
                use = Use(manner=space.manner, pools=tuple(dict.fromkeys(pooled.on)))
                yield from _kept(space, rows, columns, use, bounds, limit, (pooled.budget,), pooled.on)
            return
        use = Use(manner=space.manner, pools=space.pools)
        for budgets in replica_budgets(self.machine, columns, space.pools):
            slowest = np.stack([relaxed_slowest_seconds(budget) for budget in budgets])
            bounds = replica_bound_seconds(self.machine, space.pools, budgets, columns, slowest)
            yield from _kept(space, rows, columns, use, bounds, limit, budgets, ())


def _kept(
    space: PoolSpace,
    rows: np.ndarray,
    columns: StrategyColumns,
    use: Use,
    bounds: Floats,
    limit: float,
    budgets: tuple[StageBudget, ...],
    on: tuple[int, ...],
) -> Iterator[Shell]:
    for place in np.flatnonzero((bounds < limit) | np.isinf(limit)).tolist():
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


def _roomy(budget: StageBudget) -> StageBudget:
    return replace(budget, capacity_bytes=np.inf)
