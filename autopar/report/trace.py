"""The simulated step as a Chrome trace (the JSON that Perfetto and chrome://tracing open).

One process a pipeline rank, with a thread for what it computes, one for the communication that it waits for, and a counter of the
passes it holds. Times are
those of the cost model's simulation; where inside a pass its communication stands is not simulated, so each axis has one slice
a pass, at the pass's end, as long as all of it together. Format: the Trace Event Format, catapult-project.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

import autopar
from autopar.costmodel.spec.schedule_action import ActionKind

if TYPE_CHECKING:
    from autopar.costmodel.axis_traffic import Traffic
    from autopar.costmodel.problem import Problem
    from autopar.costmodel.spec.strategy import Strategy
    from autopar.costmodel.step_timeline import RankActions, StepTimeline

TRACE_SCHEMA_VERSION = "1.0"
MAX_PASSES = 20_000
"""Passes of all ranks together that are written one by one; of more, the first and the last of each rank (about 15 MB either way)."""
COMPUTE, COMMUNICATION = 0, 1
NAMES = {
    ActionKind.FORWARD: "forward",
    ActionKind.BACKWARD: "backward",
    ActionKind.BACKWARD_INPUT: "backward, input part",
    ActionKind.BACKWARD_WEIGHT: "backward, weight part",
}

HELD = {ActionKind.FORWARD: 1, ActionKind.BACKWARD: -1, ActionKind.BACKWARD_INPUT: 0, ActionKind.BACKWARD_WEIGHT: -1}
"""What a pass adds to those whose activations a rank holds."""

Event = dict[str, object]


def trace_json(problem: Problem, strategy: Strategy, drawn: StepTimeline, *, cluster: str = "") -> str:
    """The trace as JSON, one event a line; the same step gives the same bytes.

    Args:
        problem: whose step it is; of a mixed cluster its first pool's.
        strategy: that is simulated.
        drawn: its step.
        cluster: what runs it, where that is not the problem's cluster.
    """
    events = ",\n".join(json.dumps(event, separators=(",", ":")) for event in trace_events(problem, drawn))
    about = json.dumps(_about(problem, strategy, drawn, cluster), indent=1)
    return f'{{"displayTimeUnit":"ms",\n"otherData":{about},\n"traceEvents":[\n{events}\n]}}\n'


def left_out(drawn: StepTimeline) -> str:
    """The note of a trace that does not have every pass; empty where it has."""
    kept = sum(len(places) for rank in drawn.ranks for places in drawn_passes(rank, drawn))
    if kept == drawn.num_actions:
        return ""
    return f"{kept:,} of {drawn.num_actions:,} passes are drawn: the first and the last of each rank; the steady state between is left out"


def trace_events(problem: Problem, drawn: StepTimeline) -> Iterator[Event]:
    """Names of the tracks, then the events of every rank."""
    tiers = tuple(tier.name for tier in problem.cluster.tiers)
    yield from _step(drawn)
    first = 0
    for number, rank in enumerate(drawn.ranks):
        yield from _names(number, rank, drawn)
        track = _Track(number=number, first=first, rank=rank, drawn=drawn, tiers=tiers)
        yield from track.passes()
        yield from track.end()
        first += len(rank)


def _about(problem: Problem, strategy: Strategy, drawn: StepTimeline, cluster: str) -> dict[str, object]:
    note = left_out(drawn)
    return {
        "schema_version": TRACE_SCHEMA_VERSION,
        "autopar_version": autopar.__version__,
        "model": problem.model.name,
        "cluster": cluster or f"{problem.cluster.num_gpus} x {problem.cluster.device.name}, {problem.cluster.id}",
        "strategy": strategy.describe(),
        "step_time_seconds": drawn.step_time_seconds,
        "origin": "simulated by the cost model, not recorded; one slice an axis and pass for communication, at the pass's end",
        **({"left_out": note} if note else {}),
    }


def _step(drawn: StepTimeline) -> Iterator[Event]:
    """A track of its own for the parts of the whole step."""
    number = len(drawn.ranks)
    yield _named("process_name", number, {"name": "whole step"})
    yield _named("process_sort_index", number, {"sort_index": -1})
    yield _named("thread_name", number, {"name": "parts"})
    tail = drawn.step_time_seconds - drawn.overhead_seconds
    parts = (
        ("passes of all micro-batches", 0.0, drawn.makespan_seconds),
        ("gradients and optimizer", drawn.makespan_seconds, tail),
        ("overhead (jitter, stragglers, data loading)", tail, drawn.step_time_seconds),
    )
    yield from (_slice(name, "step", number, COMPUTE, (start, finish)) for name, start, finish in parts if finish > start)


def _names(number: int, rank: RankActions, drawn: StepTimeline) -> Iterator[Event]:
    layers = ", ".join(layers_text(drawn, stage) for stage in sorted(set(rank.stage.tolist())))
    on = f" on {drawn.pools[number]}" if drawn.pools else ""
    yield _named("process_name", number, {"name": f"pipeline rank {number}{on} (layers {layers})"})
    yield _named("process_sort_index", number, {"sort_index": number})
    yield _named("thread_name", number, {"name": "compute"}, COMPUTE)
    yield _named("thread_name", number, {"name": "communication waited for"}, COMMUNICATION)


def layers_text(drawn: StepTimeline, stage: int) -> str:
    """``12-23``: the decoder layers of a stage, or ``none`` where it has none (embedding or head alone)."""
    first, end = drawn.stage_layers[stage]
    return "none" if first == end else f"{first}-{end - 1}" if end - first > 1 else str(first)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Track:
    """One pipeline rank's events."""

    number: int
    first: int
    """Passes of the ranks before: what makes the number of an arrow unique. Perfetto reads arrows by whole numbers alone."""
    rank: RankActions
    drawn: StepTimeline
    tiers: tuple[str, ...]

    def passes(self) -> Iterator[Event]:
        times = list(zip(self.rank.start_seconds.tolist(), self.rank.finish_seconds.tolist(), strict=True))
        head, tail = drawn_passes(self.rank, self.drawn)
        yield from self._run(head, times)
        if len(tail):
            gap = (times[head[-1]][1], times[tail[0]][0])
            yield _slice(f"{tail[0] - head[-1] - 1:,} passes left out", "left out", self.number, COMPUTE, gap)
            yield from self._run(tail, times)

    def _run(self, places: range, times: list[tuple[float, float]]) -> Iterator[Event]:
        """Passes one after the other, each with what it waits for and where its input came from."""
        kinds, before, waited_from = self.rank.kinds(), (-1.0, -1.0), 0.0
        held = np.cumsum([HELD[kind] for kind in kinds])
        for place in places:
            traffic = self.drawn.traffic_of(int(self.rank.stage[place]), kinds[place])
            yield self._pass(place, kinds[place], traffic, times[place])
            yield from self._held(kinds[place], int(held[place]), times[place])
            until = waited_from if times[place] == before else times[place][1]  # two passes at the same time share the end
            yield from self._waits(traffic, until)
            before, waited_from = times[place], until - sum(one.exposed_seconds for one in traffic)
            yield from self._arrow(place, times[place])

    def _pass(self, place: int, kind: ActionKind, traffic: Traffic, times: tuple[float, float]) -> Event:
        stage, microbatch = int(self.rank.stage[place]), int(self.rank.microbatch[place])
        args = {"microbatch": microbatch, "stage": stage, "layers": layers_text(self.drawn, stage)}
        sent = {one.axis.value: round(one.sent_bytes) for one in traffic if one.sent_bytes}
        args |= {"sent_bytes": sent} if sent else {}
        return _slice(f"{kind.value}{microbatch}.{stage}", NAMES[kind], self.number, COMPUTE, times, args)

    def _held(self, kind: ActionKind, count: int, times: tuple[float, float]) -> Iterator[Event]:
        """The passes whose activations the rank holds: one more as a forward begins, one less as its backward ends."""
        if HELD[kind]:
            at = times[0] if kind is ActionKind.FORWARD else times[1]
            yield {"name": "passes held", "ph": "C", "pid": self.number, "ts": _microseconds(at), "args": {"passes": count}}

    def _waits(self, traffic: Traffic, until: float) -> Iterator[Event]:
        """A slice for each axis that the pass waits for, the last of them ending at ``until``."""
        for one in reversed(traffic):
            if one.exposed_seconds > 0:
                args = {
                    "sent_bytes": round(one.sent_bytes),
                    **{f"over_{tier}": round(sent) for tier, sent in zip(self.tiers, one.tier_bytes, strict=False) if sent},
                }
                span = (until - one.exposed_seconds, until)
                yield _slice(f"{one.axis.value} parallel", "communication", self.number, COMMUNICATION, span, args)
                until = span[0]

    def _arrow(self, place: int, times: tuple[float, float]) -> Iterator[Event]:
        """From the pass on another rank whose output this one waits for, where both are drawn."""
        source, position = int(self.rank.source_rank[place]), int(self.rank.source_position[place])
        if source < 0:
            return
        other = self.drawn.ranks[source]
        if not any(position in places for places in drawn_passes(other, self.drawn)):
            return
        sent_at = (float(other.start_seconds[position]), float(other.finish_seconds[position]))
        name: Event = {"name": "activations or gradients", "cat": "pipeline", "id": self.first + place, "tid": COMPUTE}
        yield {**name, "ph": "s", "pid": source, "ts": round(max(_microseconds(sent_at[1]) - 0.001, _microseconds(sent_at[0])), 3)}
        yield {**name, "ph": "f", "bp": "e", "pid": self.number, "ts": _microseconds(times[0])}

    def end(self) -> Iterator[Event]:
        end, start = self.drawn.ends[self.number], self.drawn.makespan_seconds
        reduced = start + end.communication_seconds
        if end.communication_seconds > 0:
            sent: Mapping[str, object] = {"sent_bytes": round(sum(one.sent_bytes for one in end.traffic))}
            yield _slice("data parallel", "communication", self.number, COMMUNICATION, (start, reduced), sent)
        if end.optimizer_seconds > 0:
            yield _slice("optimizer", "optimizer", self.number, COMPUTE, (reduced, reduced + end.optimizer_seconds))


def drawn_passes(rank: RankActions, drawn: StepTimeline) -> tuple[range, range]:
    """Positions of the passes that are drawn: all, and none; or the first of a long step, and the last."""
    each = max(MAX_PASSES // len(drawn.ranks), 2)
    if drawn.num_actions <= MAX_PASSES or len(rank) <= each:
        return range(len(rank)), range(0)
    half = each // 2
    return range(half), range(len(rank) - half, len(rank))


def _named(name: str, process: int, args: Mapping[str, object], thread: int = COMPUTE) -> Event:
    return {"name": name, "ph": "M", "pid": process, "tid": thread, "args": dict(args)}


def _slice(
    name: str, category: str, process: int, thread: int, times: tuple[float, float], args: Mapping[str, object] | None = None
) -> Event:
    """A complete event. Ends are rounded, not durations, so that what touches in the simulation touches in the trace."""
    start, finish = map(_microseconds, times)
    event: Event = {"name": name, "cat": category, "ph": "X", "pid": process, "tid": thread, "ts": start, "dur": round(finish - start, 3)}
    return event | {"args": dict(args)} if args else event


def _microseconds(seconds: float) -> float:
    """To the nanosecond, which is what a trace viewer keeps."""
    return round(seconds * 1e6, 3)
