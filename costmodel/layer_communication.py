"""What the ranks of a layer say to each other: where the groups sit, and seconds of each exchange of one micro-batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .columns import Floats, StrategyColumns
from .communication import all_gather_seconds, all_reduce_seconds, all_to_all_seconds, p2p_seconds, reduce_scatter_seconds
from .inputs import Inputs
from .sharding import RING, ULYSSES, Shard
from .topology import Group, place


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Where the groups that talk inside a layer sit."""

    tensor: Group
    context: Group
    expert: Group
    expert_tensor: Group
    data: Group
    """Data- and context-parallel ranks together: the ones that reduce dense gradients."""
    expert_data: Group

    @classmethod
    def of(cls, inputs: Inputs, shard: Shard) -> Groups:
        """Placement by the rank order tp-cp-dp-pp of the dense grid and etp-ep-edp-pp of the expert grid."""
        one = np.ones_like(shard.tp)
        expert_data = np.maximum(shard.tp * shard.cp * shard.dp / (shard.ep * shard.etp), 1)
        links = inputs.links
        return cls(
            tensor=place(shard.tp, one, links),
            context=place(shard.cp, shard.tp, links),
            expert=place(shard.ep, shard.etp, links),
            expert_tensor=place(shard.etp, one, links),
            data=place(shard.cp * shard.dp, shard.tp, links),
            expert_data=place(expert_data, shard.ep * shard.etp, links),
        )


def tensor_collective_seconds(inputs: Inputs, shard: Shard, groups: Groups) -> Floats:
    """One reduction of a layer's output over the tensor-parallel group: an all-reduce, or under sequence
    parallelism a reduce-scatter and the all-gather before the next block (Korthikanti 2022, section 4.2.2)."""
    size = shard.tokens * inputs.model.hidden * inputs.training.activation_bytes
    reduced = all_reduce_seconds(size, groups.tensor, inputs.links)
    if not np.any(shard.sp > 0):
        return reduced
    split = reduce_scatter_seconds(size, groups.tensor, inputs.links) + all_gather_seconds(size, groups.tensor, inputs.links)
    return np.where(shard.sp > 0, split, reduced)


def expert_exchange_seconds(inputs: Inputs, shard: Shard, groups: Groups) -> Floats:
    """Dispatch and combine of one forward pass, and the expert-tensor gathers around them.

    Each rank sends the ``experts_per_token`` copies of the tokens it owns (tokens / tp of them); without duplicates, one
    to each of the d domains that hold some of a token's k experts, d (1 - (1 - 1/d)^k) of them on average.
    """
    domains = groups.expert.num_domains
    copies = inputs.model.experts_per_token
    distinct = domains * (1 - (1 - 1 / domains) ** copies)
    copies = np.where((inputs.framework.expert_deduplicated > 0) & (domains > 1), np.minimum(distinct, copies), copies)
    sent = copies * shard.tokens / shard.tp * inputs.model.hidden * inputs.training.activation_bytes
    rows = shard.expert_rows * inputs.model.hidden * inputs.training.activation_bytes
    exchange = 2 * all_to_all_seconds(sent * inputs.framework.expert_imbalance, groups.expert, inputs.links)
    gathered = all_gather_seconds(rows, groups.expert_tensor, inputs.links) + reduce_scatter_seconds(
        rows, groups.expert_tensor, inputs.links
    )
    return exchange + gathered


def context_seconds(inputs: Inputs, shard: Shard, groups: Groups, forward: Floats, backward: Floats) -> tuple[Floats, Floats]:
    """Exposed key-value exchange: ring blocks and gathers hide behind attention, Ulysses' four all-to-alls do not."""
    zero = 0 * forward
    if not np.any(shard.cp > 1):
        return zero, zero
    model, e, links = inputs.model, inputs.training.activation_bytes, inputs.links
    kv_width = np.where(
        model.latent > 0, shard.local_heads * (model.qk_head_dim + model.v_head_dim), 2 * shard.local_kv_heads * model.v_head_dim
    )
    block = shard.tokens * kv_width * e
    crosses = groups.context.num_domains > 1
    ring = (shard.cp - 1) * p2p_seconds(block, crosses, links, sharing=groups.context.concurrent_groups)
    gathered = all_gather_seconds(block * shard.cp, groups.context, links)
    heads = shard.tokens * (shard.local_heads * (model.qk_head_dim + model.v_head_dim) + kv_width) * e
    exchanged = all_to_all_seconds(heads, groups.context, links)
    overlap = inputs.framework.context_overlap
    is_ring, is_ulysses = shard.cp_kind == RING, shard.cp_kind == ULYSSES
    ahead = np.where(is_ring, ring, gathered)
    hidden_forward = ahead - overlap * np.minimum(ahead, forward)
    hidden_backward = 2 * ahead - overlap * np.minimum(2 * ahead, backward)
    return np.where(is_ulysses, exchanged, hidden_forward), np.where(is_ulysses, exchanged, hidden_backward)


def sharded_seconds(
    inputs: Inputs, strategies: StrategyColumns, groups: Groups, parameters: tuple[Floats, Floats], cover: tuple[Floats, Floats]
) -> tuple[Floats, Floats]:
    """Exposed seconds of ZeRO-3: gather the layer before each pass and scatter its gradients after the backward one.

    A layer's transfers hide behind the compute of its neighbour, which is as long as its own.

    Args:
        parameters: of the layer, dense and expert.
        cover: seconds of the pass that they may hide behind, forward and backward.
    """
    (dense_parameters, expert_parameters), (cover_forward, cover_backward) = parameters, cover
    zero = 0 * cover_forward
    is_sharded = strategies.zero_stage == 3
    if not np.any(is_sharded):
        return zero, zero
    training, links, overlap = inputs.training, inputs.links, inputs.framework.sharded_overlap
    gather = all_gather_seconds(dense_parameters * training.parameter_gather_bytes, groups.data, links)
    gather = gather + all_gather_seconds(expert_parameters * training.parameter_gather_bytes, groups.expert_data, links)
    scatter = reduce_scatter_seconds(dense_parameters * training.gradient_reduce_bytes, groups.data, links)
    scatter = scatter + reduce_scatter_seconds(expert_parameters * training.gradient_reduce_bytes, groups.expert_data, links)
    gather, scatter = gather / inputs.framework.sharded_bandwidth_share, scatter / inputs.framework.sharded_bandwidth_share
    forward = np.maximum(gather - overlap * cover_forward, (1 - overlap) * gather)
    backward = np.maximum(gather + scatter - overlap * cover_backward, (1 - overlap) * (gather + scatter))
    return np.where(is_sharded, forward, zero), np.where(is_sharded, backward, zero)
