"""How many whole layers each holder of stages can have, within its memory and within a limit of seconds.

Layers are counted by their seconds: one of experts (or one of a model without) is 1, a dense one ``worth``. Axes: R holders, A and B
numbers of dense layers and of the others.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from autopar.costmodel.columns import Bools, Floats
from autopar.costmodel.stage_budget import Linear, StageBudget

from .partition import SAME, share_of


class RankLoads:
    """Every number of layers of each kind on every holder, with the seconds they take at least.

    Args:
        budget: of one strategy.
        asked: layers recomputed on each rank; None: as many as must.
        worth: of a dense layer.
        way: ``[R]`` seconds before a holder's first pass and after its last.

    A limit is of the pipeline with the first rank's tail.
    """

    def __init__(self, budget: StageBudget, asked: int | None, *, worth: float, way: Floats) -> None:
        experts, stages = int(budget.is_expert.sum()), np.bincount(budget.holder)
        self._others = experts if experts else budget.num_layers
        self._dense = budget.num_layers - self._others
        dense, other = np.arange(self._dense + 1)[:, None], np.arange(self._others + 1)
        self._units = np.asarray(worth * dense + other, dtype=np.float64)
        self._total = float(self._units[-1, -1])
        counts = np.zeros((*self._units.shape, len(stages), 2))
        counts[..., int(experts > 0)], counts[..., 0] = other[None, :, None], (dense if experts else other)[..., None]
        plain = _plain_seconds(budget, counts, asked)
        least = _least_recomputing(budget, counts, plain) if asked is None else _fitting(budget, counts, plain, asked)
        possible = _can_hold(budget, counts)
        self._seconds = np.where(possible, least, np.inf)
        self._plain = np.where(possible, plain, np.inf)
        self._added = self._seconds - plain
        self._passes, self._way = float(budget.num_microbatches[0]) / budget.directions, way
        self._worth, self._tails = worth, budget.first_tails[0]
        self._own_tails = self._tails[np.minimum(dense + other, len(self._tails) - 1)]

    def _within(self, limit: float) -> Bools:
        """``[A, B, R]``: the first holder has its own tail, the others at least that of the fewest layers they leave it."""
        ends, tail = self._passes * self._seconds + self._way, float(self._tails.min())
        while True:
            within = np.isfinite(self._seconds) & (ends + tail <= limit * (1 + SAME))
            within[..., 0] &= ends[..., 0] + self._own_tails <= limit * (1 + SAME)
            most = np.max(np.where(within, self._units[..., None], 0.0), axis=(0, 1))
            fewest = np.ceil((self._total - most[1:].sum()) / max(self._worth, 1.0) - SAME)
            least = float(self._tails[int(np.clip(fewest, 0, len(self._tails) - 1)) :].min())
            if least <= tail * (1 + SAME) or not most[1:].all():
                return np.asarray(within)
            tail = least

    def most(self, limit: float) -> Floats:
        """``[R]``: the most layers of each holder within ``limit``."""
        return np.asarray(np.max(np.where(self._within(limit), self._units[..., None], 0.0), axis=(0, 1)))

    def memory_binds(self, limit: float) -> bool:
        """Whether a holder that has time for some number of layers within ``limit`` has no memory for them, or must recompute."""
        return bool(np.any((self._passes * self._plain + self._way <= limit) & (self._seconds > self._plain)))

    def are_enough(self, limit: float) -> bool:
        """Whether all holders together can have the model's layers of both kinds within ``limit``."""
        other = np.where(self._within(limit), np.arange(self._others + 1)[None, :, None], -np.inf).max(axis=1)
        together = np.full(self._dense + 1, -np.inf)
        together[0] = 0.0
        for of_rank in other.T:
            sums = [np.append(np.full(a, -np.inf), (together + more)[: len(together) - a]) for a, more in enumerate(of_rank)]
            together = np.max(sums, axis=0)
        return bool(together[-1] >= self._others)

    @cached_property
    def forced(self) -> tuple[Floats, Floats]:
        """``[R]`` each: seconds that recomputation adds for a layer more and what comes off: a line nowhere above what memory forces."""
        slopes, offs = [], []
        for rank in range(self._seconds.shape[-1]):
            known = np.isfinite(self._added[..., rank])
            units, added = self._units[known], self._added[..., rank][known]
            slope = _slope_below(units, added, self._total / self._seconds.shape[-1]) if len(units) else 0.0
            slopes.append(slope)
            offs.append(float(np.max(slope * units - added)) if len(units) else 0.0)
        return np.array(slopes), np.array(offs)


def _plain_seconds(budget: StageBudget, counts: Floats, asked: int | None) -> Floats:
    """Seconds of holders with so many layers, ``asked`` of each rank recomputed or none."""
    share, stages = share_of(budget, asked), np.bincount(budget.holder)

    def of(line: Linear) -> Floats:
        of_layers = np.sum(counts * (budget.on_holders(line.slope)[0] / stages[:, None]), axis=-1)
        return np.asarray(budget.on_holders(line.base)[0] + of_layers)

    plain = of(budget.seconds)
    return plain + share * (of(budget.recomputed_seconds) - plain) if share else plain


def _fitting(budget: StageBudget, counts: Floats, seconds: Floats, asked: int) -> Floats:
    """``seconds`` where the memory suffices, else infinite. The bytes are of ranks with experts; one without may need less."""
    share = share_of(budget, asked)
    held = budget.bytes.base[0] + np.sum(counts * budget.bytes.slope[0], axis=-1)
    folded = budget.recomputed_bytes.base[0] - budget.unfolded_bytes[0] + np.sum(counts * budget.recomputed_bytes.slope[0], axis=-1)
    peak = held + share * (folded - held) + (share > 0) * budget.unfolded_bytes[0]
    return np.where((peak <= budget.capacity_bytes) | _has_other_bytes(budget, counts), seconds, np.inf)


def _has_other_bytes(budget: StageBudget, counts: Floats) -> Bools:
    return np.asarray(budget.is_expert.any() & (counts[..., 1] == 0))


def _least_recomputing(budget: StageBudget, counts: Floats, plain: Floats) -> Floats:
    """Seconds with the least recomputation that fits: layers of the kind that frees most for its time first, cut in pieces.

    What is recomputed with the last stage's layers whatever their number (multi-token prediction) is one thing more to choose. Where
    a holder has but one thing to choose, whole layers.
    """
    stages = np.bincount(budget.holder)
    over = budget.bytes.base[0] + np.sum(counts * budget.bytes.slope[0], axis=-1) - budget.capacity_bytes
    over = np.where(over > 0, over + budget.unfolded_bytes[0], 0.0)
    more = (budget.on_holders(budget.recomputed_seconds.slope - budget.seconds.slope)[0] / stages[:, None]).T
    freed = (budget.bytes.slope - budget.recomputed_bytes.slope)[0].T
    ends = budget.on_holders(budget.recomputed_seconds.base - budget.seconds.base)[0]
    freed_ends = budget.bytes.base[0] - budget.recomputed_bytes.base[0] + budget.unfolded_bytes[0]
    items = [(more[0], freed[0], counts[..., 0]), (more[1], freed[1], counts[..., 1]), (ends, freed_ends, np.ones_like(over))]
    real = [item for item in items if item[2].any() and (item[1] > SAME * budget.capacity_bytes).any()]
    left, seconds = over, plain.copy()
    choices = sum(((item[2] > 0) & (item[1] > SAME * budget.capacity_bytes)).astype(np.int64) for item in real)
    for cost, saved, most in _cheapest_first(real):
        share = np.divide(left, saved, out=np.full_like(left, np.inf), where=saved > 0)
        used = np.minimum(np.where(choices == 1, np.ceil(share - SAME), share), most) * (left > 0)
        seconds, left = seconds + cost * used, left - saved * used
    return np.where((left <= SAME * budget.capacity_bytes) | _has_other_bytes(budget, counts), seconds, np.inf)


_Item = tuple[Floats, Floats, Floats]


def _cheapest_first(items: list[_Item]) -> list[_Item]:
    """Things to recompute (seconds of one, bytes it frees, how many), of each holder in the order of seconds for a byte."""
    if len(items) < 2:
        return items
    cost, saved = (np.stack([np.broadcast_to(item[part], items[0][0].shape) for item in items]) for part in (0, 1))
    ratio = np.divide(cost, saved, out=np.full_like(cost, np.inf), where=saved > 0)
    order, rank = np.argsort(ratio, axis=0, kind="stable"), np.arange(cost.shape[1])
    most = np.stack([item[2] for item in items])
    return [(cost[place, rank], saved[place, rank], np.moveaxis(most, 0, -1)[..., rank, place]) for place in order]


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
