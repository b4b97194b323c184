"""The structure of models: names of their parts, on the meta device as on real ones, and shapes for the cost model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from autopar.costmodel.spec.errors import InvalidInputError
from autopar.costmodel.spec.model import Norm, PositionEmbedding
from autopar.io.hf_config import model_from_config
from autopar.runtime.structure import read_structure

from .models import FAMILIES, VOCAB, tiny


@pytest.mark.parametrize("name", FAMILIES)
def test_every_parameter_is_in_the_blocks_or_around_them(name: str) -> None:
    """Read on the meta device, where there are no weights to look at."""
    with torch.device("meta"):
        model = FAMILIES[name]()
    structure = read_structure(model)
    assert structure.family == name.removesuffix("-rotary").removesuffix("-biases").removesuffix("-serial").removesuffix("-experts")
    assert structure.num_blocks == 2
    assert (structure.hidden_size, structure.vocab_size) == (64, VOCAB)
    owners = (structure.blocks, *structure.prefix, *structure.suffix)
    for parameter, _ in model.named_parameters():
        assert sum(parameter.startswith(f"{owner}.") for owner in owners) == 1, parameter
    assert read_structure(tiny(name)) == structure


def test_tied_embeddings_are_named() -> None:
    assert read_structure(tiny("gpt2")).tied == (("transformer.wte.weight", "lm_head.weight"),)
    assert read_structure(tiny("reference-gpt")).tied == (("tokens.weight", "head.weight"),)
    assert read_structure(tiny("llama")).tied == ()


@pytest.mark.parametrize("name", ["reference-gpt", "reference-gpt-rotary"])
def test_the_spec_of_a_reference_gpt_counts_its_parameters(name: str) -> None:
    model = tiny(name)
    spec = read_structure(model).spec
    assert spec is not None
    assert spec.num_parameters == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt2", "mixtral"])
def test_the_config_of_a_hugging_face_model_has_its_spec(name: str) -> None:
    model = tiny(name)
    spec = model_from_config(model.config.to_dict(), name=name)  # type: ignore[union-attr, operator]
    assert spec.num_parameters == sum(parameter.numel() for parameter in model.parameters())


class _Unknown(nn.Module):
    def __init__(self, *, blocks: int = 3) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.norm_in = nn.LayerNorm(8)
        self.drop = nn.Dropout(0.1)
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)) for _ in range(blocks)))
        self.norm_out = nn.LayerNorm(8)
        self.head = nn.Linear(8, 11)

    def forward(self, ids: Tensor) -> Tensor:
        output: Tensor = self.head(self.norm_out(self.layers(self.drop(self.norm_in(self.table(ids))))))
        return output


def test_an_unknown_model_is_read_from_its_modules() -> None:
    structure = read_structure(_Unknown())
    assert (structure.family, structure.blocks, structure.num_blocks) == ("generic", "layers", 3)
    assert (structure.prefix, structure.suffix) == (("table", "norm_in"), ("norm_out", "head"))
    assert (structure.hidden_size, structure.vocab_size) == (8, 11)


@pytest.mark.parametrize("model", [nn.Linear(3, 3), _Unknown(blocks=1)])
def test_a_model_without_repeated_blocks_is_refused(model: nn.Module) -> None:
    with pytest.raises(InvalidInputError, match=r"no repeated blocks.*nn\.ModuleList"):
        read_structure(model)


class _Decoder(nn.Module):
    """A GPT as people write it: torch's own layers, a table of positions, no config."""

    def __init__(self, *, extra: bool = False) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(40, 16), nn.Parameter(torch.zeros(12, 16))
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(16, 4, 24, batch_first=True) for _ in range(3))
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 40, bias=False)
        if extra:
            self.odd = nn.Linear(16, 3)


def test_the_spec_of_an_unknown_decoder_is_told_by_its_modules() -> None:
    spec = read_structure(_Decoder()).spec
    assert spec is not None
    assert (spec.num_layers, spec.hidden_size, spec.num_attention_heads, spec.ffn_hidden_size, spec.vocab_size) == (3, 16, 4, 24, 40)
    assert (spec.norm, spec.qkv_bias, spec.mlp_bias, spec.gated_mlp) == (Norm.LAYER_NORM, True, True, False)
    assert (spec.position_embedding, spec.max_position_embeddings) == (PositionEmbedding.LEARNED, 12)


def test_a_model_whose_parameters_no_spec_explains_has_none() -> None:
    assert read_structure(_Decoder(extra=True)).spec is None
    assert read_structure(_Unknown()).spec is None


class _Reversed(nn.Module):
    """Registers what runs last first."""

    def __init__(self, *, halt: bool = False) -> None:
        super().__init__()
        self.head, self.norm = nn.Linear(8, 11), nn.LayerNorm(8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.table = nn.Embedding(11, 8)
        self.halt = halt

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        for layer in self.layers:
            x = layer(x)
        if self.halt and x.sum() > 0:
            x = x * 2
        output: Tensor = self.head(self.norm(x))
        return output


def test_what_runs_around_the_blocks_is_seen_not_supposed() -> None:
    model = _Reversed()
    structure = read_structure(model)
    assert (structure.prefix, structure.suffix) == (("table",), ("norm", "head"))
    assert structure.layout.order_is_known
    assert not any(parameter.is_meta for parameter in model.parameters())


def test_an_order_that_no_run_shows_is_not_known() -> None:
    """The forward asks for a value, which the meta device has none of."""
    structure = read_structure(_Reversed(halt=True))
    assert not structure.layout.order_is_known
