"""What a row says decides; what it does not say is filled by one rule, and nonsense is not scored."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autopar.accuracy.cases import Case, case_of
from autopar.accuracy.runs import Run, Skipped
from autopar.costmodel.spec.strategy import Recompute

ROW = Run(
    run_id="r", device="a100-sxm4-80gb", framework="Megatron-LM", model_name="llama2-7b", num_gpus=8, sequence_length=4096,
    global_batch_size=64, micro_batch_size=1, tensor_parallel_size=4, pipeline_parallel_size=1, step_time_seconds=10.0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("full", Recompute.FULL),
        ("Full (uniform)", Recompute.FULL),
        ("selective (attention core)", Recompute.SELECTIVE),
        ("none", Recompute.NONE),
    ],
)
def test_stated_recomputation_is_taken(text: str, expected: Recompute) -> None:
    case = case_of(replace(ROW, recompute=text))
    assert isinstance(case, Case)
    assert case.strategy.recompute is expected


@pytest.mark.parametrize(("field", "given"), [("recompute", "banana"), ("precision", "banana"), ("framework", "banana")])
def test_text_nobody_knows_is_a_reason_not_a_guess(field: str, given: str) -> None:
    skipped = case_of(replace(ROW, **{field: given}))
    assert isinstance(skipped, Skipped)
    assert given in skipped.reason


def test_a_model_named_without_its_shape_is_the_catalogs_and_says_so() -> None:
    case = case_of(ROW)
    assert isinstance(case, Case)
    assert case.problem.model.num_layers == 32
    assert any("shape taken" in note for note in case.notes)


def test_a_shape_that_contradicts_the_catalog_wins() -> None:
    case = case_of(replace(ROW, num_layers=4, hidden_size=4096, gated_mlp=True, ffn_hidden_size=11008, vocab_size=32000))
    assert isinstance(case, Case)
    assert case.problem.model.num_layers == 4


def test_sizes_that_do_not_make_the_world_are_a_reason() -> None:
    skipped = case_of(replace(ROW, data_parallel_size=3))
    assert isinstance(skipped, Skipped)
    assert "not num_gpus=8" in skipped.reason
