"""A pipeline schedule as flat arrays, which the simulators run on.

The loop schedules (gpipe, 1f1b, interleaved_1f1b) are written down as arithmetic, without an object an action; the others
are flattened from their actions. Symbols: p pipeline ranks, r one of them, v virtual stages a rank, m micro-batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from .columns import Ints
from .spec.errors import raise_if
from .spec.schedule import ActionKind, Schedule, build_schedule, schedule_faults, stage_ranks
from .spec.strategy import PipelineSchedule

KINDS = (ActionKind.FORWARD, ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT)
FORWARD, BACKWARD, _INPUT, WEIGHT = range(4)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionGraph:
    """A schedule as flat arrays, one entry an action, rank after rank.

    ``needs`` is the action on another stage that feeds this one, -1 for none; ``boundary`` the model
    boundary the tensor crosses (boundary s lies after model stage s), -1 where it stays on the rank.
    """

    num_model_stages: int
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
    codes = {id(kind): code for code, kind in enumerate(KINDS)}
    return _connected(
        schedule.stage_rank,
        schedule.num_model_stages,
        kind=np.array([codes[id(action.kind)] for action in flat], dtype=np.int8),
        stage=np.array([action.stage for action in flat], dtype=np.int64),
        microbatch=np.array([action.microbatch for action in flat], dtype=np.int64),
        pair_first=np.flatnonzero(np.array([action.overlaps_next for action in flat], dtype=np.bool_)),
        lengths=[len(actions) for actions in schedule.actions],
    )


@lru_cache(maxsize=64)
def graph_of(kind: PipelineSchedule, pipeline_parallel_size: int, virtual_pipeline_stages: int, num_microbatches: int) -> ActionGraph:
    """:func:`action_graph` of :func:`~autopar.costmodel.spec.schedule.build_schedule`, without building a loop schedule's actions."""
    p, v, m = pipeline_parallel_size, virtual_pipeline_stages, num_microbatches
    if kind not in (PipelineSchedule.GPIPE, PipelineSchedule.ONE_F_ONE_B, PipelineSchedule.INTERLEAVED):
        return action_graph(build_schedule(kind, p, v, m))
    raise_if(schedule_faults(kind, p, v, m))
    passes, rank = m * v, np.arange(p)[:, np.newaxis]
    warm_up = {
        PipelineSchedule.GPIPE: passes + 0 * rank,
        PipelineSchedule.ONE_F_ONE_B: p - 1 - rank,
        PipelineSchedule.INTERLEAVED: 2 * (p - 1 - rank) + (v - 1) * p,
    }[kind]
    turn = np.arange(passes)
    group = turn // (p * v)
    chunk, microbatch = (turn, turn) if v == 1 else (turn // p % v, group * p + turn % p)
    chunk = chunk * (v > 1)
    forward_at = turn + np.maximum(turn - warm_up, 0)
    backward_at = turn + np.minimum(warm_up + turn + 1, passes)
    first = rank * 2 * passes
    kinds, stages, microbatches = np.empty(2 * passes * p, dtype=np.int8), *np.empty((2, 2 * passes * p), dtype=np.int64)
    kinds[first + forward_at], kinds[first + backward_at] = FORWARD, BACKWARD
    stages[first + forward_at], stages[first + backward_at] = chunk * p + rank, (v - 1 - chunk) * p + rank
    microbatches[first + forward_at] = microbatches[first + backward_at] = microbatch
    return _connected(
        stage_ranks(kind, p, v),
        p * v,
        kind=kinds,
        stage=stages,
        microbatch=microbatches,
        pair_first=np.empty(0, dtype=np.int64),
        lengths=[2 * passes] * p,
    )


def _connected(
    stage_rank: tuple[int, ...],
    num_model_stages: int,
    *,
    kind: npt.NDArray[np.int8],
    stage: Ints,
    microbatch: Ints,
    pair_first: Ints,
    lengths: list[int],
) -> ActionGraph:
    """The graph of these actions: each forward waits for the stage before, each backward for the stage after."""
    model_stage = stage % num_model_stages
    forward, weight = kind == FORWARD, kind == WEIGHT
    position = np.full((2, len(stage_rank), int(microbatch.max(initial=-1)) + 1), -1, dtype=np.int64)
    own = np.flatnonzero(~weight)
    position[forward[own].astype(np.int64), stage[own], microbatch[own]] = own
    fed = ~weight & np.where(forward, model_stage > 0, model_stage < num_model_stages - 1)
    source = np.where(fed, np.where(forward, stage - 1, stage + 1), stage)
    needs = np.where(fed, position[forward.astype(np.int64), source, microbatch], -1)
    rank_of = np.array(stage_rank, dtype=np.int64)
    crosses = fed & (rank_of[source] != rank_of[stage])
    return ActionGraph(
        num_model_stages=num_model_stages,
        kind=kind,
        stage=stage,
        model_stage=model_stage,
        microbatch=microbatch,
        needs=needs,
        boundary=np.where(crosses, np.minimum(model_stage, source % num_model_stages), -1),
        pair_first=pair_first,
        rank_start=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
    )


def period(kind: PipelineSchedule, pipeline_parallel_size: int) -> int:
    """Micro-batches after which the steady state of a schedule repeats its order."""
    return {PipelineSchedule.INTERLEAVED: pipeline_parallel_size, PipelineSchedule.DUALPIPE: 2}.get(kind, 1)


@lru_cache(maxsize=64)
def steady_positions(kind: PipelineSchedule, p: int, v: int, m: int) -> tuple[range, ...]:
    """Per rank, the actions of the steady state.

    They are the ones that stay in place, counted from the start and from the end of the rank's list,
    when the schedule gets one more :func:`period` of micro-batches.
    """
    one, other = (graph_of(kind, p, v, count) for count in (m, m + period(kind, p)))
    firsts, lasts = ([_places(graph, from_end=from_end) for graph in (one, other)] for from_end in (False, True))
    return tuple(
        range(len(firsts[0][rank]) - _agreeing(lasts[0][rank][::-1], lasts[1][rank][::-1]), _agreeing(firsts[0][rank], firsts[1][rank]))
        for rank in range(p)
    )


def _places(graph: ActionGraph, *, from_end: bool) -> list[Ints]:
    """Per rank ``[actions, 4]``: kind, stage, micro-batch counted from the first or the last of the stage, part in a pair."""
    stages = int(graph.stage.max()) + 1
    origin = np.full(stages, -1 if from_end else np.iinfo(np.int64).max)
    (np.maximum if from_end else np.minimum).at(origin, graph.stage, graph.microbatch)
    part = np.zeros(len(graph.kind), dtype=np.int64)
    part[graph.pair_first], part[graph.pair_first + 1] = 1, 2
    table = np.stack([graph.kind, graph.stage, graph.microbatch - origin[graph.stage], part], axis=1)
    return np.split(table, graph.rank_start[1:-1])


def _agreeing(one: Ints, other: Ints) -> int:
    """How many first rows of two tables are the same."""
    count = min(len(one), len(other))
    differing = (one[:count] != other[:count]).any(axis=1)
    return int(differing.argmax()) if differing.any() else count
