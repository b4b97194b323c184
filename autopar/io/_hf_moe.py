"""Readers of mixture-of-experts families: Mixtral, Qwen, DeepSeek and Kimi, gpt-oss, Llama 4, Grok-1."""

from __future__ import annotations

from dataclasses import replace

from autopar.costmodel.spec.model import MAX_EXPERTS, MAX_LAYERS, LatentAttention, MixtureOfExperts, ModelSpec

from ._hf_common import CHUNKED, MAX_POSITIONS, Family, SizeKeys, count_layers, every_layer, inert, read_sizes, read_window
from ._hf_dense import nested_text, qwen_window
from ._hf_fields import Fields

_ROUTER = "router_aux_loss_coef router_jitter_noise norm_topk_prob"


def _mixtral(fields: Fields, name: str) -> ModelSpec:
    keys = SizeKeys(default_kv_heads=8, default_positions=4096 * 32, default_rotary_base=1e6, default_norm_epsilon=1e-5)
    sizes = read_sizes(fields, keys)
    experts = fields.integer("num_local_experts", "num_experts", default=8, maximum=MAX_EXPERTS)
    chosen = fields.integer("num_experts_per_tok", default=2, maximum=MAX_EXPERTS)
    window, layers = read_window(fields, sizes.num_layers, every_layer)
    moe = MixtureOfExperts(num_experts=experts, experts_per_token=chosen, ffn_hidden_size=sizes.ffn_hidden_size)
    return replace(sizes.model(name, gated_mlp=True), moe=moe, sliding_window=window, num_sliding_layers=layers)


def _grok(fields: Fields, name: str) -> ModelSpec:
    sizes = read_sizes(fields, SizeKeys(default_tied=True, default_positions=8192, default_norm_epsilon=1e-5))
    experts = fields.integer("num_experts", "num_local_experts", maximum=MAX_EXPERTS)
    chosen = fields.integer("num_experts_per_tok", "num_selected_experts", maximum=MAX_EXPERTS)
    moe = MixtureOfExperts(num_experts=experts, experts_per_token=chosen, ffn_hidden_size=sizes.ffn_hidden_size)
    return replace(sizes.model(name, gated_mlp=True), moe=moe, norms_per_layer=4)


def _qwen_experts(fields: Fields, num_layers: int, *, experts: int | None, chosen: int, width: int, shared: int) -> MixtureOfExperts:
    """Experts in every ``decoder_sparse_step``-th layer, but for those of ``mlp_only_layers``."""
    step = fields.integer("decoder_sparse_step", default=1, maximum=MAX_LAYERS)
    dense = fields.integers("mlp_only_layers", limit=num_layers) or ()
    first_dense = len(dense)
    if sorted(dense) != list(range(first_dense)) or (dense and step > 1):
        fields.refuse("mlp_only_layers", dense, "dense layers are counted only at the start, and with decoder_sparse_step=1")
        first_dense = 0
    return MixtureOfExperts(
        num_experts=fields.integer("num_experts", "num_local_experts", default=experts, maximum=MAX_EXPERTS),
        experts_per_token=fields.integer("num_experts_per_tok", default=chosen, maximum=MAX_EXPERTS),
        ffn_hidden_size=fields.integer("moe_intermediate_size", default=width),
        shared_expert_ffn_hidden_size=fields.integer("shared_expert_intermediate_size", default=shared, minimum=0) if shared else 0,
        first_dense_layers=first_dense,
        layer_frequency=step,
        shared_expert_gate=bool(shared),
    )


def _qwen2_moe(fields: Fields, name: str) -> ModelSpec:
    sizes = read_sizes(fields, SizeKeys(default_kv_heads=16, default_positions=32768))
    moe = _qwen_experts(fields, sizes.num_layers, experts=60, chosen=4, width=1408, shared=5632)
    window, layers = qwen_window(fields, sizes.num_layers, lambda index, limit: index % 2 == 0 and index < limit)
    bias = fields.flag("qkv_bias", default=True)
    spec = replace(sizes.model(name, gated_mlp=True), moe=moe, qkv_bias=bias)
    return replace(spec, sliding_window=window, num_sliding_layers=layers)


def _qwen3_moe(fields: Fields, name: str) -> ModelSpec:
    sizes = read_sizes(fields, SizeKeys(default_kv_heads=4, default_positions=32768))
    moe = _qwen_experts(fields, sizes.num_layers, experts=128, chosen=8, width=768, shared=0)
    window, layers = qwen_window(fields, sizes.num_layers, lambda _index, _limit: True)
    bias = fields.flag("attention_bias", default=False)
    spec = replace(sizes.model(name, gated_mlp=True), moe=moe, qk_norm=True, qkv_bias=bias, attention_output_bias=bias)
    return replace(spec, sliding_window=window, num_sliding_layers=layers)


def _deepseek(fields: Fields, name: str, *, router_bias: bool) -> ModelSpec:
    """Multi-head latent attention, dense layers first, shared experts as one feed-forward of their summed width."""
    sizes = read_sizes(fields, SizeKeys(head_dim=(), default_positions=4096))
    width = fields.integer("moe_intermediate_size")
    shared = fields.integer("n_shared_experts", default=0, minimum=0, maximum=MAX_EXPERTS)
    moe = MixtureOfExperts(
        num_experts=fields.integer("n_routed_experts", maximum=MAX_EXPERTS),
        experts_per_token=fields.integer("num_experts_per_tok", maximum=MAX_EXPERTS),
        ffn_hidden_size=width,
        shared_expert_ffn_hidden_size=shared * width,
        first_dense_layers=fields.integer("first_k_dense_replace", default=0, minimum=0, maximum=MAX_LAYERS),
        router_bias=router_bias,
    )
    attention = LatentAttention(
        query_lora_rank=fields.integer("q_lora_rank", default=0, minimum=0),
        kv_lora_rank=fields.integer("kv_lora_rank"),
        qk_nope_head_dim=fields.integer("qk_nope_head_dim"),
        qk_rope_head_dim=fields.integer("qk_rope_head_dim"),
        v_head_dim=fields.integer("v_head_dim"),
    )
    fields.only("moe_layer_freq", allowed=(1,), default=1, why="expert layers that alternate with dense ones are not counted")
    fields.only("attention_bias", allowed=(False,), default=False, why="latent attention with biases is not counted")
    fields.only("mlp_bias", allowed=(False,), default=False, why="a DeepSeek feed-forward with biases is not counted")
    mtp = fields.integer("num_nextn_predict_layers", "num_mtp_layers", default=0, minimum=0, maximum=MAX_LAYERS)
    spec = replace(sizes, head_dim=attention.v_head_dim).model(name, gated_mlp=True)
    return replace(spec, latent_attention=attention, moe=moe, mtp_layers=mtp)


def _deepseek_v2(fields: Fields, name: str) -> ModelSpec:
    return _deepseek(fields, name, router_bias=False)


def _deepseek_v3(fields: Fields, name: str) -> ModelSpec:
    fields.only("topk_method", allowed=("noaux_tc",), default="noaux_tc", why="DeepSeek-V3 balances its experts by a bias")
    return _deepseek(fields, name, router_bias=True)


def _gpt_oss(fields: Fields, name: str) -> ModelSpec:
    keys = SizeKeys(
        default_kv_heads=8, default_head_dim=64, default_positions=131072, default_rotary_base=150_000.0, default_norm_epsilon=1e-5,
    )  # fmt: skip
    sizes = read_sizes(fields, keys)
    window, layers = read_window(fields, sizes.num_layers, lambda index: index % 2 == 0, default=128)
    bias = fields.flag("attention_bias", default=True)
    moe = MixtureOfExperts(
        num_experts=fields.integer("num_local_experts", "num_experts", default=128, maximum=MAX_EXPERTS),
        experts_per_token=fields.integer("num_experts_per_tok", "experts_per_token", default=4, maximum=MAX_EXPERTS),
        ffn_hidden_size=sizes.ffn_hidden_size,
        router_bias=True,
        expert_bias=True,
    )
    spec = replace(sizes.model(name, gated_mlp=True), moe=moe, attention_sinks=True, qkv_bias=bias, attention_output_bias=bias)
    return replace(spec, sliding_window=window, num_sliding_layers=layers)


def _llama4_text(fields: Fields, name: str) -> ModelSpec:
    """Experts of ``intermediate_size`` beside one shared expert as wide; dense layers of ``intermediate_size_mlp``.

    Chunked attention counts as a sliding window of the chunk's length.
    """
    keys = SizeKeys(
        default_kv_heads=8, default_head_dim=128, default_positions=131072, default_rotary_base=500_000.0, default_norm_epsilon=1e-5,
    )  # fmt: skip
    sizes = read_sizes(fields, keys)
    dense = fields.integer("intermediate_size_mlp", default=16384)
    step = fields.integer("interleave_moe_layer_step", default=1, maximum=MAX_LAYERS)
    moe_layers = fields.integers("moe_layers", limit=sizes.num_layers)
    if moe_layers is not None and moe_layers != tuple(range(step - 1, sizes.num_layers, step)):
        fields.refuse("moe_layers", moe_layers, f"must be every {step}. layer, as interleave_moe_layer_step={step} says")
    chunk = fields.integer("attention_chunk_size", default=8192, minimum=0, maximum=MAX_POSITIONS)
    chunked = count_layers(fields, CHUNKED, sizes.num_layers, _rotary_layers(fields, sizes.num_layers).__getitem__)
    bias = fields.flag("attention_bias", default=False)
    moe = MixtureOfExperts(
        num_experts=fields.integer("num_local_experts", default=16, maximum=MAX_EXPERTS),
        experts_per_token=fields.integer("num_experts_per_tok", default=1, maximum=MAX_EXPERTS),
        ffn_hidden_size=sizes.ffn_hidden_size,
        shared_expert_ffn_hidden_size=sizes.ffn_hidden_size,
        layer_frequency=step,
    )
    spec = replace(replace(sizes, ffn_hidden_size=dense).model(name, gated_mlp=True), moe=moe)
    spec = replace(spec, qkv_bias=bias, attention_output_bias=bias)
    return replace(spec, sliding_window=chunk, num_sliding_layers=chunked) if chunk and chunked else spec


def _rotary_layers(fields: Fields, num_layers: int) -> tuple[bool, ...]:
    """Which layers have rotary positions, and so attend in chunks: ``no_rope_layers`` (1 means rotary), or all but every k-th."""
    interval = fields.integer("no_rope_layer_interval", default=4)
    stated = fields.integers("no_rope_layers", limit=num_layers)
    if stated and len(stated) == num_layers:
        return tuple(value != 0 for value in stated)
    if stated:
        fields.refuse("no_rope_layers", stated, f"must have {num_layers:,} entries, one a layer")
    return tuple((index + 1) % interval != 0 for index in range(num_layers))


def _llama4(fields: Fields, name: str) -> ModelSpec:
    """The text part of the multimodal files; the vision tower is not counted."""
    return nested_text(fields, name, "llama4_text", _LLAMA4_TEXT)


_LLAMA4_TEXT = Family(
    read=_llama4_text,
    inert=inert(f"use_qk_norm attn_temperature_tuning floor_scale attn_scale for_llm_compressor {_ROUTER}"),
)
_DEEPSEEK_INERT = inert(
    f"aux_loss_alpha ep_size head_dim n_group qk_head_dim rope_interleave routed_scaling_factor scoring_func seq_aux topk_group {_ROUTER}"
)

MOE: dict[str, Family] = {
    "mixtral": Family(read=_mixtral, inert=inert(_ROUTER)),
    "grok-1": Family(
        read=_grok,
        inert=inert(f"attn_output_multiplier embedding_multiplier_scale max_attn_value output_multiplier_scale {_ROUTER}"),
    ),
    "qwen2_moe": Family(read=_qwen2_moe, inert=inert(_ROUTER)),
    "qwen3_moe": Family(read=_qwen3_moe, inert=inert(_ROUTER)),
    "deepseek_v2": Family(read=_deepseek_v2, inert=_DEEPSEEK_INERT | {"topk_method"}),
    "deepseek_v3": Family(read=_deepseek_v3, inert=_DEEPSEEK_INERT),
    "kimi_k2": Family(read=_deepseek_v3, inert=_DEEPSEEK_INERT),
    "gpt_oss": Family(read=_gpt_oss, inert=inert(f"initial_context_length swiglu_alpha swiglu_limit {_ROUTER}")),
    "llama4_text": _LLAMA4_TEXT,
    "llama4": Family(
        read=_llama4,
        inert=inert("vision_config boi_token_index eoi_token_index image_token_index boi_token_id eoi_token_id image_token_id "
                    "tie_word_embeddings"),
    ),
}  # fmt: skip
