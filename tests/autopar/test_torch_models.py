"""Shapes of modules, and modules of shapes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from autopar.catalog.models import model as catalog_model
from autopar.costmodel.spec.errors import InvalidInputError
from autopar.costmodel.spec.model import ModelSpec, PositionEmbedding
from autopar.torch_models import build_model, model_faults, read_hugging_face, spec_of


def small(name: str, **changes: object) -> ModelSpec:
    spec = catalog_model(name)
    return replace(spec, num_layers=2, vocab_size=1000, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["gpt2", "gpt-22b", "gpt3-6.7b"])
def test_the_reference_gpt_has_the_plans_shape(name: str) -> None:
    spec = small(name)
    built = build_model(spec, sequence_length=128)
    assert built.notes == ()
    assert model_faults(spec, built.spec) == ()
    assert sum(parameter.numel() for parameter in built.module.parameters()) == spec.num_parameters
    assert all(parameter.is_meta for parameter in built.module.parameters())


def test_positions_reach_as_far_as_the_sequence() -> None:
    built = build_model(small("gpt2"), sequence_length=4096)
    assert built.spec.max_position_embeddings == 4096


def test_a_llama_is_hugging_faces() -> None:
    pytest.importorskip("transformers")
    spec = small("llama3-8b")
    built = build_model(spec, sequence_length=128)
    assert type(built.module).__name__ == "LlamaForCausalLM"
    assert model_faults(spec, built.spec) == ()
    assert sum(parameter.numel() for parameter in built.module.parameters()) == spec.num_parameters


def test_what_the_built_model_lacks_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autopar.torch_models._transformers", lambda: None)
    built = build_model(small("llama3-8b"), sequence_length=128)
    assert "gated_mlp false" in built.notes[0]
    assert built.spec.position_embedding is PositionEmbedding.ROTARY


@pytest.mark.parametrize("name", ["mixtral-8x7b", "qwen3-30b-a3b"])
def test_a_model_of_experts_is_hugging_faces_mixtral(name: str) -> None:
    pytest.importorskip("transformers")
    spec = small(name)
    built = build_model(spec, sequence_length=128)
    assert type(built.module).__name__ == "MixtralForCausalLM"
    assert model_faults(spec, built.spec) == ()
    assert built.spec.moe == spec.moe
    norms = 2 * 2 * spec.head_dim if spec.qk_norm else 0
    assert sum(parameter.numel() for parameter in built.module.parameters()) == spec.num_parameters - norms


def test_a_model_of_experts_is_the_reference_gpt_without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autopar.torch_models._transformers", lambda: None)
    spec = small("mixtral-8x7b")
    built = build_model(spec, sequence_length=128)
    assert built.spec.moe == spec.moe
    assert sum(parameter.numel() for parameter in built.module.parameters()) == built.spec.num_parameters


@pytest.mark.parametrize(("name", "what"), [("deepseek-v3", "latent attention"), ("llama4-maverick", "a shared expert")])
def test_models_that_are_not_built_in_are_said(name: str, what: str) -> None:
    with pytest.raises(InvalidInputError, match=f"no model with {what}.*--model"):
        build_model(catalog_model(name), sequence_length=128)


@pytest.mark.parametrize("kind", ["GPT2Config", "LlamaConfig", "Qwen2Config", "GemmaConfig", "GPTNeoXConfig", "OPTConfig"])
def test_a_hugging_face_model_is_read_from_its_config(kind: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, kind)(num_hidden_layers=2)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    assert spec_of(model).num_parameters == sum(parameter.numel() for parameter in model.parameters())
    config.save_pretrained(tmp_path)
    built = read_hugging_face(tmp_path)
    assert model_faults(spec_of(model), built.spec) == ()
    assert type(built.module) is type(model)


def test_a_model_that_tells_nothing_needs_a_plan() -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
            return x

    with pytest.raises(InvalidInputError, match="shape is not known"):
        spec_of(Bare())


def test_every_difference_is_told() -> None:
    first = small("gpt2")
    other = replace(first, num_layers=3, vocab_size=7, tied_embeddings=False)
    assert [fault.field for fault in model_faults(first, other)] == ["model.num_layers", "model.vocab_size", "model.tied_embeddings"]
