"""Seconds of a micro-batch on each virtual stage."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.costmodel.columns import StrategyColumns
from autopar.costmodel.estimate import estimate
from autopar.costmodel.inputs import Inputs
from autopar.costmodel.layer_costs import LayerCosts, layer_costs
from autopar.costmodel.pipeline_shape import PipelineShape
from autopar.costmodel.problem import Problem
from autopar.costmodel.spec.strategy import PipelineSchedule, Recompute, Strategy
from autopar.costmodel.stage_times import StageTimes, recomputed_share

from .problems import DENSE, MODELS, feasible, problem


def parts(asked: Problem, strategy: Strategy) -> tuple[Inputs, LayerCosts, PipelineShape, StageTimes]:
    inputs, columns = Inputs.of(asked), StrategyColumns.of([strategy])
    costs = layer_costs(inputs, columns)
    shape = PipelineShape.of(inputs, columns)
    return inputs, costs, shape, StageTimes.of(inputs, columns, costs, shape)


@given(name=st.sampled_from(sorted(MODELS)), index=st.integers(0, 10**6))
def test_stages_add_up_to_the_model(name: str, index: int) -> None:
    asked, strategies = feasible(name)
    inputs, costs, shape, times = parts(asked, strategies[index % len(strategies)])
    dense, moe = (float(np.sum(counts)) for counts in shape.layer_counts(inputs))
    heads = 1 + asked.model.mtp_layers
    layers = dense * costs.dense.forward.total[0] + moe * costs.moe.forward.total[0]
    ends = costs.ends.embedding_forward[0] + heads * costs.ends.head_forward[0]
    sent = times.transfers.sum() / 2
    assert times.forward.sum() == pytest.approx(layers + ends + sent)
    gathered = dense * costs.dense.forward.sharded[0] + moe * costs.moe.forward.sharded[0]
    repeated = times.recomputed[0, 0] * (layers - gathered)
    if times.selective[0, 0]:
        repeated += dense * costs.dense.selective.total[0] + moe * costs.moe.selective.total[0]
    layers = dense * costs.dense.backward.total[0] + moe * costs.moe.backward.total[0]
    ends = costs.ends.embedding_backward[0] + heads * costs.ends.head_backward[0]
    assert (times.backward + times.weight).sum() == pytest.approx(layers + repeated + ends + sent)
    assert min(times.forward.min(), times.backward.min(), times.weight.min()) > 0


@pytest.mark.parametrize(
    ("recompute", "asked", "share"),
    [(Recompute.NONE, 0, 0), (Recompute.SELECTIVE, 0, 0), (Recompute.FULL, 0, 1), (Recompute.FULL, 1, 0.25), (Recompute.FULL, 9, 1)],
)
def test_the_recomputed_share_of_four_layers(recompute: Recompute, asked: int, share: float) -> None:
    asked_of, columns = (
        problem(replace(DENSE, num_layers=4)),
        StrategyColumns.of([Strategy(recompute=recompute, num_recompute_layers=asked)]),
    )
    assert float(recomputed_share(columns, PipelineShape.of(Inputs.of(asked_of), columns))[0, 0]) == share


def test_shares_by_stage_stand_beside_shares_of_all() -> None:
    staged = Strategy(
        pipeline_parallel_size=2, pipeline_layers=(5, 3), recompute=Recompute.FULL, stage_recompute_layers=(5, 1), data_parallel_size=8
    )
    alike = replace(staged, stage_recompute_layers=(), num_recompute_layers=2)
    columns = StrategyColumns.of([staged, alike, replace(alike, recompute=Recompute.NONE)])
    shares = recomputed_share(columns, PipelineShape.of(Inputs.of(problem()), columns))
    np.testing.assert_allclose(shares, [[1, 1 / 3], [1 / 2, 1 / 2], [0, 0]])


@given(name=st.sampled_from(sorted(MODELS)), index=st.integers(0, 10**6))
@settings(max_examples=20)
def test_recomputing_every_layer_of_every_stage_is_full_recomputation(name: str, index: int) -> None:
    asked, strategies = feasible(name)
    full = [each for each in strategies if each.recompute is Recompute.FULL and not each.num_recompute_layers]
    strategy = full[index % len(full)]
    stages = strategy.num_virtual_stages
    layers = (asked.model.num_layers // stages,) * stages
    staged = replace(strategy, pipeline_layers=layers, stage_recompute_layers=layers)
    whole = replace(strategy, pipeline_layers=layers)
    assert estimate(asked, staged) == replace(estimate(asked, whole), warnings=estimate(asked, staged).warnings)


@pytest.mark.parametrize("schedule", [PipelineSchedule.ONE_F_ONE_B, PipelineSchedule.ZERO_BUBBLE])
def test_schedules_that_leave_slack_hide_transfers(schedule: PipelineSchedule) -> None:
    strategy = Strategy(pipeline_parallel_size=2, pipeline_schedule=schedule, data_parallel_size=8)
    _, costs, _, times = parts(problem(pipeline_overlap=1.0), strategy)
    exposed = 0.0 if schedule is PipelineSchedule.ZERO_BUBBLE else 2 * float(costs.boundary[0])
    assert float(times.transfers.sum()) == pytest.approx(exposed)
