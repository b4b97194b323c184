"""Bounds on all placements against placements drawn at random."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.costmodel.columns import StrategyColumns
from autopar.costmodel.inputs import Inputs
from autopar.costmodel.partition_bound import partition_bound_seconds, placed_bound_seconds
from autopar.costmodel.spec.strategy import PipelineSchedule, Recompute, Strategy
from autopar.costmodel.stage_budget import stage_budgets
from autopar.costmodel.step import evaluate

from .problems import MODELS, problem

SCHEDULES = [
    (PipelineSchedule.ONE_F_ONE_B, 1),
    (PipelineSchedule.GPIPE, 1),
    (PipelineSchedule.INTERLEAVED, 2),
    (PipelineSchedule.ZERO_BUBBLE, 1),
    (PipelineSchedule.ZERO_BUBBLE, 2),
]


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[str, int, list[Strategy]]:
    """A model, a batch, and placements of one strategy's layers."""
    schedule, chunks = draw(st.sampled_from(SCHEDULES))
    ranks = draw(st.sampled_from([2, 4]))
    stages, tensor = ranks * chunks, draw(st.sampled_from([1, 2]))
    shell = Strategy(
        tensor_parallel_size=tensor,
        sequence_parallel=tensor > 1,
        pipeline_parallel_size=ranks,
        virtual_pipeline_stages=chunks,
        pipeline_schedule=schedule,
        data_parallel_size=16 // ranks // tensor,
        zero_stage=draw(st.sampled_from([0, 1])),
    )
    placements = []
    for _ in range(4):
        cuts = sorted(draw(st.sets(st.integers(1, 7), min_size=stages - 1, max_size=stages - 1)))
        layers = tuple(end - start for start, end in itertools.pairwise((0, *cuts, 8)))
        again = tuple(draw(st.integers(0, count)) for count in layers)
        recompute = Recompute.FULL if any(again) else Recompute.NONE
        placements.append(replace(shell, pipeline_layers=layers, recompute=recompute, stage_recompute_layers=again if any(again) else ()))
    return draw(st.sampled_from(sorted(MODELS))), draw(st.sampled_from([1, 2, 4, 16])), placements


@given(asked=pipelines())
@settings(max_examples=60)
def test_no_placement_is_faster_than_the_bounds(asked: tuple[str, int, list[Strategy]]) -> None:
    name, microbatches, placements = asked
    shell = replace(placements[0], pipeline_layers=(), stage_recompute_layers=(), recompute=Recompute.NONE)
    batch = shell.data_parallel_size * shell.pipeline_parallel_size * microbatches
    question = problem(MODELS[name], batch=batch, schedules=tuple(PipelineSchedule))
    inputs, columns = Inputs.of(question), StrategyColumns.of(placements)
    steps = evaluate(inputs, columns, simulate=True).step_time_seconds
    shells = StrategyColumns.of([shell])
    assert float(partition_bound_seconds(inputs, shells)[0]) <= float(steps.min()) * (1 + 1e-9)
    (budget,) = stage_budgets(inputs, shells)
    before = budget.kinds_before()
    for placement, step in zip(placements, steps.tolist(), strict=True):
        layers = np.array(placement.pipeline_layers)
        ends = np.cumsum(layers)
        kinds = (before[ends] - before[ends - layers]).astype(np.float64)[None]
        slowest = budget.on_holders(budget.seconds.base + (budget.seconds.slope * kinds).sum(axis=-1)).max(axis=1)
        assert float(placed_bound_seconds(inputs, budget, slowest)[0]) <= step * (1 + 1e-9)
