"""The least that the busiest rank can take if layers could be cut in pieces, for many strategies at once.

Without whole layers, contiguity and the working set of recomputation, rank k of a pipeline holds x layers of which y are recomputed, within

    t x + dt y <= T - t_k        seconds of a micro-batch, dt what recomputing a layer adds
    b x - db y <= C - b_k        bytes at the peak, db what it saves
    0 <= y <= x

and T is enough where the largest x of all ranks add up to the layers there are. In models with experts only their layers are counted.
"""

from __future__ import annotations

import numpy as np

from autopar.costmodel.columns import Floats
from autopar.costmodel.stage_budget import StageBudget

_HALVINGS = 40


def relaxed_slowest_seconds(budget: StageBudget) -> Floats:
    """``[N]``: no placement that fits has a busiest rank faster than this; infinite where none fits."""
    kind = int(budget.is_expert.any())
    layers = int(budget.is_expert.sum()) if kind else budget.num_layers
    ranks = _Ranks(budget, kind)
    low = ranks.base_seconds.max(axis=1)
    high = low + layers * ranks.recomputed_seconds.max(axis=1)
    possible = ranks.most_layers(np.full_like(high, np.inf)) >= layers
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        enough = ranks.most_layers(middle) >= layers
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.where(possible, low, np.inf)


def slowest_alike_seconds(budget: StageBudget, asked: int) -> float:
    """The same for one strategy (N = 1) whose ranks all recompute the same share: ``asked`` of the mean number of layers a rank has.

    Rank k then holds as many layers as fit both its time and its memory, which are straight lines in them.
    """
    kind = int(budget.is_expert.any())
    layers = int(budget.is_expert.sum()) if kind else budget.num_layers
    share = min(asked * budget.num_holders / budget.num_layers, 1.0)
    stages = np.bincount(budget.holder)

    def mixed(plain: Floats, recomputed: Floats) -> Floats:
        return np.asarray(plain + share * (recomputed - plain))

    base = mixed(budget.on_holders(budget.seconds.base)[0], budget.on_holders(budget.recomputed_seconds.base)[0])
    slope = mixed(*(budget.on_holders(line.slope)[0, :, kind] / stages for line in (budget.seconds, budget.recomputed_seconds)))
    # a rank of the other kind alone may unfold less
    unfolded = (asked > 0) * budget.unfolded_bytes[0] * (kind == 0 or bool(budget.is_expert.all()))
    held = mixed(budget.bytes.base[0], budget.recomputed_bytes.base[0] - budget.unfolded_bytes[0]) + unfolded
    room = (budget.capacity_bytes - held) / mixed(budget.bytes.slope[0, :, kind], budget.recomputed_bytes.slope[0, :, kind])
    most = np.maximum(room, 0)
    if most.sum() < layers:
        return float("inf")
    low, high = float(base.max()), float(base.max() + layers * slope.max())
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        enough = np.minimum(np.maximum(middle - base, 0) / slope, most).sum() >= layers
        low, high = (low, middle) if enough else (middle, high)
    return low


class _Ranks:
    """The coefficients of every rank, ``[N, R]``."""

    def __init__(self, budget: StageBudget, kind: int) -> None:
        stages = np.bincount(budget.holder)

        def of_a_layer(slope: Floats) -> Floats:
            """A layer's seconds on the mean stage of a holder."""
            return np.asarray(budget.on_holders(slope[..., kind]) / stages)

        self.base_seconds = budget.on_holders(budget.seconds.base)
        self.seconds = of_a_layer(budget.seconds.slope)
        self.recomputed_seconds = of_a_layer(budget.recomputed_seconds.slope)
        self.room = budget.capacity_bytes - budget.least_base_bytes
        self.bytes = budget.bytes.slope[..., kind]
        self.recomputed_bytes = budget.recomputed_bytes.slope[..., kind]

    def most_layers(self, limit: Floats) -> Floats:
        """Layers that all ranks together can hold within ``limit`` seconds, ``[N]``."""
        time = np.maximum(limit[:, None] - self.base_seconds, 0)
        room = np.maximum(self.room, 0)
        added, saved = self.recomputed_seconds - self.seconds, self.bytes - self.recomputed_bytes
        with np.errstate(invalid="ignore"):
            both = (time * saved + room * added) / (self.seconds * saved + self.bytes * added)
            recomputed = (self.bytes * both - room) / saved
        plain = time / self.seconds
        whole = np.minimum(time / self.recomputed_seconds, room / self.recomputed_bytes)
        most = np.where(plain * self.bytes <= room, plain, np.where(recomputed > both, whole, both))
        return np.asarray(np.where(np.isfinite(most), most, whole).sum(axis=1))
