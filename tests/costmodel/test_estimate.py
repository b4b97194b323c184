"""The estimate of one strategy: every second and byte of it has a name."""

from __future__ import annotations

import math
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar.catalog.models import model
from autopar.costmodel.estimate import estimate, reference_flops
from autopar.costmodel.flops import step_model_flops
from autopar.costmodel.inputs import Inputs
from autopar.costmodel.spec.strategy import ContextParallelKind, PipelineSchedule, Recompute, Strategy
from autopar.costmodel.spec.training import ComputeType

from .problems import DENSE, GPT, MODELS, feasible, problem


@given(name=st.sampled_from(sorted(MODELS)), index=st.integers(0, 10**6))
def test_the_breakdown_is_the_step(name: str, index: int) -> None:
    asked, strategies = feasible(name)
    strategy = strategies[index % len(strategies)]
    found = estimate(asked, strategy)
    terms = asdict(found.time)
    assert math.fsum(terms.values()) == pytest.approx(found.step_time_seconds, rel=1e-9)
    # idle time of the busiest rank can be nothing, never less
    assert min(terms.values()) > -1e-9 * found.step_time_seconds
    if strategy.pipeline_parallel_size == 1:
        assert found.time.pipeline_bubble == pytest.approx(0, abs=1e-9 * found.step_time_seconds)
    assert 0 <= found.bubble_fraction + 1e-9 < 1
    assert 0 < found.mfu <= found.hfu < 1


@given(name=st.sampled_from(sorted(MODELS)), index=st.integers(0, 10**6))
def test_the_stages_are_the_model(name: str, index: int) -> None:
    asked, strategies = feasible(name)
    strategy = strategies[index % len(strategies)]
    found = estimate(asked, strategy)
    copies = 2 if strategy.pipeline_schedule is PipelineSchedule.DUALPIPE else 1
    held = sorted(index for stage in found.stages for first, last in stage.layers for index in range(first, last))
    assert held == sorted(list(range(asked.model.num_layers)) * copies)
    assert sum(stage.num_layers for stage in found.stages) == asked.model.num_layers * copies
    assert sum(stage.holds_embedding for stage in found.stages) == sum(stage.holds_head for stage in found.stages) == copies
    for stage in found.stages:
        assert stage.memory.total == pytest.approx(stage.peak_memory_bytes, rel=1e-12)
        assert min(stage.backward_seconds, stage.forward_seconds) > 0
    assert found.peak_memory_bytes == max(stage.peak_memory_bytes for stage in found.stages)


def test_rates_follow_from_the_step_time() -> None:
    asked = problem(GPT)
    found = estimate(asked, Strategy(tensor_parallel_size=2, data_parallel_size=8))
    assert found.tokens_per_second_per_gpu * 16 * found.step_time_seconds == pytest.approx(32 * 4096)
    flops = float(step_model_flops(Inputs.of(asked)))
    assert found.mfu * reference_flops(asked) * 16 * found.step_time_seconds == pytest.approx(flops)
    assert reference_flops(asked) == asked.cluster.device.peak_flops[ComputeType.BF16]
    assert found.hfu == found.mfu


def test_recomputation_is_hardware_work_and_not_model_work() -> None:
    strategy = Strategy(data_parallel_size=16)
    plain, some, full = (
        estimate(problem(DENSE), replace(strategy, recompute=kind, num_recompute_layers=layers))
        for kind, layers in ((Recompute.NONE, 0), (Recompute.FULL, 2), (Recompute.FULL, 0))
    )
    assert plain.step_time_seconds < some.step_time_seconds < full.step_time_seconds
    assert plain.time.recompute == 0 < some.time.recompute < full.time.recompute
    assert 1.2 < full.hfu / full.mfu < 4 / 3
    assert 1 < some.hfu / some.mfu < full.hfu / full.mfu


def test_a_problem_too_large_does_not_fit() -> None:
    found = estimate(problem(replace(DENSE, num_layers=800), gpus=8), Strategy(data_parallel_size=8))
    assert not found.fits
    assert found.peak_memory_bytes > found.memory_capacity_bytes


def test_the_users_reserve_replaces_the_frameworks() -> None:
    asked = replace(problem(DENSE, fragmentation=0.0), memory_reserve_bytes=5e9)
    (stage,) = estimate(asked, Strategy(data_parallel_size=16)).stages
    assert stage.memory.framework_reserve == 5e9


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        (Strategy(tensor_parallel_size=16, sequence_parallel=True), "crosses the 8-GPU"),
        (Strategy(pipeline_parallel_size=8, data_parallel_size=2, micro_batch_size=8), "do not fill 8 pipeline stages"),
        (
            Strategy(context_parallel_size=2, context_parallel_kind=ContextParallelKind.ULYSSES, data_parallel_size=8),
            "without a measured run of its kind",
        ),
    ],
)
def test_warnings_say_what_is_doubtful(strategy: Strategy, said: str) -> None:
    assert any(said in warning for warning in estimate(problem(DENSE), strategy).warnings)
    plain = Strategy(data_parallel_size=16)
    assert not any(said in warning for warning in estimate(problem(DENSE), plain).warnings)


def test_everything_says_where_it_comes_from() -> None:
    asked = problem(DENSE)
    provenance = estimate(asked, Strategy(data_parallel_size=16)).provenance
    assert {"device", "kernels", "framework", "schedule"} < set(provenance)
    assert sum(key.startswith("link ") for key in provenance) == len(asked.cluster.tiers)
    assert asked.framework.source in provenance["framework"]


@pytest.mark.parametrize("schedule", list(PipelineSchedule))
def test_a_pipeline_has_a_bubble_and_better_schedules_a_smaller_one(schedule: PipelineSchedule) -> None:
    strategy = Strategy(pipeline_parallel_size=4, data_parallel_size=4, pipeline_schedule=schedule)
    chunks = 2 if schedule is PipelineSchedule.INTERLEAVED else 1
    found = estimate(problem(DENSE), replace(strategy, virtual_pipeline_stages=chunks))
    plain = estimate(problem(DENSE), replace(strategy, pipeline_schedule=PipelineSchedule.ONE_F_ONE_B))
    assert 0 < found.bubble_fraction <= plain.bubble_fraction * 1.0001


def test_gpus_older_than_flash_attention_keep_the_scores() -> None:
    strategy = Strategy(tensor_parallel_size=8, sequence_parallel=True, data_parallel_size=2)
    asked = problem(model("gpt-22b"), gpu="v100-sxm2-32gb", precision="fp16", length=2048)
    older, unfused = (
        estimate(asked, strategy),
        estimate(replace(asked, framework=replace(asked.framework, fused_attention=False)), strategy),
    )
    assert older.time == unfused.time
    assert older.stages == unfused.stages
    assert older.provenance["attention"] == "unfused"
    assert any("unfused attention" in warning for warning in older.warnings)
    assert not any("unfused attention" in warning for warning in unfused.warnings)
    newer = estimate(problem(model("gpt-22b"), gpu="a100-sxm4-80gb", precision="fp16", length=2048), strategy)
    scores = 48 * (64 / 8) * 2048**2 * 2
    kept = older.stages[0].memory.activations - newer.stages[0].memory.activations
    assert kept == pytest.approx(scores, rel=0.02)
    assert newer.provenance["attention"] == "fused"
    assert not any("unfused attention" in warning for warning in newer.warnings)
