"""What does not depend on the pipeline's shape."""

from __future__ import annotations

import numpy as np
import pytest

from autopar.costmodel.columns import StrategyColumns
from autopar.costmodel.inputs import Inputs
from autopar.costmodel.layer_costs import LayerCosts, layer_costs
from autopar.costmodel.problem import Problem
from autopar.costmodel.spec.strategy import Strategy

from .problems import DENSE, EXPERTS, problem


def costs(asked: Problem, *strategies: Strategy) -> LayerCosts:
    return layer_costs(Inputs.of(asked), StrategyColumns.of(strategies))


def test_only_a_pipeline_sends_between_stages() -> None:
    found = costs(problem(DENSE), Strategy(), Strategy(pipeline_parallel_size=2), Strategy(pipeline_parallel_size=2, micro_batch_size=2))
    assert found.boundary[0] == 0
    assert 0 < found.boundary[1] < found.boundary[2] < 2 * found.boundary[1]


def test_boundaries_between_nodes_take_longer() -> None:
    inside, across = costs(
        problem(DENSE),
        Strategy(pipeline_parallel_size=2, data_parallel_size=1),
        Strategy(pipeline_parallel_size=2, data_parallel_size=8),
    ).boundary
    assert across > inside


@pytest.mark.parametrize(("scatter_gather", "sequence_parallel"), [(True, False), (False, True)])
def test_boundaries_are_sent_in_slices_where_the_framework_does(scatter_gather: bool, sequence_parallel: bool) -> None:
    strategy = Strategy(tensor_parallel_size=8, pipeline_parallel_size=2, sequence_parallel=sequence_parallel)
    whole = costs(problem(DENSE, pipeline_scatter_gather=False), Strategy(tensor_parallel_size=8, pipeline_parallel_size=2)).boundary[0]
    assert costs(problem(DENSE, pipeline_scatter_gather=scatter_gather), strategy).boundary[0] < 0.6 * whole


def test_a_model_without_experts_has_one_kind_of_layer() -> None:
    found = costs(problem(DENSE), Strategy())
    assert found.moe is found.dense
    assert found.moe_activations is found.dense_activations
    found = costs(problem(EXPERTS), Strategy())
    assert found.moe.forward.total[0] > found.dense.forward.total[0]


def test_the_head_shrinks_with_tensor_parallelism_and_its_loss_with_passes() -> None:
    found = costs(problem(DENSE), Strategy(), Strategy(tensor_parallel_size=8))
    assert found.ends.head_forward[1] < 0.5 * found.ends.head_forward[0]
    assert found.logits[1] < 0.5 * found.logits[0]
    few, many = (float(costs(problem(DENSE, loss_passes=passes), Strategy()).ends.head_backward[0]) for passes in (3.0, 30.0))
    assert many > few


def test_ends_are_shorter_than_the_model() -> None:
    found = costs(problem(DENSE), Strategy())
    assert np.all(found.ends.embedding_forward < found.dense.forward.total)
