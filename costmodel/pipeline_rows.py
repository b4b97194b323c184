"""The simulator over columns: many strategies that share one schedule, a wave of actions at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from .action_graph import graph_of, period, steady_positions
from .columns import Floats, Ints
from .pipeline import finish_times
from .spec.strategy import PipelineSchedule

_CELLS = 2**21
"""Actions times strategies simulated together: enough to hide numpy's cost of a call, few enough for the cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowDurations:
    """What a micro-batch takes, for N strategies; the columns of :func:`~autopar.costmodel.pipeline.simulate`.

    ``forward``, ``backward`` and ``weight_backward`` are seconds, ``[N, model stages]``; ``transfer`` is
    seconds of delay, ``[N, model stages - 1]``; ``overlapped_share`` is ``[N]``.
    """

    forward: Floats
    backward: Floats
    weight_backward: Floats | None = None
    transfer: Floats | None = None
    overlapped_share: Floats | None = None

    def __len__(self) -> int:
        return len(self.forward)

    @property
    def totals(self) -> Floats:
        """Seconds of all passes of a micro-batch through each stage, none overlapped."""
        total: Floats = self.forward + self.backward
        return total if self.weight_backward is None else total + self.weight_backward

    def take(self, rows: npt.NDArray[np.bool_] | slice) -> RowDurations:
        """The rows chosen by a mask or a slice."""
        return RowDurations(
            forward=self.forward[rows],
            backward=self.backward[rows],
            weight_backward=None if self.weight_backward is None else self.weight_backward[rows],
            transfer=None if self.transfer is None else self.transfer[rows],
            overlapped_share=None if self.overlapped_share is None else self.overlapped_share[rows],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waves:
    """A schedule's actions sorted into waves; those of a wave depend on earlier waves alone, one a rank at most.

    Arrays have one entry an action in wave order; an index one past the last stands for no action.
    ``feeds`` is the inverse of ``needs``, ``pair_needs`` what the second action of an overlapping pair needs
    (asked of the first, both start together), ``rank_place`` where each rank's actions went, rank after rank.
    """

    num_ranks: int
    kind: npt.NDArray[np.int8]
    model_stage: Ints
    rank: Ints
    needs: Ints
    boundary: Ints
    pair_needs: Ints
    pair_boundary: Ints
    feeds: Ints
    feeds_boundary: Ints
    pair_first: Ints
    pair_second: Ints
    bounds: tuple[tuple[int, int], ...]
    rank_place: tuple[Ints, ...]


@lru_cache(maxsize=64)
def _waves(kind: PipelineSchedule, p: int, v: int, m: int, paired: bool) -> _Waves:
    """Sort the actions by the longest chain that leads to them; ``paired`` lets overlapping pairs run as one."""
    graph = graph_of(kind, p, v, m)
    count = len(graph.kind)
    none = np.full(count, -1, dtype=np.int64)
    first = graph.pair_first if paired else none[:0]
    needs, boundary, pair_needs, pair_boundary = graph.needs.copy(), graph.boundary.copy(), none.copy(), none.copy()
    pair_needs[first], pair_boundary[first] = needs[first + 1], boundary[first + 1]
    level = finish_times(graph, np.ones(count), np.zeros(count), pair_needs).astype(np.int64)
    needs[first + 1], boundary[first + 1] = -1, -1
    order = np.argsort(level, kind="stable")
    place = np.empty(count + 1, dtype=np.int64)
    place[order], place[-1] = np.arange(count), count
    feeds, feeds_boundary = np.full(count + 1, count), np.full(count + 1, -1)
    for source, crossed in ((needs, boundary), (pair_needs, pair_boundary)):
        fed = np.flatnonzero(source >= 0)
        feeds[place[source[fed]]], feeds_boundary[place[source[fed]]] = place[fed], crossed[fed]
    ends = np.append(np.flatnonzero(np.diff(level[order])) + 1, count).tolist()
    return _Waves(
        num_ranks=p,
        kind=graph.kind[order],
        model_stage=graph.model_stage[order],
        rank=np.repeat(np.arange(p), np.diff(graph.rank_start))[order],
        needs=place[needs[order]],
        boundary=boundary[order],
        pair_needs=place[pair_needs[order]],
        pair_boundary=pair_boundary[order],
        feeds=feeds[:-1],
        feeds_boundary=feeds_boundary[:-1],
        pair_first=place[first],
        pair_second=place[first + 1],
        bounds=tuple(zip([0, *ends[:-1]], ends, strict=True)),
        rank_place=tuple(np.split(place[:-1], graph.rank_start[1:-1])),
    )


def _tables(waves: _Waves, rows: RowDurations) -> tuple[Floats, Floats | None]:
    """Seconds ``[actions, N]`` in wave order, and delays ``[boundaries + 1, N]``, the last one zero (no crossing)."""
    backward = rows.backward.T
    weight = np.zeros_like(backward) if rows.weight_backward is None else rows.weight_backward.T
    seconds = np.stack([rows.forward.T, backward + weight, backward, weight])[waves.kind, waves.model_stage]
    if rows.overlapped_share is not None:
        seconds[waves.pair_first] = rows.overlapped_share * (seconds[waves.pair_first] + seconds[waves.pair_second])
        seconds[waves.pair_second] = 0.0
    return seconds, None if rows.transfer is None else np.vstack([rows.transfer.T, np.zeros(len(rows))])


def _finish(waves: _Waves, seconds: Floats, delays: Floats | None) -> Floats:
    """When each action ends, ``[actions + 1, N]`` seconds; the last row is zero."""
    count, num_rows = seconds.shape
    clock = np.zeros((waves.num_ranks, num_rows))
    finish = np.zeros((count + 1, num_rows))
    paired = len(waves.pair_first) > 0
    for first, last in waves.bounds:
        ready = finish[waves.needs[first:last]]
        if delays is not None:
            ready += delays[waves.boundary[first:last]]
        if paired:
            other = finish[waves.pair_needs[first:last]]
            if delays is not None:
                other += delays[waves.pair_boundary[first:last]]
            np.maximum(ready, other, out=ready)
        ranks = waves.rank[first:last]
        np.maximum(ready, clock[ranks], out=ready)
        ready += seconds[first:last]
        clock[ranks] = ready
        finish[first:last] = ready
    return finish


def _remaining(waves: _Waves, seconds: Floats, delays: Floats | None) -> Floats:
    """Longest way from the end of each action to the end of the step, ``[actions, N]`` seconds."""
    count, num_rows = seconds.shape
    clock = np.zeros((waves.num_ranks, num_rows))
    through = np.zeros((count + 1, num_rows))
    after = np.zeros((count, num_rows))
    for first, last in reversed(waves.bounds):
        rest = through[waves.feeds[first:last]]
        if delays is not None:
            rest += delays[waves.feeds_boundary[first:last]]
        ranks = waves.rank[first:last]
        np.maximum(rest, clock[ranks], out=rest)
        after[first:last] = rest
        rest += seconds[first:last]
        clock[ranks] = rest
        through[first:last] = rest
    return after


def _blocks(waves: _Waves, num_rows: int) -> Iterator[slice]:
    size = max(_CELLS // len(waves.kind), 16)
    return (slice(first, first + size) for first in range(0, num_rows, size))


def simulate_rows(
    kind: PipelineSchedule, pipeline_parallel_size: int, virtual_pipeline_stages: int, num_microbatches: int, rows: RowDurations
) -> Floats:
    """Makespan in seconds of N strategies that share one schedule; exact, as :func:`~autopar.costmodel.pipeline.simulate`.

    Costs a few numpy calls for each wave of actions, about 2mv + 2p of them.
    """
    paired = rows.overlapped_share is not None
    waves = _waves(kind, pipeline_parallel_size, virtual_pipeline_stages, num_microbatches, paired)
    makespans = np.empty(len(rows))
    for block in _blocks(waves, len(rows)):
        makespans[block] = _finish(waves, *_tables(waves, rows.take(block))).max(axis=0)
    return makespans


def dwelling_bound(
    kind: PipelineSchedule,
    pipeline_parallel_size: int,
    virtual_pipeline_stages: int,
    window: int,
    num_microbatches: Ints,
    rows: RowDurations,
) -> Floats:
    """Lower bound in seconds of the makespan for ``num_microbatches >= window``, from a simulation of ``window``.

    A longest path through a steady action of rank r stays a path when more micro-batches come: it waits
    on r while r does their work. So the makespan is at least, over ranks r and their steady actions a,

        longest path through a with ``window`` micro-batches + (m - window) * work of r on one micro-batch

    It misses critical cycles that wander over ranks and beat every single one: interleaved stages whose
    times differ manyfold (up to 0.4 too low), transfer delays as long as a pass in 1f1b. With stage times
    within a tenth of each other, or equal but for the ends, it was within 0.001 of the makespan in every
    schedule tried. ``num_microbatches - window`` must be a multiple of :func:`~autopar.costmodel.action_graph.period`.
    """
    p, v = pipeline_parallel_size, virtual_pipeline_stages
    waves = _waves(kind, p, v, window, rows.overlapped_share is not None)
    spans, step = steady_positions(kind, p, v, window), period(kind, p)
    bound = np.empty(len(rows))
    for block in _blocks(waves, len(rows)):
        seconds, delays = _tables(waves, rows.take(block))
        through = _finish(waves, seconds, delays)[:-1] + _remaining(waves, seconds, delays)
        more = num_microbatches[block] - window
        best = through.max(axis=0)
        for place, span in zip(waves.rank_place, spans, strict=True):
            steady = place[span.start : span.stop]
            actions = len(place) * step // window
            work = seconds[steady[:actions]].sum(axis=0) / step
            best = np.maximum(best, through[steady].max(axis=0, initial=0.0) + more * work)
        bound[block] = best
    return bound
