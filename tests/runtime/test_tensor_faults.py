"""Models that a tensor-parallel size does not divide, or whose layers cannot be split: what is said, and the smallest fix."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from autopar.runtime.reference_gpt import ReferenceGPT, ReferenceGPTConfig
from autopar.runtime.structure import read_structure
from autopar.runtime.tensor import tensor_parallel_faults

from .models import FAMILIES, tiny


def _texts(model: nn.Module, size: int, *, sequence_parallel: bool = False) -> list[str]:
    return [str(fault) for fault in tensor_parallel_faults(model, read_structure(model), size, sequence_parallel=sequence_parallel)]


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_splits_over_two_and_four_on_the_meta_device(name: str) -> None:
    with torch.device("meta"):
        model = FAMILIES[name]()
    assert _texts(model, 1) == _texts(model, 2, sequence_parallel=True) == _texts(model, 4) == []


def test_ranks_may_share_key_value_heads_that_they_are_a_multiple_of() -> None:
    assert _texts(tiny("llama"), 8) == []
    shapes = {"hidden_size": 72, "num_attention_heads": 12, "num_key_value_heads": 4, "ffn_hidden_size": 96}
    model = ReferenceGPT(ReferenceGPTConfig(num_layers=2, **shapes))
    said = "tensor_parallel_size=6: must divide num_key_value_heads=4, or be a multiple of it; nearest valid: 4, 12"
    assert _texts(model, 6) == [said]


@pytest.mark.parametrize(
    ("name", "size", "wanted"),
    [
        ("gpt2", 8, ["num_attention_heads=4", "num_key_value_heads=4"]),
        ("phi3", 8, ["num_key_value_heads=4"]),
        ("gpt_neox", 16, ["num_attention_heads=8"]),
        ("mixtral", 5, ["num_attention_heads=8", "num_key_value_heads=4, or be a multiple of it", "the experts' ffn_hidden_size=96"]),
        ("reference-gpt", 3, ["num_attention_heads=4", "num_key_value_heads=4, or be a multiple of it", "ffn_hidden_size=256"]),
    ],
)
def test_all_that_is_not_divisible_is_told_at_once(name: str, size: int, wanted: list[str]) -> None:
    texts = _texts(tiny(name), size)
    assert [text.split("must divide ")[1].split(";")[0] for text in texts if "must divide" in text] == wanted


def test_a_rank_without_any_of_the_vocabulary_is_refused() -> None:
    """Shards of two of five tokens leave the last of four ranks none; three ranks have two, two and one."""
    model = ReferenceGPT(ReferenceGPTConfig(vocab_size=5, num_layers=2))
    assert _texts(model, 4) == ["tensor_parallel_size=4: leaves a rank without any of vocab_size=5; largest valid: 3"]


def test_the_routers_loss_and_noise_are_refused() -> None:
    model = tiny("mixtral")
    model.config.output_router_logits, model.config.router_jitter_noise = True, 0.1  # type: ignore[union-attr]
    assert [text.split(":")[0] for text in _texts(model, 2)] == ["output_router_logits=True", "router_jitter_noise=0.1"]


class _LowRank(nn.Linear):
    pass


def test_a_layer_of_another_kind_is_named() -> None:
    model = tiny("llama")
    model.model.layers[1].self_attn.q_proj = _LowRank(64, 64)  # type: ignore[union-attr, index]
    (text,) = _texts(model, 2)
    assert "self_attn.q_proj is a _LowRank; only plain linear layers can be split" in text


def test_a_block_of_another_layout_is_named() -> None:
    model = tiny("llama")
    model.model.layers[0].mlp = nn.Linear(64, 64)  # type: ignore[union-attr, index]
    (text,) = _texts(model, 2)
    assert "mlp of LlamaDecoderLayer is not laid out as in llama" in text


def test_blocks_that_share_weights_are_refused() -> None:
    model = ReferenceGPT(ReferenceGPTConfig(num_layers=2))
    model.blocks[1] = model.blocks[0]
    assert "blocks share parameters" in "".join(_texts(model, 2))


class _Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 6), nn.Linear(6, 8)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.down(self.up(x).relu())
        return output


class _Softmax(_Mixer):
    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.down(self.up(x).softmax(-1))
        return output


def _unknown(kind: type[nn.Module]) -> nn.Module:
    return nn.Sequential(nn.Embedding(5, 8), nn.ModuleList(kind() for _ in range(2)))


def test_an_unknown_model_is_split_where_that_is_proven() -> None:
    assert _texts(_unknown(_Mixer), 2) == []
    assert _texts(_unknown(_Mixer), 4) == ["tensor_parallel_size=4: must divide the features between up and down=6; nearest valid: 3, 6"]
    (text,) = _texts(_unknown(_Softmax), 2)
    assert text.startswith("tensor_parallel_size=2: no layers can be proven safe to split; _Softmax: ")
    assert text.endswith("use tensor_parallel_size=1")


def test_sequence_parallelism_of_an_unknown_model_is_refused() -> None:
    (text,) = _texts(_unknown(_Mixer), 2, sequence_parallel=True)
    assert text.startswith("sequence_parallel=True: what Sequential computes between its layers")
