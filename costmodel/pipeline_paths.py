"""Ways through a pipeline schedule: the makespan is at least the seconds of every one of them, whatever the stages take.

The order of a rank's passes is fixed, so that a schedule is a graph and its makespan the longest path. How often a path passes each stage
does not depend on seconds: each path is a linear lower bound of the makespan over all placements of layers, and so is every mean of paths.

Symbols: p pipeline ranks, S model stages, m micro-batches, f, b and w the seconds of a stage's forward, of its backward without
weight gradients, and of those. Arrays of passes are ``[paths, 3, S]`` in this order; where a schedule runs the backward whole, b and
w go together.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .action_graph import BACKWARD, FORWARD, WEIGHT, ActionGraph, graph_of, period, steady_positions
from .columns import Floats, Ints
from .pipeline import finish_times
from .spec.schedule import stage_ranks
from .spec.strategy import PipelineSchedule

WINDOW = 3
"""Micro-batches a pipeline rank that :func:`longest_paths` looks at: enough to fill, run steady and drain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ramps:
    """Paths of a pipeline with one stage a rank: each dwells on one stage, and passes those before and after it equally often."""

    stage: Ints
    before: Floats
    """``[paths, 3]``: passes through each stage before, forward, backward and weight part."""
    own: Floats
    after: Floats
    first_weight: Floats
    """``[paths]``: weight parts of the first stage on top, after the last backward."""

    def passes(self, num_stages: int) -> Floats:
        """``[paths, 3, S]``."""
        stage, own = np.arange(num_stages), self.stage[:, None, None]
        spread = np.where(stage < own, self.before[:, :, None], np.where(stage > own, self.after[:, :, None], self.own[:, :, None]))
        spread[:, 2, 0] += self.first_weight
        return spread


def ramps(kind: PipelineSchedule, pipeline_parallel_size: int, num_microbatches: int) -> Ramps | None:
    """The paths of gpipe, 1f1b and ZB-H1 that matter; None for schedules of several stages a rank.

    A path reaches stage d straight (way in: the forwards above it), or with the first micro-batch's backward (all forwards, and
    the backwards below d); it leaves after d's last backward (way out: the backwards above), or with the last forward
    (the forwards below d, and all backwards). In between it stays on d. Under 1f1b, f and b each:

        straight, straight      before 1                  own m
        round, round            before 1, after 2         own m - p + d + 1          where m > p - d
        straight, round         f: before 1, own m, after 1;   b: before 1, own m - p + d + 1, after 1
        round, straight         the same, f and b exchanged

    The mean over d of the second is (m + p - 1) times the mean stage: no split of the same work beats the even one where m > p.
    ZB-H1 passes b as f, but for d's weight parts, of which d are put off beyond the last backward, and p between the two rounds.
    """
    p, m = pipeline_parallel_size, num_microbatches
    d = np.arange(p, dtype=np.float64)
    if kind is PipelineSchedule.GPIPE:
        once = np.ones((p, 3))
        return Ramps(stage=np.arange(p), before=once, own=m * once, after=once, first_weight=np.zeros(p))
    split = kind is PipelineSchedule.ZERO_BUBBLE
    if kind is not PipelineSchedule.ONE_F_ONE_B and not split:
        return None
    inner, between = np.maximum(m - p + d, 0) + 1, np.full(p, max(m - p, 0.0))
    before_last, all_of_them = np.maximum(m - 1 - d, 0), np.full(p, float(m))
    families = [
        # before, own, after of the forwards; of the backwards; own weight parts; and of the first stage
        ((1, all_of_them, 0), (1, all_of_them, 0), before_last, 1),
        ((1, inner, 2), (1, inner, 2), between, 1),
        ((1, all_of_them, 1), (1, inner, 1), between, 1),
        ((1, inner, 1), (1, all_of_them, 1), before_last, 1),
    ]
    if split:
        families.append(((1, all_of_them, 0), (0, all_of_them, 0), all_of_them, 0))
        families.append(((1, inner, 1), (0, all_of_them, 1), all_of_them - np.minimum(d, m), 0))
    parts = [_family(*family, split=split) for family in families]
    real = np.concatenate([np.full(p, True), d >= p - m + 1, *(np.full(p, True) for _ in parts[2:])])
    stage = np.tile(np.arange(p), len(parts))
    before, own, after, first = (np.concatenate([part[place] for part in parts])[real] for place in range(4))
    return Ramps(stage=stage[real], before=before, own=own, after=after, first_weight=first)


_Passes = tuple[int, Floats, int]


def _family(forward: _Passes, backward: _Passes, weight: Floats, first: int, *, split: bool) -> tuple[Floats, Floats, Floats, Floats]:
    """One path a stage: passes before, on and after it, ``[p, 3]`` each, and weight parts of the first stage."""
    count = len(weight)
    before, after = (np.tile([float(forward[k]), float(backward[k]), 0.0 if split else float(backward[k])], (count, 1)) for k in (0, 2))
    own = np.stack([forward[1], backward[1], weight if split else backward[1]], axis=1)
    return before, own, after, np.full(count, float(first if split else 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """Paths that stay paths with more micro-batches: each waits on one rank while that rank does their work."""

    passes: Floats
    """``[paths, 3, S]`` with ``window`` micro-batches."""
    further: Floats
    """What each further micro-batch adds; zero where there can be none."""
    window: int

    def with_microbatches(self, count: float) -> Floats:
        """``[paths, 3, S]``; ``count`` lacks a whole number of the schedule's periods to the window."""
        return np.asarray(self.passes + (count - self.window) * self.further)


def window_of(kind: PipelineSchedule, pipeline_parallel_size: int, num_microbatches: int) -> int:
    """Micro-batches to look at in place of ``num_microbatches``: all of them, or as few as are enough."""
    least, step = WINDOW * pipeline_parallel_size, period(kind, pipeline_parallel_size)
    least += -least % step
    return num_microbatches if num_microbatches <= least + step else least + (num_microbatches - least) % step


def longest_paths(kind: PipelineSchedule, pipeline_parallel_size: int, virtual_pipeline_stages: int, window: int, seconds: Floats) -> Paths:
    """Of each rank, a longest path through its steady passes with ``window`` micro-batches.

    Args:
        kind, pipeline_parallel_size, virtual_pipeline_stages: the schedule.
        window: micro-batches, from :func:`window_of`.
        seconds: ``[3, S]``: f, b and w of a micro-batch on each stage.
    """
    sizes = (kind, pipeline_parallel_size, virtual_pipeline_stages, window)
    network = _network(*sizes)
    graph, durations = network.graph, network.durations(seconds)
    before, source = network.reach(durations)
    after, target = network.leave(durations)
    through = before + after
    table = [np.zeros_like(seconds) for _ in range(pipeline_parallel_size)]
    further = [_microbatch_on_rank(kind, *sizes[1:3], rank) for rank in range(pipeline_parallel_size)]
    for rank, span in enumerate(steady_positions(*sizes)):
        first, last = int(graph.rank_start[rank]), int(graph.rank_start[rank + 1])
        steady = range(first + span.start, first + span.stop) if len(span) else range(first, last)
        further[rank] *= bool(len(span))
        middle = steady.start + int(through[steady.start : steady.stop].argmax())
        table[rank] = network.passes([*_chain(middle, source), *_chain(middle, target)[1:]])
    return Paths(passes=np.stack(table), further=np.stack(further), window=window)


def _chain(start: int, pointer: list[int]) -> list[int]:
    chain = [start]
    while pointer[chain[-1]] >= 0:
        chain.append(pointer[chain[-1]])
    return chain


def _microbatch_on_rank(kind: PipelineSchedule, p: int, v: int, rank: int) -> Floats:
    """Passes of ``rank`` for each micro-batch: half a micro-batch on each stage where it runs two pipelines."""
    ranks, model_stages = np.array(stage_ranks(kind, p, v)), p * v
    own = np.bincount(np.flatnonzero(ranks == rank) % model_stages, minlength=model_stages)
    return np.tile(own * model_stages / len(ranks), (3, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Network:
    """A schedule's passes in an order in which each comes after what it needs; a pair that overlaps is its first pass."""

    graph: ActionGraph
    order: list[int]
    sources: list[tuple[int, ...]]
    second: Ints
    """The pass that runs together with each one, or -1."""

    def durations(self, seconds: Floats) -> list[float]:
        forward, backward, weight = seconds
        table = np.stack([forward, backward + weight, backward, weight])
        each = table[self.graph.kind, self.graph.model_stage]
        pairs = np.flatnonzero(self.second >= 0)
        each[pairs] += each[self.second[pairs]]
        each[self.second[pairs]] = 0.0
        return [float(value) for value in each]

    def reach(self, durations: list[float]) -> tuple[Floats, list[int]]:
        """When each pass ends, and what it waited for."""
        finish, source = [0.0] * len(durations), [-1] * len(durations)
        for place in self.order:
            latest = 0.0
            for each in self.sources[place]:
                if finish[each] >= latest:
                    latest, source[place] = finish[each], each
            finish[place] = latest + durations[place]
        return np.array(finish), source

    def leave(self, durations: list[float]) -> tuple[Floats, list[int]]:
        """The longest way from the end of each pass to the end of all, and its next pass."""
        rest, target = [0.0] * len(durations), [-1] * len(durations)
        for place in reversed(self.order):
            through = rest[place] + durations[place]
            for each in self.sources[place]:
                if through >= rest[each]:
                    rest[each], target[each] = through, place
        return np.array(rest), target

    def passes(self, chain: list[int]) -> Floats:
        """How often ``chain`` passes each stage, ``[3, S]``."""
        graph, own = self.graph, np.array(chain)
        pairs = self.second[own]
        first_too = np.isin(own, self.second[self.second >= 0])  # its seconds are those of the pair, which its first pass stands for
        counted = np.concatenate([own[~first_too], pairs[pairs >= 0]])
        kind, stage = graph.kind[counted], graph.model_stage[counted]
        forward, weight = kind == FORWARD, (kind == BACKWARD) | (kind == WEIGHT)
        backward = ~forward & (kind != WEIGHT)
        counts = [np.bincount(stage[chosen], minlength=graph.num_model_stages) for chosen in (forward, backward, weight)]
        return np.array(counts, dtype=np.float64)


@lru_cache(maxsize=32)
def _network(kind: PipelineSchedule, p: int, v: int, m: int) -> _Network:
    graph = graph_of(kind, p, v, m)
    count = len(graph.kind)
    first = graph.pair_first if kind is PipelineSchedule.DUALPIPE else graph.pair_first[:0]
    second, pair_needs = np.full(count, -1), np.full(count, -1)
    second[first], pair_needs[first] = first + 1, graph.needs[first + 1]
    level = finish_times(graph, np.ones(count), np.zeros(count), pair_needs)
    previous = np.arange(count) - 1
    previous[graph.rank_start[:-1]] = -1
    needs = graph.needs.copy()
    needs[first + 1] = -1
    columns = (previous.tolist(), needs.tolist(), pair_needs.tolist())
    sources = [tuple(each for each in row if each >= 0) for row in zip(*columns, strict=True)]
    order = np.lexsort((np.arange(count), level)).tolist()
    return _Network(graph=graph, order=order, sources=sources, second=second)
