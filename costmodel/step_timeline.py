"""One step of one strategy as data: when each rank does what, and what it sends meanwhile. Reports and traces draw it.

The schedule is simulated with the durations of the estimate, every action of it; so the timeline ends when the estimate says
that the step ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from .action_graph import KINDS, ActionGraph, graph_of
from .axis_traffic import Axis, AxisGroup, AxisTraffic, StageTraffic, Traffic, axis_groups, end_traffic, stage_traffic
from .columns import Floats, Ints, StrategyColumns
from .inputs import Inputs
from .makespan import PAIR_SHARE, SPLIT_BACKWARD
from .pipeline import duration_table, timed_actions, transfer_delays
from .problem import Problem
from .spec.errors import Fault, InvalidInputError
from .spec.schedule_action import ActionKind
from .spec.strategy import PipelineSchedule, Strategy
from .step import StageCosts, stage_groups

MAX_ACTIONS = 1_000_000
"""Actions of all ranks together up to which a step is simulated action by action: about two seconds and 100 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankActions:
    """The passes of one pipeline rank in the order it runs them, as arrays with one entry an action.

    Two passes that run at the same time (DualPipe's pairs) have one start and one end.
    """

    kind: Ints
    """Places in :data:`~autopar.costmodel.action_graph.KINDS`; see :meth:`kinds`."""
    stage: Ints
    """Model stage."""
    microbatch: Ints
    start_seconds: Floats
    finish_seconds: Floats
    source_rank: Ints
    """The rank whose output the action waits for, where a tensor crosses ranks; else -1."""
    source_position: Ints
    """The position of that output's action on its rank."""

    def __len__(self) -> int:
        return len(self.kind)

    def kinds(self) -> list[ActionKind]:
        """What each action is."""
        return [KINDS[code] for code in self.kind.tolist()]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnd:
    """What a pipeline rank does after the last backward of the step."""

    traffic: Traffic
    communication_seconds: float
    """Gradient reduction and parameter gather left exposed. The gather may come before the next step's forward; it is counted here."""
    optimizer_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeline:
    """A step from the first forward to the next one's.

    Ranks end their passes by ``makespan_seconds``, then comes each rank's :class:`RankEnd`, and, after the slowest of them,
    ``overhead_seconds``: jitter, stragglers, data loading.
    """

    schedule: PipelineSchedule
    num_microbatches: int
    virtual_pipeline_stages: int
    stage_layers: tuple[tuple[int, int], ...]
    """``(first, last + 1)`` decoder layers of each model stage."""
    ranks: tuple[RankActions, ...]
    ends: tuple[RankEnd, ...]
    stage_traffic: tuple[StageTraffic, ...]
    groups: tuple[AxisGroup, ...]
    makespan_seconds: float
    overhead_seconds: float
    step_time_seconds: float
    microbatches_per_stage: int
    """Micro-batches that pass through one holder of a stage: half of them where two ranks hold it (DualPipe)."""
    pools: tuple[str, ...] = ()
    """Of a mixed cluster: whose GPUs each rank has."""

    @property
    def num_actions(self) -> int:
        return sum(map(len, self.ranks))

    @property
    def pacing_rank(self) -> int:
        """The rank that computes longest."""
        return int(np.argmax([_busy_seconds(rank) for rank in self.ranks]))

    def idle_seconds(self) -> tuple[float, ...]:
        """Per rank, what is left of the makespan: the pipeline's bubble."""
        return tuple(max(self.makespan_seconds - _busy_seconds(rank), 0.0) for rank in self.ranks)

    def traffic_of(self, stage: int, kind: ActionKind) -> Traffic:
        """What one pass of ``kind`` on ``stage`` sends."""
        if kind is ActionKind.BACKWARD_WEIGHT:
            return ()
        passes = self.stage_traffic[stage]
        return passes.forward if kind is ActionKind.FORWARD else passes.backward

    def step_traffic(self, rank: int) -> Traffic:
        """What one GPU of pipeline rank ``rank`` sends in the whole step, by axis."""
        stages = sorted(set(self.ranks[rank].stage.tolist()))
        parts = [*self.ends[rank].traffic]
        for one in self._passes(stages):
            parts += [_times(each, self.microbatches_per_stage) for each in one]
        return tuple(_sum(axis, [part for part in parts if part.axis is axis]) for axis in Axis if any(p.axis is axis for p in parts))

    def _passes(self, stages: list[int]) -> Iterator[Traffic]:
        for stage in stages:
            yield self.stage_traffic[stage].forward
            yield self.stage_traffic[stage].backward


def step_timeline(problem: Problem, strategy: Strategy) -> StepTimeline:
    """The timeline of ``strategy``, which must be feasible; its step time is that of :func:`~autopar.costmodel.estimate.estimate`.

    Raises:
        InvalidInputError: the step has more than ``MAX_ACTIONS`` actions.
    """
    inputs, columns = Inputs.of(problem), StrategyColumns.of([strategy])
    (costs,) = stage_groups(inputs, columns, simulate=True)
    return timeline_of(costs, stage_traffic(inputs, columns, costs), end_traffic(inputs, columns, costs), axis_groups(inputs, costs.layer))


def timeline_of(
    costs: StageCosts, passes: tuple[StageTraffic, ...], ends: tuple[Traffic, ...], groups: tuple[AxisGroup, ...]
) -> StepTimeline:
    """The timeline of one simulated strategy with what it sends: ``passes`` by model stage, ``ends`` by rank.

    Raises:
        InvalidInputError: the step has more than ``MAX_ACTIONS`` actions.
    """
    graph, table = _graph(costs)
    share = PAIR_SHARE if costs.shape.schedule is PipelineSchedule.DUALPIPE else None
    seconds, finish = timed_actions(graph, table, transfer_delays(graph, 0.0), share)
    start = finish - seconds
    if share is not None:
        second = graph.pair_first + 1
        start[second] = start[graph.pair_first]
    return StepTimeline(
        schedule=costs.shape.schedule,
        num_microbatches=round(float(costs.num_microbatches[0])),
        virtual_pipeline_stages=costs.shape.virtual_pipeline_stages,
        stage_layers=_stage_layers(costs),
        ranks=_by_rank(graph, start, finish),
        ends=_ends(costs, ends),
        stage_traffic=passes,
        groups=groups,
        makespan_seconds=float(finish.max()),
        overhead_seconds=float(costs.overhead[0]),
        step_time_seconds=float(finish.max()) + float(costs.tail[0]) + float(costs.overhead[0]),
        microbatches_per_stage=round(float(costs.num_microbatches[0])) // costs.shape.directions,
    )


def _graph(costs: StageCosts) -> tuple[ActionGraph, Floats]:
    """The actions of the schedule, and their seconds by kind and stage."""
    shape, times, count = costs.shape, costs.times, round(float(costs.num_microbatches[0]))
    p, v, kind = shape.pipeline_parallel_size, shape.virtual_pipeline_stages, shape.schedule
    split = kind in SPLIT_BACKWARD and p > 1
    actions = count * p * v * (3 if split else 2)
    if actions > MAX_ACTIONS:
        required = f"a step of at most {MAX_ACTIONS:,} passes is drawn pass by pass"
        fix = "a larger micro-batch or a smaller global batch has fewer"
        raise InvalidInputError(Fault(field="num_microbatches", given=f"{count:,} ({actions:,} passes)", required=required, fix=fix))
    if p == 1:  # no pipeline: the schedule's name means nothing, micro-batches follow each other
        graph = graph_of(PipelineSchedule.ONE_F_ONE_B, 1, 1, count)
        forward, whole = times.forward[0].sum(), (times.backward + times.weight)[0].sum()
        return graph, duration_table(graph, [forward], [whole], None)
    graph = graph_of(kind, p, v, count)
    whole = times.backward[0] if split else (times.backward + times.weight)[0]
    return graph, duration_table(graph, times.forward[0], whole, times.weight[0] if split else None)


def _by_rank(graph: ActionGraph, start: Floats, finish: Floats) -> tuple[RankActions, ...]:
    bounds = graph.rank_start
    crossing = graph.boundary >= 0
    source = np.where(crossing, graph.needs, 0)
    source_rank = np.searchsorted(bounds, source, side="right") - 1
    position = source - bounds[source_rank]
    return tuple(
        RankActions(
            kind=graph.kind[mine].astype(np.int64),
            stage=graph.model_stage[mine],
            microbatch=graph.microbatch[mine],
            start_seconds=start[mine],
            finish_seconds=finish[mine],
            source_rank=np.where(crossing, source_rank, -1)[mine],
            source_position=np.where(crossing, position, -1)[mine],
        )
        for mine in (slice(first, last) for first, last in pairwise(bounds.tolist()))
    )


def _stage_layers(costs: StageCosts) -> tuple[tuple[int, int], ...]:
    counts = costs.shape.dense_layers + costs.shape.moe_layers
    ends = np.cumsum(counts).tolist()
    return tuple((end - count, end) for end, count in zip(ends, counts.tolist(), strict=True))


def _ends(costs: StageCosts, traffic: tuple[Traffic, ...]) -> tuple[RankEnd, ...]:
    optimizer = np.broadcast_to(costs.held.optimizer_seconds, costs.data_seconds.shape)[0].tolist()
    seconds = zip(traffic, costs.data_seconds[0].tolist(), optimizer, strict=True)
    return tuple(RankEnd(traffic=sent, communication_seconds=data, optimizer_seconds=adam) for sent, data, adam in seconds)


def _busy_seconds(rank: RankActions) -> float:
    """Seconds in which the rank runs at least one pass: two at the same time count once."""
    start, finish = rank.start_seconds, rank.finish_seconds
    previous = np.concatenate([[0.0], np.maximum.accumulate(finish)[:-1]])
    return float(np.sum(np.maximum(finish - np.maximum(start, previous), 0.0)))


def _times(traffic: AxisTraffic, count: int) -> AxisTraffic:
    return _sum(traffic.axis, [traffic], count)


def _sum(axis: Axis, parts: list[AxisTraffic], count: int = 1) -> AxisTraffic:
    return AxisTraffic(
        axis=axis,
        tier_bytes=tuple(count * sum(tier) for tier in zip(*(part.tier_bytes for part in parts), strict=True)),
        exposed_seconds=count * sum(part.exposed_seconds for part in parts),
    )
