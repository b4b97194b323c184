"""Model FLOPs: held against published formulas."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autopar.catalog.models import model as catalog_model
from autopar.costmodel.flops import forward_flops_per_token, step_model_flops
from autopar.costmodel.inputs import Inputs
from autopar.costmodel.spec.model import ModelSpec

from .problems import DENSE, EXPERTS, GROUPED, LATENT, problem


def forward(model: ModelSpec, length: int = 4096) -> float:
    return float(forward_flops_per_token(Inputs.of(problem(model, length=length))))


def test_gpt_3_takes_six_flops_a_parameter_and_token() -> None:
    model = catalog_model("gpt-175b")
    asked = problem(model, gpus=64, length=2048)
    flops = float(step_model_flops(Inputs.of(asked))) / asked.training.tokens_per_step
    attention = 6 * model.num_layers * 2048 * model.hidden_size  # causal scores counted at half
    assert flops == pytest.approx(6 * model.num_parameters + attention, rel=0.01)


def test_narayanan_counts_the_whole_square() -> None:
    # arXiv 2104.04473, equation 3 without recomputation: 72 B s l h^2 (1 + s/6h + V/12lh); causal attention at half is s/12h
    layers, h, s, vocab = 96, 12_288, 2048, 51_200
    model = replace(catalog_model("gpt-175b"), vocab_size=vocab)
    expected = 24 * layers * h**2 * (1 + s / (12 * h) + vocab / (12 * layers * h))
    assert forward(model, s) == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize("model", [DENSE, GROUPED], ids=lambda model: model.name)
def test_the_lookup_is_free_and_the_output_matrix_is_not(model: ModelSpec) -> None:
    wider = replace(model, vocab_size=2 * model.vocab_size)
    assert forward(wider) - forward(model) == 2 * model.vocab_size * model.hidden_size


def test_only_active_experts_count() -> None:
    more = replace(EXPERTS, moe=replace(EXPERTS.moe, num_experts=64))  # type: ignore[arg-type]
    assert forward(more) - forward(EXPERTS) == 2 * EXPERTS.num_layers * 56 * EXPERTS.hidden_size  # the router's columns


def test_attention_grows_with_the_span() -> None:
    short, long = forward(DENSE, 4096), forward(DENSE, 8192)
    assert long - short == 2 * 2048 * 16 * 256 * 8
    windowed = replace(DENSE, sliding_window=1024, num_sliding_layers=8)
    assert forward(windowed, 8192) < forward(DENSE, 4096)
    assert forward(replace(windowed, sliding_window=10**6), 8192) == long


def test_a_prediction_module_costs_a_layer_its_projection_and_the_head() -> None:
    without = replace(LATENT, mtp_layers=0)
    more = forward(LATENT) - forward(without)
    head, projection = 2 * LATENT.vocab_size * LATENT.hidden_size, 4 * LATENT.hidden_size**2
    layer = (forward(without) - head) / LATENT.num_layers
    assert more == pytest.approx(layer + projection + head, rel=1e-12)
