"""What speed does not depend on and the model does: rotary base, norm epsilon, scaling of rotary positions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autopar.catalog.models import model as model_named
from autopar.costmodel.spec.errors import InvalidInputError
from autopar.costmodel.spec.model import ModelSpec, PositionEmbedding
from autopar.costmodel.spec.strategy import Strategy
from autopar.exporters import exporter
from autopar.exporters.question import Question
from autopar.importers import importer
from autopar.importers.complete import Given, as_configured, catalog_match, complete
from autopar.importers.imported import Imported, Source

from .questions import question

WRITERS = {
    "megatron-lm": ("train.sh", ("--rotary-base {base:.0f}\n", "--norm-epsilon {epsilon}\n")),
    "megatron-bridge": ("autopar_bridge.py", ("config.model.rotary_base = {base:.0f}\n", "config.model.layernorm_epsilon = {epsilon}\n")),
    "nanotron": ("config.yaml", ("rope_theta: {base}\n", "rms_norm_eps: 0.00001\n")),
}
UNSAID = {
    "megatron-lm": ("--rotary-base, or Megatron takes 10000", "--norm-epsilon, or Megatron takes 1e-05"),
    "megatron-bridge": ("config.model.rotary_base, or Megatron-Bridge takes 10000", "layernorm_epsilon, or Megatron-Bridge takes 1e-05"),
    "nanotron": ("rope_theta, or nanotron takes 10000", "rms_norm_eps, or nanotron takes 1e-06"),
}


def _of(changes: dict[str, object], name: str = "llama3-8b") -> Question:
    asked = question(Strategy(data_parallel_size=8, zero_stage=1), name)
    return Question.of(replace(asked.problem, model=replace(asked.model, **changes)), asked.strategy)  # type: ignore[arg-type]


def _text(framework: str, asked: Question) -> str:
    target = exporter(framework)
    assert not target.broken_rules(asked)
    return next(file.text for file in target.files(asked, ["a header"]) if file.path == WRITERS[framework][0])


def _read(framework: str, text: str) -> Imported:
    return importer(framework).read(Source(text=text, name=WRITERS[framework][0], folder=Path()))


@pytest.mark.parametrize("framework", sorted(WRITERS))
@pytest.mark.parametrize("name", ["llama3-8b", "no recipe's"])
def test_numbers_are_written_and_read_back(framework: str, name: str) -> None:
    asked = _of({"name": name})
    text = _text(framework, asked)
    for line in WRITERS[framework][1]:
        assert line.format(base=500_000.0, epsilon=1e-05) in text
    found = _read(framework, text)
    assert found.model is not None
    assert (found.model.rotary_base, found.model.norm_epsilon) == (500_000.0, 1e-5)
    spelled = ("rotary", "rope_theta", "epsilon", "rms_norm_eps")
    assert not [word for word in (*found.unknown, *found.ignored) if any(part in word for part in spelled)]
    plan = complete(found, Given(gpus=8, sequence_length=4096, global_batch_size=512))
    assert plan.inputs.model == model_named("llama3-8b")
    assert not [line for line in plan.inputs.assumptions if "published" in line]


@pytest.mark.parametrize("framework", sorted(WRITERS))
def test_a_model_that_does_not_say_them_is_told_what_the_framework_takes(framework: str) -> None:
    asked = _of({"name": "mine", "rotary_base": 0.0, "norm_epsilon": 0.0})
    text, notes = _text(framework, asked), " ".join(exporter(framework).notes(asked))
    assert not any(line.split(":")[0].split(" ")[0].lstrip("-") in text for line in WRITERS[framework][1])
    assert all(note in notes for note in UNSAID[framework])


def test_a_model_without_rotary_positions_has_no_base() -> None:
    asked = _of({"rotary_base": 500_000.0, "position_embedding": PositionEmbedding.LEARNED})
    assert "--rotary-base" not in _text("megatron-lm", asked)
    assert not [note for note in exporter("megatron-lm").notes(asked) if "rotary" in note]


def test_a_base_that_megatron_cannot_read_is_refused() -> None:
    (rule,) = exporter("megatron-lm").broken_rules(_of({"rotary_base": 1234.5}))
    assert (rule.fault.field, rule.fault.given) == ("model.rotary_base", "1234.5")


@pytest.mark.parametrize(
    ("name", "framework", "said"),
    [
        ("llama3.2-3b", "megatron-lm", "(llama3 x32) is left to you: --use-rope-scaling --rope-scaling-factor 32"),
        ("deepseek-v3", "megatron-lm", "(yarn x40) is left to you: --rotary-scaling-factor 40"),
        ("gpt-oss-20b", "megatron-lm", "--position-embedding-type yarn --rotary-scaling-factor 32"),
        ("llama3.2-3b", "torchtitan", "scales rotary positions llama3 x8 for this model, the plan llama3 x32"),
        ("deepseek-v3", "torchtitan", "norm epsilon 1e-05 for this model, the plan 1e-06"),
        ("qwen3-235b-a22b", "torchtitan", "rotary base 5000000 for this model, the plan 1000000"),
    ],
)
def test_what_is_left_to_the_person_is_named(name: str, framework: str, said: str) -> None:
    assert said in " ".join(exporter(framework).notes(_of({}, name)))


def test_torchtitan_is_silent_where_it_has_the_plans_numbers() -> None:
    assert not [note for note in exporter("torchtitan").notes(_of({}, "qwen3-8b")) if "for this model" in note]


def test_a_recipe_of_bridge_has_its_own_scaling() -> None:
    assert not [note for note in exporter("megatron-bridge").notes(_of({}, "llama3.2-3b")) if "scaling" in note]


# -- back -----------------------------------------------------------------------------------------------------------------


def test_a_run_that_does_not_say_the_base_keeps_what_it_trains_with() -> None:
    text = _text("megatron-lm", _of({})).replace("  --rotary-base 500000\n", "")
    plan = complete(_read("megatron-lm", text), Given(gpus=8))
    assert plan.inputs.model == replace(model_named("llama3-8b"), rotary_base=10_000.0)
    (remark,) = (line for line in plan.inputs.assumptions if "published" in line)
    assert remark.startswith("rotary base of llama3-8b is 500000 as published; the configuration does not say it")
    assert "takes 10000" in remark


def test_a_run_that_says_another_number_keeps_it() -> None:
    text = _text("megatron-lm", _of({})).replace("--norm-epsilon 1e-05", "--norm-epsilon 1e-06")
    plan = complete(_read("megatron-lm", text), Given(gpus=8, model="llama3-8b"))
    assert plan.inputs.model.norm_epsilon == 1e-6
    assert any("the configuration says 1e-06" in line for line in plan.inputs.assumptions)


def test_of_models_of_one_shape_the_one_with_the_same_numbers_is_meant() -> None:
    for name in ("llama1-7b", "llama2-7b"):
        assert catalog_match(replace(model_named(name), name="imported")).name == name


def test_a_number_that_the_catalog_does_not_have_is_only_taken_where_it_is_said() -> None:
    known = model_named("gpt-175b")
    found = _read("megatron-lm", _text("megatron-lm", _of({"max_position_embeddings": 4096}, "gpt-175b")))
    assert as_configured(known, found) == (known, ())
    said = replace(found, model=replace(known, norm_epsilon=1e-6))
    assert as_configured(known, said) == (replace(known, norm_epsilon=1e-6), ())


# -- the model ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"rotary_base": -1.0}, "rotary_base"),
        ({"rotary_base": float("nan")}, "rotary_base"),
        ({"rotary_base": 1e13}, "rotary_base"),
        ({"norm_epsilon": 1.0}, "norm_epsilon"),
        ({"norm_epsilon": float("nan")}, "norm_epsilon"),
        ({"rotary_scaling": "x\nrm -rf /"}, "rotary_scaling"),
        ({"rotary_scaling": "yarn x"}, "rotary_scaling"),
    ],
)
def test_numbers_that_cannot_be_are_refused(changes: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        replace(model_named("llama3-8b"), **changes)  # type: ignore[arg-type]
    assert [fault.field for fault in caught.value.faults] == [field]


def test_no_prediction_depends_on_them() -> None:
    from autopar.costmodel.estimate import estimate

    asked = _of({})
    other: ModelSpec = replace(asked.model, rotary_base=7.0, norm_epsilon=0.01, rotary_scaling="yarn x4")
    assert estimate(replace(asked.problem, model=other), asked.strategy) == estimate(asked.problem, asked.strategy)
