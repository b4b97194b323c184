"""Pipeline schedules as data: orders of the literature, the text form, and what is refused."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.costmodel.spec.errors import InvalidInputError
from autopar.costmodel.spec.schedule import (
    Action,
    ActionKind,
    Schedule,
    build_schedule,
    dump_schedule,
    parse_schedule,
    schedule_faults,
    validate_schedule,
)
from autopar.costmodel.spec.strategy import PipelineSchedule

GPIPE, ONE_F_ONE_B = PipelineSchedule.GPIPE, PipelineSchedule.ONE_F_ONE_B
INTERLEAVED, ZERO_BUBBLE, DUALPIPE = PipelineSchedule.INTERLEAVED, PipelineSchedule.ZERO_BUBBLE, PipelineSchedule.DUALPIPE


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    kind = draw(st.sampled_from(list(PipelineSchedule)))
    p = draw(st.integers(1, 8))
    m = draw(st.integers(1, 24))
    v, group = 1, None
    if kind is INTERLEAVED:
        v = draw(st.integers(2, 4))
        if draw(st.booleans()):
            group = p + draw(st.integers(0, 3))
            m = group * draw(st.integers(1, 3)) + draw(st.sampled_from([0, *range(p, group)]))
        else:
            m = p * draw(st.integers(1, 4))
    elif kind is ZERO_BUBBLE:
        v = draw(st.integers(1, 2))
    elif kind is DUALPIPE:
        p = 2 * draw(st.integers(1, 4))
        m = 2 * p + 2 * draw(st.integers(0, 8))
    return build_schedule(kind, p, v, m, group)


def tokens(schedule: Schedule, rank: int) -> str:
    return " ".join(str(action) for action in schedule.actions[rank])


@given(schedules())
@settings(deadline=None)
def test_every_built_schedule_runs_to_its_end(schedule: Schedule) -> None:
    validate_schedule(schedule)


@given(schedules())
@settings(deadline=None)
def test_parse_of_dump_is_identity(schedule: Schedule) -> None:
    text = dump_schedule(schedule)
    assert parse_schedule(text) == schedule
    assert dump_schedule(parse_schedule(text)) == text


def test_gpipe_runs_all_forwards_first() -> None:
    assert tokens(build_schedule(GPIPE, 2, 1, 3), 0) == "F0.0 F1.0 F2.0 B0.0 B1.0 B2.0"


def test_1f1b_warms_up_one_less_a_rank() -> None:
    schedule = build_schedule(ONE_F_ONE_B, 3, 1, 4)
    assert tokens(schedule, 0) == "F0.0 F1.0 F2.0 B0.0 F3.0 B1.0 B2.0 B3.0"
    assert tokens(schedule, 1) == "F0.1 F1.1 B0.1 F2.1 B1.1 F3.1 B2.1 B3.1"
    assert tokens(schedule, 2) == "F0.2 B0.2 F1.2 B1.2 F2.2 B2.2 F3.2 B3.2"


def test_1f1b_with_fewer_microbatches_than_ranks_is_gpipe_on_the_first_ranks() -> None:
    assert tokens(build_schedule(ONE_F_ONE_B, 4, 1, 2), 0) == "F0.0 F1.0 B0.0 B1.0"


def test_interleaved_order_of_megatron() -> None:
    schedule = build_schedule(INTERLEAVED, 2, 2, 4)
    assert schedule.stage_rank == (0, 1, 0, 1)
    # Warm-up 2(p-r-1) + (v-1)p = 4 on rank 0 and 2 on rank 1; chunks change every p micro-batches.
    assert tokens(schedule, 0) == "F0.0 F1.0 F0.2 F1.2 F2.0 B0.2 F3.0 B1.2 F2.2 B0.0 F3.2 B1.0 B2.2 B3.2 B2.0 B3.0"
    assert tokens(schedule, 1) == "F0.1 F1.1 F0.3 B0.3 F1.3 B1.3 F2.1 B0.1 F3.1 B1.1 F2.3 B2.3 F3.3 B3.3 B2.1 B3.1"


def test_interleaved_takes_an_explicit_group() -> None:
    schedule = build_schedule(INTERLEAVED, 4, 2, 10, 6)
    validate_schedule(schedule)
    forwards = [str(action) for action in schedule.actions[0] if action.kind is ActionKind.FORWARD]
    assert forwards[:12] == [f"F{i}.{stage}" for stage in (0, 4) for i in range(6)]
    assert forwards[12:] == [f"F{i}.{stage}" for stage in (0, 4) for i in range(6, 10)]


def test_zb_h1_puts_weight_backwards_off_by_the_rank() -> None:
    schedule = build_schedule(ZERO_BUBBLE, 3, 1, 4)
    assert tokens(schedule, 0) == "F0.0 F1.0 F2.0 I0.0 W0.0 F3.0 I1.0 W1.0 I2.0 W2.0 I3.0 W3.0"
    assert tokens(schedule, 2) == "F0.2 I0.2 F1.2 I1.2 F2.2 I2.2 W0.2 F3.2 I3.2 W1.2 W2.2 W3.2"


def test_zbv_lays_the_stages_in_a_v() -> None:
    schedule = build_schedule(ZERO_BUBBLE, 3, 2, 5)
    assert schedule.stage_rank == (0, 1, 2, 2, 1, 0)
    assert schedule.rank_stages(0) == (0, 5)
    assert tokens(schedule, 0).startswith("F0.0 F1.0 F2.0 F3.0 F4.0 F0.5 I0.5 W0.5 F1.5 I1.5 W1.5")


def test_dualpipe_is_the_same_seen_from_both_ends() -> None:
    p, m = 6, 16
    schedule = build_schedule(DUALPIPE, p, 1, m)
    for rank in range(p):
        mirrored = tuple(
            replace(action, microbatch=(action.microbatch + m // 2) % m, stage=(action.stage + p) % (2 * p))
            for action in schedule.actions[rank]
        )
        assert schedule.actions[p - 1 - rank] == mirrored
        assert {schedule.model_stage(stage) for stage in schedule.rank_stages(rank)} == {rank, p - 1 - rank}


def test_dualpipe_pairs_a_forward_with_a_backward_of_the_other_direction() -> None:
    schedule = build_schedule(DUALPIPE, 4, 1, 12)
    pairs = [(first, second) for actions in schedule.actions for first, second in itertools.pairwise(actions) if first.overlaps_next]
    assert pairs
    for first, second in pairs:
        assert (first.kind, second.kind) == (ActionKind.FORWARD, ActionKind.BACKWARD)
        assert (first.stage < 4) != (second.stage < 4)


@pytest.mark.parametrize(
    ("sizes", "field", "fix"),
    [
        ((INTERLEAVED, 4, 2, 10), "num_microbatches", "nearest valid: 8, 12"),
        ((INTERLEAVED, 4, 2, 3), "num_microbatches", "nearest valid: 4"),
        ((INTERLEAVED, 4, 1, 8), "virtual_pipeline_stages", "pipeline_schedule=1f1b"),
        ((INTERLEAVED, 4, 2, 8, 3), "microbatch_group_size", "nearest valid: 4"),
        ((INTERLEAVED, 4, 2, 8, 6), "num_microbatches", "nearest valid: 6, 10"),
        ((ONE_F_ONE_B, 4, 2, 8), "virtual_pipeline_stages", "nearest valid: 1"),
        ((ONE_F_ONE_B, 4, 1, 8, 4), "microbatch_group_size", "leave it out"),
        ((ZERO_BUBBLE, 4, 3, 8), "virtual_pipeline_stages", "nearest valid: 2"),
        ((DUALPIPE, 3, 1, 8), "pipeline_parallel_size", "nearest valid: 2, 4"),
        ((DUALPIPE, 4, 1, 6), "num_microbatches", "nearest valid: 8"),
        ((DUALPIPE, 4, 1, 9), "num_microbatches", "nearest valid: 10"),
        ((GPIPE, 0, 1, 8), "pipeline_parallel_size", ""),
    ],
)
def test_refusals_name_the_field_and_the_smallest_fix(sizes: tuple[PipelineSchedule, int, int, int], field: str, fix: str) -> None:
    with pytest.raises(InvalidInputError) as error:
        build_schedule(*sizes)
    fault = next(fault for fault in error.value.faults if fault.field == field)
    assert fix in fault.fix


def test_the_named_fix_works() -> None:
    for m in range(1, 40):
        for fault in schedule_faults(INTERLEAVED, 4, 2, m, 7):
            for fixed in fault.fix.removeprefix("nearest valid: ").split(", "):
                assert not schedule_faults(INTERLEAVED, 4, 2, int(fixed), 7)


def test_all_faults_of_the_sizes_come_at_once() -> None:
    with pytest.raises(InvalidInputError) as error:
        build_schedule(DUALPIPE, 3, 2, 5)
    assert {fault.field for fault in error.value.faults} == {"pipeline_parallel_size", "virtual_pipeline_stages", "num_microbatches"}


def with_rank(schedule: Schedule, rank: int, actions: tuple[Action, ...]) -> Schedule:
    return replace(schedule, actions=(*schedule.actions[:rank], actions, *schedule.actions[rank + 1 :]))


def test_validate_refuses_lost_repeated_and_misplaced_work() -> None:
    schedule = build_schedule(ONE_F_ONE_B, 2, 1, 3)
    first = schedule.actions[0]
    for broken, word in (
        (first[1:], "micro-batch 0 of stage 0"),
        ((*first, first[-1]), "micro-batch 2 of stage 0"),
        ((*first, Action(ActionKind.FORWARD, 0, 1)), "rank 1 holds the stage"),
        ((*first, Action(ActionKind.FORWARD, 7, 0)), "a micro-batch that passes through the stage"),
        ((*first, Action(ActionKind.FORWARD, 0, 9)), "a stage of 0 to 1"),
    ):
        with pytest.raises(InvalidInputError, match=word):
            validate_schedule(with_rank(schedule, 0, broken))


def test_validate_refuses_a_backward_before_its_forward_and_a_weight_before_its_input() -> None:
    whole = build_schedule(ONE_F_ONE_B, 1, 1, 1)
    with pytest.raises(InvalidInputError, match="BF"):
        validate_schedule(with_rank(whole, 0, whole.actions[0][::-1]))
    split = build_schedule(ZERO_BUBBLE, 1, 1, 1)
    with pytest.raises(InvalidInputError, match="FWI"):
        validate_schedule(with_rank(split, 0, (split.actions[0][0], split.actions[0][2], split.actions[0][1])))


def test_validate_refuses_a_deadlock() -> None:
    schedule = build_schedule(GPIPE, 2, 1, 2)
    first, second = (tuple(parse_order(order)) for order in ("F0.0 B0.0 F1.0 B1.0", "F1.1 F0.1 B0.1 B1.1"))
    with pytest.raises(InvalidInputError, match="can run first") as error:
        validate_schedule(replace(schedule, actions=(first, second)))
    assert [(fault.field, fault.given) for fault in error.value.faults] == [("rank 0", "B0.0"), ("rank 1", "F1.1")]


def parse_order(order: str) -> list[Action]:
    return [Action(ActionKind(token[0]), *(int(part) for part in token[1:].split("."))) for token in order.split()]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "line 1"),
        ("schedule round_robin p=1 v=1 m=1\nrank 0: F0.0 B0.0", "KIND"),
        ("schedule 1f1b p=2 v=1 m=1\nrank 0: F0.0 B0.0", "one line for each of the 2 ranks"),
        ("schedule 1f1b p=1 v=1 m=1\nrank 0: F0.0 X0.0", "'X0.0'"),
        ("schedule 1f1b p=1 v=1 m=1\nrank 3: F0.0 B0.0", "'rank 3'"),
        ("schedule 1f1b p=1 v=1 m=1\nrank 0: B0.0 F0.0", "BF"),
    ],
)
def test_parse_refuses_with_the_place(text: str, word: str) -> None:
    with pytest.raises(InvalidInputError, match=word):
        parse_schedule(text)
