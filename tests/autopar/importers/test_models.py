"""A model's shape goes into Megatron's flags and comes back."""

from __future__ import annotations

from dataclasses import fields

import pytest

from autopar.catalog.models import model as model_named
from autopar.catalog.models import model_names
from autopar.exporters.megatron_model import layer_pattern, model_faults, model_from_settings, model_settings, parse_pattern
from autopar.importers.complete import catalog_match
from autopar.importers.megatron_lm import without_empty_stages

ASIDE = {"name", "source", "default_sequence_length", "default_global_batch_size", "max_position_embeddings", "position_embedding_rows",
         "qk_norm_per_head", "sliding_window", "rotary_scaling"}  # fmt: skip


@pytest.mark.parametrize("name", model_names())
def test_shapes_come_back_or_the_model_is_refused(name: str) -> None:
    model = model_named(name)
    refused = list(model_faults(model))
    flags = {
        "num-layers": model.num_layers, "hidden-size": model.hidden_size, "num-attention-heads": model.num_attention_heads,
        "kv-channels": model.head_dim, "vocab-size": model.vocab_size, **model_settings(model, 2048),
    }  # fmt: skip
    if refused:
        assert all(fault.field.startswith("model.") and "Megatron" in fault.required for fault in refused)
        return
    found = model_from_settings(flags)
    assert found.num_parameters == model.num_parameters
    for field in fields(found):
        if field.name not in ASIDE:
            assert getattr(found, field.name) == getattr(model, field.name), field.name
    assert catalog_match(found).num_parameters == model.num_parameters


def test_most_models_of_the_catalog_are_megatrons() -> None:
    assert sum(not list(model_faults(model_named(name))) for name in model_names()) > 100


def test_a_stage_with_the_loss_alone_is_estimated_with_a_layer() -> None:
    assert without_empty_stages([1, 2, 2, 0]) == (1, 2, 1, 1)
    assert without_empty_stages([0, 3, 0]) == (1, 1, 1)
    assert without_empty_stages([2, 2]) == (2, 2)


@pytest.mark.parametrize(("given", "places"), [("1", range(6)), ("2", (0, 2, 4)), ("([0]*2+[1]*4)", (2, 3, 4, 5)), ("[0,1]*3", (1, 3, 5))])
def test_layer_patterns(given: str, places: range | tuple[int, ...]) -> None:
    pattern = parse_pattern(given, 6)
    assert [index for index, is_moe in enumerate(pattern) if is_moe] == list(places)
    assert parse_pattern(layer_pattern(pattern), 6) == pattern
