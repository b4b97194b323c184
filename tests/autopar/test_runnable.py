"""What is planned for a framework, that framework takes."""

from __future__ import annotations

import pytest

import autopar
from autopar.runnable import EXPORTERS

TIGHT = {"llama3-8b": {"gpus": 8, "gpu": "h100"}, "llama3-70b": {"gpus": 64, "gpu": "h100", "global_batch_size": 64}}
LONG = {"gpus": 64, "gpu": "h100", "sequence_length": 65_536, "global_batch_size": 16}


@pytest.mark.parametrize("framework", EXPORTERS)
@pytest.mark.parametrize("model", TIGHT)
def test_a_plan_is_exported_as_it_is(framework: str, model: str) -> None:
    """Tight memory and layers that ends outweigh: partial recomputation, uneven stages and context parallelism all pay."""
    plan = autopar.plan(model, framework=framework, top=3, **TIGHT[model])  # type: ignore[arg-type]
    assert autopar.export(plan, EXPORTERS[framework]).replaces is None


@pytest.mark.parametrize("framework", ["torchtitan", "nanotron", "accelerate"])
def test_so_is_one_of_long_sequences(framework: str) -> None:
    plan = autopar.plan("llama3-8b", framework=framework, top=1, **LONG)  # type: ignore[arg-type]
    assert plan.strategy.context_parallel_size > 1
    assert autopar.export(plan, EXPORTERS[framework]).replaces is None


def test_what_a_framework_does_not_take_is_passed_over_and_said() -> None:
    """ZeRO-1 beside context parallelism is nobody's under Accelerate, which no rule of the search knows."""
    plan = autopar.plan("llama3-8b", gpus=256, global_batch_size=64, framework="accelerate", top=3)
    assert plan.strategy.context_parallel_size > 1
    (said,) = [note for note in plan.inputs.assumptions if note.startswith("export: ")]
    assert "ZeRO-1 recompute=none is 0." in said
    assert "faster, and accelerate does not take it: zero_stage=1" in said


def test_a_model_that_a_framework_does_not_have_is_said() -> None:
    plan = autopar.plan("gpt3-1.3b", gpus=8, framework="torchtitan", top=1)
    (said,) = [note for note in plan.inputs.assumptions if note.startswith("export: ")]
    assert said.startswith("export: torchtitan does not take it: model=gpt3-1.3b")
