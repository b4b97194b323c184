"""The trace: a golden file, the rules of the format, and that it says what the timeline says."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from autopar.api import build_problem
from autopar.costmodel.pipeline import simulate
from autopar.costmodel.problem import Problem
from autopar.costmodel.spec.schedule import build_schedule
from autopar.costmodel.spec.strategy import PipelineSchedule, Strategy
from autopar.costmodel.step_timeline import StepTimeline, step_timeline
from autopar.report import trace
from autopar.report.trace import left_out, trace_json

GOLDEN = Path(__file__).parents[2] / "data" / "reports" / "trace.json"
SCHEDULES = [
    Strategy(tensor_parallel_size=2, sequence_parallel=True, pipeline_parallel_size=2, data_parallel_size=2),
    Strategy(data_parallel_size=8),
    Strategy(pipeline_parallel_size=4, pipeline_schedule=PipelineSchedule.ZERO_BUBBLE, data_parallel_size=2),
    Strategy(pipeline_parallel_size=4, pipeline_schedule=PipelineSchedule.DUALPIPE, data_parallel_size=2),
    Strategy(
        pipeline_parallel_size=2, virtual_pipeline_stages=2, pipeline_schedule=PipelineSchedule.INTERLEAVED, data_parallel_size=4
    ),
]  # fmt: skip


def drawn(strategy: Strategy, *, batch: int = 16) -> tuple[Problem, StepTimeline]:
    problem, _ = build_problem("gpt-1.2b", gpus=8, global_batch_size=batch, sequence_length=2048)
    return problem, step_timeline(problem, strategy)


def document(strategy: Strategy, *, batch: int = 16) -> dict[str, Any]:
    problem, timeline = drawn(strategy, batch=batch)
    parsed: dict[str, Any] = json.loads(trace_json(problem, strategy, timeline))
    return parsed


def slices(found: dict[str, Any]) -> dict[tuple[int, int], list[dict[str, Any]]]:
    tracks: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for event in found["traceEvents"]:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(event)
    return tracks


def test_the_trace_of_a_small_step_is_the_golden_one() -> None:
    """To renew it after a change of the cost model: write ``trace_json`` of the first strategy there, and look at it in Perfetto.

    Names and order are held exactly, times and bytes to a part in a million: machines differ in a number's last digits.
    """
    problem, timeline = drawn(SCHEDULES[0], batch=4)
    found, golden = (json.loads(text) for text in (trace_json(problem, SCHEDULES[0], timeline), GOLDEN.read_text()))
    assert [unnumbered(event) for event in found["traceEvents"]] == [unnumbered(event) for event in golden["traceEvents"]]
    for key in ("ts", "dur"):
        times, expected = ([event.get(key, 0.0) for event in each["traceEvents"]] for each in (found, golden))
        assert times == pytest.approx(expected, rel=1e-6, abs=0.002)


def unnumbered(event: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in event.items() if name not in ("ts", "dur")}


@pytest.mark.parametrize("strategy", SCHEDULES, ids=lambda strategy: strategy.describe())
def test_every_event_keeps_to_the_format(strategy: Strategy) -> None:
    needed = {"X": {"name", "cat", "ts", "dur", "pid", "tid"}, "M": {"name", "args", "pid"}, "C": {"name", "ts", "pid", "args"}}
    needed |= {kind: {"name", "cat", "id", "ts", "pid", "tid"} for kind in "sf"}
    found = document(strategy)
    assert found["displayTimeUnit"] == "ms"
    for event in found["traceEvents"]:
        assert needed[event["ph"]] <= set(event)
        assert event.get("ts", 0) >= 0 <= event.get("dur", 0)
        assert isinstance(event["pid"], int)


@pytest.mark.parametrize("strategy", SCHEDULES, ids=lambda strategy: strategy.describe())
def test_slices_of_a_track_follow_each_other_or_nest(strategy: Strategy) -> None:
    for track in slices(document(strategy)).values():
        open_until: list[float] = []
        for event in sorted(track, key=lambda e: (e["ts"], -e["dur"])):
            end = event["ts"] + event["dur"]
            while open_until and open_until[-1] <= event["ts"] + 5e-4:
                open_until.pop()
            assert not open_until or end <= open_until[-1] + 5e-4
            open_until.append(end)


@pytest.mark.parametrize("strategy", SCHEDULES, ids=lambda strategy: strategy.describe())
def test_arrows_leave_and_reach_a_slice(strategy: Strategy) -> None:
    found = document(strategy)
    tracks = slices(found)
    ends = defaultdict(list)
    for event in found["traceEvents"]:
        if event["ph"] in "sf":
            inside = [s for s in tracks[event["pid"], event["tid"]] if s["ts"] <= event["ts"] <= s["ts"] + s["dur"]]
            assert inside
            assert isinstance(event["id"], int)
            ends[event["id"]].append(event)
    assert all([event["ph"] for event in pair] == ["s", "f"] and pair[0]["ts"] <= pair[1]["ts"] for pair in ends.values())
    assert bool(ends) is (strategy.pipeline_parallel_size > 1)


@pytest.mark.parametrize("strategy", SCHEDULES, ids=lambda strategy: strategy.describe())
def test_the_trace_says_what_the_timeline_says(strategy: Strategy) -> None:
    problem, timeline = drawn(strategy)
    found = json.loads(trace_json(problem, strategy, timeline))
    tracks = slices(found)
    assert max(s["ts"] + s["dur"] for track in tracks.values() for s in track) == pytest.approx(timeline.step_time_seconds * 1e6, abs=0.01)
    for number, rank in enumerate(timeline.ranks):
        passes = [s for s in tracks[number, trace.COMPUTE] if s["cat"] != "optimizer"]
        assert len(passes) == len(rank)
        assert [s["args"]["microbatch"] for s in passes] == rank.microbatch.tolist()
        waited = sum(s["dur"] for s in tracks[number, trace.COMMUNICATION]) / 1e6
        told = sum(one.exposed_seconds for one in timeline.step_traffic(number))
        assert waited == pytest.approx(told, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("strategy", SCHEDULES, ids=lambda strategy: strategy.describe())
def test_the_counter_ends_at_zero_and_peaks_where_the_schedule_does(strategy: Strategy) -> None:
    problem, timeline = drawn(strategy)
    found = json.loads(trace_json(problem, strategy, timeline))
    count = 16 // strategy.data_parallel_size
    sizes = (strategy.pipeline_schedule, strategy.pipeline_parallel_size, strategy.virtual_pipeline_stages, count)
    for number in range(strategy.pipeline_parallel_size):
        held = [event["args"]["passes"] for event in found["traceEvents"] if event["ph"] == "C" and event["pid"] == number]
        assert held[-1] == 0
        assert min(held) == 0
        stages = build_schedule(*sizes).num_model_stages
        assert max(held) == simulate(build_schedule(*sizes), [1.0] * stages, [1.0] * stages, [1.0] * stages).in_flight[number]


def test_a_long_step_is_drawn_at_its_ends_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    strategy = Strategy(pipeline_parallel_size=4, data_parallel_size=2)
    problem, timeline = drawn(strategy, batch=512)
    assert left_out(timeline) == ""
    monkeypatch.setattr(trace, "MAX_PASSES", 400)
    found = json.loads(trace_json(problem, strategy, timeline))
    assert found["otherData"]["left_out"] == left_out(timeline)
    assert "400 of 2,048 passes are drawn" in left_out(timeline)
    for number, rank in enumerate(timeline.ranks):
        track = slices(found)[number, trace.COMPUTE]
        gaps = [s for s in track if s["cat"] == "left out"]
        assert [s["name"] for s in gaps] == [f"{len(rank) - 100} passes left out"]
        assert len([s for s in track if s["cat"] not in ("left out", "optimizer")]) == 100


def test_the_same_step_gives_the_same_bytes() -> None:
    one, other = (drawn(SCHEDULES[0]) for _ in range(2))
    assert trace_json(one[0], SCHEDULES[0], one[1]) == trace_json(other[0], SCHEDULES[0], other[1])


def test_tracks_of_a_mixed_cluster_have_the_name_of_their_pool() -> None:
    """Three of the pipeline's ranks hand on to their own pool, one to the other."""
    from autopar.costmodel.pool_timeline import pool_timeline
    from autopar.mixed_problem import mixed_of
    from tests.autopar.mixed_plans import staged

    problem, mixed = mixed_of(staged())
    timeline = pool_timeline(problem, mixed)
    found = json.loads(trace_json(problem.question, mixed.strategy, timeline, cluster="both pools"))
    assert found["otherData"]["cluster"] == "both pools"
    names = [event["args"]["name"] for event in found["traceEvents"] if event["name"] == "process_name"]
    assert names[1:] == [
        "pipeline rank 0 on a100-40gb (layers 0-4)", "pipeline rank 1 on a100-40gb (layers 5-8)",
        "pipeline rank 2 on h100 (layers 9-20)", "pipeline rank 3 on h100 (layers 21-31)",
    ]  # fmt: skip
    ends = [max(event["ts"] + event["dur"] for event in track) for track in slices(found).values()]
    assert max(ends) == pytest.approx(timeline.step_time_seconds * 1e6)
