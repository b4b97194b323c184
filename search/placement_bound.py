"""How fast one strategy can be at most, over all ways to put its layers on its stages, and the way that the bound suggests.

One stage a rank (:func:`least_by_cuts`): each path of the schedule (:mod:`autopar.costmodel.pipeline_paths`) depends on the cuts before and
after one stage alone, so that a dynamic programme over cut points finds the placement whose longest path is shortest, whole layers,
memory and recomputation included.

Several stages a rank (:class:`PathBounds`): no placement is faster than ``Z`` if no way to share the layers out, cut in pieces, keeps
every path within Z while every rank keeps to the whole layers that Z and its memory leave it. That is a matrix game; its paths are
the critical ones of the placements that answer it, found one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np

from autopar.costmodel.columns import Floats, Ints
from autopar.costmodel.holdings import Tails
from autopar.costmodel.pipeline_paths import Paths, Ramps, longest_paths, window_of
from autopar.costmodel.spec.strategy import PipelineSchedule
from autopar.costmodel.stage_budget import Linear, StageBudget

from .partition import Segments, rank_seconds, share_of
from .weighting import best_weights

SAME = 1e-9
_SETTLED = 1e-4
"""A path longer than those known by less than this share is not worth another."""
_CLOSE = 1e-3
_FINE = 1e-4
_SUGGESTED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A bound on the pipeline's seconds with the first rank's tail, and placements worth trying."""

    seconds: float
    layers: tuple[tuple[int, ...], ...]


# --- one stage a rank


def least_by_cuts(budget: StageBudget, found: Segments, paths: Ramps, *, recomputed: float) -> Answer:
    """The least over all cuts of the longest of ``paths`` with the longest tail of a rank; infinite where nothing fits.

    What recomputation adds before and after a stage is the least that any placement of the layers there needs. Tails are
    taken in bins: with no tail above its upper edge the paths decide, and the tail is no less than the lower one.

    Args:
        budget: of one strategy.
        found: what every run of layers takes on every stage.
        paths: of the schedule.
        recomputed: the most of a stage's layers that may be recomputed, as a share: later ranks' tails hide behind that.
    """
    longest, tails = _longest(budget, found, paths), _tails(budget, found.seconds, recomputed)
    least, most = _distinct(tails[np.isfinite(tails)])
    if not len(most):
        return Answer(seconds=np.inf, layers=())

    def within(last: int) -> tuple[float, tuple[int, ...]]:
        return _cuts(np.where(tails <= most[last], longest, np.inf))

    # bins of tails after one another, the one of the least bound split until it holds a single tail
    value, split = within(len(most) - 1)
    bins, layers = [(value + float(least[0]), 0, len(most) - 1, value)], [split]
    while np.isfinite(bins[0][0]) and bins[0][1] < bins[0][2]:
        _, first, last, value = heappop(bins)
        middle = (first + last) // 2
        heappush(bins, (value + float(least[middle + 1]), middle + 1, last, value))
        value, split = within(middle)
        heappush(bins, (value + float(least[first]), first, middle, value))
        layers.append(split)
    if not np.isfinite(bins[0][0]):
        return Answer(seconds=np.inf, layers=())
    _, _, last, _ = bins[0]
    return Answer(seconds=bins[0][0], layers=(within(last)[1], *dict.fromkeys(layers[::-1]))[:_SUGGESTED])


def _distinct(seconds: Floats) -> tuple[Floats, Floats]:
    """In order, those that differ by less than a ten-thousandth of the largest taken together: the least and the most of each."""
    ordered = np.unique(seconds)
    if not len(ordered):
        return ordered, ordered
    steps = np.flatnonzero(np.diff(np.floor(ordered / (ordered[-1] * _FINE + np.finfo(np.float64).tiny))))
    return ordered[np.append(0, steps + 1)], ordered[np.append(steps, len(ordered) - 1)]


def _longest(budget: StageBudget, found: Segments, paths: Ramps) -> Floats:
    """``[S, L + 1, L + 1]``: the longest path that stays on a stage with a run of layers."""
    before, after = _around(budget, found)
    parts, longest = _parts(budget, found), np.full_like(found.seconds, -np.inf)
    first_weight = float(budget.weight_seconds.base[0, 0] + budget.weight_seconds.slope[0, 0].min())
    for path, stage in enumerate(paths.stage.tolist()):
        sides = _weighed(paths.before[path], before[stage])[:, None] + _weighed(paths.after[path], after[stage])[None, :]
        seconds = sides + _weighed(paths.own[path], parts[:, stage]) + paths.first_weight[path] * first_weight
        np.maximum(longest[stage], seconds, out=longest[stage])
    return longest


def _cuts(longest: Floats) -> tuple[float, tuple[int, ...]]:
    """The cuts whose slowest run is fastest, and its seconds."""
    value, choices = longest[-1][:, -1], []
    for stage in longest[-2::-1]:
        through = np.maximum(stage, value[None, :])
        choices.append(through.argmin(axis=1))
        value = np.take_along_axis(through, choices[-1][:, None], axis=1)[:, 0]
    cuts = [0]
    for choice in reversed(choices):
        cuts.append(int(choice[cuts[-1]]))
    return float(value[0]), tuple(np.diff([*cuts, len(value) - 1]).tolist())


def _tails(budget: StageBudget, seconds: Floats, recomputed: float) -> Floats:
    """``[S, L + 1, L + 1]``: the tail of a run of layers on a stage, at least; infinite where the run does not fit."""
    tables, layers = budget.tails, budget.num_layers
    counts = np.arange(layers + 1)
    runs = np.clip(counts - counts[:, None], 0, tables.rest_seconds.shape[2] - 1)
    kinds = budget.kinds_before()
    forward, plain, again = (
        np.concatenate([[0.0], np.cumsum(line.base[0])[:-1]])[:, None] + kinds @ line.slope[0, 0]
        for line in (budget.forward_seconds, budget.seconds, budget.recomputed_seconds)
    )
    backward = plain + recomputed * (again - plain) - forward
    every = Tails(**{name: getattr(tables, name)[0][:, runs] for name in ("reduction_seconds", "gather_seconds", "rest_seconds")})
    return np.where(np.isfinite(seconds), every.seconds(forward[:, :, None], backward[:, :, None]), np.inf)


def _weighed(passes: Floats, seconds: Floats) -> Floats:
    """Seconds of so many passes of each part; a part that is not passed counts nothing even where it is infinite."""
    used = np.flatnonzero(passes)
    return np.asarray(np.tensordot(passes[used], seconds[used], axes=1))


def _parts(budget: StageBudget, found: Segments) -> Floats:
    """Forward, backward and weight seconds of every run on every stage, ``[3, S, L + 1, L + 1]``."""
    kinds = budget.kinds_before()
    runs = kinds[None, :, :] - kinds[:, None, :]

    def over(line: Linear) -> Floats:
        return np.asarray(line.base[0][:, None, None] + np.einsum("sk,ijk->sij", line.slope[0], runs))

    forward, weight = over(budget.forward_seconds), over(budget.weight_seconds)
    return np.stack([forward, found.seconds - forward - weight, weight])


def _around(budget: StageBudget, found: Segments) -> tuple[Floats, Floats]:
    """``[S, 3, L + 1]``: the least that the stages before take with the layers up to each one, and those after with the rest."""
    total = [np.where(np.arange(budget.num_layers + 1) == 0, 0.0, np.inf)]
    for stage in found.seconds[:-1]:
        total.append((total[-1][:, None] + stage).min(axis=0))
    rest = [np.where(np.arange(budget.num_layers + 1) == budget.num_layers, 0.0, np.inf)]
    for stage in found.seconds[:0:-1]:
        rest.append((stage + rest[-1][None, :]).min(axis=1))
    kinds = budget.kinds_before()

    def split(whole: Floats, layers: Ints, stages: slice) -> Floats:
        fixed = [line.base[0, stages].sum() + layers @ line.slope[0, 0] for line in (budget.forward_seconds, budget.weight_seconds)]
        return np.stack([fixed[0], whole - fixed[0] - fixed[1], fixed[1]])

    before = np.stack([split(each, kinds, slice(0, stage)) for stage, each in enumerate(total)])
    after = np.stack([split(each, kinds[-1] - kinds, slice(stage + 1, None)) for stage, each in enumerate(reversed(rest))])
    return before, after


# --- several stages a rank


@dataclass(slots=True)
class _Pool:
    """The paths of one shape that have mattered so far. Not frozen: it grows."""

    sizes: tuple[PipelineSchedule, int, int, int]
    parts: list[Paths] = field(default_factory=list)
    spent: int = 0

    def add(self, seconds: Floats) -> None:
        self.parts.append(longest_paths(*self.sizes, seconds))
        self.spent += 1

    def passes(self, count: float) -> Floats:
        return np.concatenate([part.with_microbatches(count) for part in self.parts])


class PathBounds:
    """Bounds of strategies of one problem; paths found for one are kept for the others of its shape."""

    def __init__(self) -> None:
        self._pools: dict[tuple[PipelineSchedule, int, int, int], _Pool] = {}

    def answer(self, budget: StageBudget, asked: int | None, limit: float, *, effort: int) -> Answer:
        """``limit`` where no placement can be shown to be faster with ``effort`` new simulations, else the most that can be shown.

        Args:
            budget: of one strategy.
            asked: layers recomputed on each rank; None: as many as must.
            limit: seconds of the pipeline and the first rank's tail; may be infinite.
            effort: how often the schedule may be simulated.
        """
        game = _Game(budget, asked)
        if not game.fits:
            return Answer(seconds=np.inf, layers=())
        pool = self._pool(budget)
        if not pool.parts:
            pool.add(game.seconds(np.full(budget.num_stages, game.total / budget.num_stages)))
        layers: list[tuple[int, ...]] = []
        for _ in range(effort):
            value, shares = game.value(pool.passes(game.count), limit)
            if value >= limit * (1 - SAME):
                return Answer(seconds=limit, layers=())
            layers = [game.rounded(shares)]
            known = game.longest(pool.passes(game.count), shares)
            pool.add(game.seconds(shares))
            if game.longest(pool.parts[-1].with_microbatches(game.count), shares) <= known * (1 + _SETTLED):
                break
        return Answer(seconds=self._proven(game, pool.passes(game.count), limit), layers=tuple(layers))

    def _proven(self, game: _Game, passes: Floats, limit: float) -> float:
        """The greatest bound that ``passes`` prove, to :data:`_CLOSE`: without whole layers, or with those that a bisected limit leaves."""
        low, _ = game.value(passes, np.inf)
        high = limit
        while np.isfinite(high) and high - low > _CLOSE * high:
            middle = (low + high) / 2
            value, _ = game.value(passes, middle)
            low, high = (middle, high) if value >= middle * (1 - SAME) else (low, middle)
        return low

    def _pool(self, budget: StageBudget) -> _Pool:
        window = window_of(budget.schedule, budget.num_ranks, round(float(budget.num_microbatches[0])))
        sizes = (budget.schedule, budget.num_ranks, budget.num_stages // budget.num_ranks, window)
        return self._pools.setdefault(sizes, _Pool(sizes))


class _Game:
    """Layers of one kind cut in pieces and shared out over the stages; where there are two kinds, dense ones count by their seconds."""

    def __init__(self, budget: StageBudget, asked: int | None) -> None:
        self._budget, self._asked = budget, asked
        kind, share = int(budget.is_expert.any()), share_of(budget, asked)
        experts = int(budget.is_expert.sum())
        self._layer = _seconds_by_part(budget, share, lambda line: line.slope[0, :, kind])
        self._base = _seconds_by_part(budget, share, lambda line: line.base[0])
        self._worth = 1.0
        if kind:
            dense = _seconds_by_part(budget, share, lambda line: line.slope[0, :, 0])
            self._worth = float(np.min(np.divide(dense, self._layer, out=np.full_like(dense, np.inf), where=self._layer > 0)))
        self.total = experts + self._worth * (budget.num_layers - experts) if kind else float(budget.num_layers)
        self.count = float(budget.num_microbatches[0])
        self._least = min(self._worth, 1.0)
        self._ranks = budget.holder[None, :] == np.arange(budget.num_holders)[:, None]
        self._held = self._holdable(kind)

    def _holdable(self, kind: int) -> tuple[Floats, Floats]:
        """Layers that a holder can have, in those of the game, and its seconds with them: ``[candidates, R]``."""
        budget = self._budget
        counts = np.arange(budget.num_layers + 1)
        experts = int(budget.is_expert.sum())
        dense, moe = np.meshgrid(counts[: budget.num_layers - experts + 1], counts[: experts + 1], indexing="ij")
        layers = np.stack([dense.ravel(), moe.ravel()], axis=1)
        stages = np.bincount(budget.holder)
        layers = layers[layers.sum(axis=1) >= stages.min()]
        seconds, _ = rank_seconds(
            budget, np.broadcast_to(layers[:, None, :], (len(layers), budget.num_holders, 2)).astype(float), self._asked
        )
        return layers @ np.array([self._worth if kind else 1.0, 1.0]), np.where(layers.sum(axis=1)[:, None] >= stages, seconds, np.inf)

    def seconds(self, layers: Floats) -> Floats:
        """``[3, S]`` of a micro-batch with ``layers`` on the stages."""
        return np.asarray(self._base + layers * self._layer)

    def longest(self, passes: Floats, layers: Floats) -> float:
        return float(np.max(np.tensordot(passes, self.seconds(layers), axes=2)))

    @property
    def fits(self) -> bool:
        """Whether the memory of all ranks together holds the layers, each stage at least one."""
        most = self._most_layers(np.inf)
        return bool(most.all() and most.sum() >= self.total * (1 - SAME) and self._free >= -SAME)

    @property
    def _free(self) -> float:
        return self.total - self._least * self._budget.num_stages

    def value(self, passes: Floats, limit: float) -> tuple[float, Floats]:
        """What the best mean of the paths proves if every rank keeps within ``limit``, and the layers on stages that answer it.

        With an infinite limit it is a bound; with another, one where it is no less than the limit.
        """
        least_tail, free = float(self._budget.first_tails[0].min()), self._free
        bare = np.full(self._budget.num_stages, self._least)
        most = self._most_layers(limit - least_tail)
        if most.sum() < self.total * (1 - SAME) or not most.all():
            return np.inf, bare
        known = most[0] < self._budget.first_tails.shape[1] - 1
        tail, slope = self._tail_line() if known else (least_tail, 0.0)
        slopes = np.einsum("pks,ks->ps", passes, self._layer) + slope * self._ranks[0]
        fixed = np.einsum("pks,ks->p", passes, self._base) + tail
        if np.isfinite(limit):
            slopes = np.concatenate([slopes, self._ranks * (limit / most)[:, None]])
            fixed = np.concatenate([fixed, np.zeros(len(most))])
        fixed = fixed + self._least * slopes.sum(axis=1)
        if free <= self.total * SAME:
            return float(fixed.max()), bare
        game = slopes * free + fixed[:, None]
        weights, shares = best_weights(game)
        return float((weights @ game).min()), self._least + free * shares

    def _most_layers(self, limit: float) -> Floats:
        """Of each holder, within ``limit`` seconds of the pipeline."""
        layers, seconds = self._held
        budget = self._budget
        way = np.cumsum(self._base + self._least * self._layer, axis=1)
        first = np.arange(budget.num_holders) - 1
        split = budget.schedule in (PipelineSchedule.ZERO_BUBBLE, PipelineSchedule.DUALPIPE)
        ramp = np.where(first >= 0, way[0, first] + (0.0 if split else way[1, first] + way[2, first]), 0.0)
        within = np.isfinite(seconds) & (self.count / budget.directions * seconds + ramp <= limit * (1 + SAME))
        return np.asarray(np.max(np.where(within, layers[:, None], 0.0), axis=0))

    def _tail_line(self) -> tuple[float, float]:
        """A line in the layers of the first holder that is nowhere above its tail."""
        table = self._budget.first_tails[0]
        counts = np.arange(len(table))
        middle = min(round(self._budget.num_layers / self._budget.num_holders), len(table) - 2)
        slope = max(float(np.min((table[middle + 1 :] - table[middle]) / (counts[middle + 1 :] - middle))), 0.0)
        return float(np.min(table - slope * counts)), slope / max(self._worth, 1.0)

    def rounded(self, layers: Floats) -> tuple[int, ...]:
        """Whole layers on stages, at least one each, that follow ``layers``."""
        budget = self._budget
        if self._worth < 1.0 and budget.is_expert.any():
            weight = np.where(budget.is_expert, 1.0, self._worth)
        else:
            weight = np.ones(budget.num_layers)
        places = np.searchsorted(np.cumsum(weight) - weight / 2, np.cumsum(layers)[:-1])
        cuts = [0]
        for stage, place in enumerate(places.tolist(), start=1):
            cuts.append(min(max(place, cuts[-1] + 1), budget.num_layers - (budget.num_stages - stage)))
        return tuple(np.diff([*cuts, budget.num_layers]).tolist())


def _seconds_by_part(budget: StageBudget, share: float, of: Callable[[Linear], Floats]) -> Floats:
    forward, weight, plain, again = (
        of(line) for line in (budget.forward_seconds, budget.weight_seconds, budget.seconds, budget.recomputed_seconds)
    )
    return np.stack([forward, plain + share * (again - plain) - forward - weight, weight])
