"""Bytes of pipeline ranks at their peak."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from autopar.costmodel.columns import StrategyColumns
from autopar.costmodel.inputs import Inputs
from autopar.costmodel.problem import Problem
from autopar.costmodel.rank_memory import RankMemory
from autopar.costmodel.spec.strategy import PipelineSchedule, Recompute, Strategy
from autopar.costmodel.step import StageCosts, stage_groups

from .problems import DENSE, EXPERTS, LATENT, MODELS, feasible, problem


def group_of(asked: Problem, strategy: Strategy) -> StageCosts:
    (group,) = stage_groups(Inputs.of(asked), StrategyColumns.of([strategy]))
    return group


def memory_of(asked: Problem, strategy: Strategy) -> RankMemory:
    return group_of(asked, strategy).memory


def peak(asked: Problem, strategy: Strategy) -> float:
    return float(memory_of(asked, strategy).total.max())


@given(pp=st.sampled_from([2, 4, 8]), microbatches=st.sampled_from([1, 2, 4, 8, 16]))
def test_1f1b_holds_what_is_in_flight(pp: int, microbatches: int) -> None:
    asked = problem(DENSE, gpus=pp, batch=microbatches, boundary_tensors_kept=0)
    group = group_of(asked, Strategy(pipeline_parallel_size=pp))
    in_flight = [min(microbatches, pp - rank) for rank in range(pp)]
    assert group.memory.in_flight[0].tolist() == in_flight
    layer = float(group.layer.dense_activations.kept[0])
    tables = 2 * 4 * 4096 * 128
    # the last rank runs a layer backward when the logits are gone, which take more
    passing = [float(group.layer.dense_activations.working[0])] * (pp - 1) + [0]
    wanted = [held * layer * (8 / pp) + tables + beside for held, beside in zip(in_flight, passing, strict=True)]
    np.testing.assert_allclose(group.memory.activations[0], wanted)


@pytest.mark.parametrize(
    ("schedule", "chunks", "in_flight"),
    [
        (PipelineSchedule.GPIPE, 1, [32, 32, 32, 32]),
        (PipelineSchedule.ONE_F_ONE_B, 1, [4, 3, 2, 1]),
        (PipelineSchedule.INTERLEAVED, 2, [11, 9, 7, 5]),
        (PipelineSchedule.ZERO_BUBBLE, 1, [4, 4, 4, 4]),
        (PipelineSchedule.DUALPIPE, 1, [5, 5, 5, 5]),
    ],
)
def test_schedules_hold_as_their_papers_say(schedule: PipelineSchedule, chunks: int, in_flight: list[int]) -> None:
    strategy = Strategy(
        pipeline_parallel_size=4, virtual_pipeline_stages=chunks, pipeline_schedule=schedule, data_parallel_size=1, micro_batch_size=1
    )
    assert memory_of(problem(DENSE, gpus=4), strategy).in_flight[0].tolist() == in_flight


def test_the_interleaved_schedule_keeps_more_by_the_published_factor() -> None:
    # Korthikanti 2022, section 4.2.3: 1 + (p - 1) / (p v) times the activations of rank 0
    groups = [
        group_of(problem(DENSE, gpus=4), Strategy(pipeline_parallel_size=4, virtual_pipeline_stages=v, pipeline_schedule=schedule))
        for v, schedule in ((1, PipelineSchedule.ONE_F_ONE_B), (2, PipelineSchedule.INTERLEAVED))
    ]
    plain, interleaved = (group.memory.activations[0, 0] - group.layer.dense_activations.working[0] for group in groups)
    assert interleaved / plain == pytest.approx(1 + 3 / 8, rel=2e-3)


def test_the_last_rank_alone_holds_logits() -> None:
    logits = memory_of(problem(DENSE), Strategy(pipeline_parallel_size=4, data_parallel_size=4)).logits[0]
    assert logits[:3].tolist() == [0, 0, 0]
    assert logits[3] > 0


def test_dualpipe_has_a_head_on_both_ends() -> None:
    strategy = Strategy(pipeline_parallel_size=4, data_parallel_size=4, pipeline_schedule=PipelineSchedule.DUALPIPE)
    logits = memory_of(problem(DENSE), strategy).logits[0]
    assert logits[0] == logits[3] > 0
    assert logits[1] == logits[2] == 0


def test_a_prediction_module_keeps_its_activations() -> None:
    group = group_of(problem(LATENT, gpus=4, boundary_tensors_kept=0), Strategy(pipeline_parallel_size=4))
    layer = float(group.layer.moe_activations.kept[0])
    tables = 2 * 4 * 4096 * 32
    assert group.memory.activations[0, 3] == pytest.approx(3 * layer + tables)


def test_a_recomputed_layer_is_made_whole_beside_what_passes_through_it() -> None:
    groups = [
        group_of(problem(DENSE, gpus=2, boundary_tensors_kept=0), Strategy(pipeline_parallel_size=2, recompute=recompute))
        for recompute in (Recompute.NONE, Recompute.FULL)
    ]
    sizes = groups[0].layer.dense_activations
    without, full = (
        float(group.memory.activations[0, 0] - group.memory.in_flight[0, 0] * kept * 4)
        for group, kept in zip(groups, (sizes.kept[0], sizes.checkpoint[0]), strict=True)
    )
    assert full - without == pytest.approx(float(sizes.kept[0]))


def test_selective_recomputation_makes_one_layer_s_share_again() -> None:
    asked = problem(DENSE, gpus=2, framework="megatron-2022", boundary_tensors_kept=0)
    group = group_of(asked, Strategy(pipeline_parallel_size=2, recompute=Recompute.SELECTIVE))
    sizes = group.layer.dense_activations
    kept = group.memory.in_flight[0, 0] * float(sizes.selective[0]) * 4
    tables = 2 * 4 * 4096 * 128
    beside = float(group.memory.activations[0, 0]) - kept - tables
    assert beside == pytest.approx(float((sizes.kept - sizes.selective + sizes.working)[0]))


@given(name=st.sampled_from(sorted(MODELS)), index=st.integers(0, 10**6))
def test_what_is_held_is_named(name: str, index: int) -> None:
    asked, strategies = feasible(name)
    found = memory_of(asked, strategies[index % len(strategies)])
    for part in (found.states.total, found.activations, found.logits, found.buffers, found.reserve):
        assert float(part.min()) >= 0
    profile = asked.framework
    np.testing.assert_allclose(found.total, found.allocated * (1 + profile.fragmentation) + profile.memory_reserve_bytes)


@given(name=st.sampled_from(sorted(MODELS)), index=st.integers(0, 10**6), axis=st.sampled_from(["tensor", "zero", "expert", "recompute"]))
def test_memory_falls_weakly(name: str, index: int, axis: str) -> None:
    asked, strategies = feasible(name)
    chosen = strategies[index % len(strategies)]
    changes: dict[str, int | Recompute] = {}
    if axis == "tensor":
        changes = {"tensor_parallel_size": 2 * chosen.tensor_parallel_size, "sequence_parallel": True}
        # at the same micro-batches: half the replicas, twice as many passes each
        changes["data_parallel_size"] = chosen.data_parallel_size // 2
        assume(chosen.sequence_parallel and chosen.zero_stage == 0 and chosen.data_parallel_size % 2 == 0)
    elif axis == "zero":
        changes = {"zero_stage": chosen.zero_stage + 1}
        assume(chosen.zero_stage < 2)
    elif axis == "expert":
        changes = {"expert_parallel_size": 2 * chosen.expert_parallel_size}
        assume(asked.model.moe is not None and chosen.expert_parallel_size < 8 and chosen.zero_stage == 0)
    else:
        changes = {"recompute": Recompute.FULL, "num_recompute_layers": 0}
        assume(chosen.recompute is not Recompute.FULL)
    assert peak(asked, replace_strategy(chosen, changes)) <= peak(asked, chosen) * (1 + 1e-9)


def replace_strategy(strategy: Strategy, changes: dict[str, int | Recompute]) -> Strategy:
    return replace(strategy, **changes)  # type: ignore[arg-type]


def test_gradients_made_anew_take_the_place_of_what_the_backward_pass_frees() -> None:
    asked = problem(DENSE, gpus=1, batch=1, framework="pytorch-eager", precision="amp-bf16")
    anew = memory_of(asked, Strategy(zero_stage=0))
    kept = memory_of(
        problem(DENSE, gpus=1, batch=1, framework="pytorch-eager", precision="amp-bf16", persistent_gradients=True), Strategy(zero_stage=0)
    )
    assert float(anew.allocated.max()) < float(kept.allocated.max())
    states = kept.states.parameters + kept.states.optimizer_states
    assert float(anew.allocated.max()) >= float(states.max())


@pytest.mark.parametrize("model", [DENSE, EXPERTS], ids=lambda model: model.name)
def test_a_second_micro_batch_finds_the_gradients_of_the_first(model: object) -> None:
    one, two = (memory_of(problem(model, gpus=1, batch=n, framework="pytorch-eager"), Strategy(zero_stage=0)) for n in (1, 2))  # type: ignore[arg-type]
    assert float(two.allocated.max()) > float(one.allocated.max())
