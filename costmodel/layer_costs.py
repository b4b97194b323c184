"""Everything about one layer, the ends and the boundary between stages that does not depend on the pipeline's shape."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from . import layer, memory, operator_shares, operators
from .columns import Bools, Floats, StrategyColumns
from .communication import all_reduce_seconds, p2p_seconds
from .compute import GemmLayout, gemm_seconds, memory_curve, memory_seconds
from .inputs import Inputs
from .layer import LayerTimes
from .layer_communication import Groups
from .memory import LayerActivations
from .sharding import LocalParameters, Shard
from .topology import Spread, choose, crosses_domain, far_hops


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTimes:
    """Seconds of the parts of a micro-batch outside the layers, forward and backward."""

    embedding_forward: Floats
    embedding_backward: Floats
    head_forward: Floats
    head_backward: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSizes:
    """The bytes and sizes of one layer and the ends, which do not depend on the pipeline's shape, one row a strategy."""

    dense_activations: LayerActivations
    moe_activations: LayerActivations
    logits: Floats
    local: LocalParameters
    shard: Shard
    groups: Groups


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCosts(LayerSizes):
    """The sizes of one layer and the ends, and their seconds."""

    dense: LayerTimes
    moe: LayerTimes
    ends: EndTimes
    boundary: Floats
    """Seconds to send one micro-batch's activations to the next pipeline rank."""


def layer_sizes(inputs: Inputs, strategies: StrategyColumns) -> LayerSizes:
    """Sizes of one layer for each strategy: all that its memory depends on."""
    shard = Shard.of(inputs, strategies)
    has_experts = bool(np.any(inputs.model.num_experts > 0))
    dense_activations = memory.layer_activations(inputs, shard, moe=False)
    return LayerSizes(
        dense_activations=dense_activations,
        moe_activations=memory.layer_activations(inputs, shard, moe=True) if has_experts else dense_activations,
        logits=memory.logits_bytes(inputs, shard),
        local=LocalParameters.of(inputs, shard),
        shard=shard,
        groups=Groups.of(inputs, shard),
    )


def layer_costs(inputs: Inputs, strategies: StrategyColumns) -> LayerCosts:
    """Costs of one layer for each strategy."""
    sizes = layer_sizes(inputs, strategies)
    shard, local, groups = sizes.shard, sizes.local, sizes.groups
    dense = layer.dense_layer(inputs, strategies, shard, groups, local)
    has_experts = bool(np.any(inputs.model.num_experts > 0))
    return LayerCosts(
        dense=dense,
        moe=layer.moe_layer(inputs, strategies, shard, groups, local) if has_experts else dense,
        ends=_end_times(inputs, shard, groups),
        boundary=_boundary_seconds(inputs, shard),
        **{field.name: getattr(sizes, field.name) for field in fields(LayerSizes)},
    )


def _end_times(inputs: Inputs, shard: Shard, groups: Groups) -> EndTimes:
    """Embedding: rows read and written, reduced over TP. Head: the GEMM, the loss's traffic, its reductions over TP."""
    e, device = inputs.training.activation_bytes, inputs.wide_device
    embedded = shard.tokens * inputs.model.hidden * e
    reduced = all_reduce_seconds(embedded, groups.tensor, inputs.links)
    product = operators.head(inputs, shard)
    loss = memory_curve(device, operators.loss_bytes(inputs, shard))
    loss_share, loss_backward_share = operator_shares.loss_shares(inputs, shard)
    scalars = all_reduce_seconds(shard.tokens * 4 * 3, groups.tensor, inputs.links)
    share = inputs.framework.gemm_share
    forward = gemm_seconds(device, product.m, product.n, product.k)
    gradients = gemm_seconds(device, product.m, product.k, product.n, layout=GemmLayout.INPUT_GRADIENT)
    weights = gemm_seconds(device, product.n, product.k, product.m, layout=GemmLayout.WEIGHT_GRADIENT)
    return EndTimes(
        embedding_forward=memory_seconds(device, 2 * embedded) + reduced,
        embedding_backward=memory_seconds(device, 4 * embedded),
        head_forward=forward / share + loss / 2 * loss_share + scalars,
        head_backward=(gradients + weights) / share + loss / 2 * loss_backward_share + reduced,
    )


def boundary_message_bytes(inputs: Inputs, shard: Shard) -> Floats:
    """A whole micro-batch of activations, in tensor-parallel slices under sequence parallelism or Megatron's scatter-gather."""
    sliced = (shard.sp > 0) | (inputs.framework.pipeline_scatter_gather > 0)
    return np.asarray(shard.tokens * inputs.model.hidden * inputs.training.activation_bytes / np.where(sliced, shard.tp, 1))


def boundary_crosses_domain(inputs: Inputs, shard: Shard) -> Bools:
    """Whether some pipeline neighbour, ``stage_stride`` ranks away, sits in another fast domain.

    One such boundary counts for all: a pipeline of several stages a domain is charged the network's price at each.
    """
    return crosses_domain(shard.stage_stride, inputs.links, shard.pp)


def ends_cross_domain(inputs: Inputs, shard: Shard) -> Bools:
    """Whether the first and the last rank of some pipeline sit in different fast domains; never where all neighbours share one."""
    apart = crosses_domain(shard.stage_stride * (shard.pp - 1), inputs.links)
    return np.where(shard.stages_first, boundary_crosses_domain(inputs, shard), apart)


def boundary_far_hops(inputs: Inputs, shard: Shard) -> tuple[Spread, ...]:
    """:func:`boundary_crosses_domain` of the tiers beyond the network."""
    return far_hops(shard.stage_stride, inputs.links, shard.pp)


def ends_far_hops(inputs: Inputs, shard: Shard) -> tuple[Spread, ...]:
    """:func:`ends_cross_domain` of the tiers beyond the network."""
    apart = far_hops(shard.stage_stride * (shard.pp - 1), inputs.links)
    between = zip(boundary_far_hops(inputs, shard), apart, strict=True)
    return tuple(choose(shard.stages_first, neighbours, ends) for neighbours, ends in between)


def _boundary_seconds(inputs: Inputs, shard: Shard) -> Floats:
    """All ranks of a node send to their pipeline neighbours at once and share its ports."""
    size, crosses = boundary_message_bytes(inputs, shard), boundary_crosses_domain(inputs, shard)
    return np.where(shard.pp > 1, p2p_seconds(size, crosses, inputs.links, beyond=boundary_far_hops(inputs, shard)), 0.0)
