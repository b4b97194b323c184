"""Evaluates every strategy that the rules accept, and proves the ranking.

Recomputation is not multiplied out. With everything else equal a step only grows with the layers recomputed, and beyond the
first of them memory only falls, so for each strategy the fewest layers that fit are found by bisection; those with fewer do not
fit, those with more are slower, and both are counted. Step times may be lower bounds (a schedule not yet simulated): they are
replaced by exact ones in the order of the bounds, until the next bound is above the last place of the ranking.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autopar.costmodel.columns import RECOMPUTES, Bools, Floats, Ints, StrategyColumns
from autopar.costmodel.inputs import Inputs
from autopar.costmodel.memory import least_state_bytes
from autopar.costmodel.spec.strategy import Recompute
from autopar.costmodel.step import evaluate, peak_memory_bytes

from .feasibility import MEMORY, PREFERENCES, RECOMPUTE_AS_NEEDED
from .result import simplicity
from .space import Space

SAME = 1e-9
"""Relative difference below which two step times are the same number."""
_POOL_ROWS = 50_000
_REFINED_TOGETHER = 6


@dataclass(slots=True)
class Candidates:
    """Strategies that fit, with their step time or a lower bound of it. Not frozen: ``seconds`` is refined in place."""

    columns: StrategyColumns
    seconds: Floats
    exact: Bools
    memory: Floats

    def __len__(self) -> int:
        return len(self.seconds)

    def take(self, rows: Ints | Bools) -> Candidates:
        return Candidates(self.columns.take(rows), self.seconds[rows], self.exact[rows], self.memory[rows])

    def put(self, rows: Ints, other: Candidates) -> None:
        """Overwrite the numbers of ``rows`` with those of ``other``."""
        self.seconds[rows], self.exact[rows], self.memory[rows] = other.seconds, other.exact, other.memory

    @classmethod
    def concatenate(cls, parts: list[Candidates]) -> Candidates:
        return cls(
            StrategyColumns.concatenate([part.columns for part in parts]),
            *(np.concatenate([getattr(part, name) for part in parts]) for name in ("seconds", "exact", "memory")),
        )


class Sweep:
    """One pass over a space. Holds what it has found so far, so that an interrupted pass still has an answer."""

    def __init__(self, space: Space, *, top: int) -> None:
        self.space = space
        self.top = top
        self.evaluated = 0
        self.rejected = space.rejected
        self._inputs = Inputs.of(space.problem)
        self._capacity = float(self._inputs.memory_bytes)
        self._pool: list[Candidates] = []
        self._misses: list[Candidates] = []
        self._selective = selective_is_tried(space)

    def visit(self, rows: StrategyColumns) -> None:
        """Evaluate ``rows`` with every choice of recomputation and keep what may matter."""
        choices = self.space.recompute
        fewest, most = choices.step_range(self.space.problem, rows)
        covered = choices.full * np.maximum(most - fewest + 1, 0)
        self._count_uneven(rows, covered)
        selective = choices.selective and self._selective
        asked = {
            "none": recomputing(rows, Recompute.NONE) if choices.none else None,
            "selective": recomputing(rows, Recompute.SELECTIVE) if selective else None,
            "most": covering(self.space, rows, most) if choices.full else None,
            "fewest": covering(self.space, rows, np.minimum(fewest, most)) if choices.full else None,
        }
        answers = self._evaluate_together({name: part for name, part in asked.items() if part is not None})
        settled = np.zeros(len(rows), dtype=np.bool_)
        if choices.none:
            settled = self._keep(answers["none"])
            self.rejected[RECOMPUTE_AS_NEEDED] += int((covered + selective)[settled].sum())
        if selective:
            self._keep(answers["selective"].take(~settled))
        elif choices.selective:
            self.rejected["selective_recompute_saves_memory"] += len(rows)
        left = ~settled & (covered > 0)
        if left.any():
            self._visit_full(rows.take(left), (fewest[left], most[left]), (answers["fewest"].take(left), answers["most"].take(left)))

    def _count_uneven(self, rows: StrategyColumns, covered: Ints) -> None:
        """Numbers of layers that are not as many on each virtual stage, where the framework counts so, are refused by its rule."""
        choices = self.space.recompute
        counts = choices.count(self.space.problem, rows.pipeline_parallel_size) - int(choices.none) - int(choices.selective)
        if uneven := int((counts - covered).sum()):
            self.rejected["recomputed_layers"] += uneven

    def _visit_full(self, rows: StrategyColumns, layers: tuple[Ints, Ints], answers: tuple[Candidates, Candidates]) -> None:
        """Full recomputation on the fewest layers that fit, given the range of ``layers`` and the answers at its ends.

        Peak memory is convex in the number of layers (a maximum over ranks of straight lines), and mostly straight: the chord
        from a count that does not fit to one that does meets the capacity at the count sought, or just above it.
        """
        (fewest, most), (first, found) = layers, answers
        fits = self._fitting(found)
        self.rejected[MEMORY] += int((most - fewest + 1)[~fits].sum())
        rows, fewest, most, first, found = rows.take(fits), fewest[fits], most[fits], first.take(fits), found.take(fits)
        at_once = np.flatnonzero(first.memory <= self._capacity)
        low, high, above = fewest.copy(), most.copy(), first.memory.copy()
        high[at_once] = fewest[at_once]
        found.put(at_once, first.take(at_once))
        while len(left := np.flatnonzero(high - low > 1)):
            line = (above[left] - self._capacity) / (above[left] - found.memory[left])
            probe = low[left] + np.ceil(line * (high - low)[left]).astype(np.int64)
            probe = np.clip(probe, low[left] + 1, high[left] - 1)
            tried = self._evaluate(covering(self.space, rows.take(left), probe))
            fit = self._fitting(tried)
            high[left[fit]] = probe[fit]
            found.put(left[fit], tried.take(fit))
            low[left[~fit]], above[left[~fit]] = probe[~fit], tried.memory[~fit]
        self.rejected[MEMORY] += int((high - fewest).sum())
        self.rejected[RECOMPUTE_AS_NEEDED] += int((most - high).sum())
        self._add(Candidates(covering(self.space, rows, high), found.seconds, found.exact, found.memory))

    def _keep(self, found: Candidates) -> Bools:
        """Keep those of ``found`` that fit, and say which do."""
        fits = self._fitting(found)
        self.rejected[MEMORY] += int((~fits).sum())
        self._add(found.take(fits))
        return fits

    def _evaluate(self, rows: StrategyColumns) -> Candidates:
        self.evaluated += len(rows)
        result = evaluate(self._inputs, rows)
        return Candidates(rows, result.step_time_seconds, result.exact, result.peak_memory_bytes)

    def _evaluate_together(self, parts: dict[str, StrategyColumns]) -> dict[str, Candidates]:
        """The parts, all of one length, in one evaluation: its cost is mostly by pipeline shape, hardly by row."""
        if not parts:
            return {}
        whole, step = self._evaluate(StrategyColumns.concatenate(list(parts.values()))), len(next(iter(parts.values())))
        return {name: whole.take(np.arange(place * step, (place + 1) * step)) for place, name in enumerate(parts)}

    def _fitting(self, found: Candidates) -> Bools:
        """Which of ``found`` the memory holds; the closest misses are kept as long as nothing fits."""
        fits = found.memory <= self._capacity
        if not self._pool and not fits.any():
            self._misses = [least(Candidates.concatenate([*self._misses, found]), self.top)]
        return fits

    def _add(self, found: Candidates) -> None:
        if len(found):
            self._pool.append(found)
        if sum(len(part) for part in self._pool) > _POOL_ROWS:
            self._pool = [self._prove()]

    @property
    def has_found(self) -> bool:
        """Whether anything fits so far."""
        return bool(self._pool)

    @property
    def fastest(self) -> float | None:
        """The least step time so far, which may be a lower bound of it."""
        return min((float(part.seconds.min()) for part in self._pool), default=None)

    def best(self) -> Candidates | None:
        """The ``top`` fastest of what was visited, exact and in order; None where nothing fits."""
        if not self._pool:
            return None
        self._pool = [self._prove()]
        return in_order(self._pool[0], self.top)

    def nearest_misses(self) -> Candidates | None:
        """The ``top`` visited strategies that need least memory, where nothing fits."""
        if self._pool or not self._misses:
            return None
        return self._misses[0]

    def _prove(self) -> Candidates:
        """The pool without what cannot rank: bounds are refined in their order until the next is above the last place."""
        pool = Candidates.concatenate(self._pool)
        order = np.argsort(pool.seconds, kind="stable")
        pool = pool.take(order)
        while True:
            limit = self._last_place(pool)
            inexact = np.flatnonzero(~pool.exact & (pool.seconds <= limit))
            if not len(inexact):
                return pool.take(pool.seconds <= limit)
            chosen = inexact[:_REFINED_TOGETHER]
            refined = evaluate(self._inputs, pool.columns.take(chosen), simulate=True)
            pool.seconds[chosen], pool.exact[chosen] = refined.step_time_seconds, True

    def _last_place(self, pool: Candidates) -> float:
        """The exact step time that a strategy must not exceed to be among the ``top``, ties included."""
        known = pool.seconds[pool.exact]
        if len(known) < self.top:
            return float("inf")
        return float(np.partition(known, self.top - 1)[self.top - 1]) * (1 + SAME)


def anything_fits(space: Space) -> bool:
    """Whether the memory holds any strategy of ``space``: asks those that recompute most first, and computes no times."""
    inputs, choices = Inputs.of(space.problem), space.recompute
    capacity = float(inputs.memory_bytes)
    if float(least_state_bytes(inputs)) > capacity * space.problem.cluster.num_gpus:
        return False
    for rows in space.slices():
        fewest, most = choices.step_range(space.problem, rows)
        covered = most >= fewest
        frugal = [covering(space, rows.take(covered), most[covered])] if choices.full else []
        frugal += [recomputing(rows, Recompute.NONE)] if choices.none else []
        frugal += [recomputing(rows, Recompute.SELECTIVE)] if choices.selective else []
        if any((peak_memory_bytes(inputs, each) <= capacity).any() for each in frugal):
            return True
    return False


def covering(space: Space, rows: StrategyColumns, steps: Ints) -> StrategyColumns:
    """``rows`` with full recomputation of so many steps of layers of each rank; all of them are written 0."""
    held, layers = -(-space.problem.model.num_layers // rows.pipeline_parallel_size), steps * space.recompute.step(rows)
    return recomputing(rows, Recompute.FULL, np.where(layers >= held, 0, layers))


def selective_is_tried(space: Space) -> bool:
    """Whether selective recomputation is among the choices: asked for, or able to save memory."""
    preference = next(p for p in PREFERENCES if p.yields_to == "recompute")
    if space.constraints.is_asked("recompute"):
        return True
    return bool(preference.mask(space.problem, recomputing(StrategyColumns.of([space.base]), Recompute.SELECTIVE))[0])


def recomputing(rows: StrategyColumns, kind: Recompute, layers: Ints | None = None) -> StrategyColumns:
    """``rows`` with another recomputation, of ``layers`` of each rank where that is full."""
    code = np.full(len(rows), RECOMPUTES.index(kind), dtype=np.int64)
    modules = rows.recompute_modules if kind is Recompute.SELECTIVE else np.zeros_like(code)
    counted = np.zeros_like(code) if layers is None else layers
    return rows.with_columns(recompute=code, num_recompute_layers=counted, recompute_modules=modules)


def least(found: Candidates, count: int) -> Candidates:
    return found.take(np.argsort(found.memory, kind="stable")[:count])


def in_order(pool: Candidates, top: int) -> Candidates:
    """The first ``top`` by step time; those that differ by less than ``SAME`` by simplicity."""
    order = np.argsort(pool.seconds, kind="stable")
    seconds = pool.seconds[order]
    group, first = np.zeros(len(order), dtype=np.int64), 0
    for position in range(1, len(order)):
        if seconds[position] > seconds[first] * (1 + SAME):
            first = position
        group[position] = first
    keys = [(int(g), simplicity(pool.columns.strategy(int(row)))) for g, row in zip(group, order, strict=True)]
    return pool.take(np.array([order[place] for place in sorted(range(len(order)), key=keys.__getitem__)[:top]], dtype=np.int64))
