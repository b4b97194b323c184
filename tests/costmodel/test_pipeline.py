"""The pipeline simulator against a naive one, the papers' bubbles, and the closed forms against the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.costmodel.action_graph import ActionGraph, action_graph, graph_of
from autopar.costmodel.pipeline import Timeline, makespan, simulate
from autopar.costmodel.pipeline_closed_form import closed_form_makespan, in_flight_microbatches, simulated_microbatches
from autopar.costmodel.pipeline_rows import RowDurations, simulate_rows
from autopar.costmodel.spec.errors import InvalidInputError
from autopar.costmodel.spec.schedule import Action, ActionKind, Schedule, build_schedule, schedule_faults
from autopar.costmodel.spec.strategy import PipelineSchedule

GPIPE, ONE_F_ONE_B = PipelineSchedule.GPIPE, PipelineSchedule.ONE_F_ONE_B
INTERLEAVED, ZERO_BUBBLE, DUALPIPE = PipelineSchedule.INTERLEAVED, PipelineSchedule.ZERO_BUBBLE, PipelineSchedule.DUALPIPE
EXACT = {"rel": 1e-9, "abs": 1e-9}
FAMILIES = ((GPIPE, 1), (ONE_F_ONE_B, 1), (INTERLEAVED, 2), (INTERLEAVED, 3), (ZERO_BUBBLE, 1), (ZERO_BUBBLE, 2), (DUALPIPE, 1))

Floats = npt.NDArray[np.float64]
# Whole multiples of 1/16, zero among them: ties and free stages are where schedules break.
durations = st.one_of(st.integers(0, 64).map(lambda n: n / 16), st.floats(0.01, 10.0))


@st.composite
def sizes(draw: st.DrawFn, families: Sequence[tuple[PipelineSchedule, int]] = FAMILIES) -> tuple[PipelineSchedule, int, int, int]:
    kind, v = draw(st.sampled_from(families))
    p = draw(st.integers(1, 8)) if kind is not DUALPIPE else 2 * draw(st.integers(1, 3))
    if kind is INTERLEAVED:
        return kind, p, v, p * draw(st.integers(1, 5))
    if kind is DUALPIPE:
        return kind, p, v, 2 * p + 2 * draw(st.integers(0, 6))
    return kind, p, v, draw(st.integers(1, 24))


def stage_seconds(data: st.DataObject, count: int) -> list[float]:
    return data.draw(st.lists(durations, min_size=count, max_size=count))


def uniform(
    kind: PipelineSchedule, p: int, v: int, m: int, f: float = 1.0, b: float = 1.0, w: float = 1.0, share: float | None = None
) -> Timeline:
    stages = p * v
    return simulate(build_schedule(kind, p, v, m), [f] * stages, [b] * stages, [w] * stages, overlapped_share=share)


def naive_makespan(schedule: Schedule, seconds: dict[ActionKind, list[float]], transfer: list[float]) -> float:
    """Longest path by plain recursion: an oracle that shares nothing with the simulator."""
    before: dict[Action, Action | None] = {}
    where: dict[tuple[bool, int, int], Action] = {}
    for actions in schedule.actions:
        for previous, action in zip((None, *actions), actions, strict=False):
            before[action] = previous
            if action.kind is not ActionKind.BACKWARD_WEIGHT:
                where[action.kind is ActionKind.FORWARD, action.microbatch, action.stage] = action

    @cache
    def finish(action: Action) -> float:
        ready = [0.0]
        previous = before[action]
        if previous is not None:
            ready.append(finish(previous))
        forward = action.kind is ActionKind.FORWARD
        neighbour = schedule.upstream(action.stage) if forward else schedule.downstream(action.stage)
        if neighbour is not None and action.kind is not ActionKind.BACKWARD_WEIGHT:
            same_rank = schedule.stage_rank[neighbour] == schedule.stage_rank[action.stage]
            boundary = min(schedule.model_stage(neighbour), schedule.model_stage(action.stage))
            ready.append(finish(where[forward, action.microbatch, neighbour]) + (0.0 if same_rank else transfer[boundary]))
        return max(ready) + seconds[action.kind][schedule.model_stage(action.stage)]

    return max(finish(actions[-1]) for actions in schedule.actions)


@given(sizes(), st.data())
@settings(deadline=None)
def test_simulator_finds_the_longest_path(size: tuple[PipelineSchedule, int, int, int], data: st.DataObject) -> None:
    schedule = build_schedule(*size)
    stages = schedule.num_model_stages
    f, b, w = (stage_seconds(data, stages) for _ in range(3))
    transfer = stage_seconds(data, stages - 1)
    whole = [i + j for i, j in zip(b, w, strict=True)]
    seconds = dict(zip(ActionKind, (f, whole, b, w), strict=True))
    line = simulate(schedule, f, b, w, transfer_seconds=transfer)
    assert line.makespan_seconds == pytest.approx(naive_makespan(schedule, seconds, transfer), **EXACT)


@given(sizes(), st.data())
@settings(deadline=None)
def test_timeline_conserves_work_and_never_overlaps_itself(size: tuple[PipelineSchedule, int, int, int], data: st.DataObject) -> None:
    schedule = build_schedule(*size)
    stages = schedule.num_model_stages
    f, b, w = (stage_seconds(data, stages) for _ in range(3))
    line = simulate(schedule, f, b, w)
    work = sum(f) + sum(b) + sum(w)
    assert line.busy_seconds.sum() == pytest.approx(schedule.num_microbatches * work, **EXACT)
    assert line.makespan_seconds >= line.busy_seconds.max() - 1e-9
    assert line.busy_seconds + line.idle_seconds == pytest.approx(line.makespan_seconds, **EXACT)
    for start, finish in zip(line.start_seconds, line.finish_seconds, strict=True):
        assert (start[1:] >= finish[:-1] - 1e-9).all()
    assert len(line.trace()) == sum(len(actions) for actions in schedule.actions)


@given(sizes(), st.data())
@settings(deadline=None)
def test_smaller_transfers_are_never_slower(size: tuple[PipelineSchedule, int, int, int], data: st.DataObject) -> None:
    schedule = build_schedule(*size)
    stages = schedule.num_model_stages
    f, b, w = (stage_seconds(data, stages) for _ in range(3))
    slow = np.array(stage_seconds(data, stages - 1))
    share = data.draw(st.floats(0.0, 1.0))
    ends = [simulate(schedule, f, b, w, transfer_seconds=delay).makespan_seconds for delay in (0.0 * slow, share * slow, slow)]
    assert ends[0] <= ends[1] + 1e-9
    assert ends[1] <= ends[2] + 1e-9


@given(sizes(), st.data())
@settings(deadline=None)
def test_more_microbatches_are_never_faster(size: tuple[PipelineSchedule, int, int, int], data: st.DataObject) -> None:
    kind, p, v, m = size
    step = {INTERLEAVED: p, DUALPIPE: 2}.get(kind, 1)
    f, b, w = (stage_seconds(data, p * v) for _ in range(3))
    fewer, more = (simulate(build_schedule(kind, p, v, count), f, b, w).makespan_seconds for count in (m, m + step))
    assert fewer <= more + 1e-9


def test_a_schedule_that_waits_forever_is_refused() -> None:
    schedule = build_schedule(GPIPE, 2, 1, 2)
    swapped = Schedule(
        kind=GPIPE,
        pipeline_parallel_size=2,
        virtual_pipeline_stages=1,
        num_microbatches=2,
        stage_rank=(0, 1),
        actions=(schedule.actions[0][::-1], schedule.actions[1]),
    )
    with pytest.raises(InvalidInputError, match="wait forever"):
        simulate(swapped, [1.0, 1.0], [1.0, 1.0])


@pytest.mark.parametrize(
    ("given_", "field"),
    [
        ({"forward": [1.0]}, "forward"),
        ({"backward": [1.0, -1.0]}, "backward"),
        ({"transfer_seconds": [1.0, 1.0]}, "transfer_seconds"),
        ({"activation_bytes": [1.0] * 3}, "activation_bytes"),
    ],
)
def test_bad_durations_are_refused_by_name(given_: dict[str, list[float]], field: str) -> None:
    arguments = {"forward": [1.0, 1.0], "backward": [1.0, 1.0], **given_}
    with pytest.raises(InvalidInputError) as error:
        simulate(build_schedule(ONE_F_ONE_B, 2, 1, 2), **arguments)
    assert [fault.field for fault in error.value.faults] == [field]


def test_a_split_backward_needs_its_weight_part() -> None:
    with pytest.raises(InvalidInputError, match="weight_backward"):
        simulate(build_schedule(ZERO_BUBBLE, 2, 1, 2), [1.0, 1.0], [1.0, 1.0])


# Bubbles of the papers. T: seconds of all passes of a micro-batch on one virtual stage.


@pytest.mark.parametrize("kind", [GPIPE, ONE_F_ONE_B])
@pytest.mark.parametrize(("p", "m"), [(1, 1), (2, 5), (4, 2), (4, 4), (8, 32)])
def test_bubble_of_gpipe_and_1f1b(kind: PipelineSchedule, p: int, m: int) -> None:
    line = uniform(kind, p, 1, m, f=1.0, b=1.5, w=0.75)
    assert line.makespan_seconds == pytest.approx((m + p - 1) * 3.25, **EXACT)
    assert line.bubble_fraction == pytest.approx((p - 1) / (m + p - 1), **EXACT)


@pytest.mark.parametrize(("p", "v", "groups"), [(2, 2, 1), (4, 2, 3), (4, 4, 2), (8, 3, 4)])
def test_bubble_of_interleaved_is_divided_by_the_chunks(p: int, v: int, groups: int) -> None:
    chunk = 3.0 / v
    line = uniform(INTERLEAVED, p, v, groups * p, f=chunk / 3, b=chunk / 3, w=chunk / 3)
    assert line.idle_seconds == pytest.approx((p - 1) * 3.0 / v, **EXACT)


@pytest.mark.parametrize("p", [2, 4, 8])
@pytest.mark.parametrize(("f", "b", "w"), [(1.0, 1.0, 1.0), (1.0, 1.5, 0.7), (2.0, 1.0, 0.5), (1.0, 3.0, 0.2)])
def test_bubble_of_zb_h1_where_the_weight_part_is_the_shortest(p: int, f: float, b: float, w: float) -> None:
    line = uniform(ZERO_BUBBLE, p, 1, 3 * p + 1, f, b, w)
    assert line.idle_seconds == pytest.approx((p - 1) * (f + b - w), **EXACT)


@given(st.integers(1, 8), st.integers(0, 12), durations, durations, durations)
@settings(deadline=None)
def test_bubble_of_zb_h1_in_general(p: int, more: int, f: float, b: float, w: float) -> None:
    """The paper's (p-1)(F + B - W) is below what the first and last rank must wait, once W exceeds F or B."""
    line = uniform(ZERO_BUBBLE, p, 1, p + more, f, b, w)
    assert line.idle_seconds == pytest.approx((p - 1) * max(f, b, f + b - w), **EXACT)


@pytest.mark.parametrize("p", [2, 4, 8])
def test_zbv_leaves_no_gap_inside_a_rank_when_all_parts_take_the_same(p: int) -> None:
    line = uniform(ZERO_BUBBLE, p, 2, 4 * p)
    for start, finish, busy in zip(line.start_seconds, line.finish_seconds, line.busy_seconds, strict=True):
        assert finish[-1] - start[0] == pytest.approx(busy, **EXACT)


@pytest.mark.parametrize("p", [2, 4, 6, 8])
@pytest.mark.parametrize("more", [0, 2, 20])
def test_bubble_of_dualpipe(p: int, more: int) -> None:
    """(p/2 - 1)(F&B + B - 3W), with the pair F&B as one pass: F + B when overlap gains nothing."""
    line = uniform(DUALPIPE, p, 1, 2 * p + more, share=1.0)
    assert line.idle_seconds == pytest.approx((p / 2 - 1) * (3.0 + 2.0 - 3.0), **EXACT)


@given(st.integers(1, 4), st.integers(0, 6), st.floats(0.5, 2.0), st.floats(0.5, 2.0), st.floats(0.1, 1.0))
@settings(deadline=None)
def test_bubble_of_dualpipe_is_within_two_passes_a_rank_of_the_paper(half: int, more: int, f: float, b: float, part: float) -> None:
    p, w = 2 * half, part * b
    idle = uniform(DUALPIPE, p, 1, 2 * p + 2 * more, f, b, w, share=1.0).idle_seconds.max()
    paper = (half - 1) * (f + b + w + b + w - 3 * w)
    assert abs(idle - paper) <= (half - 1) * max(f, b) + 1e-9


def test_overlap_shortens_dualpipe_by_the_pairs_it_covers() -> None:
    apart, joined = (uniform(DUALPIPE, 4, 1, 40, share=share) for share in (1.0, 0.5))
    pairs = sum(action.overlaps_next for action in joined.schedule.actions[0])
    assert apart.busy_seconds[0] - joined.busy_seconds[0] == pytest.approx(pairs * 1.5, **EXACT)
    assert joined.makespan_seconds < apart.makespan_seconds


# Activations in flight.


@pytest.mark.parametrize("p", range(1, 9))
@pytest.mark.parametrize(("kind", "v"), [*FAMILIES, (INTERLEAVED, 4)])
def test_in_flight_closed_form_counts_what_the_simulator_counts(kind: PipelineSchedule, v: int, p: int) -> None:
    p *= 2 if kind is DUALPIPE else 1
    counts = [m for m in (*range(1, 2 * p + 3), 3 * p, 4 * p) if not schedule_faults(kind, p, v, m)]
    held = in_flight_microbatches(kind, p, v, np.array(counts))
    assert held.tolist() == [uniform(kind, p, v, m).in_flight.tolist() for m in counts]


def test_stages_are_counted_apart_and_bytes_are_weighted() -> None:
    schedule = build_schedule(INTERLEAVED, 2, 2, 4)
    line = simulate(schedule, [1.0] * 4, [1.0] * 4, activation_bytes=[1.0, 10.0, 100.0, 1000.0])
    # Rank 0 peaks at F0.0 F1.0 F0.2 F1.2 F2.0, rank 1 at F0.1 F1.1 F0.3.
    assert line.in_flight.tolist() == [5, 3]
    assert line.stage_in_flight.tolist() == [4, 3, 2, 1]
    assert line.peak_activation_bytes.tolist() == [203.0, 1020.0]


def test_peak_bytes_of_equal_stages_are_passes_times_bytes() -> None:
    schedule = build_schedule(ZERO_BUBBLE, 4, 2, 12)
    line = simulate(schedule, [1.0] * 8, [1.0] * 8, [1.0] * 8, activation_bytes=[5.0] * 8)
    assert line.peak_activation_bytes == pytest.approx(5.0 * line.in_flight)


# Columns and closed forms against the simulator.


def table(data: st.DataObject, rows: int, stages: int) -> Floats:
    return np.array([stage_seconds(data, stages) for _ in range(rows)]).reshape(rows, stages)


@given(sizes(), st.data())
@settings(deadline=None, max_examples=50)
def test_rows_are_simulated_as_one_by_one(size: tuple[PipelineSchedule, int, int, int], data: st.DataObject) -> None:
    kind, p, v, m = size
    f, b, w = (table(data, 3, p * v) for _ in range(3))
    transfer = table(data, 3, p * v - 1)
    got = simulate_rows(kind, p, v, m, RowDurations(forward=f, backward=b, weight_backward=w, transfer=transfer))
    for row in range(3):
        line = simulate(build_schedule(kind, p, v, m), f[row], b[row], w[row], transfer_seconds=transfer[row])
        assert got[row] == pytest.approx(line.makespan_seconds, **EXACT)


@given(sizes([(DUALPIPE, 1)]), st.data())
@settings(deadline=None, max_examples=50)
def test_rows_overlap_pairs_as_one_by_one(size: tuple[PipelineSchedule, int, int, int], data: st.DataObject) -> None:
    kind, p, v, m = size
    m += data.draw(st.sampled_from([0, 4 * p]))
    f, b, w = (table(data, 2, p) for _ in range(3))
    transfer, share = table(data, 2, p - 1), np.array(data.draw(st.lists(st.floats(0.5, 1.0), min_size=2, max_size=2)))
    rows = RowDurations(forward=f, backward=b, weight_backward=w, transfer=transfer, overlapped_share=share)
    got = simulate_rows(kind, p, v, m, rows)
    bound, _ = closed_form_makespan(
        kind, np.array([m, m]), f, b, p, v, weight_backward=w, transfer_seconds=transfer, overlapped_share=share
    )
    for row in range(2):
        given_ = (f[row], b[row], w[row])
        options = {"transfer_seconds": transfer[row], "overlapped_share": float(share[row])}
        line = simulate(build_schedule(kind, p, v, m), *given_, **options)
        assert got[row] == pytest.approx(line.makespan_seconds, **EXACT)
        assert makespan(kind, p, v, m, *given_, **options) == pytest.approx(line.makespan_seconds, **EXACT)
        assert bound[row] <= line.makespan_seconds * (1 + 1e-9) + 1e-9


@given(sizes([(GPIPE, 1), (ONE_F_ONE_B, 1)]), st.data())
@settings(deadline=None, max_examples=400)
def test_gpipe_and_1f1b_are_exact_for_any_stage_times(size: tuple[PipelineSchedule, int, int, int], data: st.DataObject) -> None:
    kind, p, v, m = size
    f, b = stage_seconds(data, p), stage_seconds(data, p)
    got, exact = closed_form_makespan(kind, np.array([m]), np.array([f]), np.array([b]), p, v)
    assert exact
    assert got[0] == pytest.approx(simulate(build_schedule(kind, p, v, m), f, b).makespan_seconds, **EXACT)


@given(sizes([(GPIPE, 1)]), st.data())
@settings(deadline=None)
def test_gpipe_is_exact_with_transfers(size: tuple[PipelineSchedule, int, int, int], data: st.DataObject) -> None:
    kind, p, v, m = size
    f, b, transfer = stage_seconds(data, p), stage_seconds(data, p), stage_seconds(data, p - 1)
    rows = np.array([transfer]).reshape(1, p - 1)
    got, exact = closed_form_makespan(kind, np.array([m]), np.array([f]), np.array([b]), p, v, transfer_seconds=rows)
    assert exact
    assert got[0] == pytest.approx(simulate(build_schedule(kind, p, v, m), f, b, transfer_seconds=transfer).makespan_seconds, **EXACT)


def rows_of_three(kind: PipelineSchedule, p: int) -> list[int]:
    """Micro-batches below, at and well above the count up to which everything is simulated."""
    short = simulated_microbatches(p)
    return [2 * p, short, 7 * p if kind in (INTERLEAVED, DUALPIPE) else 7 * p + 1]


OTHERS = [(kind, v) for kind, v in FAMILIES if kind not in (GPIPE, ONE_F_ONE_B)]


@given(sizes(OTHERS), durations, durations, durations)
@settings(deadline=None, max_examples=60)
def test_equal_stages_are_exact_for_every_schedule(size: tuple[PipelineSchedule, int, int, int], f: float, b: float, w: float) -> None:
    kind, p, v, _ = size
    counts = rows_of_three(kind, p)
    tables = [np.full((3, p * v), seconds) for seconds in (f, b, w)]
    got, exact = closed_form_makespan(kind, np.array(counts), tables[0], tables[1], p, v, weight_backward=tables[2])
    assert exact
    assert got == pytest.approx([uniform(kind, p, v, m, f, b, w).makespan_seconds for m in counts], **EXACT)


@given(sizes([*OTHERS, (ONE_F_ONE_B, 1)]), st.data())
@settings(deadline=None, max_examples=100)
def test_unequal_stages_are_bounded_from_below(size: tuple[PipelineSchedule, int, int, int], data: st.DataObject) -> None:
    kind, p, v, _ = size
    counts = rows_of_three(kind, p)
    f, b, w = (table(data, 3, p * v) for _ in range(3))
    transfer = table(data, 3, p * v - 1)
    got, exact = closed_form_makespan(kind, np.array(counts), f, b, p, v, weight_backward=w, transfer_seconds=transfer)
    lines = [
        simulate(build_schedule(kind, p, v, m), f[row], b[row], w[row], transfer_seconds=transfer[row]) for row, m in enumerate(counts)
    ]
    true = np.array([line.makespan_seconds for line in lines])
    assert (got <= true + 1e-9 * (1 + true)).all()
    assert got[:2] == pytest.approx(true[:2], **EXACT)
    assert got[2] >= lines[2].busy_seconds.max() - 1e-9
    if exact:
        assert got == pytest.approx(true, **EXACT)


@pytest.mark.parametrize(("kind", "v"), OTHERS)
def test_an_embedding_and_a_head_on_the_ends_stay_exact(kind: PipelineSchedule, v: int) -> None:
    """The usual shape of a model: the bound is the makespan itself, well past what is simulated."""
    p, m = 4, 64
    f = np.ones((1, p * v))
    f[0, 0], f[0, -1] = 1.07, 1.4
    got, _ = closed_form_makespan(kind, np.array([m]), f, f, p, v, weight_backward=f)
    assert got[0] == pytest.approx(simulate(build_schedule(kind, p, v, m), f[0], f[0], f[0]).makespan_seconds, **EXACT)


@given(sizes(), st.integers(6, 12), st.booleans(), st.data())
@settings(deadline=None, max_examples=60)
def test_makespan_is_the_full_simulation(size: tuple[PipelineSchedule, int, int, int], times: int, even: bool, data: st.DataObject) -> None:
    kind, p, v, m = size
    m += times * p
    f, b, w = (stage_seconds(data, p * v) for _ in range(3))
    if even:
        f, b, w = ([part[0] + 1.0] * len(part) for part in (f, b, w))
    transfer = data.draw(st.sampled_from([0.0, 0.125]))
    line = simulate(build_schedule(kind, p, v, m), f, b, w, transfer_seconds=transfer)
    assert makespan(kind, p, v, m, f, b, w, transfer_seconds=transfer) == pytest.approx(line.makespan_seconds, **EXACT)


def test_makespan_of_many_microbatches_needs_no_schedule_of_that_length(monkeypatch: pytest.MonkeyPatch) -> None:
    longest = 0

    def recorded(kind: PipelineSchedule, p: int, v: int, m: int) -> ActionGraph:
        nonlocal longest
        longest = max(longest, m)
        return graph_of(kind, p, v, m)

    monkeypatch.setattr("autopar.costmodel.pipeline.graph_of", recorded)
    monkeypatch.setattr("autopar.costmodel.action_graph.graph_of", recorded)
    got = makespan(ONE_F_ONE_B, 4, 1, 100_000, [1.0] * 4, [2.0] * 4)
    assert got == pytest.approx(100_003 * 3.0, **EXACT)
    assert 0 < longest < 100


@given(sizes())
@settings(deadline=None)
def test_graph_without_actions_is_that_of_the_actions(size: tuple[PipelineSchedule, int, int, int]) -> None:
    direct, flattened = graph_of(*size), action_graph(build_schedule(*size))
    for field in fields(ActionGraph):
        np.testing.assert_array_equal(getattr(direct, field.name), getattr(flattened, field.name), err_msg=field.name)


def test_closed_form_refuses_what_cannot_be_built() -> None:
    ones = np.ones((2, 8))
    with pytest.raises(InvalidInputError, match="num_microbatches=10"):
        closed_form_makespan(INTERLEAVED, np.array([8, 10]), ones, ones, 4, 2)
    with pytest.raises(InvalidInputError, match="weight_backward"):
        closed_form_makespan(ZERO_BUBBLE, np.array([8, 8]), ones, ones, 4, 2)
    with pytest.raises(InvalidInputError, match="transfer_seconds"):
        closed_form_makespan(ONE_F_ONE_B, np.array([8, 8]), ones, ones, 8, 1, transfer_seconds=ones)
    with pytest.raises(InvalidInputError, match="num_microbatches=10"):
        in_flight_microbatches(INTERLEAVED, 4, 2, np.array([10]))


HAIR = [1.0, 1.00003, 1.00007, 1.00001, 1.00009, 1.00002, 1.00005, 1.0]
"""Stages so alike that the heaviest needs thousands of micro-batches to set the pace."""


@pytest.mark.parametrize(("kind", "p", "v"), [(ZERO_BUBBLE, 8, 1), (INTERLEAVED, 4, 2), (DUALPIPE, 8, 1)])
def test_a_schedule_that_never_falls_into_step_is_extrapolated(
    kind: PipelineSchedule, p: int, v: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    m = 4000
    line = simulate(build_schedule(kind, p, v, m), HAIR, HAIR, HAIR)
    monkeypatch.setattr("autopar.costmodel.pipeline.MAX_PASSES", 16_000)
    assert makespan(kind, p, v, m, HAIR, HAIR, HAIR) == pytest.approx(line.makespan_seconds, rel=1e-6)


@pytest.mark.parametrize(("kind", "p", "v"), [(ZERO_BUBBLE, 8, 1), (INTERLEAVED, 4, 2), (DUALPIPE, 8, 1)])
def test_a_huge_batch_simulates_no_more_than_the_cap(kind: PipelineSchedule, p: int, v: int, monkeypatch: pytest.MonkeyPatch) -> None:
    longest = 0

    def recorded(kind: PipelineSchedule, p: int, v: int, m: int) -> ActionGraph:
        nonlocal longest
        longest = max(longest, m * p * v)
        return graph_of(kind, p, v, m)

    monkeypatch.setattr("autopar.costmodel.pipeline.MAX_PASSES", 8_000)
    monkeypatch.setattr("autopar.costmodel.pipeline.graph_of", recorded)
    m = 10**8
    ranks = np.reshape(HAIR, (v, p)).sum(axis=0) if kind is not DUALPIPE else np.add(HAIR, HAIR[::-1]) / 2
    assert makespan(kind, p, v, m, HAIR, HAIR, HAIR) == pytest.approx(m * 3 * ranks.max(), rel=1e-6)
    assert longest <= 8_000
