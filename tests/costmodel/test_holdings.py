"""Parameters of pipeline ranks: their bytes, reductions and updates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar.costmodel import holdings
from autopar.costmodel.columns import StrategyColumns
from autopar.costmodel.inputs import Inputs
from autopar.costmodel.layer_costs import LayerCosts, layer_costs
from autopar.costmodel.pipeline_shape import PipelineShape
from autopar.costmodel.problem import Problem
from autopar.costmodel.spec.model import ModelSpec
from autopar.costmodel.spec.strategy import PipelineSchedule, Strategy

from .problems import DENSE, LATENT, MODELS, feasible, problem


def held(asked: Problem, *strategies: Strategy) -> tuple[LayerCosts, holdings.Holdings]:
    inputs, columns = Inputs.of(asked), StrategyColumns.of(strategies)
    costs = layer_costs(inputs, columns)
    return costs, holdings.held_by_ranks(inputs, columns, costs, PipelineShape.of(inputs, columns))


@given(name=st.sampled_from(sorted(MODELS)), pp=st.sampled_from([1, 2, 4, 8]), chunks=st.sampled_from([1, 2]))
def test_pipeline_ranks_hold_the_model_between_them(name: str, pp: int, chunks: int) -> None:
    model = MODELS[name]
    if pp * chunks > model.num_layers:
        chunks = 1
    schedule = PipelineSchedule.INTERLEAVED if chunks > 1 and pp > 1 else PipelineSchedule.ONE_F_ONE_B
    strategy = Strategy(pipeline_parallel_size=pp, virtual_pipeline_stages=chunks if pp > 1 else 1, pipeline_schedule=schedule)
    _, found = held(problem(model, vocab_padding_multiple=0), strategy)
    copies = int(model.tied_embeddings) + int(model.mtp_layers > 0)
    again = model.vocab_size * model.hidden_size * copies if pp > 1 else 0
    assert float(found.parameters.sum()) == model.num_parameters + model.mtp_parameters + again


def test_dualpipe_holds_everything_twice() -> None:
    once, twice = (
        float(held(problem(LATENT), Strategy(pipeline_parallel_size=4, pipeline_schedule=schedule))[1].parameters.sum())
        for schedule in (PipelineSchedule.ONE_F_ONE_B, PipelineSchedule.DUALPIPE)
    )
    assert twice == 2 * once


@pytest.mark.parametrize("name", ["dense", "latent"])
def test_sharing_rows_changes_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, strategies = feasible(name)
    same_shape = [s for s in strategies if s.pipeline_parallel_size == 2 and s.pipeline_schedule is PipelineSchedule.ONE_F_ONE_B]
    monkeypatch.setattr(holdings, "_WORTH_SHARING", 1)
    _, shared = held(asked, *same_shape)
    monkeypatch.setattr(holdings, "_WORTH_SHARING", 10**9)
    _, alone = held(asked, *same_shape)
    for field in ("parameters", "reduction_seconds", "gather_seconds", "optimizer_seconds"):
        np.testing.assert_array_equal(getattr(shared, field), getattr(alone, field))
    np.testing.assert_array_equal(shared.states.total, alone.states.total)


def test_zero_stages_trade_reductions_for_gathers() -> None:
    _, found = held(problem(), *(Strategy(data_parallel_size=16, zero_stage=stage) for stage in (0, 1, 2, 3)))
    reduced, gathered, updated = found.reduction_seconds[:, 0], found.gather_seconds[:, 0], found.optimizer_seconds[:, 0]
    assert reduced[0] > reduced[1] == reduced[2] > reduced[3] == 0
    assert gathered[0] == 0 < gathered[1] == gathered[2]
    assert gathered[3] == 0
    assert updated[0] == pytest.approx(16 * updated[1], rel=0.02)


@given(data_overlap=st.floats(0, 1), gather_overlap=st.floats(0, 1), pp=st.sampled_from([1, 2, 4]), zero=st.integers(0, 3))
def test_overlap_hides_part_of_the_reduction(data_overlap: float, gather_overlap: float, pp: int, zero: int) -> None:
    asked = problem(DENSE, data_overlap=data_overlap, param_gather_overlap=gather_overlap)
    costs, found = held(asked, Strategy(pipeline_parallel_size=pp, data_parallel_size=16 // pp, zero_stage=zero))
    passes = np.full((1, pp), 1e-3)
    exposed = holdings.exposed_data_seconds(Inputs.of(asked), costs, found, passes, 2 * passes)
    whole = found.reduction_seconds + found.gather_seconds
    assert np.all(exposed <= whole)
    assert np.all(exposed >= 0)
    # of ranks with the same parameters, later ones have more of the pipeline's tail to hide behind
    idle = holdings.exposed_data_seconds(Inputs.of(asked), costs, found, 0 * passes, 0 * passes)
    assert np.allclose(idle, whole)


def test_a_tied_table_is_summed_between_the_ends_of_the_pipeline() -> None:
    strategy, endless = Strategy(pipeline_parallel_size=4, data_parallel_size=4), np.full((1, 4), 1e3)

    def exposed(model: ModelSpec) -> list[float]:
        asked = problem(model, data_overlap=1.0, param_gather_overlap=1.0)
        found: list[float] = holdings.exposed_data_seconds(Inputs.of(asked), *held(asked, strategy), endless, endless)[0].tolist()
        return found

    assert exposed(DENSE) == [0, 0, 0, 0]
    first, *middle, last = exposed(replace(DENSE, tied_embeddings=True))
    assert middle == [0, 0]
    assert first == last > 0


@pytest.mark.parametrize(
    ("name", "precision", "wide_head"), [("dense", "amp-bf16", False), ("dense", "fp8", True), ("grouped", "amp-bf16", False)]
)
def test_no_low_precision_copy_is_made_of_a_table(name: str, precision: str, wide_head: bool) -> None:
    model = MODELS[name]
    asked = problem(model, precision=precision, low_precision_copies=2, vocab_padding_multiple=0)
    inputs, columns = Inputs.of(asked), StrategyColumns.of([Strategy(zero_stage=0)])
    costs = layer_costs(inputs, columns)
    shape = PipelineShape.of(inputs, columns)
    found = float(holdings.rank_states(inputs, columns, costs, shape).parameters[0, 0])
    table = model.vocab_size * model.hidden_size
    # a tied table is the output matrix too, which autocast casts
    left = (0 if model.tied_embeddings else table) + (table if wide_head else 0)
    training = inputs.training
    copied = model.num_parameters - left
    assert found == pytest.approx(
        model.num_parameters * float(training.parameter_bytes) + copied * float(training.cached_weight_bytes), rel=1e-4
    )
