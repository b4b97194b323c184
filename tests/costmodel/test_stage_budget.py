"""Coefficients of stages against the cost model that they are read off."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.costmodel.columns import Floats, StrategyColumns
from autopar.costmodel.inputs import Inputs
from autopar.costmodel.problem import Problem
from autopar.costmodel.spec.strategy import PipelineSchedule, Recompute, Strategy
from autopar.costmodel.stage_budget import StageBudget, stage_budgets
from autopar.costmodel.step import StageCosts, stage_groups

from .problems import DENSE, EXPERTS, GPT, LATENT, problem

LINEAR = (DENSE, GPT, EXPERTS, LATENT)


def asked_of(model_index: int) -> Problem:
    return problem(LINEAR[model_index], batch=64, schedules=tuple(PipelineSchedule))


def pipeline(split: tuple[int, ...], chunks: int) -> Strategy:
    schedule = PipelineSchedule.INTERLEAVED if chunks > 1 else PipelineSchedule.ONE_F_ONE_B
    ranks = len(split) // chunks
    return Strategy(
        pipeline_parallel_size=ranks,
        virtual_pipeline_stages=chunks,
        pipeline_schedule=schedule,
        data_parallel_size=16 // ranks,
        pipeline_layers=split,
    )


def asked(question: Problem, strategy: Strategy) -> tuple[StageBudget, StageCosts]:
    inputs, columns = Inputs.of(question), StrategyColumns.of([strategy])
    (budget,), (costs,) = stage_budgets(inputs, columns), stage_groups(inputs, columns, simulate=True)
    return budget, costs


def layers_by_kind(budget: StageBudget, split: tuple[int, ...]) -> Floats:
    ends = np.cumsum(split)
    before = budget.kinds_before()
    return np.asarray(before[ends] - before[ends - np.array(split)], dtype=np.float64)[None]


@given(model=st.integers(0, 3), cut=st.sampled_from([((6, 2), 1), ((1, 7), 1), ((2, 1, 3, 2), 1), ((1, 3, 2, 2), 2), ((3, 1, 1, 3), 2)]))
@settings(max_examples=40)
def test_seconds_and_bytes_of_any_split_follow_from_the_coefficients(model: int, cut: tuple[tuple[int, ...], int]) -> None:
    split, chunks = cut
    plain = pipeline(split, chunks)
    full = replace(plain, recompute=Recompute.FULL)
    budget, costs = asked(asked_of(model), plain)
    _, recomputed = asked(asked_of(model), full)
    layers = layers_by_kind(budget, split)
    on_holders = budget.on_holders(layers)
    for line, held, found in (
        (budget.seconds, budget.bytes, costs),
        (budget.recomputed_seconds, budget.recomputed_bytes, recomputed),
    ):
        times = found.times.forward + found.times.backward + found.times.weight
        np.testing.assert_allclose(line.base + (line.slope * layers).sum(axis=-1), times, rtol=1e-12)
        expected = held.base + (held.slope * on_holders).sum(axis=-1)
        mixed = LINEAR[model] is LATENT  # a rank of dense layers alone unfolds a smaller one than the base counts
        assert (expected >= found.memory.total * (1 - 1e-9)).all() if mixed else True
        if not (mixed and found is recomputed):
            np.testing.assert_allclose(expected, found.memory.total, rtol=1e-9)


@pytest.mark.parametrize("chunks", [1, 2])
def test_the_first_recomputed_layer_unfolds_one(chunks: int) -> None:
    split = (2, 2, 2, 2)
    budget, none = asked(asked_of(0), pipeline(split, chunks))
    some = replace(pipeline(split, chunks), recompute=Recompute.FULL, stage_recompute_layers=(1, 1, 1, 1))
    _, half = asked(asked_of(0), some)
    _, full = asked(asked_of(0), replace(some, stage_recompute_layers=()))
    expected = (none.memory.total + full.memory.total - budget.unfolded_bytes) / 2 + budget.unfolded_bytes
    np.testing.assert_allclose(half.memory.total, expected, rtol=1e-9)
    assert (budget.unfolded_bytes >= 0).all()


def test_strategies_are_grouped_by_pipeline_whatever_their_split() -> None:
    strategies = [pipeline((6, 2), 1), pipeline((4, 4), 1), pipeline((2, 2, 2, 2), 2), pipeline((2, 2, 2, 2), 1)]
    budgets = list(stage_budgets(Inputs.of(asked_of(0)), StrategyColumns.of(strategies)))
    assert sorted(budget.rows.tolist() for budget in budgets) == [[0, 1], [2], [3]]
    for budget in budgets:
        assert len(budget.work_seconds) == len(budget.rows)
        one = budget.take(0)
        assert one.rows.tolist() == budget.rows[:1].tolist()
        assert one.seconds.base.shape == (1, budget.num_stages)
