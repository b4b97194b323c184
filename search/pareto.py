"""Strategies that nothing else beats in step time and memory at once, and those that need least memory.

At one number of GPUs money and rated energy are step time times a constant, and the expected time of a useful step under failures
rises with the step time: every question about several of them is one about time and memory. So this front, at every number of
GPUs, holds the answer to all.

Recomputation is bisected as in :mod:`autopar.search.exhaustive`: with each further layer recomputed a step only gets longer and
memory, after the first layer, only falls. Between two evaluated counts no strategy is faster than the lower one or smaller than
the higher one, so an interval whose corner (that time, that memory) is dominated holds nothing of the front.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, TypeVar

import numpy as np

from autopar.costmodel.columns import Bools, Floats, Ints, StrategyColumns
from autopar.costmodel.inputs import Inputs
from autopar.costmodel.problem import Problem
from autopar.costmodel.spec.plan import SearchSummary
from autopar.costmodel.spec.strategy import Recompute
from autopar.costmodel.step import evaluate

from . import feasibility
from .constraints import NO_CONSTRAINTS, Constraints
from .exhaustive import SAME, Candidates, covering, recomputing, selective_is_tried
from .feasibility import MEMORY, PREFERENCES
from .progress import Progress, Stopped, Watch
from .result import SearchResult, simplicity
from .solve import optimality, plain
from .space import Space

DOMINATED = "dominated"
"""Numbers of recomputed layers that cannot be on the front, and were not evaluated: counted like a rule."""
REFINED_TOGETHER = 24


def non_dominated(values: Floats) -> Bools:
    """Which rows of ``values`` (points x axes, less is better) no other row is at most equal to in all and below in one.

    Equal rows are all kept. Quadratic in the size of the front, linear in the number of points.
    """
    count = len(values)
    kept = np.ones(count, dtype=np.bool_)
    order = np.lexsort(values.T[::-1])
    for row in order.tolist():
        if kept[row]:
            better = np.all(values[row] <= values, axis=1) & np.any(values[row] < values, axis=1)
            kept &= ~better
    return kept


def dominated_in_time_and_memory(seconds: Floats, memory: Floats, by_seconds: Floats, by_memory: Floats, *, weakly: bool = False) -> Bools:
    """Which points some point of ``by`` is at most equal to in both and (unless ``weakly``) below in one; n log n."""
    if not len(by_seconds):
        return np.zeros(len(seconds), dtype=np.bool_)
    order = np.argsort(by_seconds, kind="stable")
    times = by_seconds[order]
    least = np.concatenate([[np.inf], np.minimum.accumulate(by_memory[order])])
    no_slower = least[np.searchsorted(times, seconds, side="right")]
    faster = least[np.searchsorted(times, seconds, side="left")]
    return np.asarray(no_slower <= memory) if weakly else np.asarray((no_slower < memory) | (faster <= memory))


@dataclass(frozen=True, slots=True)
class _Intervals:
    """Ranges of recomputed layers still open: rows, the counts at both ends, the time at the lower and memory at the higher one."""

    rows: StrategyColumns
    low: Ints
    high: Ints
    seconds: Floats
    memory: Floats

    def __len__(self) -> int:
        return len(self.low)

    def take(self, kept: Ints | Bools) -> _Intervals:
        return _Intervals(self.rows.take(kept), self.low[kept], self.high[kept], self.seconds[kept], self.memory[kept])

    @classmethod
    def concatenate(cls, parts: Sequence[_Intervals]) -> _Intervals:
        columns = StrategyColumns.concatenate([part.rows for part in parts])
        return cls(columns, *(np.concatenate([getattr(part, name) for part in parts]) for name in ("low", "high", "seconds", "memory")))


class _Pass:
    """What passes over a space share: evaluation of all the ends of the recomputation axis, and counts."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.evaluated = 0
        self.rejected = space.rejected
        self._inputs = Inputs.of(space.problem)
        self._capacity = float(self._inputs.memory_bytes)
        self._selective = selective_is_tried(space)
        self.nearest: Candidates | None = None
        """Where nothing fits: the strategy that needs least memory of those seen."""

    def _evaluate(self, rows: StrategyColumns) -> Candidates:
        self.evaluated += len(rows)
        found = evaluate(self._inputs, rows)
        return Candidates(rows, found.step_time_seconds, found.exact, found.peak_memory_bytes)

    def _refine(self, pool: Candidates, rows: Ints) -> None:
        """Replace the bounds of ``rows`` by simulated step times."""
        pool.seconds[rows] = evaluate(self._inputs, pool.columns.take(rows), simulate=True).step_time_seconds
        pool.exact[rows] = True

    def _ends(self, rows: StrategyColumns) -> tuple[list[Candidates], tuple[Ints, Ints, Ints]]:
        """``rows`` without recomputation, with selective, with the fewest and the most layers; the rows that the last two are of.

        All in one evaluation: its cost is mostly by pipeline shape, hardly by row.
        """
        choices = self.space.recompute
        fewest, most = choices.step_range(self.space.problem, rows)
        full = np.flatnonzero(choices.full & (most >= fewest))
        parts = [recomputing(rows, Recompute.NONE)] if choices.none else []
        if choices.selective and self._selective:
            parts.append(recomputing(rows, Recompute.SELECTIVE))
        elif choices.selective:
            self.rejected["selective_recompute_saves_memory"] += len(rows)
        parts += [covering(self.space, rows.take(full), counts[full]) for counts in (fewest, most)]
        found, ends = self._evaluate(StrategyColumns.concatenate(parts)), np.cumsum([0, *map(len, parts)])
        each = [found.take(np.arange(first, last)) for first, last in pairwise(ends.tolist())]
        return each, (full, fewest[full], most[full])

    def _fitting(self, found: Candidates) -> Candidates:
        fits = found.memory <= self._capacity
        self.rejected[MEMORY] += int((~fits).sum())
        if not fits.any() and len(found):
            least = found.take(np.array([np.argmin(found.memory)]))
            self.nearest = least if self.nearest is None or least.memory[0] < self.nearest.memory[0] else self.nearest
        return found.take(fits)


class Front(_Pass):
    """The front of step time and peak memory over one space."""

    def __init__(self, space: Space) -> None:
        super().__init__(space)
        self._pool: list[Candidates] = []
        self._open: list[_Intervals] = []

    @property
    def has_found(self) -> bool:
        return any(map(len, self._pool))

    def visit(self, rows: StrategyColumns) -> None:
        """Evaluate ``rows`` at the ends of the recomputation axis, and leave what lies between open."""
        each, (full, fewest, most) = self._ends(rows)
        first, last = each[-2:]
        self._pool += [self._fitting(found) for found in each]
        opened = _Intervals(rows.take(full), fewest, most, first.seconds, last.memory)
        self._open.append(self._worth_opening(opened))
        self._pool = [self._thinned(Candidates.concatenate(self._pool))]

    def answer(self) -> Candidates | None:
        """The front, exact, by falling memory; None where nothing fits."""
        if not self.has_found:
            return None
        pool = self._proven(Candidates.concatenate(self._pool))
        left = _Intervals.concatenate(self._open)
        while len(left := self._not_dominated(left, pool)):
            middle = (left.low + left.high) // 2
            found = self._evaluate(covering(self.space, left.rows, middle))
            lower = _Intervals(left.rows, left.low, middle, left.seconds, found.memory)
            upper = _Intervals(left.rows, middle, left.high, found.seconds, left.memory)
            pool = self._proven(Candidates.concatenate([pool, self._fitting(found)]))
            left = _Intervals.concatenate([self._worth_opening(lower), self._worth_opening(upper)])
        return _simplest(pool)

    def _worth_opening(self, ranges: _Intervals) -> _Intervals:
        """Those with a count between their ends, and whose most frugal strategy fits."""
        between = ranges.high - ranges.low - 1
        fits = ranges.memory <= self._capacity
        self.rejected[MEMORY] += int(between[~fits & (between > 0)].sum())
        return ranges.take(fits & (between > 0))

    def _not_dominated(self, ranges: _Intervals, pool: Candidates) -> _Intervals:
        gone = dominated_in_time_and_memory(ranges.seconds, ranges.memory, pool.seconds, pool.memory, weakly=True)
        self.rejected[DOMINATED] += int((ranges.high - ranges.low - 1)[gone].sum())
        return ranges.take(~gone)

    def _thinned(self, pool: Candidates) -> Candidates:
        """``pool`` without what an exact member dominates: a bound proves nothing about another."""
        known = pool.take(pool.exact)
        return pool.take(~dominated_in_time_and_memory(pool.seconds, pool.memory, known.seconds, known.memory))

    def _proven(self, pool: Candidates) -> Candidates:
        """The front of ``pool``: bounds on the front of bounds are simulated until none is left there.

        A bound only grows when it is simulated, so a point dominated by an exact one stays so; and once the front is exact,
        everything off it is dominated by an exact point.
        """
        while True:
            pool = self._thinned(pool)
            ahead = ~dominated_in_time_and_memory(pool.seconds, pool.memory, pool.seconds, pool.memory)
            inexact = np.flatnonzero(ahead & ~pool.exact)
            if not len(inexact):
                return pool.take(ahead)
            self._refine(pool, inexact[:: max(1, len(inexact) // REFINED_TOGETHER)][:REFINED_TOGETHER])


class LeastMemory(_Pass):
    """The ``top`` strategies by peak memory, equal ones by step time; each with the recomputation that saves it most."""

    def __init__(self, space: Space, *, top: int) -> None:
        super().__init__(space)
        self._top = top
        self._pool: list[Candidates] = []

    @property
    def has_found(self) -> bool:
        return any(map(len, self._pool))

    def visit(self, rows: StrategyColumns) -> None:
        """Evaluate ``rows`` at the ends of the recomputation axis and keep each one's most frugal choice."""
        each, (full, _, _) = self._ends(rows)
        memory = np.full((len(each), len(rows)), np.inf)
        seconds = memory.copy()
        for place, found in enumerate(each):
            own = full if place >= len(each) - 2 else np.arange(len(rows))
            memory[place, own], seconds[place, own] = found.memory, found.seconds
        lowest = memory.min(axis=0)
        chosen = np.argmin(np.where(memory <= lowest * (1 + SAME), seconds, np.inf), axis=0)
        position = np.full_like(memory, -1, dtype=np.int64)
        position[-2:, full] = np.arange(len(full))
        position[:-2] = np.arange(len(rows))
        best = [found.take(position[place, chosen == place]) for place, found in enumerate(each)]
        pool = Candidates.concatenate([*self._pool, *(self._fitting(part) for part in best)])
        limit = np.partition(pool.memory, self._top - 1)[self._top - 1] if len(pool) > self._top else np.inf
        self._pool = [pool.take(pool.memory <= limit * (1 + SAME))]

    def answer(self) -> Candidates | None:
        """The ranking, exact and in order; None where nothing fits."""
        if not self.has_found:
            return None
        pool = Candidates.concatenate(self._pool)
        pool = pool.take(np.argsort(pool.memory, kind="stable"))
        group = _groups(pool.memory)
        while True:
            order = np.lexsort((pool.seconds, group))[: self._top]
            inexact = order[~pool.exact[order]]
            if not len(inexact):
                break
            self._refine(pool, inexact)
        ahead = pool.take(np.lexsort((pool.seconds, group)))
        same = _groups(ahead.seconds) + len(pool) * _groups(ahead.memory)
        keys = [(int(same[row]), simplicity(ahead.columns.strategy(row))) for row in range(min(len(ahead), 4 * self._top))]
        order = np.array(sorted(range(len(keys)), key=keys.__getitem__)[: self._top], dtype=np.int64)
        return ahead.take(order)


def front(problem: Problem, constraints: Constraints = NO_CONSTRAINTS, *, watch: Watch | None = None) -> SearchResult:
    """Every strategy that fits and that no other beats in step time and peak memory at once, fastest first.

    Exact over the enumerated space, all numbers of recomputed layers included; equal ones are represented by the simplest. Once
    ``watch`` stops, what was seen so far has the answer.
    """
    return _searched(problem, constraints, Front, watch)


def least_memory(problem: Problem, constraints: Constraints = NO_CONSTRAINTS, *, top: int = 5, watch: Watch | None = None) -> SearchResult:
    """The ``top`` strategies that need least memory on their fullest GPU, least first, equal ones by step time."""
    return _searched(problem, constraints, lambda space: LeastMemory(space, top=top), watch)


class _Visitor(Protocol):
    space: Space
    evaluated: int
    nearest: Candidates | None

    @property
    def has_found(self) -> bool: ...

    def visit(self, rows: StrategyColumns) -> None: ...

    def answer(self) -> Candidates | None: ...


V = TypeVar("V", bound=_Visitor)


def _searched(problem: Problem, constraints: Constraints, make: Callable[[Space], V], watch: Watch | None) -> SearchResult:
    """A whole pass, and a second one without the liftable preferences where the first finds nothing."""
    watch = watch or Watch()
    visitor = _visited(make(Space.of(problem, constraints)), watch)
    lifted = [p.name for p in PREFERENCES if p.liftable and visitor.space.rejected[p.name]]
    if visitor.has_found or watch.stopped is not None:
        lifted = []
    elif lifted:
        strict = [p for p in PREFERENCES if not p.liftable]
        visitor = _visited(make(Space.of(problem, constraints, preferences=strict)), watch)
    ranked = plain(visitor.answer())
    refused = visitor.space.last_refused if not visitor.evaluated else []
    return SearchResult(
        best=ranked[0].strategy if ranked else None,
        ranked=ranked,
        summary=SearchSummary(
            evaluated=visitor.evaluated,
            rejected=dict(sorted(visitor.space.rejected.items())),
            method="exhaustive",
            optimality=optimality(visitor.has_found, watch.stopped, lifted),
            interrupted=watch.stopped is Stopped.INTERRUPTED,
        ),
        nearest_misses=() if ranked else plain(visitor.nearest),
        refused_by=tuple(fault for strategy in refused for fault in feasibility.faults(problem, strategy)),
        seconds=watch.seconds,
    )


def _visited(visitor: V, watch: Watch) -> V:
    try:
        for rows in visitor.space.slices():
            if watch.stops():
                break
            visitor.visit(rows)
            watch.tell(
                lambda: Progress(evaluated=visitor.evaluated, rejected=visitor.space.rejected, best_seconds=None, bound_seconds=None)
            )
    except KeyboardInterrupt:
        watch.stopped = Stopped.INTERRUPTED
    return visitor


def _groups(values: Iterable[float]) -> Ints:
    """A number for each of the sorted runs of ``values``; those within ``SAME`` of a run's first are in it."""
    numbers: list[int] = []
    first = -np.inf
    for value in values:
        starts = not numbers or value > first * (1 + SAME) or value < first
        first = value if starts else first
        numbers.append((numbers[-1] if numbers else -1) + starts)
    return np.array(numbers, dtype=np.int64)


def _simplest(pool: Candidates) -> Candidates:
    """A front by rising step time: times within ``SAME`` are one time, and one point stands for those equal in both."""
    pool = pool.take(np.lexsort((pool.memory, pool.seconds)))
    kept: dict[int, int] = {}
    for row, group in enumerate(_groups(pool.seconds).tolist()):
        best = kept.setdefault(group, row)
        same = abs(pool.memory[row] - pool.memory[best]) <= SAME * pool.memory[best]
        simpler = same and simplicity(pool.columns.strategy(row)) < simplicity(pool.columns.strategy(best))
        if simpler or (not same and pool.memory[row] < pool.memory[best]):
            kept[group] = row
    return pool.take(np.array(list(kept.values()), dtype=np.int64))


__all__ = ["DOMINATED", "Front", "LeastMemory", "dominated_in_time_and_memory", "front", "least_memory", "non_dominated"]
