"""Small models of every family the runtime knows, and batches for them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from autopar.runtime.reference_gpt import ReferenceGPT, ReferenceGPTConfig

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import transformers

transformers.logging.set_verbosity_error()

VOCAB = 97
"""Divisible by no tensor-parallel size, as GPT-2's."""
LENGTH = 16
_COMMON = {"vocab_size": VOCAB, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8, "max_position_embeddings": 64}
_TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_GROUPED = {**_COMMON, **_TOKENS, "num_key_value_heads": 4, "intermediate_size": 96}
_NO_DROPOUT = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}


def _hugging_face(name: str, **options: object) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        config = transformers.AutoConfig.for_model(name, **options)
        model: nn.Module = transformers.AutoModelForCausalLM.from_config(config)
        return model

    return make


def _reference(**options: object) -> Callable[[], nn.Module]:
    settings: dict[str, object] = {"vocab_size": VOCAB, "num_layers": 2, **options}
    return lambda: ReferenceGPT(ReferenceGPTConfig(**settings))  # type: ignore[arg-type]


FAMILIES: dict[str, Callable[[], nn.Module]] = {
    "reference-gpt": _reference(tied_embeddings=True),
    "reference-gpt-rotary": _reference(num_attention_heads=8, num_key_value_heads=4, rotary=True),
    "reference-gpt-experts": _reference(num_experts=4, rotary=True),
    "llama": _hugging_face("llama", **_GROUPED),
    "llama-biases": _hugging_face("llama", **_GROUPED, attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    "mistral": _hugging_face("mistral", **{**_GROUPED, "num_key_value_heads": 1}, head_dim=8, sliding_window=8),
    "qwen2": _hugging_face("qwen2", **{**_GROUPED, "num_key_value_heads": 2}),
    "qwen3": _hugging_face("qwen3", **_GROUPED, head_dim=16, tie_word_embeddings=True),
    "gemma": _hugging_face("gemma", **_GROUPED, head_dim=8),
    "gemma2": _hugging_face("gemma2", **_GROUPED, head_dim=8, sliding_window=8),
    "gemma3_text": _hugging_face("gemma3_text", **_GROUPED, head_dim=8, sliding_window=8),
    "gpt2": _hugging_face("gpt2", vocab_size=VOCAB, n_embd=64, n_layer=2, n_head=4, n_positions=64, **_TOKENS, **_NO_DROPOUT),
    "gpt_neox": _hugging_face("gpt_neox", **_COMMON, **_TOKENS, intermediate_size=96),
    "gpt_neox-serial": _hugging_face("gpt_neox", **_COMMON, **_TOKENS, intermediate_size=96, use_parallel_residual=False),
    "phi": _hugging_face("phi", **_GROUPED, qk_layernorm=True, **dict.fromkeys(("embd_pdrop", "resid_pdrop"), 0.0)),
    "phi3": _hugging_face("phi3", **_GROUPED),
    "mixtral": _hugging_face("mixtral", **_GROUPED, num_local_experts=4),
    "qwen2_moe": _hugging_face(
        "qwen2_moe", **_GROUPED, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=48
    ),
    "nemotron": _hugging_face("nemotron", **_GROUPED, head_dim=8),
    "qwen3_moe": _hugging_face(
        "qwen3_moe", **_GROUPED, head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, mlp_only_layers=[0]
    ),
}


class GatedDecoder(nn.Module):
    """A decoder as people write it: torch's attention, a gated feed-forward, positions of its own, the head by the token table."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.positions = nn.Embedding(VOCAB, 32), nn.Parameter(torch.zeros(LENGTH, 32))
        self.layers = nn.ModuleList(GatedBlock() for _ in range(2))
        self.norm = nn.LayerNorm(32)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.table(input_ids) + self.positions
        for layer in self.layers:
            x = layer(x)
        return nn.functional.linear(self.norm(x), self.table.weight)


class GatedBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(32), nn.MultiheadAttention(32, 4, batch_first=True)
        self.gate, self.up, self.down, self.act = nn.Linear(32, 64), nn.Linear(32, 64), nn.Linear(64, 32), nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        x = x + self.attention(normed, normed, normed, need_weights=False)[0]
        output: Tensor = x + self.down(self.act(self.gate(x)) * self.up(x))
        return output


UNKNOWN: dict[str, Callable[[], nn.Module]] = {
    "granite": _hugging_face("granite", **_GROUPED),
    "opt": _hugging_face("opt", **_COMMON, **_TOKENS, word_embed_proj_dim=64, ffn_dim=96, dropout=0.0),
    "gated-decoder": GatedDecoder,
}
"""Models whose family the runtime does not know."""


def tiny(name: str) -> nn.Module:
    """The model ``name`` with the same weights at every call."""
    torch.manual_seed(0)
    model = {**FAMILIES, **UNKNOWN}[name]().train()
    with torch.no_grad():
        for parameter in model.parameters():
            # Biases and norms that are 0 and 1 hide mistakes.
            parameter.add_(0.02 * torch.randn_like(parameter))
    return model


def batches(count: int, *, size: int = 2, ignored: bool = True) -> Iterator[dict[str, Tensor]]:
    """Batches of ids and labels, the same at every call; some labels are ignored, unequally."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        ids = torch.randint(3, VOCAB, (size, LENGTH), generator=generator)
        labels = ids.clone()
        if ignored:
            labels[0, : LENGTH // 3] = -100
        yield {"input_ids": ids, "labels": labels}
