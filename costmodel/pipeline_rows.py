"""The simulator over columns: many strategies that share one schedule, a wave of actions at a time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from .columns import Floats, Ints
from .pipeline import action_graph, finish_times, steady_positions
from .spec.schedule import build_schedule
from .spec.strategy import PipelineSchedule

_BLOCK = 512
"""Strategies simulated together: enough to hide numpy's cost of a call, few enough to stay in the cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowDurations:
    """Seconds of one micro-batch for N strategies, ``[N, model stages]``; ``backward`` is the input part
    where the schedule splits it, the whole elsewhere. ``transfer`` is ``[N, model stages - 1]``."""

    forward: Floats
    backward: Floats
    weight_backward: Floats | None = None
    transfer: Floats | None = None

    def __len__(self) -> int:
        return len(self.forward)

    @property
    def totals(self) -> Floats:
        """Seconds of all passes of a micro-batch through each stage."""
        total: Floats = self.forward + self.backward
        return total if self.weight_backward is None else total + self.weight_backward

    def take(self, rows: npt.NDArray[np.bool_] | slice) -> RowDurations:
        """The rows chosen by a mask or a slice."""
        return RowDurations(
            forward=self.forward[rows],
            backward=self.backward[rows],
            weight_backward=None if self.weight_backward is None else self.weight_backward[rows],
            transfer=None if self.transfer is None else self.transfer[rows],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wave:
    """Actions, at most one a rank, that depend on earlier waves alone."""

    positions: Ints
    ranks: Ints
    kind: npt.NDArray[np.int8]
    model_stage: Ints
    needs: Ints
    """What feeds each action; one past the last action where nothing does."""
    boundary: Ints
    feeds: Ints
    """What each action feeds; one past the last action where it is nothing."""
    feeds_boundary: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waves:
    num_actions: int
    num_ranks: int
    waves: tuple[_Wave, ...]


@lru_cache(maxsize=64)
def _waves(kind: PipelineSchedule, p: int, v: int, m: int) -> _Waves:
    """The actions by the length of the longest chain that leads to them."""
    graph = action_graph(build_schedule(kind, p, v, m))
    count = len(graph.kind)
    level = finish_times(graph, np.ones(count), np.zeros(count), np.full(count, -1, dtype=np.int64)).astype(np.int64)
    rank = np.repeat(np.arange(p), np.diff(graph.rank_start))
    needs = np.where(graph.needs < 0, count, graph.needs)
    feeds, feeds_boundary = np.full(count + 1, count), np.full(count + 1, -1)
    feeds[needs], feeds_boundary[needs] = np.arange(count), graph.boundary
    order = np.argsort(level, kind="stable")
    waves = tuple(
        _Wave(
            positions=wave,
            ranks=rank[wave],
            kind=graph.kind[wave],
            model_stage=graph.model_stage[wave],
            needs=needs[wave],
            boundary=graph.boundary[wave],
            feeds=feeds[wave],
            feeds_boundary=feeds_boundary[wave],
        )
        for wave in np.split(order, np.flatnonzero(np.diff(level[order])) + 1)
    )
    return _Waves(num_actions=count, num_ranks=p, waves=waves)


def _tables(rows: RowDurations) -> tuple[Floats, Floats | None]:
    """Durations ``[kind, stage, N]`` and delays ``[boundary, N]``, the last one zero (no crossing)."""
    backward = rows.backward.T
    weight = np.zeros_like(backward) if rows.weight_backward is None else rows.weight_backward.T
    delays = None if rows.transfer is None else np.vstack([rows.transfer.T, np.zeros(len(rows))])
    return np.stack([rows.forward.T, backward + weight, backward, weight]), delays


def _finish(waves: _Waves, table: Floats, delays: Floats | None) -> Floats:
    """When each action ends, ``[actions + 1, N]`` seconds; the last row is zero."""
    clock = np.zeros((waves.num_ranks, table.shape[2]))
    finish = np.zeros((waves.num_actions + 1, table.shape[2]))
    for wave in waves.waves:
        ready = finish[wave.needs]
        if delays is not None:
            ready += delays[wave.boundary]
        np.maximum(ready, clock[wave.ranks], out=ready)
        ready += table[wave.kind, wave.model_stage]
        clock[wave.ranks] = ready
        finish[wave.positions] = ready
    return finish


def _remaining(waves: _Waves, table: Floats, delays: Floats | None) -> Floats:
    """Longest way from the end of each action to the end of the step, ``[actions, N]`` seconds."""
    clock = np.zeros((waves.num_ranks, table.shape[2]))
    through = np.zeros((waves.num_actions + 1, table.shape[2]))
    after = np.zeros((waves.num_actions, table.shape[2]))
    for wave in reversed(waves.waves):
        rest = through[wave.feeds]
        if delays is not None:
            rest += delays[wave.feeds_boundary]
        np.maximum(rest, clock[wave.ranks], out=rest)
        after[wave.positions] = rest
        rest += table[wave.kind, wave.model_stage]
        clock[wave.ranks] = rest
        through[wave.positions] = rest
    return after


def simulate_rows(
    kind: PipelineSchedule, pipeline_parallel_size: int, virtual_pipeline_stages: int, num_microbatches: int, rows: RowDurations
) -> Floats:
    """Makespan in seconds of N strategies that share one schedule; exact, as :func:`~autopar.costmodel.pipeline.simulate`.

    Costs a few numpy calls for each wave of actions, about 2mv + 2p of them.
    """
    waves = _waves(kind, pipeline_parallel_size, virtual_pipeline_stages, num_microbatches)
    makespans = np.empty(len(rows))
    for first in range(0, len(rows), _BLOCK):
        block = slice(first, first + _BLOCK)
        makespans[block] = _finish(waves, *_tables(rows.take(block))).max(axis=0)
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

    which misses only critical cycles that wander over ranks and beat every single one (interleaved with
    very unequal stages; transfer delays as long as a pass). ``num_microbatches - window`` must be a
    multiple of :func:`~autopar.costmodel.pipeline.period`.
    """
    p, v = pipeline_parallel_size, virtual_pipeline_stages
    waves, spans = _waves(kind, p, v, window), steady_positions(kind, p, v, window)
    schedule = build_schedule(kind, p, v, window)
    offsets = np.cumsum([0, *(len(actions) for actions in schedule.actions)])
    directions = schedule.num_stages // schedule.num_model_stages
    bound = np.empty(len(rows))
    for first in range(0, len(rows), _BLOCK):
        block = slice(first, first + _BLOCK)
        part = rows.take(block)
        tables = _tables(part)
        through = _finish(waves, *tables)[:-1] + _remaining(waves, *tables)
        best = through.max(axis=0)
        more = num_microbatches[block] - window
        for rank, span in enumerate(spans):
            if not span:
                continue
            stages = [schedule.model_stage(stage) for stage in schedule.rank_stages(rank)]
            work = part.totals[:, stages].sum(axis=1) / directions
            at = slice(offsets[rank] + span.start, offsets[rank] + span.stop)
            best = np.maximum(best, through[at].max(axis=0) + more * work)
        bound[block] = best
    return bound
