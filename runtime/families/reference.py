"""The project's own small GPT."""

from __future__ import annotations

from typing import cast

from torch import nn

from autopar.costmodel.spec.model import MixtureOfExperts, ModelSpec, Norm, PositionEmbedding
from autopar.runtime.reference_gpt import ReferenceGPTConfig

from .family import BlockRegion, Column, Family


def _head_dim(attention: nn.Module) -> int:
    return cast(int, attention.head_dim)


REFERENCE_GPT = Family(
    name="reference-gpt",
    blocks="blocks",
    prefix=("tokens", "positions"),
    suffix=("norm", "head"),
    embedding="tokens",
    final_norm="norm",
    head="head",
    regions=(
        BlockRegion(
            module="attention",
            columns=(Column(name="query"), Column(name="key", grouped=True), Column(name="value", grouped=True)),
            rows=("output",),
            unit=_head_dim,
            what="heads",
        ),
        BlockRegion(module="feed_forward", columns=(Column(name="up"),), rows=("down",)),
        BlockRegion(module="feed_forward", experts="experts"),
    ),
)


def reference_spec(config: ReferenceGPTConfig) -> ModelSpec:
    """The shapes of a reference GPT, for the cost model."""
    width = config.ffn_hidden_size
    moe = MixtureOfExperts(num_experts=config.num_experts, experts_per_token=config.experts_per_token, ffn_hidden_size=width)
    return ModelSpec(
        name="reference-gpt",
        num_layers=config.num_layers,
        hidden_size=config.hidden_size,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        ffn_hidden_size=width,
        vocab_size=config.vocab_size,
        max_position_embeddings=config.max_position_embeddings,
        gated_mlp=config.num_experts > 0,
        norm=Norm.LAYER_NORM,
        position_embedding=PositionEmbedding.ROTARY if config.rotary else PositionEmbedding.LEARNED,
        tied_embeddings=config.tied_embeddings,
        qkv_bias=True,
        attention_output_bias=True,
        mlp_bias=not config.num_experts,
        moe=moe if config.num_experts else None,
        source="the modules of a reference GPT",
    )
