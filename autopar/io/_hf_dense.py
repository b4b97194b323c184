"""Readers of dense families with rotary positions: Llama and its relatives, Qwen, Gemma, Phi-3, Nemotron."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from autopar.costmodel.spec.model import ModelSpec, Norm

from ._hf_common import INERT, Family, SizeKeys, every_layer, inert, read_sizes, read_window
from ._hf_fields import Fields

Reader = Callable[[Fields, str], ModelSpec]

_GEMMA = SizeKeys(default_head_dim=256, default_positions=8192, default_tied=True)


def _llama(fields: Fields, name: str) -> ModelSpec:
    sizes = read_sizes(fields, SizeKeys())
    attention_bias = fields.flag("attention_bias", default=False)
    mlp_bias = fields.flag("mlp_bias", default=False)
    spec = sizes.model(name, gated_mlp=True)
    return replace(spec, qkv_bias=attention_bias, attention_output_bias=attention_bias, mlp_bias=mlp_bias)


def _internlm(fields: Fields, name: str) -> ModelSpec:
    sizes = read_sizes(fields, SizeKeys())
    bias = fields.flag("bias", default=True)
    return replace(sizes.model(name, gated_mlp=True), qkv_bias=bias, attention_output_bias=bias)


def _mistral(fields: Fields, name: str) -> ModelSpec:
    sizes = read_sizes(fields, SizeKeys(default_kv_heads=8, default_positions=4096 * 32))
    window, layers = read_window(fields, sizes.num_layers, every_layer, default=4096)
    return replace(sizes.model(name, gated_mlp=True), sliding_window=window, num_sliding_layers=layers)


def qwen_window(fields: Fields, num_layers: int, assumed: Callable[[int, int], bool]) -> tuple[int, int]:
    """Window of Qwen, used only where ``use_sliding_window`` is set; ``assumed`` takes a layer and ``max_window_layers``."""
    used = fields.flag("use_sliding_window", default=False)
    limit = fields.integer("max_window_layers", default=28, minimum=0)
    window = read_window(fields, num_layers, lambda index: assumed(index, limit), default=4096)
    return window if used else (0, 0)


def _from_limit_on(index: int, limit: int) -> bool:
    return index >= limit


def _qwen2(fields: Fields, name: str) -> ModelSpec:
    sizes = read_sizes(fields, SizeKeys(default_kv_heads=32, default_positions=32768))
    window, layers = qwen_window(fields, sizes.num_layers, _from_limit_on)
    return replace(sizes.model(name, gated_mlp=True), qkv_bias=True, sliding_window=window, num_sliding_layers=layers)


def _qwen3(fields: Fields, name: str) -> ModelSpec:
    sizes = read_sizes(fields, SizeKeys(default_kv_heads=32, default_head_dim=128, default_positions=32768))
    window, layers = qwen_window(fields, sizes.num_layers, _from_limit_on)
    bias = fields.flag("attention_bias", default=False)
    spec = replace(sizes.model(name, gated_mlp=True), qkv_bias=bias, attention_output_bias=bias)
    return replace(spec, qk_norm=True, sliding_window=window, num_sliding_layers=layers)


def _gemma(fields: Fields, name: str) -> ModelSpec:
    sizes = read_sizes(fields, replace(_GEMMA, default_kv_heads=16))
    bias = fields.flag("attention_bias", default=False)
    return replace(sizes.model(name, gated_mlp=True), qkv_bias=bias, attention_output_bias=bias)


def _gemma2(fields: Fields, name: str) -> ModelSpec:
    sizes = read_sizes(fields, replace(_GEMMA, default_kv_heads=4))
    window, layers = read_window(fields, sizes.num_layers, lambda index: index % 2 == 0, default=4096)
    bias = fields.flag("attention_bias", default=False)
    spec = replace(sizes.model(name, gated_mlp=True), qkv_bias=bias, attention_output_bias=bias)
    return replace(spec, norms_per_layer=4, sliding_window=window, num_sliding_layers=layers)


def _gemma3_text(fields: Fields, name: str) -> ModelSpec:
    """Published Gemma 3 files leave out every size equal to the reference implementation's default."""
    keys = replace(
        _GEMMA, default_layers=26, default_hidden=2304, default_heads=8, default_kv_heads=4, default_ffn=9216,
        default_vocab=262208, default_positions=131072, default_rotary_base=1e6,
    )  # fmt: skip
    sizes = read_sizes(fields, keys)
    pattern = fields.integer("sliding_window_pattern", "_sliding_window_pattern", default=6)
    window, layers = read_window(fields, sizes.num_layers, lambda index: (index + 1) % pattern != 0, default=4096)
    bias = fields.flag("attention_bias", default=False)
    spec = replace(sizes.model(name, gated_mlp=True), qkv_bias=bias, attention_output_bias=bias)
    return replace(spec, norms_per_layer=4, qk_norm=True, sliding_window=window, num_sliding_layers=layers)


def _gemma3(fields: Fields, name: str) -> ModelSpec:
    """The text part of the multimodal files; the vision tower is not counted."""
    return nested_text(fields, name, "gemma3_text", GEMMA3_TEXT)


def _phi3(fields: Fields, name: str) -> ModelSpec:
    sizes = read_sizes(fields, SizeKeys(head_dim=(), default_positions=4096, default_norm_epsilon=1e-5))
    window, layers = read_window(fields, sizes.num_layers, every_layer)
    fields.only("attention_bias", allowed=(False,), default=False, why="a Phi-3 with attention biases is not counted")
    return replace(sizes.model(name, gated_mlp=True), sliding_window=window, num_sliding_layers=layers)


def _nemotron(fields: Fields, name: str) -> ModelSpec:
    sizes = read_sizes(fields, SizeKeys(head_dim=("head_dim", "kv_channels"), default_positions=4096, default_norm_epsilon=1e-5))
    attention_bias = fields.flag("attention_bias", default=False)
    mlp_bias = fields.flag("mlp_bias", default=False)
    spec = replace(sizes.model(name, gated_mlp=False), norm=Norm.LAYER_NORM, mlp_bias=mlp_bias)
    return replace(spec, qkv_bias=attention_bias, attention_output_bias=attention_bias)


def nested_text(fields: Fields, name: str, model_type: str, family: Family) -> ModelSpec:
    """Read the ``text_config`` of a multimodal config with the reader of ``family``."""
    text = fields.nested("text_config", required=True)
    text.only("model_type", allowed=(model_type,), default=model_type, why="the text model is of another family")
    try:
        return family.read(text, name)
    finally:
        text.unknown(INERT | family.inert)


GEMMA3_TEXT = Family(
    read=_gemma3_text,
    inert=inert("hidden_activation query_pre_attn_scalar attn_logit_softcapping final_logit_softcapping cache_implementation "
                "rope_local_base_freq use_bidirectional_attention"),
)  # fmt: skip

DENSE: dict[str, Family] = {
    "llama": Family(read=_llama, inert=inert("max_sequence_length")),
    "internlm": Family(read=_internlm, inert=inert("rotary")),
    "mistral": Family(read=_mistral),
    "qwen2": Family(read=_qwen2, inert=inert("use_mrope")),
    "qwen3": Family(read=_qwen3, inert=inert("use_mrope")),
    "gemma": Family(read=_gemma, inert=inert("hidden_activation use_bidirectional_attention")),
    "gemma2": Family(
        read=_gemma2,
        inert=inert("hidden_activation query_pre_attn_scalar attn_logit_softcapping final_logit_softcapping cache_implementation "
                    "sliding_window_size use_bidirectional_attention"),
    ),
    "gemma3_text": GEMMA3_TEXT,
    "gemma3": Family(
        read=_gemma3,
        inert=inert("vision_config mm_tokens_per_image boi_token_index eoi_token_index image_token_index boi_token_id eoi_token_id "
                    "image_token_id tie_word_embeddings"),
    ),
    "phi3": Family(read=_phi3, inert=inert("original_max_position_embeddings partial_rotary_factor")),
    "nemotron": Family(read=_nemotron, inert=inert("partial_rotary_factor rope_percent rope_percentage")),
}  # fmt: skip
