"""Runs a pipeline schedule on paper: when each action starts and ends, and what each rank holds meanwhile.

A schedule is a marked graph: an action starts as soon as the one before it on its rank has ended and its
input has arrived. One topological pass gives the exact times, for one strategy (:func:`simulate`) or for
many that share a schedule (:func:`~autopar.costmodel.pipeline_rows.simulate_rows`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from .columns import Floats, Ints
from .spec.errors import Fault, InvalidInputError, raise_if
from .spec.schedule import Action, ActionKind, Schedule, build_schedule
from .spec.strategy import PipelineSchedule

Durations = Sequence[float] | Floats
"""Seconds (or bytes) of one micro-batch on each of the model's stages, in model order."""

_KINDS = (ActionKind.FORWARD, ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT)
_FORWARD, _BACKWARD, _INPUT, _WEIGHT = range(4)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionGraph:
    """A schedule as flat arrays, one entry an action, rank after rank.

    ``needs`` is the action on another stage that feeds this one, -1 for none; ``boundary`` the model
    boundary the tensor crosses (boundary s lies after model stage s), -1 where it stays on the rank.
    """

    kind: npt.NDArray[np.int8]
    stage: Ints
    model_stage: Ints
    microbatch: Ints
    needs: Ints
    boundary: Ints
    pair_first: Ints
    """Positions of the actions that may overlap with the next one."""
    rank_start: Ints
    """First position of each rank, and the number of actions at the end."""


def action_graph(schedule: Schedule) -> ActionGraph:
    """Flatten ``schedule``, and look up what feeds each action."""
    flat = [action for actions in schedule.actions for action in actions]
    codes = {id(kind): code for code, kind in enumerate(_KINDS)}
    kind = np.array([codes[id(action.kind)] for action in flat], dtype=np.int8)
    stage = np.array([action.stage for action in flat], dtype=np.int64)
    microbatch = np.array([action.microbatch for action in flat], dtype=np.int64)
    model_stage = stage % schedule.num_model_stages
    forward, weight = kind == _FORWARD, kind == _WEIGHT
    position = np.full((2, schedule.num_stages, schedule.num_microbatches), -1, dtype=np.int64)
    own = np.flatnonzero(~weight)
    position[forward[own].astype(np.int64), stage[own], microbatch[own]] = own
    fed = ~weight & np.where(forward, model_stage > 0, model_stage < schedule.num_model_stages - 1)
    source = np.where(fed, np.where(forward, stage - 1, stage + 1), stage)
    needs = np.where(fed, position[forward.astype(np.int64), source, microbatch], -1)
    rank_of = np.array(schedule.stage_rank, dtype=np.int64)
    crosses = fed & (rank_of[source] != rank_of[stage])
    lengths = [len(actions) for actions in schedule.actions]
    return ActionGraph(
        kind=kind,
        stage=stage,
        model_stage=model_stage,
        microbatch=microbatch,
        needs=needs,
        boundary=np.where(crosses, np.minimum(model_stage, source % schedule.num_model_stages), -1),
        pair_first=np.flatnonzero(np.array([action.overlaps_next for action in flat], dtype=np.bool_)),
        rank_start=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
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
    table = duration_table(schedule, forward, backward, weight_backward)
    seconds = table[graph.kind, graph.model_stage]
    delay = _delays(schedule, graph, transfer_seconds)
    pair_needs = np.full(len(seconds), -1, dtype=np.int64)
    if overlapped_share is not None and len(graph.pair_first):
        first = graph.pair_first
        pair_needs[first] = graph.needs[first + 1]
        seconds[first] = overlapped_share * (seconds[first] + seconds[first + 1])
        seconds[first + 1] = 0.0
    finish = finish_times(graph, seconds, delay, pair_needs)
    start, cuts = finish - seconds, graph.rank_start[1:-1]
    busy = np.add.reduceat(seconds, graph.rank_start[:-1])
    makespan = float(finish.max())
    weights = None if activation_bytes is None else _per_stage(schedule, "activation_bytes", activation_bytes)
    return Timeline(
        schedule=schedule,
        makespan_seconds=makespan,
        busy_seconds=busy,
        idle_seconds=np.maximum(makespan - busy, 0.0),
        in_flight=_peaks(graph, np.ones(schedule.num_model_stages)).astype(np.int64),
        stage_in_flight=_stage_peaks(graph),
        peak_activation_bytes=np.zeros(len(busy)) if weights is None else _peaks(graph, weights),
        start_seconds=tuple(np.split(start, cuts)),
        finish_seconds=tuple(np.split(finish, cuts)),
    )


def _per_stage(schedule: Schedule, name: str, values: Durations) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if array.shape != (schedule.num_model_stages,) or not (array >= 0).all():
        required = f"{schedule.num_model_stages} values of at least 0, one for each model stage"
        raise InvalidInputError(Fault(field=name, given=str(array.tolist()), required=required))
    return array


def duration_table(schedule: Schedule, forward: Durations, backward: Durations, weight_backward: Durations | None) -> Floats:
    """Seconds by kind of action and model stage."""
    if weight_backward is None and schedule.splits_backward:
        required = f"the weight part of the backward, which {schedule.kind.value} runs apart"
        raise InvalidInputError(Fault(field="weight_backward", given="None", required=required))
    first, second = _per_stage(schedule, "forward", forward), _per_stage(schedule, "backward", backward)
    third = np.zeros_like(second) if weight_backward is None else _per_stage(schedule, "weight_backward", weight_backward)
    return np.stack([first, second + third, second, third])


def _delays(schedule: Schedule, graph: ActionGraph, transfer_seconds: float | Durations) -> Floats:
    boundaries = schedule.num_model_stages - 1
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


def period(kind: PipelineSchedule, pipeline_parallel_size: int) -> int:
    """Micro-batches after which the steady state of a schedule repeats its order."""
    return {PipelineSchedule.INTERLEAVED: pipeline_parallel_size, PipelineSchedule.DUALPIPE: 2}.get(kind, 1)


@lru_cache(maxsize=64)
def steady_positions(kind: PipelineSchedule, p: int, v: int, m: int) -> tuple[range, ...]:
    """Per rank, the actions of the steady state.

    They are the ones that stay in place, counted from the start and from the end of the rank's list,
    when the schedule gets one more :func:`period` of micro-batches.
    """
    one, other = (build_schedule(kind, p, v, count) for count in (m, m + period(kind, p)))
    firsts, lasts = ([_places(schedule, from_end=from_end) for schedule in (one, other)] for from_end in (False, True))
    return tuple(
        range(len(one.actions[rank]) - _agreeing(lasts[0][rank][::-1], lasts[1][rank][::-1]), _agreeing(firsts[0][rank], firsts[1][rank]))
        for rank in range(p)
    )


def _places(schedule: Schedule, *, from_end: bool) -> list[Ints]:
    """Per rank ``[actions, 4]``: kind, stage, micro-batch counted from the first or the last of the stage, part in a pair."""
    graph = action_graph(schedule)
    spans = [schedule.stage_microbatches(stage) for stage in range(schedule.num_stages)]
    origin = np.array([span.stop if from_end else span.start for span in spans])
    part = np.zeros(len(graph.kind), dtype=np.int64)
    part[graph.pair_first], part[graph.pair_first + 1] = 1, 2
    table = np.stack([graph.kind, graph.stage, graph.microbatch - origin[graph.stage], part], axis=1)
    return np.split(table, graph.rank_start[1:-1])


def _agreeing(one: Ints, other: Ints) -> int:
    """How many first rows of two tables are the same."""
    count = min(len(one), len(other))
    differing = (one[:count] != other[:count]).any(axis=1)
    return int(differing.argmax()) if differing.any() else count


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
    extrapolated. Where they have not, everything is simulated.
    """
    p, v, m, step = pipeline_parallel_size, virtual_pipeline_stages, num_microbatches, period(kind, pipeline_parallel_size)
    short = 6 * p + (m - 6 * p) % step

    def run(count: int) -> Timeline:
        schedule = build_schedule(kind, p, v, count)
        return simulate(schedule, forward, backward, weight_backward, transfer_seconds=transfer_seconds, overlapped_share=overlapped_share)

    if m > short:
        line = run(short)
        seconds = _period_seconds(line, step)
        if seconds is not None:
            return line.makespan_seconds + (m - short) // step * seconds
    return run(m).makespan_seconds


def _period_seconds(line: Timeline, step: int) -> float | None:
    """Seconds by which each period follows the one before, once all ranks agree on it; None until then."""
    schedule = line.schedule
    p = schedule.pipeline_parallel_size
    spans = steady_positions(schedule.kind, p, schedule.virtual_pipeline_stages, schedule.num_microbatches)
    periods = -(-2 * p // step)
    gaps = []
    for span, actions, finish in zip(spans, schedule.actions, line.finish_seconds, strict=True):
        length = len(actions) * step // schedule.num_microbatches
        if len(span) < (periods + 1) * length:
            return None
        window = finish[span.stop - (periods + 1) * length : span.stop]
        gaps.append(window[length:] - window[:-length])
    gap = np.concatenate(gaps)
    same = np.ptp(gap) <= 1e-12 * line.makespan_seconds
    return float(gap.mean()) if same else None
