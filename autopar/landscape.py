"""Step time against peak memory of the strategies that a search looks at: the ground for a scatter plot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from autopar.costmodel.columns import RECOMPUTES, Bools, Floats, Ints, StrategyColumns
from autopar.costmodel.spec.strategy import Recompute, Strategy
from autopar.costmodel.step import evaluate
from autopar.search import Constraints, enumerate_space

if TYPE_CHECKING:
    from autopar.costmodel.inputs import Inputs
    from autopar.costmodel.problem import Problem

MEMORY_BINS, FASTEST_OF_BIN = 40, 6
"""The fastest few of each slice of memory are kept: slower ones would only blacken the plot."""
MEMORY_RANGE = 1.5
"""Strategies that need more than so many times the device's memory are left out."""
SLOWEST = 4.0
"""And those that take over so many times the least step time of those that fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """One strategy of the scatter."""

    strategy: Strategy
    step_time_seconds: float
    peak_memory_bytes: float
    fits: bool
    efficient: bool
    """No strategy that was looked at is both faster and smaller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Landscape:
    """The strategies worth a point, out of ``evaluated`` ones; least memory first."""

    spots: tuple[Spot, ...]
    evaluated: int

    @property
    def efficient(self) -> tuple[Spot, ...]:
        """The Pareto front, least memory first."""
        return tuple(spot for spot in self.spots if spot.efficient)


def landscape(problem: Problem, constraints: Constraints | None = None) -> Landscape:
    """Every strategy that the rules accept, without recomputation and with full; thinned to the fastest of each memory size.

    Step times of the strategies shown are exact; which are shown is decided by bounds where a schedule has to be simulated.
    """
    from autopar.costmodel.inputs import Inputs

    inputs = Inputs.of(problem)
    capacity, evaluated = float(problem.cluster.device.memory_bytes), 0
    kept: list[tuple[StrategyColumns, Floats, Floats]] = []
    for rows in enumerate_space(problem, constraints or Constraints()):
        for kind in (Recompute.NONE, Recompute.FULL):
            columns = rows.with_columns(recompute=np.full(len(rows), RECOMPUTES.index(kind), dtype=np.int64))
            found = evaluate(inputs, columns)
            evaluated += len(rows)
            chosen = _thinned(found.step_time_seconds, found.peak_memory_bytes, capacity)
            kept.append((columns.take(chosen), found.step_time_seconds[chosen], found.peak_memory_bytes[chosen]))
    if not kept:
        return Landscape(spots=(), evaluated=0)
    columns = StrategyColumns.concatenate([part for part, _, _ in kept])
    seconds, memory = (np.concatenate([part[place] for part in kept]) for place in (1, 2))
    return Landscape(spots=_spots(inputs, columns, (seconds, memory), capacity), evaluated=evaluated)


def _thinned(seconds: Floats, memory: Floats, capacity: float) -> Ints:
    """Positions of the fastest few in each slice of memory, up to a limit of both."""
    within = memory <= MEMORY_RANGE * capacity
    if not within.any():
        return np.empty(0, dtype=np.int64)
    fitting = within & (memory <= capacity)
    within &= seconds <= SLOWEST * seconds[fitting if fitting.any() else within].min()
    slices = np.minimum(memory / (MEMORY_RANGE * capacity) * MEMORY_BINS, MEMORY_BINS - 1).astype(np.int64)
    found = []
    for one in range(MEMORY_BINS):
        mine = np.flatnonzero(within & (slices == one))
        found.append(mine[np.argsort(seconds[mine], kind="stable")[:FASTEST_OF_BIN]])
    return np.concatenate(found)


def _spots(inputs: Inputs, columns: StrategyColumns, figures: tuple[Floats, Floats], capacity: float) -> tuple[Spot, ...]:
    """The columns thinned once more, timed exactly, least memory first."""
    chosen = _thinned(*figures, capacity)
    columns, memory = columns.take(chosen), figures[1][chosen]
    seconds = evaluate(inputs, columns, simulate=True).step_time_seconds
    order = np.lexsort((seconds, memory))
    efficient = _efficient(seconds[order])
    return tuple(
        Spot(
            strategy=columns.strategy(int(row)),
            step_time_seconds=float(seconds[row]),
            peak_memory_bytes=float(memory[row]),
            fits=bool(memory[row] <= capacity),
            efficient=bool(front),
        )
        for row, front in zip(order.tolist(), efficient.tolist(), strict=True)
    )


def _efficient(seconds: Floats) -> Bools:
    """Of strategies in order of memory, those faster than all before them."""
    before = np.concatenate([[np.inf], np.minimum.accumulate(seconds)[:-1]]) if len(seconds) else seconds
    return np.asarray(seconds < before)
