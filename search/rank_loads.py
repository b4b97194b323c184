"""How many whole layers each holder of stages can have, within its memory and within a limit of seconds.

Layers are counted by their seconds: one of experts (or one of a model without) is 1, a dense one ``worth``. Axes: R holders, A and B
numbers of dense layers and of the others.
"""

from __future__ import annotations

import numpy as np

from autopar.costmodel.columns import Bools, Floats
from autopar.costmodel.stage_budget import StageBudget

from .partition import SAME, rank_seconds


class RankLoads:
    """Every number of layers of each kind on every holder, with the seconds they take at least.

    Args:
        budget: of one strategy.
        asked: layers recomputed on each rank; None: as many as must.
        worth: of a dense layer.
        way: ``[R]`` seconds before a holder's first pass and after its last.
    """

    def __init__(self, budget: StageBudget, asked: int | None, *, worth: float, way: Floats) -> None:
        experts, stages = int(budget.is_expert.sum()), np.bincount(budget.holder)
        self._others = experts if experts else budget.num_layers
        self._dense = budget.num_layers - self._others
        dense, other = np.arange(self._dense + 1)[:, None], np.arange(self._others + 1)
        self._units = worth * dense + other
        self._total = float(self._units[-1, -1])
        counts = np.zeros((*self._units.shape, len(stages), 2))
        counts[..., int(experts > 0)], counts[..., 0] = other[None, :, None], (dense if experts else other)[..., None]
        alike = counts.reshape(-1, len(stages), 2)
        seconds, _ = rank_seconds(budget, alike, asked)
        if experts:  # the bytes are of ranks with experts; one without may need less
            bare = alike[..., 1] == 0
            seconds = np.where(bare, rank_seconds(budget, alike, asked, capacity=np.inf)[0], seconds)
        plain = rank_seconds(budget, alike, asked, capacity=np.inf)[0].reshape(counts.shape[:-1])
        self._seconds = np.where(_can_hold(budget, counts), seconds.reshape(counts.shape[:-1]), np.inf)
        self._added = self._seconds - plain
        self._passes, self._way = float(budget.num_microbatches[0]) / budget.directions, way
        self.forced = self._forced()

    def _within(self, limit: float) -> Bools:
        return np.asarray(np.isfinite(self._seconds) & (self._passes * self._seconds + self._way <= limit * (1 + SAME)))

    def most(self, limit: float) -> Floats:
        """``[R]``: the most layers of each holder within ``limit`` seconds of the pipeline."""
        return np.asarray(np.max(np.where(self._within(limit), self._units[..., None], 0.0), axis=(0, 1)))

    def are_enough(self, limit: float) -> bool:
        """Whether all holders together can have the model's layers of both kinds within ``limit`` seconds of the pipeline."""
        other = np.where(self._within(limit), np.arange(self._others + 1)[None, :, None], -np.inf).max(axis=1)
        together = np.full(self._dense + 1, -np.inf)
        together[0] = 0.0
        for of_rank in other.T:
            together = np.max(
                [np.append(np.full(a, -np.inf), (together + more)[: len(together) - a]) for a, more in enumerate(of_rank)], axis=0
            )
        return bool(together[-1] >= self._others)

    def _forced(self) -> tuple[Floats, Floats]:
        """``[R]`` each: seconds that recomputation adds for a layer more and what comes off: a line nowhere above what memory forces."""
        slopes, offs = [], []
        for rank in range(self._seconds.shape[-1]):
            known = np.isfinite(self._added[..., rank])
            units, added = self._units[known], self._added[..., rank][known]
            slope = _slope_below(units, added, self._total / self._seconds.shape[-1]) if len(units) else 0.0
            slopes.append(slope)
            offs.append(float(np.max(slope * units - added)) if len(units) else 0.0)
        return np.array(slopes), np.array(offs)


def _slope_below(places: Floats, values: Floats, middle: float) -> float:
    """Of the steepest line through the least value about ``middle`` that stays below the values to its right."""
    near = int(np.abs(places - middle).argmin())
    right = places > places[near] + SAME
    return max(float(np.min((values[right] - values[near]) / (places[right] - places[near]))), 0.0) if right.any() else 0.0


def _can_hold(budget: StageBudget, counts: Floats) -> Bools:
    """Whether a holder's stages reach layers of the kinds it is to have, each stage with a layer: the model's layers come in order."""
    stages, places = np.arange(budget.num_stages), np.arange(budget.num_layers)
    spare = budget.num_layers - budget.num_stages
    reached = (places >= stages[:, None]) & (places <= stages[:, None] + spare)
    of_holder = np.stack([reached[budget.holder == rank].any(axis=0) for rank in range(budget.num_holders)])
    kinds = np.stack([of_holder[:, ~budget.is_expert].any(axis=1), of_holder[:, budget.is_expert].any(axis=1)], axis=1)
    enough = counts.sum(axis=-1) >= np.bincount(budget.holder)
    return np.asarray(enough & ((counts == 0) | kinds).all(axis=-1))
