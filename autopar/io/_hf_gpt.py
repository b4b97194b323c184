"""Readers of the GPT line: GPT-2, GPT-NeoX, OPT, BLOOM, MPT, Falcon and the first Phi models."""

from __future__ import annotations

from dataclasses import replace

from autopar.costmodel.spec.model import MAX_ROTARY_BASE, ModelSpec, Norm, PositionEmbedding

from ._hf_common import Family, SizeKeys, inert, read_sizes
from ._hf_fields import Fields

_NORM_EPSILON = 1e-5


def _with_biases(spec: ModelSpec, *, attention: bool = True, mlp: bool = True) -> ModelSpec:
    return replace(spec, norm=Norm.LAYER_NORM, qkv_bias=attention, attention_output_bias=attention, mlp_bias=mlp)


def _gpt2(fields: Fields, name: str) -> ModelSpec:
    keys = SizeKeys(
        layers=("n_layer", "num_hidden_layers"), hidden=("n_embd", "hidden_size"), heads=("n_head", "num_attention_heads"),
        kv_heads=(), head_dim=(), ffn=("n_inner",), positions=("n_positions", "max_position_embeddings"),
        default_ffn_ratio=4, default_positions=1024, default_tied=True, default_norm_epsilon=_NORM_EPSILON,
    )  # fmt: skip
    sizes = read_sizes(fields, keys)
    return replace(_with_biases(sizes.model(name, gated_mlp=False)), position_embedding=PositionEmbedding.LEARNED)


def _gpt_neox(fields: Fields, name: str) -> ModelSpec:
    sizes = read_sizes(fields, SizeKeys(kv_heads=(), head_dim=(), default_norm_epsilon=_NORM_EPSILON))
    bias = fields.flag("attention_bias", default=True)
    parallel = fields.flag("use_parallel_residual", default=True)
    return replace(_with_biases(sizes.model(name, gated_mlp=False), attention=bias), parallel_residual=parallel)


def _bloom(fields: Fields, name: str) -> ModelSpec:
    keys = SizeKeys(
        layers=("n_layer", "num_hidden_layers"), hidden=("hidden_size", "n_embed"), heads=("n_head", "num_attention_heads"),
        kv_heads=(), head_dim=(), ffn=(), positions=("seq_length", "max_position_embeddings"), default_ffn_ratio=4, default_tied=True,
        default_norm_epsilon=_NORM_EPSILON,
    )  # fmt: skip
    sizes = read_sizes(fields, keys)
    inner = 4 * sizes.hidden_size
    fields.only("n_inner", allowed=(inner,), default=inner, why="BLOOM's feed-forward is four times the hidden size")
    spec = _with_biases(sizes.model(name, gated_mlp=False))
    return replace(spec, position_embedding=PositionEmbedding.ALIBI, embedding_norm=True)


def _opt(fields: Fields, name: str) -> ModelSpec:
    """Position tables have two rows more than positions; OPT-350m projects a narrower embedding and has no final norm."""
    keys = SizeKeys(kv_heads=(), head_dim=(), ffn=("ffn_dim",), default_tied=True, default_norm_epsilon=_NORM_EPSILON)
    sizes = read_sizes(fields, keys)
    embedding = fields.integer("word_embed_proj_dim", default=sizes.hidden_size)
    norm_first = fields.flag("do_layer_norm_before", default=True)
    no_final_norm = fields.flag("_remove_final_layer_norm", default=False)
    bias = fields.flag("enable_bias", default=True)
    affine = fields.flag("layer_norm_elementwise_affine", default=True)
    spec = _with_biases(sizes.model(name, gated_mlp=False), attention=bias, mlp=bias)
    return replace(
        spec,
        norm=Norm.LAYER_NORM if affine else Norm.NON_PARAMETRIC,
        final_norm=norm_first and not no_final_norm,
        position_embedding=PositionEmbedding.LEARNED,
        position_embedding_rows=sizes.max_position_embeddings + 2,
        embedding_projection_size=0 if embedding == sizes.hidden_size else embedding,
    )


def _mpt(fields: Fields, name: str) -> ModelSpec:
    """``no_bias`` holds for norms too; ALiBi or rotary positions replace the learned table."""
    keys = SizeKeys(
        layers=("n_layers",), hidden=("d_model",), heads=("n_heads",), kv_heads=(), head_dim=(), ffn=(),
        positions=("max_seq_len",), default_tied=True, default_norm_epsilon=_NORM_EPSILON,
    )  # fmt: skip
    sizes = read_sizes(fields, keys)
    ratio = fields.integer("expansion_ratio", default=4)
    biased = not fields.flag("no_bias", default=True)
    learned = fields.flag("learned_pos_emb", default=True)
    fields.only("norm_type", allowed=("low_precision_layernorm", "layernorm"), default="low_precision_layernorm", why="another norm")
    attention = fields.nested("attn_config", required=False)
    attention.only("attn_type", allowed=("multihead_attention",), default="multihead_attention", why="grouped heads are not counted")
    attention.only("qk_ln", allowed=(False,), default=False, why="an MPT with query and key norms is not counted")
    alibi = attention.flag("alibi", default=True)
    rope = attention.flag("rope", default=False)
    base = attention.number("rope_theta", default=sizes.rotary_base, maximum=MAX_ROTARY_BASE)
    attention.unknown(_MPT_ATTENTION_INERT)
    feed_forward = fields.nested("ffn_config", required=False)
    feed_forward.only("ffn_type", allowed=("mptmlp",), default="mptmlp", why="only the plain feed-forward is counted")
    feed_forward.unknown(inert("model_type fc_type"))
    spec = replace(sizes, ffn_hidden_size=ratio * sizes.hidden_size, rotary_base=base).model(name, gated_mlp=False)
    spec = _with_biases(spec, attention=biased, mlp=biased)
    if alibi or rope or not learned:
        position = PositionEmbedding.ALIBI if alibi else PositionEmbedding.ROTARY if rope else PositionEmbedding.NONE
    else:
        position = PositionEmbedding.LEARNED
    return replace(spec, norm=Norm.LAYER_NORM if biased else Norm.LAYER_NORM_NO_BIAS, position_embedding=position)


def _falcon(fields: Fields, name: str) -> ModelSpec:
    """One key-value head, or groups under ``new_decoder_architecture``; one norm or two before parallel branches."""
    keys = SizeKeys(
        layers=("num_hidden_layers", "n_layer"), heads=("num_attention_heads", "n_head"), kv_heads=("num_kv_heads", "n_head_kv"),
        head_dim=(), ffn=("ffn_hidden_size",), default_ffn_ratio=4, default_tied=True, default_norm_epsilon=_NORM_EPSILON,
    )  # fmt: skip
    sizes = read_sizes(fields, keys)
    grouped = fields.flag("new_decoder_architecture", default=False)
    single = fields.flag("multi_query", default=True)
    parallel = fields.flag("parallel_attn", default=True)
    bias = fields.flag("bias", default=False)
    alibi = fields.flag("alibi", default=False)
    norms = fields.integer("num_ln_in_parallel_attn", default=2 if grouped else 1, maximum=2)
    kv_heads = sizes.num_key_value_heads if grouped else 1 if single else sizes.num_attention_heads
    spec = _with_biases(replace(sizes, num_key_value_heads=kv_heads).model(name, gated_mlp=False), attention=bias, mlp=bias)
    return replace(
        spec,
        position_embedding=PositionEmbedding.ALIBI if alibi else PositionEmbedding.ROTARY,
        norms_per_layer=norms if parallel else 2,
        parallel_residual=parallel,
    )


def _phi(fields: Fields, name: str) -> ModelSpec:
    sizes = read_sizes(fields, SizeKeys(head_dim=(), default_norm_epsilon=_NORM_EPSILON))
    fields.only("qk_layernorm", allowed=(False,), default=False, why="a Phi with query and key norms is not counted")
    spec = _with_biases(sizes.model(name, gated_mlp=False))
    return replace(spec, norms_per_layer=1, parallel_residual=True, lm_head_bias=True)


_MPT_ATTENTION_INERT = inert(
    "model_type attn_pdrop attn_impl clip_qkv softmax_scale prefix_lm attn_uses_sequence_id alibi_bias_max rope_impl"
)

GPT: dict[str, Family] = {
    "gpt2": Family(
        read=_gpt2,
        inert=inert("activation_function attn_pdrop n_ctx reorder_and_upcast_attn scale_attn_by_inverse_layer_idx scale_attn_weights "
                    "summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj"),
    ),
    "gpt_neox": Family(
        read=_gpt_neox,
        inert=inert("attention_probs_dropout_prob classifier_dropout hidden_dropout_prob partial_rotary_factor rotary_pct"),
    ),
    "bloom": Family(
        read=_bloom,
        inert=inert("apply_residual_connection_post_layernorm attention_softmax_in_fp32 bias_dropout_fusion masked_softmax_fusion "
                    "offset_alibi slow_but_exact skip_bias_add skip_bias_add_qkv"),
    ),
    "opt": Family(read=_opt, inert=inert("activation_dropout activation_function dropout init_std layerdrop output_projection")),
    "mpt": Family(
        read=_mpt,
        inert=inert("emb_pdrop embedding_fraction fc_type init_config init_device logit_scale use_pad_tok_in_ffn "
                    "tokenizer_name verbose"),
    ),
    "falcon": Family(read=_falcon, inert=inert("activation apply_residual_connection_post_layernorm")),
    "phi": Family(read=_phi, inert=inert("partial_rotary_factor")),
}  # fmt: skip
