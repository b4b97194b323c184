"""The step: one implementation for one strategy, many strategies and many problems."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar.costmodel.columns import StrategyColumns
from autopar.costmodel.estimate import estimate
from autopar.costmodel.inputs import Inputs
from autopar.costmodel.spec.strategy import PipelineSchedule, Strategy
from autopar.costmodel.step import evaluate, stage_groups
from autopar.costmodel.topology import TierColumns

from .problems import DENSE, EXPERTS, LATENT, MODELS, feasible, problem

NAMES = sorted(MODELS)
CHOICES = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 10**6)), min_size=1, max_size=12)
CLOSED = (PipelineSchedule.GPIPE, PipelineSchedule.ONE_F_ONE_B)


@given(choices=CHOICES)
def test_stacked_problems_are_estimated_as_one_by_one(choices: list[tuple[str, int]]) -> None:
    pairs = [(asked, strategies[index % len(strategies)]) for name, index in choices for asked, strategies in [feasible(name)]]
    inputs = Inputs.stacked([asked for asked, _ in pairs])
    together = evaluate(inputs, StrategyColumns.of([strategy for _, strategy in pairs]), simulate=True)
    assert together.exact.all()
    for row, (asked, strategy) in enumerate(pairs):
        alone = estimate(asked, strategy)
        assert together.step_time_seconds[row] == pytest.approx(alone.step_time_seconds, rel=1e-12)
        assert together.peak_memory_bytes[row] == pytest.approx(alone.peak_memory_bytes, rel=1e-12)
        assert together.memory_capacity_bytes[row] == alone.memory_capacity_bytes
        assert bool(together.fits[row]) is alone.fits


@pytest.mark.parametrize("name", NAMES)
def test_thousands_at_once_are_estimated_as_one_by_one(name: str) -> None:
    asked, strategies = feasible(name)
    found = evaluate(Inputs.of(asked), StrategyColumns.of(strategies))
    for row in range(0, len(strategies), 97):
        alone = estimate(asked, strategies[row])
        assert found.peak_memory_bytes[row] == pytest.approx(alone.peak_memory_bytes, rel=1e-12)
        if found.exact[row]:
            assert found.step_time_seconds[row] == pytest.approx(alone.step_time_seconds, rel=1e-12)
        else:
            assert 0.8 * alone.step_time_seconds < found.step_time_seconds[row] <= alone.step_time_seconds * (1 + 1e-9)


@pytest.mark.parametrize("name", ["dense", "latent"])
def test_groups_hold_every_strategy_once(name: str) -> None:
    asked, strategies = feasible(name)
    columns = StrategyColumns.of(strategies)
    groups = list(stage_groups(Inputs.of(asked), columns))
    assert sorted(np.concatenate([group.rows for group in groups]).tolist()) == list(range(len(strategies)))
    for group in groups:
        members = columns.take(group.rows)
        assert set(members.pipeline_parallel_size.tolist()) == {group.shape.pipeline_parallel_size}
        assert len(set(members.pipeline_schedule.tolist())) == 1


def test_no_strategies_no_groups() -> None:
    assert list(stage_groups(Inputs.of(problem()), StrategyColumns.of([]))) == []


def faster(tier: TierColumns, factor: float) -> TierColumns:
    return replace(tier, bandwidth=tier.bandwidth * factor)


@given(
    name=st.sampled_from(NAMES), factor=st.floats(1.0, 16.0), where=st.sampled_from(["fast", "network", "memory_bandwidth", "peak_flops"])
)
def test_better_hardware_is_never_slower(name: str, factor: float, where: str) -> None:
    asked, strategies = feasible(name)
    chosen = [strategy for strategy in strategies if strategy.pipeline_schedule in CLOSED][::7]
    inputs, columns = Inputs.of(asked), StrategyColumns.of(chosen)
    if where in ("fast", "network"):
        links = replace(inputs.links, **{where: faster(getattr(inputs.links, where), factor)})
        better = replace(inputs, links=replace(links, port_bandwidth=links.port_bandwidth * factor))
    else:
        device, wide = (replace(part, **{where: getattr(part, where) * factor}) for part in (inputs.device, inputs.wide_device))
        better = replace(inputs, device=device, wide_device=wide)
    before, after = evaluate(inputs, columns), evaluate(better, columns)
    exact = before.exact & after.exact
    assert exact.sum() > 30
    assert np.all(after.step_time_seconds[exact] <= before.step_time_seconds[exact] * (1 + 1e-9))
    np.testing.assert_array_equal(after.peak_memory_bytes, before.peak_memory_bytes)


def test_a_batch_twice_as_large_takes_nearly_twice_as_long() -> None:
    strategy = Strategy(tensor_parallel_size=2, pipeline_parallel_size=2, data_parallel_size=4)
    small, large = (estimate(problem(DENSE, batch=batch), strategy).step_time_seconds for batch in (128, 256))
    assert 1.7 * small < large < 2 * small


def test_rows_with_layer_splits_of_their_own() -> None:
    asked = problem(EXPERTS)
    base = Strategy(pipeline_parallel_size=4, data_parallel_size=4)
    rows = [
        base,
        replace(base, pipeline_layers=(2, 2, 2, 2)),
        replace(base, pipeline_layers=(3, 2, 2, 1)),
        replace(base, pipeline_layers=(5, 1, 1, 1)),
    ]
    found = evaluate(Inputs.of(asked), StrategyColumns.of(rows))
    assert found.step_time_seconds[0] == found.step_time_seconds[1]
    assert found.step_time_seconds[3] > found.step_time_seconds[0]
    assert found.peak_memory_bytes[3] > found.peak_memory_bytes[0]


@pytest.mark.parametrize("model", [DENSE, LATENT], ids=lambda model: model.name)
def test_overheads_grow_with_the_nodes(model: object) -> None:
    strategy = Strategy(data_parallel_size=16)
    calm, jittery = (
        estimate(problem(model, straggler_fraction_per_doubling=share), strategy).time.overhead  # type: ignore[arg-type]
        for share in (0.0, 0.05)
    )
    busy = estimate(problem(model, straggler_fraction_per_doubling=0.0), strategy).step_time_seconds - calm  # type: ignore[arg-type]
    assert jittery - calm == pytest.approx(0.05 * busy)
