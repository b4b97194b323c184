"""Everything about one layer, the ends and the boundary between stages that does not depend on the pipeline's shape."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from . import layer, memory, operators
from .columns import Floats, StrategyColumns
from .communication import all_reduce_seconds, p2p_seconds
from .compute import GemmLayout, gemm_seconds, memory_seconds
from .inputs import Inputs
from .layer import LayerTimes
from .layer_communication import Groups
from .memory import LayerActivations
from .sharding import LocalParameters, Shard
from .topology import crosses_domain


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTimes:
    """Seconds of the parts of a micro-batch outside the layers, forward and backward."""

    embedding_forward: Floats
    embedding_backward: Floats
    head_forward: Floats
    head_backward: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCosts:
    """Everything about one layer and the ends that does not depend on the pipeline's shape, one row a strategy."""

    dense: LayerTimes
    moe: LayerTimes
    ends: EndTimes
    dense_activations: LayerActivations
    moe_activations: LayerActivations
    logits: Floats
    local: LocalParameters
    shard: Shard
    boundary: Floats
    """Seconds to send one micro-batch's activations to the next pipeline rank."""
    groups: Groups


def layer_costs(inputs: Inputs, strategies: StrategyColumns) -> LayerCosts:
    """Costs of one layer for each strategy."""
    shard = Shard.of(inputs, strategies)
    local = LocalParameters.of(inputs, shard)
    groups = Groups.of(inputs, shard)
    dense = layer.dense_layer(inputs, strategies, shard, groups, local)
    has_experts = bool(np.any(inputs.model.num_experts > 0))
    dense_activations = memory.layer_activations(inputs, shard, moe=False)
    return LayerCosts(
        dense=dense,
        moe=layer.moe_layer(inputs, strategies, shard, groups, local) if has_experts else dense,
        ends=_end_times(inputs, shard, groups),
        dense_activations=dense_activations,
        moe_activations=memory.layer_activations(inputs, shard, moe=True) if has_experts else dense_activations,
        logits=memory.logits_bytes(inputs, shard),
        local=local,
        shard=shard,
        boundary=_boundary_seconds(inputs, shard),
        groups=groups,
    )


def _end_times(inputs: Inputs, shard: Shard, groups: Groups) -> EndTimes:
    """Embedding: rows read and written, reduced over TP. Head: the GEMM, the loss's traffic, its reductions over TP."""
    e, device = inputs.training.activation_bytes, inputs.wide_device
    embedded = shard.tokens * inputs.model.hidden * e
    reduced = all_reduce_seconds(embedded, groups.tensor, inputs.links)
    product = operators.head(inputs, shard)
    loss = memory_seconds(device, operators.loss_bytes(inputs, shard))
    scalars = all_reduce_seconds(shard.tokens * 4 * 3, groups.tensor, inputs.links)
    share = inputs.framework.gemm_share
    forward = gemm_seconds(device, product.m, product.n, product.k)
    gradients = gemm_seconds(device, product.m, product.k, product.n, layout=GemmLayout.INPUT_GRADIENT)
    weights = gemm_seconds(device, product.n, product.k, product.m, layout=GemmLayout.WEIGHT_GRADIENT)
    return EndTimes(
        embedding_forward=memory_seconds(device, 2 * embedded) + reduced,
        embedding_backward=memory_seconds(device, 4 * embedded),
        head_forward=forward / share + loss / 2 + scalars,
        head_backward=(gradients + weights) / share + loss / 2 + reduced,
    )


def _boundary_seconds(inputs: Inputs, shard: Shard) -> Floats:
    """The pipeline neighbour is world / p ranks away; all ranks of a node send at once and share its ports.

    A whole micro-batch of activations, in tensor-parallel slices under sequence parallelism or Megatron's scatter-gather.
    """
    sliced = (shard.sp > 0) | (inputs.framework.pipeline_scatter_gather > 0)
    size = shard.tokens * inputs.model.hidden * inputs.training.activation_bytes / np.where(sliced, shard.tp, 1)
    distance = shard.tp * shard.cp * shard.dp
    return np.where(shard.pp > 1, p2p_seconds(size, crosses_domain(distance, inputs.links, shard.pp), inputs.links), 0.0)
