"""How fast a strategy with several stages a rank can be at most, over all ways to share its layers out.

No placement is faster than Z if no way to share the layers out, cut in pieces, keeps every path of the schedule within Z
(:mod:`autopar.costmodel.pipeline_paths`), and every rank to the whole layers that Z and its memory leave it (:mod:`.rank_loads`).
That is a matrix game: paths against stages. The paths are the critical ones of the placements that answer it, found one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from autopar.costmodel.columns import Floats
from autopar.costmodel.pipeline_paths import Paths, longest_paths, window_of
from autopar.costmodel.spec.strategy import PipelineSchedule
from autopar.costmodel.stage_budget import Linear, StageBudget

from .cut_bound import Answer
from .partition import SAME, share_of
from .rank_loads import RankLoads
from .weighting import best_weights

_SETTLED = 1e-4
"""A path longer than those known by less than this share is not worth another."""
_CLOSE = 1e-3
"""To this share the best bound is searched where the limit cannot be proven."""
_ROOM = 1e-5
"""A rank may have this share more than its most layers: with just the most of them nothing is to be proven by its load."""


@dataclass(slots=True)
class _Pool:
    """The paths of one shape that have mattered so far. Not frozen: it grows."""

    sizes: tuple[PipelineSchedule, int, int, int]
    parts: list[Paths] = field(default_factory=list)

    def add(self, seconds: Floats) -> Paths:
        self.parts.append(longest_paths(*self.sizes, seconds))
        return self.parts[-1]

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
        if not game.is_possible(np.inf):
            return Answer(seconds=np.inf, layers=())
        if not game.is_possible(limit):
            return Answer(seconds=limit, layers=())
        pool, count = self._pool(budget), float(budget.num_microbatches[0])
        if not pool.parts:
            pool.add(game.seconds(game.even))
        layers: list[tuple[int, ...]] = []
        for _ in range(effort):
            value, shares = game.value(pool.passes(count), limit)
            if value >= limit * (1 - SAME):
                return Answer(seconds=limit, layers=())
            layers = [game.rounded(shares)]
            known, seconds = game.longest(pool.passes(count), shares), game.seconds(shares)
            if game.longest(pool.add(seconds).with_microbatches(count), shares) <= known * (1 + _SETTLED):
                break
        return Answer(seconds=self._proven(game, pool.passes(count), limit), layers=tuple(layers))

    def _proven(self, game: _Game, passes: Floats, limit: float) -> float:
        """The greatest bound that ``passes`` prove, to :data:`_CLOSE`: without whole layers, or with those that a bisected limit leaves."""
        low, _ = game.value(passes, np.inf)
        high = limit
        while np.isfinite(high) and high - low > _CLOSE * high:
            middle = (low + high) / 2
            proven = not game.is_possible(middle) or game.value(passes, middle)[0] >= middle * (1 - SAME)
            low, high = (middle, high) if proven else (low, middle)
        return low

    def _pool(self, budget: StageBudget) -> _Pool:
        window = window_of(budget.schedule, budget.num_ranks, round(float(budget.num_microbatches[0])))
        sizes = (budget.schedule, budget.num_ranks, budget.num_stages // budget.num_ranks, window)
        return self._pools.setdefault(sizes, _Pool(sizes))


class _Game:
    """Layers of one kind cut in pieces and shared out over the stages; where there are two kinds, dense ones count by their seconds."""

    def __init__(self, budget: StageBudget, asked: int | None) -> None:
        self._budget = budget
        kind, share = int(budget.is_expert.any()), share_of(budget, asked)
        experts = int(budget.is_expert.sum())
        self._layer = _seconds_by_part(budget, share, lambda line: line.slope[0, :, kind])
        self._base = _seconds_by_part(budget, share, lambda line: line.base[0])
        self._worth = 1.0
        if kind:
            dense = _seconds_by_part(budget, share, lambda line: line.slope[0, :, 0])
            self._worth = float(np.min(np.divide(dense, self._layer, out=np.full_like(dense, np.inf), where=self._layer > 0)))
        self.total = experts + self._worth * (budget.num_layers - experts)
        self._least = min(self._worth, 1.0)
        self._ranks = np.asarray(budget.holder[None, :] == np.arange(budget.num_holders)[:, None], dtype=np.float64)
        self._loads = RankLoads(budget, asked, worth=self._worth, way=self._way())
        self._tail = self._tail_line()

    def _way(self) -> Floats:
        """``[R]``: what passes before a holder's first pass and after its last at least, a layer on every stage."""
        each = np.sum(self._base + self._least * self._layer, axis=0)
        if self._budget.schedule in (PipelineSchedule.ZERO_BUBBLE, PipelineSchedule.DUALPIPE):
            each = self._base[0] + self._least * self._layer[0]  # the last pass may be of weights, which nobody waits for
        return np.asarray(np.concatenate([[0.0], np.cumsum(each)])[: self._budget.num_holders])

    @property
    def even(self) -> Floats:
        return np.full(self._budget.num_stages, self.total / self._budget.num_stages)

    def seconds(self, layers: Floats) -> Floats:
        """``[3, S]`` of a micro-batch with ``layers`` on the stages."""
        return np.asarray(self._base + layers * self._layer)

    def longest(self, passes: Floats, layers: Floats) -> float:
        return float(np.max(np.tensordot(passes, self.seconds(layers), axes=2)))

    def is_possible(self, limit: float) -> bool:
        """Whether the ranks together have room for all layers, within ``limit`` seconds and their memory, each stage at least one."""
        if self._free < -SAME * self.total:
            return False
        return self._loads.are_enough(limit)

    @property
    def _free(self) -> float:
        return self.total - self._least * self._budget.num_stages

    def value(self, passes: Floats, limit: float) -> tuple[float, Floats]:
        """What the best mean of the paths proves if every rank keeps within ``limit``, and the layers on stages that answer it.

        With an infinite limit it is a bound; with another, one where it is no less than the limit.
        """
        least_tail, free = float(self._budget.first_tails[0].min()), self._free
        most = self._loads.most(limit)
        tail, slope = self._tail if most[0] < self._budget.first_tails.shape[1] - 1 else (least_tail, 0.0)
        slopes = np.einsum("pks,ks->ps", passes, self._layer) + slope * self._ranks[0]
        fixed = np.einsum("pks,ks->p", passes, self._base) + tail
        more, less = self._recomputed(passes)
        slopes, fixed = slopes + more, fixed - less
        if np.isfinite(limit):
            slopes = np.concatenate([slopes, self._ranks * (limit / (most * (1 + _ROOM)))[:, None]])
            fixed = np.concatenate([fixed, np.zeros(len(most))])
        fixed = fixed + self._least * slopes.sum(axis=1)
        if free <= self.total * SAME:
            return float(fixed.max()), self.even
        game = np.maximum(slopes * free + fixed[:, None], 0.0)
        weights, shares = best_weights(game)
        return float((weights @ game).min()), self._least + free * shares

    def _recomputed(self, passes: Floats) -> tuple[Floats, Floats]:
        """What recomputation that the memory forces on the ranks adds to the paths: ``[P, S]`` a layer, less ``[P]``.

        A path passes it as often as it passes the backward of the rank's stages, of all those the least often.
        """
        slope, off = self._loads.forced
        if not slope.any():
            return np.zeros(1), np.zeros(1)
        often = np.stack([passes[:, 1][:, held > 0].min(axis=1) for held in self._ranks], axis=1)
        return (often * slope) @ self._ranks, often @ off

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
        weight = np.where(budget.is_expert, 1.0, self._worth)
        places = np.searchsorted(np.cumsum(weight) - weight / 2, np.cumsum(layers)[:-1])
        cuts = [0]
        for stage, place in enumerate(places.tolist(), start=1):
            cuts.append(min(max(place, cuts[-1] + 1), budget.num_layers - (budget.num_stages - stage)))
        return tuple(np.diff([*cuts, budget.num_layers]).tolist())


def _seconds_by_part(budget: StageBudget, share: float, of: Callable[[Linear], Floats]) -> Floats:
    """``[3, S]``: forward, backward and weight part of ``of``, with a share of the layers recomputed."""
    lines = (budget.forward_seconds, budget.weight_seconds, budget.seconds, budget.recomputed_seconds)
    forward, weight, plain, again = (of(line) for line in lines)
    return np.stack([forward, plain + share * (again - plain) - forward - weight, weight])
