"""Which layers go to which stage, and how many of them each stage recomputes.

With one stage a rank a dynamic programme over cut points is exact: stages are contiguous, what a stage costs depends on its own layers
alone, and a step grows with the slowest stage and with the sum of all. With several stages a rank the stages share its memory: ranks
are filled one layer at a time, which is exact for the busiest rank where all layers are alike.

Symbols: S stages, L layers, R holders of stages. Budgets here are of one strategy (N = 1).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from autopar.costmodel.columns import Floats, Ints
from autopar.costmodel.stage_budget import Linear, StageBudget

SAME = 1e-9
"""Relative difference below which two times are the same number."""
_NEVER = np.iinfo(np.int32).max


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """Layers of each stage, and those of them that are recomputed; with the seconds they were chosen by."""

    layers: tuple[int, ...]
    recomputed: tuple[int, ...]
    slowest_seconds: float
    """Of a micro-batch on the busiest rank."""
    total_seconds: float
    """Of a micro-batch on all stages."""

    def weighted(self, num_microbatches: float) -> float:
        """The sum of all stages once, and the slowest for every further micro-batch: 1F1B's makespan, up to its ramps."""
        return self.total_seconds + (num_microbatches - 1) * self.slowest_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments:
    """Every run of layers on every stage, ``[S, L + 1, L + 1]``: from the layer of the second index up to that of the third.

    ``seconds`` are infinite where the run is empty or does not fit.
    """

    seconds: Floats
    recomputed: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What runs of layers cost a stage or a holder, with nothing recomputed and with everything."""

    seconds: Floats
    recomputed_seconds: Floats
    bytes: Floats
    recomputed_bytes: Floats
    unfolded_bytes: Floats
    """The working set that the first recomputed layer adds; part of ``recomputed_bytes``."""
    counts: Ints

    def fewest_recomputed(self, capacity: float) -> Ints:
        """Layers to recompute so that the memory suffices; more than there are where it never does.

        Recomputing r of n layers saves r/n of what recomputing all of them would, the working set apart.
        """
        saved = (self.bytes + self.unfolded_bytes - self.recomputed_bytes) / np.maximum(self.counts, 1)
        over = self.bytes + self.unfolded_bytes - capacity
        needed = np.ceil(np.divide(over, saved, out=np.full_like(over, np.inf), where=saved > 0) - SAME)
        needed = np.where(needed < _NEVER, np.maximum(needed, 1), _NEVER)
        return np.asarray(np.where(self.bytes <= capacity, 0, needed), dtype=np.int64)

    def seconds_with(self, recomputed: Ints | Floats) -> Floats:
        """Seconds with ``recomputed`` of the layers recomputed."""
        share = recomputed / np.maximum(self.counts, 1)
        return np.asarray(self.seconds + share * (self.recomputed_seconds - self.seconds))

    def bytes_with(self, recomputed: Ints | Floats) -> Floats:
        """Bytes with ``recomputed`` of the layers recomputed."""
        share = recomputed / np.maximum(self.counts, 1)
        folded = self.recomputed_bytes - self.unfolded_bytes
        return np.asarray(self.bytes + share * (folded - self.bytes) + (np.asarray(recomputed) > 0) * self.unfolded_bytes)


def segments(budget: StageBudget) -> Segments:
    """Every segment with the fewest layers recomputed that fit, one stage a rank."""
    load = _every_run(budget)
    recomputed = load.fewest_recomputed(budget.capacity_bytes)
    fits = (load.counts > 0) & (recomputed <= load.counts)
    return Segments(seconds=np.where(fits, load.seconds_with(recomputed), np.inf), recomputed=np.where(fits, recomputed, 0))


def segments_alike(budget: StageBudget, asked: int) -> Segments:
    """Every segment with the same ``share`` of its layers recomputed: ``asked`` of the mean number a rank has, at most all."""
    load = _every_run(budget)
    recomputed = _share(load.counts, budget, asked)
    fits = (load.counts > 0) & (load.bytes_with(recomputed) <= budget.capacity_bytes)
    return Segments(seconds=np.where(fits, load.seconds_with(recomputed), np.inf), recomputed=np.zeros_like(load.counts) + asked)


def _share(counts: Ints, budget: StageBudget, asked: int) -> Floats:
    """Of ``counts`` layers, those recomputed where each rank is asked to recompute ``asked``: the same share on all."""
    return counts.astype(np.float64) * share_of(budget, asked)


def share_of(budget: StageBudget, asked: int | None) -> float:
    """Of a stage's layers, those recomputed where each rank is asked to recompute ``asked``; none where each recomputes what it must."""
    return min((asked or 0) * budget.num_ranks / budget.num_layers, 1.0)


def _every_run(budget: StageBudget) -> Load:
    kinds = budget.kinds_before()
    places = np.arange(budget.num_layers + 1)
    layers = kinds[None, :, :] - kinds[:, None, :]

    def over(line: Linear) -> Floats:
        return np.asarray(line.base[0][:, None, None] + np.einsum("sk,ijk->sij", line.slope[0], layers))

    return Load(
        seconds=over(budget.seconds),
        recomputed_seconds=over(budget.recomputed_seconds),
        bytes=over(budget.bytes),
        recomputed_bytes=over(budget.recomputed_bytes),
        unfolded_bytes=budget.unfolded_bytes[0][:, None, None],
        counts=np.broadcast_to(places - places[:, None], (budget.num_stages, len(places), len(places))),
    )


def pareto_partitions(budget: StageBudget, found: Segments) -> Iterator[Partition]:
    """Partitions with one stage a rank, among them the one of least :meth:`Partition.weighted` seconds; none where nothing fits.

    They come by ever faster slowest stage and ever larger sum, from the slowest that the least sum could pay for. Where
    the sum is the same for all that fit, one comes.
    """
    limit = least_slowest(found.seconds)
    fastest, smallest = _cut(found, limit * (1 + SAME)), _cut(found, np.inf)
    if not np.isfinite(limit) or fastest is None or smallest is None:
        return
    further = max(float(budget.num_microbatches[0]) - 1, 1)
    cut = _cut(found, fastest.slowest_seconds + (fastest.total_seconds - smallest.total_seconds) / further)
    while cut is not None:
        yield cut
        cut = _cut(found, cut.slowest_seconds * (1 - SAME))


def least_slowest(seconds: Floats) -> float:
    """The least that the slowest stage can take, over all ways to cut the layers; infinite where nothing fits."""
    best = seconds[0, 0]
    for stage in seconds[1:]:
        best = np.maximum(best[:, None], stage).min(axis=0)
    return float(best[-1])


def _cut(found: Segments, limit: float) -> Partition | None:
    """The least sum with no stage above ``limit`` seconds; None where there is none."""
    seconds = np.where(found.seconds <= limit, found.seconds, np.inf)
    best, cuts = seconds[0, 0], []
    for stage in seconds[1:]:
        through = best[:, None] + stage
        cuts.append(through.argmin(axis=0))
        best = np.take_along_axis(through, cuts[-1][None, :], axis=0)[0]
    if not np.isfinite(best[-1]):
        return None
    ends = [seconds.shape[1] - 1]
    for cut in reversed(cuts):
        ends.append(int(cut[ends[-1]]))
    bounds = np.array([0, *reversed(ends)])
    runs = np.arange(len(seconds)), bounds[:-1], bounds[1:]
    return Partition(
        layers=tuple(np.diff(bounds).tolist()),
        recomputed=tuple(found.recomputed[runs].tolist()),
        slowest_seconds=float(found.seconds[runs].max()),
        total_seconds=float(best[-1]),
    )


def filled(budget: StageBudget, asked: int | None) -> Partition | None:
    """Layers placed one at a time on the rank that is least busy with them, for any number of stages a rank; None where nothing fits.

    A rank's seconds grow with its layers, so that no other placement has a faster busiest rank where all layers are alike. Where they are
    not, ranks are filled with layers of the commoner kind, and single layers are then moved as long as that helps. Each rank
    recomputes as few layers as fit, or with ``asked`` all the same share (:func:`segments_alike`).
    """
    if budget.num_layers < budget.num_stages:
        return None
    kind = int(budget.is_expert.mean() > 0.5)
    counts = np.arange(budget.num_layers + 1)
    stages = np.bincount(budget.holder)
    layers = np.zeros((len(counts), budget.num_holders, 2))
    layers[:, :, kind] = counts[:, None]
    seconds, _ = _rank_seconds(budget, layers, asked)
    seconds[counts[:, None] < stages] = 0.0
    held = stages.copy()
    for _ in range(budget.num_layers - int(held.sum())):
        after = seconds[held + 1, np.arange(len(held))]
        rank = int(after.argmin())
        if not np.isfinite(after[rank]):
            return None
        held[rank] += 1
    return _improved(budget, _spread(budget, held), asked)


def _rank_seconds(budget: StageBudget, layers: Floats, asked: int | None) -> tuple[Floats, Ints]:
    """Seconds of holders with ``layers`` of each kind (``[candidates, R, 2]``), infinite where they do not fit; and layers recomputed."""
    stages = np.bincount(budget.holder)

    def over(line: Linear, *, by_stage: bool) -> Floats:
        base = budget.on_holders(line.base)[0] if by_stage else line.base[0]
        slope = budget.on_holders(line.slope)[0] / stages[:, None] if by_stage else line.slope[0]
        return np.asarray(base + (slope * layers).sum(axis=-1))

    load = Load(
        seconds=over(budget.seconds, by_stage=True),
        recomputed_seconds=over(budget.recomputed_seconds, by_stage=True),
        bytes=over(budget.bytes, by_stage=False),
        recomputed_bytes=over(budget.recomputed_bytes, by_stage=False),
        unfolded_bytes=budget.unfolded_bytes[0],
        counts=layers.sum(axis=-1).astype(np.int64),
    )
    if asked is None:
        recomputed = load.fewest_recomputed(budget.capacity_bytes)
        return np.where(recomputed <= load.counts, load.seconds_with(recomputed), np.inf), recomputed
    share = _share(load.counts, budget, asked)
    fits = load.bytes_with(share) <= budget.capacity_bytes
    return np.where(fits, load.seconds_with(share), np.inf), np.zeros_like(load.counts) + asked


def _spread(budget: StageBudget, held: Ints) -> Ints:
    """Layers of each stage, given those of each holder: as even as whole layers allow, the middle of the model first."""
    layers = np.zeros(budget.num_stages, dtype=np.int64)
    middle = (budget.num_stages - 1) / 2
    for rank, count in enumerate(held.tolist()):
        own = sorted(np.flatnonzero(budget.holder == rank).tolist(), key=lambda stage: abs(stage - middle))
        for place, stage in enumerate(own):
            layers[stage] = count // len(own) + (place < count % len(own))
    return layers


def _improved(budget: StageBudget, layers: Ints, asked: int | None) -> Partition | None:
    """``layers`` with single ones moved off the busiest rank as long as that makes the busiest less busy."""
    while True:
        candidates = np.concatenate([layers[None], _moves(budget, layers, asked)])
        slowest = loads_of(budget, candidates, asked).max(axis=1)
        best = int(slowest.argmin())
        if best == 0 or not slowest[best] < slowest[0] * (1 - SAME):
            return placed(budget, layers.tolist(), asked) if np.isfinite(slowest[0]) else None
        layers = candidates[best]


def _moves(budget: StageBudget, layers: Ints, asked: int | None) -> Ints:
    """Every placement with one layer moved from a stage of the busiest rank to a stage of another."""
    busiest = int(loads_of(budget, layers[None], asked)[0].argmax())
    giving = np.flatnonzero((budget.holder == busiest) & (layers > 1))
    taking = np.flatnonzero(budget.holder != busiest)
    moved = np.tile(layers, (len(giving) * len(taking), 1))
    rows = np.arange(len(moved))
    moved[rows, np.repeat(giving, len(taking))] -= 1
    moved[rows, np.tile(taking, len(giving))] += 1
    return moved


def loads_of(budget: StageBudget, layers: Ints, asked: int | None) -> Floats:
    """Seconds of a micro-batch on each holder, ``[candidates, R]``, infinite where ``layers`` (``[candidates, S]``) do not fit."""
    return _rank_seconds(budget, _kinds_on_holders(budget, layers), asked)[0]


def _kinds_on_holders(budget: StageBudget, layers: Ints) -> Floats:
    """Layers of each kind on each holder, ``[candidates, R, 2]``, of layers on stages ``[candidates, S]``."""
    before = budget.kinds_before()
    ends = np.cumsum(layers, axis=1)
    return budget.on_holders((before[ends] - before[ends - layers]).astype(np.float64))


def placed(budget: StageBudget, layers: Sequence[int], asked: int | None) -> Partition:
    """``layers`` on the stages with as little recomputation as fits, or ``asked``; infinite seconds where none does."""
    loads, on_ranks = _rank_seconds(budget, _kinds_on_holders(budget, np.array([layers])), asked)
    recomputed = [asked or 0] * len(layers)
    for rank, count in enumerate(on_ranks[0].tolist() if asked is None else ()):
        for stage in np.flatnonzero(budget.holder == rank).tolist():
            recomputed[stage] = min(count, layers[stage])
            count -= recomputed[stage]
    return Partition(
        layers=tuple(layers),
        recomputed=tuple(recomputed),
        slowest_seconds=float(loads[0].max()),
        total_seconds=float(loads[0].sum()),
    )
