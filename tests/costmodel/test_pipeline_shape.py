"""Layers into virtual stages: none lost, none twice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from autopar.costmodel.columns import StrategyColumns
from autopar.costmodel.inputs import Inputs
from autopar.costmodel.pipeline_shape import PipelineShape, head_layers
from autopar.costmodel.spec.model import MixtureOfExperts, ModelSpec
from autopar.costmodel.spec.strategy import PipelineSchedule, Strategy, balanced_layers

from .problems import DENSE, LATENT, problem


def shape_of(model: ModelSpec, strategy: Strategy) -> PipelineShape:
    return PipelineShape.of(Inputs.of(problem(model, gpus=64)), StrategyColumns.of([strategy]))


@given(
    layers=st.integers(1, 130),
    ranks=st.sampled_from([1, 2, 3, 4, 8, 16]),
    chunks=st.integers(1, 4),
    first_dense=st.integers(0, 5),
    frequency=st.integers(1, 4),
    explicit=st.booleans(),
)
def test_uneven_splits_lose_no_layer(layers: int, ranks: int, chunks: int, first_dense: int, frequency: int, explicit: bool) -> None:
    assume(first_dense <= layers)
    experts = MixtureOfExperts(
        num_experts=8, experts_per_token=2, ffn_hidden_size=512, first_dense_layers=first_dense, layer_frequency=frequency
    )
    model = replace(DENSE, num_layers=layers, moe=experts)
    split = tuple(layers // (ranks * chunks) + (stage < layers % (ranks * chunks)) for stage in range(ranks * chunks)) if explicit else ()
    strategy = Strategy(
        pipeline_parallel_size=ranks,
        virtual_pipeline_stages=chunks,
        pipeline_schedule=PipelineSchedule.INTERLEAVED if chunks > 1 else PipelineSchedule.ONE_F_ONE_B,
        pipeline_layers=split,
    )
    shape = shape_of(model, strategy)
    assert shape.num_stages == ranks * chunks
    assert int(shape.dense_layers.sum()) == model.num_dense_layers
    assert int(shape.moe_layers.sum()) == model.num_moe_layers
    assert min(shape.dense_layers.min(), shape.moe_layers.min()) >= 0
    if explicit:
        assert (shape.dense_layers + shape.moe_layers).tolist() == list(split)
    # each stage's expert layers are those of its own range
    end = np.cumsum(shape.dense_layers + shape.moe_layers)
    for first, last, moe in zip(end - shape.dense_layers - shape.moe_layers, end, shape.moe_layers, strict=True):
        assert sum(model.is_moe_layer(index) for index in range(first, last)) == moe


@given(layers=st.integers(1, 200), stages=st.integers(1, 64), head=st.floats(0, 10))
def test_the_balanced_split_is_balanced(layers: int, stages: int, head: float) -> None:
    split = balanced_layers(layers, stages, head_layers=head)
    assert sum(split) == layers
    assert len(split) == stages
    assert min(split) >= (1 if layers >= stages else 0)
    if layers % stages == 0:
        assert set(split) == {layers // stages}
    else:
        # no stage without the head carries more than a layer above the lightest
        assert max(split[:-1], default=0) - min(split[:-1], default=0) <= 1
        assert split[-1] <= max(split[:-1], default=layers)


@pytest.mark.parametrize("schedule", list(PipelineSchedule))
def test_every_virtual_stage_has_its_rank(schedule: PipelineSchedule) -> None:
    chunks = 2 if schedule in (PipelineSchedule.INTERLEAVED, PipelineSchedule.ZERO_BUBBLE) else 1
    shape = shape_of(DENSE, Strategy(pipeline_parallel_size=4, virtual_pipeline_stages=chunks, pipeline_schedule=schedule))
    holders = shape.on_rank.sum(axis=0)
    assert set(holders) == {2.0 if schedule is PipelineSchedule.DUALPIPE else 1.0}
    assert set(holders) == {float(shape.directions)}
    ones = np.ones((1, shape.num_stages))
    assert float(shape.on_ranks(ones).sum()) == shape.num_stages * shape.directions


def test_a_prediction_module_counts_as_a_layer_of_the_last_stage() -> None:
    inputs = Inputs.of(problem(LATENT, gpus=64))
    shape = PipelineShape.of(inputs, StrategyColumns.of([Strategy(pipeline_parallel_size=4)]))
    dense, moe = shape.layer_counts(inputs)
    assert float(dense.sum()) == 2
    assert np.ravel(moe - shape.moe_layers).tolist() == [0, 0, 0, 1]
    assert shape.layers_of_rank == 2


def test_the_head_weighs_more_where_layers_are_few_or_narrow() -> None:
    weights = [
        float(head_layers(Inputs.of(problem(model))))
        for model in (replace(DENSE, vocab_size=8192), DENSE, replace(DENSE, vocab_size=131_072), replace(DENSE, ffn_hidden_size=2048))
    ]
    assert weights[0] < weights[1] < weights[2]
    assert weights[3] > weights[1]
    table = DENSE.vocab_size * DENSE.hidden_size
    assert weights[1] == pytest.approx(table / DENSE.layer_parameters(moe=False), rel=1e-3)


def test_a_heavy_head_takes_layers_from_the_last_stage() -> None:
    assert balanced_layers(10, 4, head_layers=2.0)[-1] == 1
    assert balanced_layers(10, 4)[-1] == 2
