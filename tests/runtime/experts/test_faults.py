"""Which layouts of experts the runtime refuses, and with which words."""

from __future__ import annotations

import pytest

from autopar.costmodel.spec.strategy import Strategy
from autopar.costmodel.spec.training import PRECISIONS
from autopar.runtime.structure import read_structure
from autopar.runtime.support import training_faults, unsupported
from tests.runtime.models import tiny

SEQUENCE = {"tensor_parallel_size": 2, "sequence_parallel": True}


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        (Strategy(expert_parallel_size=2), "expert_parallel_size=2: must divide tp x cp x dp = 1; nearest valid: 1"),
        (Strategy(data_parallel_size=4, expert_parallel_size=3), "must divide tp x cp x dp = 4; nearest valid: 1, 2, 4"),
        (Strategy(data_parallel_size=2, expert_tensor_parallel_size=2), "tensor_parallel_size=1; use expert_tensor_parallel_size=1"),
        (Strategy(tensor_parallel_size=4, expert_tensor_parallel_size=2), "use expert_tensor_parallel_size=1 or 4"),
        (
            Strategy(**SEQUENCE, data_parallel_size=2, expert_tensor_parallel_size=2, expert_parallel_size=2),  # type: ignore[arg-type]
            "does not cut experts that are spread over ranks; use expert_tensor_parallel_size=1, or expert_parallel_size=1",
        ),
    ],
)
def test_grids_that_no_model_runs_on(strategy: Strategy, said: str) -> None:
    (fault,) = unsupported(strategy)
    assert said in str(fault)


@pytest.mark.parametrize(
    ("name", "strategy", "said"),
    [
        ("llama", Strategy(data_parallel_size=2, expert_parallel_size=2), "no experts are found in LlamaForCausalLM"),
        ("llama", Strategy(**SEQUENCE, expert_tensor_parallel_size=2), "no experts are found"),  # type: ignore[arg-type]
        ("mixtral", Strategy(data_parallel_size=8, expert_parallel_size=8), "must divide num_experts=4; nearest valid: 1, 2, 4"),
        ("mixtral", Strategy(tensor_parallel_size=2), "use sequence_parallel=True, or expert_tensor_parallel_size=2"),
        (
            "mixtral",
            Strategy(data_parallel_size=6, expert_parallel_size=2, zero_stage=1, shard_group_size=2),
            "shard_group_size=2: must divide the 3 ranks that hold the same experts",
        ),
    ],
)
def test_layouts_that_a_model_does_not_have(name: str, strategy: Strategy, said: str) -> None:
    (fault,) = faults_of(name, strategy)
    assert said in fault


def test_layouts_that_run() -> None:
    for strategy in (Strategy(), Strategy(data_parallel_size=4, expert_parallel_size=2), Strategy(**SEQUENCE, expert_parallel_size=2)):  # type: ignore[arg-type]
        assert faults_of("mixtral", strategy) == []
    assert faults_of("llama", Strategy(tensor_parallel_size=2)) == []


def test_experts_of_another_kind_are_refused() -> None:
    model = tiny("mixtral")
    model.get_submodule("model.layers.1.mlp.experts").num_experts = 3
    strategy = Strategy(data_parallel_size=2, expert_parallel_size=2)
    (fault,) = training_faults(model, read_structure(model), strategy, global_batch_size=24, precision=PRECISIONS["fp32"])
    assert "model.layers.1.mlp.experts.gate_up_proj is not one slice for each of num_experts=3" in str(fault)


def faults_of(name: str, strategy: Strategy) -> list[str]:
    model = tiny(name)
    faults = training_faults(model, read_structure(model), strategy, global_batch_size=24, precision=PRECISIONS["fp32"])
    return [str(fault) for fault in faults]
