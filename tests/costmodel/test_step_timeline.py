"""The drawn step against the estimate, the makespan and the closed form; what it sends against rings counted by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar.costmodel.axis_traffic import Axis, AxisTraffic
from autopar.costmodel.estimate import estimate
from autopar.costmodel.spec.errors import InvalidInputError
from autopar.costmodel.spec.schedule import ActionKind, build_schedule
from autopar.costmodel.spec.strategy import ContextParallelKind, PipelineSchedule, Recompute, Strategy
from autopar.costmodel.step_timeline import StepTimeline, step_timeline

from .problems import DENSE, EXPERTS, GROUPED, MODELS, feasible, problem

CHOICES = st.tuples(st.sampled_from(sorted(MODELS)), st.integers(0, 10**6))
ACTIVATION = 4096 * 2048 * 2
"""Bytes of one sequence's activations in bf16."""


def chosen(choice: tuple[str, int]) -> tuple[object, Strategy]:
    asked, strategies = feasible(choice[0])
    return asked, strategies[choice[1] % len(strategies)]


def timeline_of(strategy: Strategy, **changes: object) -> StepTimeline:
    return step_timeline(problem(**changes), strategy)


def by_axis(traffic: tuple[AxisTraffic, ...]) -> dict[Axis, AxisTraffic]:
    return {one.axis: one for one in traffic}


@given(choice=CHOICES)
def test_the_step_takes_as_long_as_its_estimate(choice: tuple[str, int]) -> None:
    asked, strategy = chosen(choice)
    drawn, told = step_timeline(asked, strategy), estimate(asked, strategy)
    assert drawn.step_time_seconds == pytest.approx(told.step_time_seconds, rel=1e-9)
    ends = [end.communication_seconds + end.optimizer_seconds for end in drawn.ends]
    assert drawn.makespan_seconds + max(ends) + drawn.overhead_seconds == pytest.approx(told.step_time_seconds, rel=1e-9)
    assert drawn.idle_seconds()[drawn.pacing_rank] == pytest.approx(told.time.pipeline_bubble, rel=1e-6, abs=1e-9)


@given(choice=CHOICES)
def test_every_pass_is_run_once_in_order_and_after_what_feeds_it(choice: tuple[str, int]) -> None:
    asked, strategy = chosen(choice)
    drawn = step_timeline(asked, strategy)
    count = strategy.num_microbatches(asked.training.global_batch_size)
    sizes = (strategy.pipeline_schedule, strategy.pipeline_parallel_size, strategy.virtual_pipeline_stages, count)
    if strategy.pipeline_parallel_size > 1:
        schedule = build_schedule(*sizes)
        for rank, actions in zip(drawn.ranks, schedule.actions, strict=True):
            assert rank.kinds() == [action.kind for action in actions]
            assert rank.stage.tolist() == [schedule.model_stage(action.stage) for action in actions]
            assert rank.microbatch.tolist() == [action.microbatch for action in actions]
    for rank in drawn.ranks:
        assert (rank.finish_seconds >= rank.start_seconds).all()
        assert (np.diff(rank.start_seconds) >= -1e-12).all()
        fed = np.flatnonzero(rank.source_rank >= 0)
        for place in fed.tolist():
            source = drawn.ranks[rank.source_rank[place]]
            assert source.finish_seconds[rank.source_position[place]] <= rank.start_seconds[place] + 1e-9


@given(choice=CHOICES)
def test_exposed_seconds_of_an_axis_are_those_of_the_breakdown(choice: tuple[str, int]) -> None:
    asked, strategy = chosen(choice)
    drawn, told = step_timeline(asked, strategy), estimate(asked, strategy).time
    found = by_axis(drawn.step_traffic(drawn.pacing_rank))
    named = {Axis.TENSOR: told.exposed_tensor_communication, Axis.CONTEXT: told.exposed_context_communication}
    named |= {Axis.EXPERT: told.exposed_expert_communication, Axis.PIPELINE: told.exposed_pipeline_communication}
    for axis, seconds in named.items():
        got = found[axis].exposed_seconds if axis in found else 0.0
        assert got == pytest.approx(seconds, rel=1e-9, abs=1e-12)


@given(choice=CHOICES)
def test_only_axes_with_several_ranks_send_and_only_split_groups_use_the_network(choice: tuple[str, int]) -> None:
    asked, strategy = chosen(choice)
    drawn = step_timeline(asked, strategy)
    groups = {group.axis: group for group in drawn.groups}
    for rank in range(len(drawn.ranks)):
        for axis, sent in by_axis(drawn.step_traffic(rank)).items():
            assert sent.fast_bytes >= 0 <= sent.network_bytes
            if axis not in groups and axis is not Axis.DATA and sent.sent_bytes:  # experts' own tensor groups, tied tables
                assert axis is Axis.EXPERT
                assert strategy.expert_tensor_parallel_size > 1


def test_the_times_are_the_closed_form_of_one_forward_one_backward() -> None:
    strategy = Strategy(pipeline_parallel_size=4, data_parallel_size=4)
    drawn = timeline_of(strategy)
    pace = max(float(rank.finish_seconds[0] - rank.start_seconds[0]) for rank in drawn.ranks)
    last = drawn.ranks[-1]
    assert last.start_seconds[0] == pytest.approx(sum(float(r.finish_seconds[0] - r.start_seconds[0]) for r in drawn.ranks[:-1]), rel=1e-9)
    assert pace > 0
    assert [kind.value for kind in last.kinds()[:4]] == ["F", "B", "F", "B"]
    assert [kind.value for kind in drawn.ranks[0].kinds()[:5]] == ["F", "F", "F", "F", "B"]


def test_a_ring_of_tensor_ranks_sends_what_is_counted_by_hand() -> None:
    drawn = timeline_of(Strategy(tensor_parallel_size=4, sequence_parallel=True, data_parallel_size=4))
    passes = drawn.stage_traffic[0]
    forward = by_axis(passes.forward)[Axis.TENSOR]
    assert forward.fast_bytes == pytest.approx((8 * 2 + 1) * 2 * ACTIVATION * 3 / 4)
    assert forward.network_bytes == 0
    assert by_axis(passes.backward)[Axis.TENSOR].fast_bytes == pytest.approx(forward.fast_bytes)


def test_full_recomputation_sends_the_layers_again() -> None:
    sizes = {"tensor_parallel_size": 4, "sequence_parallel": True, "data_parallel_size": 4}
    plain, again = (timeline_of(Strategy(**sizes, recompute=recompute)) for recompute in (Recompute.NONE, Recompute.FULL))
    extra = (
        by_axis(again.stage_traffic[0].backward)[Axis.TENSOR].fast_bytes - by_axis(plain.stage_traffic[0].backward)[Axis.TENSOR].fast_bytes
    )
    assert extra == pytest.approx(8 * 2 * 2 * ACTIVATION * 3 / 4)


def test_a_group_over_two_nodes_splits_its_ring_over_the_tiers() -> None:
    drawn = timeline_of(Strategy(data_parallel_size=16, zero_stage=0), batch=16)
    end = by_axis(drawn.ends[0].traffic)[Axis.DATA]
    parameters = estimate(problem(batch=16), Strategy(data_parallel_size=16, zero_stage=0)).stages[0].num_parameters
    assert end.sent_bytes == pytest.approx(parameters * 4 * 2 * 15 / 16, rel=1e-6)  # Megatron reduces in fp32
    assert end.network_bytes == pytest.approx(end.sent_bytes / 8, rel=1e-9)
    assert {group.axis: (group.size, group.num_domains) for group in drawn.groups} == {Axis.DATA: (16, 2)}


def test_sharded_parameters_are_gathered_on_every_pass_and_nothing_is_left_for_the_end() -> None:
    drawn = timeline_of(Strategy(data_parallel_size=16, zero_stage=3), batch=16, zero_stages=(0, 1, 2, 3))
    passes = drawn.stage_traffic[0]
    forward, backward = by_axis(passes.forward)[Axis.DATA], by_axis(passes.backward)[Axis.DATA]
    assert 0 < forward.sent_bytes < backward.sent_bytes
    assert by_axis(drawn.ends[0].traffic).get(Axis.DATA) is None


def test_pipeline_neighbours_send_activations_down_and_gradients_up() -> None:
    drawn = timeline_of(Strategy(pipeline_parallel_size=4, data_parallel_size=4))
    forward = [by_axis(stage.forward).get(Axis.PIPELINE) for stage in drawn.stage_traffic]
    backward = [by_axis(stage.backward).get(Axis.PIPELINE) for stage in drawn.stage_traffic]
    assert [one and one.sent_bytes for one in forward] == [ACTIVATION] * 3 + [None]
    assert [one and one.sent_bytes for one in backward] == [None] + [ACTIVATION] * 3


@pytest.mark.parametrize(
    ("kind", "sent"),
    [
        (ContextParallelKind.RING, 3 * 1024 * 2 * 4 * 128 * 2),
        (ContextParallelKind.ALL_GATHER, 3 * 1024 * 2 * 4 * 128 * 2),
        (ContextParallelKind.ULYSSES, 3 / 4 * 1024 * (2 * 16 * 128 + 2 * 4 * 128) * 2),
    ],
)
def test_context_ranks_pass_keys_and_values_on(kind: ContextParallelKind, sent: float) -> None:
    asked = problem(GROUPED, context_parallel_kinds=tuple(ContextParallelKind))
    drawn = step_timeline(asked, Strategy(context_parallel_size=4, context_parallel_kind=kind, data_parallel_size=4))
    forward = by_axis(drawn.stage_traffic[0].forward)[Axis.CONTEXT]
    assert forward.fast_bytes == pytest.approx(8 * sent)


def test_experts_are_sent_their_tokens_and_send_them_back() -> None:
    drawn = step_timeline(problem(EXPERTS, expert_imbalance=1.0), Strategy(expert_parallel_size=8, data_parallel_size=16))
    forward = by_axis(drawn.stage_traffic[0].forward)[Axis.EXPERT]
    assert forward.fast_bytes == pytest.approx(8 * 2 * 2 * ACTIVATION * 7 / 8)  # layers, both ways, two experts a token
    assert forward.network_bytes == 0


def test_dualpipe_runs_pairs_at_the_same_time() -> None:
    asked = problem(schedules=tuple(PipelineSchedule))
    strategy = Strategy(pipeline_parallel_size=4, data_parallel_size=2, tensor_parallel_size=2, pipeline_schedule=PipelineSchedule.DUALPIPE)
    drawn = step_timeline(asked, strategy)
    rank = drawn.ranks[0]
    together = np.flatnonzero((np.diff(rank.start_seconds) == 0) & (np.diff(rank.finish_seconds) == 0))
    assert len(together)
    assert {(rank.kinds()[place], rank.kinds()[place + 1]) for place in together.tolist()} == {(ActionKind.FORWARD, ActionKind.BACKWARD)}
    assert drawn.microbatches_per_stage * 2 == drawn.num_microbatches


def test_a_step_of_too_many_passes_is_not_drawn() -> None:
    with pytest.raises(InvalidInputError, match="at most 1,000,000 passes"):
        timeline_of(Strategy(data_parallel_size=1), gpus=1, batch=10**6)


def test_weight_passes_send_nothing() -> None:
    drawn = timeline_of(Strategy(pipeline_parallel_size=4, data_parallel_size=4))
    assert drawn.traffic_of(0, ActionKind.BACKWARD_WEIGHT) == ()
    assert drawn.traffic_of(0, ActionKind.BACKWARD_INPUT) == drawn.stage_traffic[0].backward


def test_the_same_question_has_the_same_timeline() -> None:
    strategy = Strategy(pipeline_parallel_size=4, data_parallel_size=4)
    one, other = (timeline_of(strategy, model=DENSE) for _ in range(2))
    assert [rank.finish_seconds.tolist() for rank in one.ranks] == [rank.finish_seconds.tolist() for rank in other.ranks]
