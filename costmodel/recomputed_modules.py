"""What selective recomputation repeats, module by module: the bytes it frees and the operators it runs again.

A module's outputs are dropped once they have been read and made anew in the backward pass, from what is kept before it. Modules
and their names are Megatron's (``--recompute-modules``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from . import operators
from .columns import Floats
from .inputs import Inputs
from .operators import Gemm
from .sharding import Shard
from .spec.strategy import RecomputeModule


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedWork:
    """Forward work that one kind of layer does again, each part 0 where a strategy does not ask for its module."""

    gemms: tuple[tuple[Floats, Gemm], ...]
    """Products, with 1 where they are repeated."""
    traffic: Floats
    """Bytes of memory-bound operators at ``elementwise_forward_passes``."""
    core_attention: Floats
    """1 where the attention core runs again, with its scores and its exchange over context-parallel ranks."""
    expert_exchange: Floats
    """1 where routed rows are sent again."""
    reductions: Floats
    """Outputs reduced over the tensor-parallel group again."""


def repeated_work(inputs: Inputs, shard: Shard, *, moe: bool) -> RepeatedWork:
    """What the modules of each strategy repeat in a dense layer, or in one with experts."""
    model, framework, e = inputs.model, inputs.framework, inputs.training.activation_bytes
    projections = operators.attention_projections(inputs, shard)
    up, mlp, experts = (shard.repeats(name) for name in (RecomputeModule.MLA_UP_PROJ, RecomputeModule.MLP, RecomputeModule.MOE))
    shared = np.maximum(experts, shard.repeats(RecomputeModule.SHARED_EXPERTS))
    gemms = [(up, projections[2]), (up, projections[4])]
    rotated = 2 * e * shard.tokens * shard.local_heads * 2 * model.qk_head_dim * model.rotary * framework.rotary_passes
    traffic = up * rotated * (model.latent > 0) + 2 * e * model.hidden * _normed_tokens(inputs, shard, moe=moe)
    if not moe:
        gemms += [(mlp, gemm) for gemm in operators.feed_forward(inputs, shard, model.ffn)]
        traffic = traffic + mlp * operators.feed_forward_traffic(inputs, shard, model.ffn).forward
        return RepeatedWork(
            gemms=tuple(gemms),
            traffic=traffic,
            core_attention=shard.repeats(RecomputeModule.CORE_ATTN),
            expert_exchange=0 * mlp,
            reductions=mlp,
        )
    gemms += [(experts, gemm) for gemm in operators.expert_feed_forward(inputs, shard)]
    gemms += [(shared, gemm) for gemm in operators.feed_forward(inputs, shard, model.shared_ffn)]
    activated = shard.repeats(RecomputeModule.MOE_ACT) * (1 - experts) * operators.routed_activation_traffic(inputs, shard).forward
    return RepeatedWork(
        gemms=tuple(gemms),
        traffic=traffic + activated + experts * operators.expert_traffic(inputs, shard).forward,
        core_attention=shard.repeats(RecomputeModule.CORE_ATTN),
        expert_exchange=experts,
        reductions=shared * (model.shared_ffn > 0),
    )


def _normed_tokens(inputs: Inputs, shard: Shard, *, moe: bool) -> Floats:
    """Tokens of the norms that run again: those apart from a linear layer, before latent attention and before experts."""
    norms = (inputs.model.latent > 0) + np.where(moe, 1.0, 0.0)
    return np.asarray(shard.repeats(RecomputeModule.LAYERNORM) * shard.norm_tokens * norms)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptParts:
    """Bytes that the modules of one kind of layer keep, which :func:`freed_bytes` frees where they are recomputed."""

    scores: Floats
    up_projections: Floats
    """Latent attention's queries, keys and values."""
    norms: Floats
    """Outputs of norms that are apart from a linear layer."""
    expert_activations: Floats
    """Inputs of the experts' last product."""
    feed_forward: Floats
    """All but the input of a dense feed-forward."""
    routed: Floats
    """Router, routed rows and what experts keep of them."""
    shared: Floats
    """Inner tensors of shared experts."""


def freed_bytes(shard: Shard, parts: KeptParts) -> Floats:
    """Bytes of a layer that are not kept, by the modules of each strategy."""
    whole = shard.repeats(RecomputeModule.MOE)
    freed = shard.repeats(RecomputeModule.CORE_ATTN) * parts.scores
    freed = freed + shard.repeats(RecomputeModule.MLA_UP_PROJ) * parts.up_projections
    freed = freed + shard.repeats(RecomputeModule.LAYERNORM) * parts.norms
    freed = freed + shard.repeats(RecomputeModule.MLP) * parts.feed_forward
    freed = freed + shard.repeats(RecomputeModule.MOE_ACT) * (1 - whole) * parts.expert_activations
    return freed + whole * parts.routed + np.maximum(whole, shard.repeats(RecomputeModule.SHARED_EXPERTS)) * parts.shared
