"""A model's shapes as numbers that broadcast against columns of strategies.

One model gives 0-d arrays; the rows of an accuracy table, each with a model of its own, give 1-d arrays of the same
record. Everything above is written once for both.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .columns import Floats
from .spec.model import LatentAttention, MixtureOfExperts, ModelSpec, Norm, PositionEmbedding


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelColumns:
    """Shapes (lengths in elements, flags as 0 or 1) and parameter counts of a model."""

    num_layers: Floats
    num_moe_layers: Floats
    first_dense_layers: Floats
    moe_layer_frequency: Floats
    hidden: Floats
    heads: Floats
    kv_heads: Floats
    qk_head_dim: Floats
    v_head_dim: Floats
    ffn: Floats
    vocab: Floats
    gated: Floats
    tied: Floats
    rotary: Floats
    norms_per_layer: Floats
    norm_parameters: Floats
    norm_statistics: Floats
    """fp32 values a norm keeps for each token: mean and deviation, or the root mean square alone."""
    attention_replicated_parameters: Floats
    """Norms over one head, norms of the latents, output bias: what every tensor-parallel rank holds whole."""
    attention_split_parameters: Floats
    """Biases of q, k and v, sinks, norms over all heads: vectors that tensor parallelism splits."""
    mlp_bias: Floats
    expert_bias: Floats
    router_extra_parameters: Floats
    """Router bias and the gate of the shared expert."""
    parallel_residual: Floats
    sliding_window: Floats
    sliding_fraction: Floats
    latent: Floats
    query_lora_rank: Floats
    kv_lora_rank: Floats
    rope_head_dim: Floats
    num_experts: Floats
    experts_per_token: Floats
    moe_ffn: Floats
    shared_ffn: Floats
    embedding_rows_parameters: Floats
    """Parameters of the first stage besides the token table: positions, embedding norm."""
    final_parameters: Floats
    """Parameters of the last stage besides the output matrix: final norm."""
    mtp_layers: Floats
    num_parameters: Floats
    num_active_parameters: Floats

    @classmethod
    def of(cls, model: ModelSpec) -> ModelColumns:
        """The shapes of ``model`` as 0-d arrays."""
        mla = model.latent_attention or LatentAttention(
            query_lora_rank=0, kv_lora_rank=0, qk_nope_head_dim=model.head_dim, qk_rope_head_dim=0, v_head_dim=model.head_dim
        )
        moe = model.moe or MixtureOfExperts(num_experts=1, experts_per_token=1, ffn_hidden_size=1)
        table = model.vocab_size * (model.embedding_projection_size or model.hidden_size)
        values = {
            "num_layers": model.num_layers,
            "num_moe_layers": model.num_moe_layers,
            "first_dense_layers": moe.first_dense_layers,
            "moe_layer_frequency": moe.layer_frequency,
            "hidden": model.hidden_size,
            "heads": model.num_attention_heads,
            "kv_heads": model.num_key_value_heads,
            "qk_head_dim": mla.qk_head_dim,
            "v_head_dim": mla.v_head_dim,
            "ffn": model.ffn_hidden_size,
            "vocab": model.vocab_size,
            "gated": model.gated_mlp,
            "tied": model.tied_embeddings,
            "rotary": model.position_embedding is PositionEmbedding.ROTARY,
            "norms_per_layer": model.norms_per_layer,
            "norm_parameters": model.norm_parameters,
            "norm_statistics": 1 if model.norm is Norm.RMS_NORM else 2,
            "attention_replicated_parameters": _replicated_attention_parameters(model),
            "attention_split_parameters": _split_attention_parameters(model),
            "mlp_bias": model.mlp_bias,
            "expert_bias": moe.expert_bias,
            "router_extra_parameters": moe.num_experts * moe.router_bias + model.hidden_size * moe.shared_expert_gate if model.moe else 0,
            "parallel_residual": model.parallel_residual,
            "sliding_window": model.sliding_window,
            "sliding_fraction": model.num_sliding_layers / model.num_layers if model.sliding_window else 0.0,
            "latent": model.latent_attention is not None,
            "query_lora_rank": mla.query_lora_rank,
            "kv_lora_rank": mla.kv_lora_rank,
            "rope_head_dim": mla.qk_rope_head_dim,
            "num_experts": moe.num_experts if model.moe else 0,
            "experts_per_token": moe.experts_per_token if model.moe else 0,
            "moe_ffn": moe.ffn_hidden_size if model.moe else 0,
            "shared_ffn": moe.shared_expert_ffn_hidden_size,
            "embedding_rows_parameters": model.embedding_parameters - table,
            "final_parameters": model.head_parameters - (0 if model.tied_embeddings else table),
            "mtp_layers": model.mtp_layers,
            "num_parameters": model.num_parameters,
            "num_active_parameters": model.num_active_parameters,
        }
        return cls(**{name: np.asarray(value, dtype=np.float64) for name, value in values.items()})

    @property
    def mlp_matrices(self) -> Floats:
        """Weight matrices of a feed-forward: 3 gated, 2 plain."""
        return 2 + self.gated


def _replicated_attention_parameters(model: ModelSpec) -> int:
    if model.latent_attention is not None:
        mla = model.latent_attention
        return mla.query_lora_rank + mla.kv_lora_rank
    norms = 2 * model.head_dim * (model.qk_norm and model.qk_norm_per_head)
    return norms + model.hidden_size * model.attention_output_bias


def _split_attention_parameters(model: ModelSpec) -> int:
    if model.latent_attention is not None:
        return 0
    queries, keys = model.num_attention_heads * model.head_dim, model.num_key_value_heads * model.head_dim
    norms = (queries + keys) * (model.qk_norm and not model.qk_norm_per_head)
    return (queries + 2 * keys) * model.qkv_bias + norms + model.num_attention_heads * model.attention_sinks
