"""The price of a strategy over pools: with pools of one device it is the uniform estimate, with others it lies between theirs."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from autopar.costmodel.estimate import estimate
from autopar.costmodel.mixed_estimate import mixed_estimate
from autopar.costmodel.pools import Between
from autopar.costmodel.spec.errors import InvalidInputError
from autopar.costmodel.spec.estimate import Estimate
from autopar.costmodel.spec.mixed import Lane, MixedStrategy
from autopar.costmodel.spec.strategy import PipelineSchedule, Recompute, Strategy

from .mixed_problems import by_replicas, by_stages, pools_of, whole_of
from .problems import DENSE, EXPERTS, GROUPED, LATENT

MODELS = (DENSE, GROUPED, EXPERTS, LATENT)  # GROUPED has tied embeddings, LATENT a prediction layer
BATCH = 64
SCHEDULES = (PipelineSchedule.GPIPE, PipelineSchedule.ONE_F_ONE_B, PipelineSchedule.INTERLEAVED, PipelineSchedule.ZERO_BUBBLE)


@st.composite
def pipelines(draw: st.DrawFn) -> Strategy:
    """Strategies over 32 GPUs, a stage's GPUs whole nodes."""
    pp, tp, cp = draw(st.sampled_from([2, 4])), draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2]))
    schedule = draw(st.sampled_from(SCHEDULES))
    return Strategy(
        tensor_parallel_size=tp,
        sequence_parallel=tp > 1,
        pipeline_parallel_size=pp,
        virtual_pipeline_stages=2 if schedule is PipelineSchedule.INTERLEAVED else 1,
        pipeline_schedule=schedule,
        context_parallel_size=cp,
        data_parallel_size=32 // (tp * pp * cp),
        micro_batch_size=draw(st.sampled_from([1, 2])),
        zero_stage=draw(st.integers(0, 2)),
        recompute=(recompute := draw(st.sampled_from(Recompute))),
        num_recompute_layers=draw(st.integers(0, 2)) if recompute is Recompute.FULL else 0,
        pipeline_layers=draw(st.sampled_from([(), (3, 5) if pp == 2 else (1, 2, 2, 3)]))
        if schedule is not PipelineSchedule.INTERLEAVED
        else (),
    )


def assert_same(found: Estimate, expected: Estimate) -> None:
    """Both estimates in every number that a pool does not change."""
    for name in ("step_time_seconds", "mfu", "hfu", "bubble_fraction", "peak_memory_bytes", "tokens_per_second_per_gpu"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-12), name
    for term in fields(expected.time):
        assert getattr(found.time, term.name) == pytest.approx(getattr(expected.time, term.name), rel=1e-12, abs=1e-15), term.name


@given(model=st.sampled_from(MODELS), strategy=pipelines())
@settings(max_examples=25, deadline=None)
def test_stages_in_pools_of_one_device_are_the_uniform_estimate(model: type, strategy: Strategy) -> None:
    mixed = pools_of("h100", "h100", model=model, batch=BATCH)  # type: ignore[arg-type]
    half = strategy.pipeline_parallel_size // 2
    found = mixed_estimate(mixed, by_stages(strategy, BATCH, (half, half)))
    expected = estimate(whole_of(mixed), strategy)
    assert_same(found, expected)
    plain = [replace(stage, pool="", memory_capacity_bytes=None) for stage in found.stages]
    assert plain == list(expected.stages)


@given(model=st.sampled_from(MODELS), strategy=pipelines())
@settings(max_examples=25, deadline=None)
def test_replicas_in_pools_of_one_device_are_the_uniform_estimate(model: type, strategy: Strategy) -> None:
    mixed = pools_of("h100", "h100", model=model, batch=BATCH)  # type: ignore[arg-type]
    assume(strategy.data_parallel_size > 1)
    count = strategy.num_microbatches(BATCH)
    assert_same(mixed_estimate(mixed, by_replicas(strategy, (count, count))), estimate(whole_of(mixed), strategy))


@given(strategy=pipelines())
@settings(max_examples=12, deadline=None)
def test_unlike_stages_take_as_long_as_between_their_devices(strategy: Strategy) -> None:
    mixed = pools_of("h100", "a100", batch=BATCH)
    half = strategy.pipeline_parallel_size // 2
    found = mixed_estimate(mixed, by_stages(strategy, BATCH, (half, half)))
    fast, slow = (estimate(whole_of(mixed, place), strategy) for place in (0, 1))
    # the reduction hides behind passes that are as short as the faster device's
    assert fast.step_time_seconds <= found.step_time_seconds <= slow.step_time_seconds * 1.005
    assert sum(getattr(found.time, term.name) for term in fields(found.time)) == pytest.approx(found.step_time_seconds, rel=1e-9)


@given(strategy=pipelines(), factor=st.sampled_from([0.01, 0.1, 0.5]))
@settings(max_examples=12, deadline=None)
def test_a_slower_network_between_the_pools_never_speeds_a_step_up(strategy: Strategy, factor: float) -> None:
    assume(strategy.data_parallel_size > 1)
    mixed = pools_of("h100", "a100", batch=BATCH)
    tier = mixed.between.tier
    slower = replace(mixed, between=Between(tier=replace(tier, bandwidth=tier.bandwidth * factor), profile=mixed.between.profile))
    half, count = strategy.pipeline_parallel_size // 2, strategy.num_microbatches(BATCH)
    for placed in (by_stages(strategy, BATCH, (half, half)), by_replicas(strategy, (count, count))):
        before, after = (mixed_estimate(each, placed).step_time_seconds for each in (mixed, slower))
        assert after >= before * (1 - 1e-12)
        assert mixed_estimate(slower, placed).peak_memory_bytes == mixed_estimate(mixed, placed).peak_memory_bytes


def test_every_rank_is_held_against_the_memory_of_its_own_pool() -> None:
    mixed = pools_of("a100-40gb", "h100", batch=BATCH)
    strategy = Strategy(pipeline_parallel_size=4, data_parallel_size=8)
    found = mixed_estimate(mixed, by_stages(strategy, BATCH, (2, 2)))
    capacities = [pool.problem.cluster.device.memory_bytes for pool in mixed.pools]
    assert [stage.memory_capacity_bytes for stage in found.stages] == [capacities[0]] * 2 + [capacities[1]] * 2
    assert [stage.pool for stage in found.stages] == ["a", "a", "b", "b"]
    shares = [stage.peak_memory_bytes / (stage.memory_capacity_bytes or 0) for stage in found.stages]
    assert found.peak_memory_bytes / found.memory_capacity_bytes == max(shares)


def test_the_slowest_replica_sets_the_pace_and_rounds_move_to_the_faster_one() -> None:
    mixed = pools_of("h100", "a100", batch=BATCH)
    strategy = Strategy(tensor_parallel_size=2, sequence_parallel=True, data_parallel_size=16)
    alike, moved = (mixed_estimate(mixed, by_replicas(strategy, counts)) for counts in ((4, 4), (6, 2)))
    assert moved.step_time_seconds < alike.step_time_seconds
    assert {stage.pool for stage in moved.stages} == {"a", "b"}


def test_lanes_recompute_what_they_are_told() -> None:
    mixed = pools_of("h100", "a100", batch=BATCH)
    strategy = Strategy(pipeline_parallel_size=2, data_parallel_size=16, recompute=Recompute.FULL)
    lanes = by_replicas(strategy, (4, 4)).lanes
    own = MixedStrategy(strategy=strategy, lanes=(replace(lanes[0], stage_recompute_layers=(0, 0)), lanes[1]))
    peaks = {stage.pool: stage.memory.activations for stage in mixed_estimate(mixed, own).stages if stage.pipeline_rank == 0}
    plain = replace(strategy, recompute=Recompute.NONE)
    expected = {
        stage.pool: stage.memory.activations
        for stage in mixed_estimate(mixed, by_replicas(plain, (4, 4))).stages
        if not stage.pipeline_rank
    }
    assert peaks["a"] == expected["a"]
    assert peaks["b"] < expected["b"]


def test_lanes_that_cannot_mean_anything_are_refused_all_at_once() -> None:
    strategy = Strategy(pipeline_parallel_size=2, data_parallel_size=4)
    with pytest.raises(InvalidInputError) as error:
        MixedStrategy(
            strategy=strategy,
            lanes=(
                Lane(pools=("a",), data_parallel_size=3, num_microbatches=0),
                Lane(pools=("a", "b"), data_parallel_size=0, num_microbatches=1),
            ),
        )
    assert len(error.value.faults) == 4


def test_a_pool_that_there_is_not_is_named() -> None:
    mixed = pools_of("h100", "a100", batch=BATCH)
    lane = Lane(pools=("z",), data_parallel_size=32, num_microbatches=2)
    with pytest.raises(InvalidInputError, match="one of the pools a, b"):
        mixed_estimate(mixed, MixedStrategy(strategy=Strategy(data_parallel_size=32), lanes=(lane,)))


def test_pools_answer_one_question() -> None:
    mixed, other = pools_of("h100", "a100", batch=BATCH), pools_of("h100", "a100", batch=BATCH, model=GROUPED)
    with pytest.raises(InvalidInputError, match="the same model in every pool"):
        replace(mixed, pools=(mixed.pools[0], other.pools[1]))
