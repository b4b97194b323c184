"""Runs a pipeline schedule on paper: when each action starts and ends, and what each rank holds meanwhile.

A schedule is a marked graph: an action starts as soon as the one before it on its rank has ended and its
input has arrived. One topological pass gives the exact times, for one strategy (:func:`simulate`) or for
many that share a schedule (:func:`~autopar.costmodel.pipeline_rows.simulate_rows`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .action_graph import WEIGHT, ActionGraph, action_graph, graph_of, period, steady_positions
from .columns import Floats, Ints
from .spec.errors import Fault, InvalidInputError, raise_if
from .spec.schedule import Action, Schedule
from .spec.strategy import PipelineSchedule

Durations = Sequence[float] | Floats
"""Seconds (or bytes) of one micro-batch on each of the model's stages, in model order."""
WINDOWS = (6, 12, 24, 48)
"""Micro-batches a pipeline rank that :func:`makespan` simulates, one after the other, until the steady state shows."""
MAX_PASSES = 200_000
"""Micro-batches times model stages up to which a schedule without a steady state is simulated whole."""
SAME_PERIOD = 1e-9
"""Relative difference below which two periods last the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A schedule with times. Arrays over ranks have p entries, arrays over actions are in rank order.

    ``in_flight``: per rank, the most passes it holds at once, over its virtual stages together: forward
    begun, backward not ended (with a split backward: its weight part). ``stage_in_flight``: the same for
    each virtual stage alone. ``peak_activation_bytes``: per rank, with every pass weighted by the bytes of
    its stage; zero where none were given.
    """

    schedule: Schedule
    makespan_seconds: float
    busy_seconds: Floats
    idle_seconds: Floats
    in_flight: Ints
    stage_in_flight: Ints
    peak_activation_bytes: Floats
    start_seconds: tuple[Floats, ...]
    finish_seconds: tuple[Floats, ...]

    @property
    def bubble_fraction(self) -> float:
        """Idle over total, of all ranks together."""
        total = self.makespan_seconds * len(self.busy_seconds)
        return float(self.idle_seconds.sum() / total) if total else 0.0

    def trace(self) -> tuple[tuple[int, Action, float, float], ...]:
        """``(rank, action, start, finish)`` of every action, rank after rank."""
        return tuple(
            (rank, action, float(start), float(finish))
            for rank, actions in enumerate(self.schedule.actions)
            for action, start, finish in zip(actions, self.start_seconds[rank], self.finish_seconds[rank], strict=True)
        )


def simulate(
    schedule: Schedule,
    forward: Durations,
    backward: Durations,
    weight_backward: Durations | None = None,
    *,
    transfer_seconds: float | Durations = 0.0,
    overlapped_share: float | None = None,
    activation_bytes: Durations | None = None,
) -> Timeline:
    """Exact times of ``schedule``.

    Args:
        schedule: a valid schedule (:func:`~autopar.costmodel.spec.schedule.validate_schedule`).
        forward: seconds of a micro-batch's forward on each model stage (p x v entries, DualPipe p).
        backward: seconds of its backward; of the input part alone where ``weight_backward`` is given.
        weight_backward: seconds of the weight part; a whole backward takes both.
        transfer_seconds: delay of a tensor between two ranks, one for all or one for each boundary between
            model stages (entry s: between s and s + 1). The ranks are free meanwhile; a transfer that keeps
            them busy belongs into the durations.
        overlapped_share: an overlapping pair takes this share of the sum of its two durations (DualPipe's
            F&B); None runs the pair one after the other.
        activation_bytes: bytes that a micro-batch holds on each model stage from forward to backward.
    """
    graph = action_graph(schedule)
    table = duration_table(graph, forward, backward, weight_backward)
    seconds, finish = timed_actions(graph, table, transfer_delays(graph, transfer_seconds), overlapped_share)
    start, cuts = finish - seconds, graph.rank_start[1:-1]
    busy = np.add.reduceat(seconds, graph.rank_start[:-1])
    makespan = float(finish.max())
    weights = None if activation_bytes is None else _per_stage(graph, "activation_bytes", activation_bytes)
    return Timeline(
        schedule=schedule,
        makespan_seconds=makespan,
        busy_seconds=busy,
        idle_seconds=np.maximum(makespan - busy, 0.0),
        in_flight=_peaks(graph, np.ones(graph.num_model_stages)).astype(np.int64),
        stage_in_flight=_stage_peaks(graph),
        peak_activation_bytes=np.zeros(len(busy)) if weights is None else _peaks(graph, weights),
        start_seconds=tuple(np.split(start, cuts)),
        finish_seconds=tuple(np.split(finish, cuts)),
    )


def timed_actions(graph: ActionGraph, table: Floats, delay: Floats, overlapped_share: float | None) -> tuple[Floats, Floats]:
    """Seconds of each action, and when it ends."""
    seconds = table[graph.kind, graph.model_stage]
    pair_needs = np.full(len(seconds), -1, dtype=np.int64)
    if overlapped_share is not None and len(graph.pair_first):
        first = graph.pair_first
        pair_needs[first] = graph.needs[first + 1]
        seconds[first] = overlapped_share * (seconds[first] + seconds[first + 1])
        seconds[first + 1] = 0.0
    return seconds, finish_times(graph, seconds, delay, pair_needs)


def _per_stage(graph: ActionGraph, name: str, values: Durations) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if array.shape != (graph.num_model_stages,) or not (array >= 0).all():
        required = f"{graph.num_model_stages} values of at least 0, one for each model stage"
        raise InvalidInputError(Fault(field=name, given=str(array.tolist()), required=required))
    return array


def duration_table(graph: ActionGraph, forward: Durations, backward: Durations, weight_backward: Durations | None) -> Floats:
    """Seconds by kind of action and model stage."""
    if weight_backward is None and bool((graph.kind == WEIGHT).any()):
        required = "the weight part of the backward, which this schedule runs apart"
        raise InvalidInputError(Fault(field="weight_backward", given="None", required=required))
    first, second = _per_stage(graph, "forward", forward), _per_stage(graph, "backward", backward)
    third = np.zeros_like(second) if weight_backward is None else _per_stage(graph, "weight_backward", weight_backward)
    return np.stack([first, second + third, second, third])


def transfer_delays(graph: ActionGraph, transfer_seconds: float | Durations) -> Floats:
    boundaries = graph.num_model_stages - 1
    delays = np.asarray(transfer_seconds, dtype=np.float64)
    if delays.shape not in ((), (boundaries,)) or not (delays >= 0).all():
        required = f"one delay of at least 0 s, or one for each of the {boundaries} boundaries between stages"
        raise InvalidInputError(Fault(field="transfer_seconds", given=str(delays.tolist()), required=required))
    return np.append(np.broadcast_to(delays, (boundaries,)), 0.0)[graph.boundary]


def finish_times(graph: ActionGraph, seconds: Floats, delay: Floats, pair_needs: Ints) -> Floats:
    """When each action ends: runs every rank until it must wait, and wakes it when its input is there.

    Plain lists: indexing them is several times faster than indexing arrays one element at a time.
    """
    needs, second_needs = graph.needs.tolist(), pair_needs.tolist()
    durations, delays = seconds.tolist(), delay.tolist()
    finish = [-1.0] * len(needs)
    waiter = [-1] * len(needs)
    bounds = graph.rank_start.tolist()
    pointer, clock = bounds[:-1], [0.0] * (len(bounds) - 1)
    runnable = list(range(len(clock)))
    while runnable:
        rank = runnable.pop()
        now, position, end = clock[rank], pointer[rank], bounds[rank + 1]
        while position < end:
            source = needs[position]
            if source >= 0:
                ready = finish[source]
                if ready < 0.0:
                    waiter[source] = rank
                    break
                ready += delays[position]
                if ready > now:
                    now = ready
            source = second_needs[position]
            if source >= 0:
                ready = finish[source]
                if ready < 0.0:
                    waiter[source] = rank
                    break
                ready += delays[position + 1]
                if ready > now:
                    now = ready
            now += durations[position]
            finish[position] = now
            if waiter[position] >= 0:
                runnable.append(waiter[position])
            position += 1
        clock[rank], pointer[rank] = now, position
    raise_if(
        [
            Fault(field=f"rank {rank}", given=f"action {pointer[rank] - bounds[rank]}", required="an action that does not wait forever")
            for rank in range(len(clock))
            if pointer[rank] < bounds[rank + 1]
        ]
    )
    return np.array(finish)


def _held(graph: ActionGraph, weights: Floats) -> Floats:
    """What each action adds to (forward) or takes from (end of the backward) what its rank holds."""
    signs = np.array([1.0, -1.0, 0.0, -1.0])
    return signs[graph.kind] * weights[graph.model_stage]


def _peaks(graph: ActionGraph, weights: Floats) -> Floats:
    """The most of ``weights`` (per model stage) that each rank holds at once."""
    parts = np.split(_held(graph, weights), graph.rank_start[1:-1])
    return np.array([np.cumsum(part).max(initial=0.0) for part in parts])


def _stage_peaks(graph: ActionGraph) -> Ints:
    """The most passes that each virtual stage holds at once."""
    order = np.argsort(graph.stage, kind="stable")
    held = np.cumsum(_held(graph, np.ones(int(graph.model_stage.max()) + 1))[order])
    # Every pass of a stage ends, so the running sum is back at zero where the next stage begins.
    first = np.flatnonzero(np.diff(graph.stage[order], prepend=-1))
    return np.maximum.reduceat(held, first).astype(np.int64)


def makespan(
    kind: PipelineSchedule,
    pipeline_parallel_size: int,
    virtual_pipeline_stages: int,
    num_microbatches: int,
    forward: Durations,
    backward: Durations,
    weight_backward: Durations | None = None,
    *,
    transfer_seconds: float | Durations = 0.0,
    overlapped_share: float | None = None,
) -> float:
    """Seconds of one pass through the schedule; the same as :func:`simulate`, sooner when m is large.

    Simulates about 6p micro-batches. Where all ranks have by then fallen into step (over 2p micro-batches
    every action ends one and the same time after the action a period before) the rest goes on so: time is
    extrapolated. Where they have not, windows of 12p, 24p and 48p are tried, and then everything is simulated.

    What is too long for that (m p v above ``MAX_PASSES``) goes on as between the two halves of the longest window, or,
    where that is longer, as the busiest rank without a pause: within 1e-6 of the simulation for stages as models have
    them. It is short where a circuit that is slower by a hair overtakes only after the window.
    """
    p, v, m, step = pipeline_parallel_size, virtual_pipeline_stages, num_microbatches, period(kind, pipeline_parallel_size)

    def run(count: int) -> Floats:
        graph = graph_of(kind, p, v, count)
        table = duration_table(graph, forward, backward, weight_backward)
        return timed_actions(graph, table, transfer_delays(graph, transfer_seconds), overlapped_share)[1]

    for window in WINDOWS:
        short = _window(window * p, m, step)
        if m <= short or (window > WINDOWS[0] and short * p * v > MAX_PASSES):
            break
        finish = run(short)
        seconds = _period_seconds(kind, (p, v, short), finish)
        if seconds is not None:
            return float(finish.max()) + (m - short) // step * seconds
    if m * p * v <= MAX_PASSES or m <= _window(2 * WINDOWS[0] * p, m, step):
        return float(run(m).max())
    later = _window(max(MAX_PASSES // (p * v) - step, 2 * WINDOWS[0] * p), m, step)
    graphs = [graph_of(kind, p, v, count) for count in (_window(later // 2, m, step), later)]
    table, delays = (
        duration_table(graphs[0], forward, backward, weight_backward),
        [transfer_delays(graph, transfer_seconds) for graph in graphs],
    )
    timed = [timed_actions(graph, table, delay, overlapped_share) for graph, delay in zip(graphs, delays, strict=True)]
    return _extrapolated(graphs, timed, (m - later) / (later - _window(later // 2, m, step)))


def _extrapolated(graphs: Sequence[ActionGraph], timed: Sequence[tuple[Floats, Floats]], factor: float) -> float:
    """Seconds after ``factor`` times the micro-batches by which the second of two windows is longer than the first."""
    ends = [float(finish.max()) for _, finish in timed]
    busy = [np.add.reduceat(seconds, graph.rank_start[:-1]) for graph, (seconds, _) in zip(graphs, timed, strict=True)]
    (seconds, finish), first = timed[1], graphs[1].rank_start[:-1]
    floor = float(np.max(finish[first] - seconds[first] + busy[1] + factor * (busy[1] - busy[0])))
    return max(ends[1] + factor * (ends[1] - ends[0]), floor)


def _window(least: int, num_microbatches: int, step: int) -> int:
    """The fewest micro-batches of at least ``least`` that lack a whole number of periods to ``num_microbatches``."""
    return least + (num_microbatches - least) % step


def _period_seconds(kind: PipelineSchedule, sizes: tuple[int, int, int], finish: Floats) -> float | None:
    """Seconds by which each period follows the one before, once all ranks agree on it; None until then."""
    p, _, m = sizes
    step, bounds = period(kind, p), graph_of(kind, *sizes).rank_start
    periods = -(-2 * p // step)
    gaps = []
    for rank, span in enumerate(steady_positions(kind, *sizes)):
        start = int(bounds[rank])
        length = (int(bounds[rank + 1]) - start) * step // m
        if len(span) < (periods + 1) * length:
            return None
        window = finish[start + span.stop - (periods + 1) * length : start + span.stop]
        gaps.append(window[length:] - window[:-length])
    gap = np.concatenate(gaps)
    same = np.ptp(gap) <= SAME_PERIOD * gap.max()
    return float(gap.mean()) if same else None
