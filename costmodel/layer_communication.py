"""What the ranks of a layer say to each other: where the groups sit, and seconds of each exchange of one micro-batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .columns import Floats, StrategyColumns
from .communication import all_gather_seconds, all_reduce_seconds, all_to_all_seconds, p2p_seconds, reduce_scatter_seconds
from .inputs import Inputs
from .sharding import RING, ULYSSES, Shard
from .topology import Group, LinkColumns, apart, choose, place, place_product


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Where the groups that talk inside a layer sit."""

    tensor: Group
    context: Group
    expert: Group
    expert_tensor: Group
    data: Group
    """Data- and context-parallel ranks together (of both ranks of a stage under DualPipe): they reduce dense gradients."""
    expert_data: Group
    data_shard: Group
    """The ranks among them that share one copy of what ZeRO shards."""
    data_replicas: Group
    """Ranks that hold the same shard."""
    expert_shard: Group
    expert_replicas: Group

    @classmethod
    def of(cls, inputs: Inputs, shard: Shard) -> Groups:
        """Placement by the rank order: tp-cp-dp-pp of the dense grid and etp-ep-edp-pp of the expert grid, or with pp before the replicas.

        Where stages lie between replicas the expert axes are taken to fold over tp x cp, as the rule ``rank_order_experts`` asks.
        """
        one, links = np.ones_like(shard.tp), inputs.links
        return cls(
            tensor=place(shard.tp, one, links),
            context=place(shard.cp, shard.tp, links),
            expert=place(shard.ep, shard.etp, links),
            expert_tensor=place(shard.etp, one, links),
            **_replica_groups(shard, links),
        )


def _replica_groups(shard: Shard, links: LinkColumns) -> dict[str, Group]:
    """The groups that reduce gradients and share states, of the dense and of the expert grid."""
    data = shard.cp * shard.dp * shard.stage_copies
    experts = shard.ep * shard.etp
    expert_data = np.maximum(shard.tp * data / experts, 1)
    found = _contiguous(data, shard.tp, shard.shard_group, links, names=_DENSE)
    found |= _contiguous(expert_data, experts, shard.shard_group, links, names=_EXPERT)
    if not np.any(shard.stages_first):
        return found
    axes = ((shard.cp, shard.tp), (shard.dp, shard.stage_stride * shard.pp), _copies(shard))
    expert_replicas = np.maximum(expert_data / shard.stage_copies, 1)
    expert_axes = ((expert_replicas, experts * shard.pp), _copies(shard))
    spread = _spread(axes, np.minimum(shard.shard_group, data), links, names=_DENSE)
    spread |= _spread(expert_axes, np.minimum(shard.shard_group, expert_data), links, names=_EXPERT)
    return {name: choose(shard.stages_first, spread[name], group) for name, group in found.items()}


_DENSE = ("data", "data_shard", "data_replicas")
_EXPERT = ("expert_data", "expert_shard", "expert_replicas")
_Axes = tuple[tuple[Floats, Floats], ...]


def _contiguous(size: Floats, stride: Floats, shard_group: Floats, links: LinkColumns, *, names: tuple[str, str, str]) -> dict[str, Group]:
    """All replicas, those that share one copy and those that hold the same share, where replicas are ``stride`` apart."""
    whole, within, across = names
    shared = np.minimum(shard_group, size)
    return {whole: place(size, stride, links), within: place(shared, stride, links), across: place(size / shared, stride * shared, links)}


def _spread(axes: _Axes, shared: Floats, links: LinkColumns, *, names: tuple[str, str, str]) -> dict[str, Group]:
    """The same where replicas span several axes, fastest first: ``shared`` of them, counted along the axes, hold one copy.

    Shares that begin and end within an axis (2 ranks of 3 x 2) are no product of axes: each of their ranks is put in a domain of its own.
    """
    whole, within, across = names
    fastest = axes[0][0]
    far = np.where((np.fmod(shared, fastest) == 0) | (np.fmod(fastest, shared) == 0), 1.0, apart(links))
    inside: list[tuple[Floats, Floats]] = []
    outside: list[tuple[Floats, Floats]] = []
    left = shared
    for size, stride in axes:
        part = np.gcd(np.rint(left).astype(np.int64), np.rint(size).astype(np.int64)).astype(np.float64)
        inside.append((part, stride * far))
        outside.append((size / part, stride * part * far))
        left = left / part
    inside.append((left, stride * size))  # what does not divide lies anywhere
    return {whole: place_product(axes, links), within: place_product(inside, links), across: place_product(outside, links)}


def _copies(shard: Shard) -> tuple[Floats, Floats]:
    """The ranks that hold the same stage under DualPipe, r and p - 1 - r: in one domain just where the whole pipeline is."""
    return shard.stage_copies, np.maximum(shard.stage_stride * shard.pp / 2, 1)


def tensor_message_bytes(inputs: Inputs, shard: Shard) -> Floats:
    """A layer's output on one rank, whole: what its reductions over the tensor-parallel group move."""
    return np.asarray(shard.tokens * inputs.model.hidden * inputs.training.activation_bytes)


def expert_message_bytes(inputs: Inputs, shard: Shard, groups: Groups) -> tuple[Floats, Floats]:
    """What a rank of mean load sends to the experts in one dispatch, and the rows that the expert-tensor group gathers.

    Each rank sends the ``experts_per_token`` copies of the tokens it owns (tokens / tp of them); without duplicates, one
    to each of the d domains that hold some of a token's k experts, d (1 - (1 - 1/d)^k) of them on average.
    """
    domains = groups.expert.num_domains
    copies = inputs.model.experts_per_token
    distinct = domains * (1 - (1 - 1 / domains) ** copies)
    copies = np.where((inputs.framework.expert_deduplicated > 0) & (domains > 1), np.minimum(distinct, copies), copies)
    width = inputs.model.hidden * inputs.training.activation_bytes
    return np.asarray(copies * shard.tokens / shard.tp * width), np.asarray(shard.expert_rows * width)


def context_message_bytes(inputs: Inputs, shard: Shard) -> tuple[Floats, Floats]:
    """The keys and values of one rank, which a ring passes on or a gather collects; and all four tensors that Ulysses exchanges."""
    model, e = inputs.model, inputs.training.activation_bytes
    kv_width = np.where(
        model.latent > 0, shard.local_heads * (model.qk_head_dim + model.v_head_dim), 2 * shard.local_kv_heads * model.v_head_dim
    )
    heads = shard.tokens * (shard.local_heads * (model.qk_head_dim + model.v_head_dim) + kv_width) * e
    return np.asarray(shard.tokens * kv_width * e), np.asarray(heads)


def tensor_collective_seconds(inputs: Inputs, shard: Shard, groups: Groups) -> Floats:
    """One reduction of a layer's output over the tensor-parallel group: an all-reduce, or under sequence
    parallelism a reduce-scatter and the all-gather before the next block (Korthikanti 2022, section 4.2.2)."""
    size = tensor_message_bytes(inputs, shard)
    reduced = all_reduce_seconds(size, groups.tensor, inputs.links)
    if not np.any(shard.sp > 0):
        return reduced
    split = reduce_scatter_seconds(size, groups.tensor, inputs.links) + all_gather_seconds(size, groups.tensor, inputs.links)
    return np.where(shard.sp > 0, split, reduced)


def expert_exchange_seconds(inputs: Inputs, shard: Shard, groups: Groups) -> Floats:
    """Dispatch and combine of one forward pass, and the expert-tensor gathers around them (:func:`expert_message_bytes`)."""
    sent, rows = expert_message_bytes(inputs, shard, groups)
    exchange = 2 * all_to_all_seconds(sent * inputs.framework.expert_imbalance, groups.expert, inputs.links)
    gathered = all_gather_seconds(rows, groups.expert_tensor, inputs.links) + reduce_scatter_seconds(
        rows, groups.expert_tensor, inputs.links
    )
    return exchange + gathered


def context_seconds(inputs: Inputs, shard: Shard, groups: Groups, forward: Floats, backward: Floats) -> tuple[Floats, Floats]:
    """Exposed key-value exchange: ring blocks hide behind attention; a gather comes before it, and Ulysses' four all-to-alls around it."""
    zero = 0 * forward
    if not np.any(shard.cp > 1):
        return zero, zero
    links = inputs.links
    block, heads = context_message_bytes(inputs, shard)
    context = groups.context
    hop = p2p_seconds(block, context.crosses, links, sharing=context.concurrent_groups, beyond=context.beyond)
    ring = (shard.cp - 1) * hop
    gathered = all_gather_seconds(block * shard.cp, groups.context, links)
    exchanged = all_to_all_seconds(heads, groups.context, links)
    overlap = inputs.framework.context_overlap
    ring_forward = ring - overlap * np.minimum(ring, forward)
    ring_backward = 2 * ring - overlap * np.minimum(2 * ring, backward)
    kinds = [shard.cp_kind == RING, shard.cp_kind == ULYSSES]
    return np.select(kinds, [ring_forward, exchanged], gathered), np.select(kinds, [ring_backward, exchanged], 2 * gathered)


def sharded_seconds(
    inputs: Inputs, strategies: StrategyColumns, groups: Groups, parameters: tuple[Floats, Floats], cover: tuple[Floats, Floats]
) -> tuple[Floats, Floats]:
    """Exposed seconds of ZeRO-3: gather the layer before each pass and scatter its gradients after the backward one.

    Within the shard group; its replicas add up their shards of the gradients (hybrid sharding).

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
    gather, scatter = zero, zero
    for count, within, across in (
        (dense_parameters, groups.data_shard, groups.data_replicas),
        (expert_parameters, groups.expert_shard, groups.expert_replicas),
    ):
        gather = gather + all_gather_seconds(count * training.parameter_gather_bytes, within, links)
        scatter = scatter + scattered_seconds(count * training.gradient_reduce_bytes, within, across, links)
    gather, scatter = gather / inputs.framework.sharded_bandwidth_share, scatter / inputs.framework.sharded_bandwidth_share
    forward = np.maximum(gather - overlap * cover_forward, (1 - overlap) * gather)
    backward = np.maximum(gather + scatter - overlap * cover_backward, (1 - overlap) * (gather + scatter))
    return np.where(is_sharded, forward, zero), np.where(is_sharded, backward, zero)


def scattered_seconds(gradient_bytes: Floats, within: Group, across: Group, links: LinkColumns) -> Floats:
    """Seconds to reduce gradients to the shards of ``within`` and to add the shards up over the replicas ``across``."""
    return reduce_scatter_seconds(gradient_bytes, within, links) + all_reduce_seconds(gradient_bytes / within.size, across, links)
