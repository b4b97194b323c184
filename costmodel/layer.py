"""Seconds of one layer for one micro-batch on one GPU: forward, backward and what a recomputation repeats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from . import operators
from .columns import Floats, StrategyColumns
from .communication import (
    all_gather_seconds,
    all_reduce_seconds,
    all_to_all_seconds,
    p2p_seconds,
    reduce_scatter_seconds,
)
from .compute import GemmLayout, attention_seconds, cast_seconds, gemm_seconds, memory_seconds
from .inputs import Inputs
from .operators import Gemm, Traffic
from .sharding import RING, ULYSSES, LocalParameters, Shard
from .topology import Group, place

HOST_SHARPNESS = 4.0
LOCKSTEP_RANKS = 7.0
"""Other ranks of an eight-way group: where ``host_seconds_per_collective`` is quoted."""
BACKWARD_KERNELS = 1.5
"""Memory-bound kernels of a backward pass over those of the forward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTimes:
    """Seconds of one pass (forward or backward) by term; communication is what stays exposed."""

    matrix: Floats
    attention: Floats
    elementwise: Floats
    host: Floats
    tensor: Floats
    context: Floats
    expert: Floats
    sharded: Floats
    """Gathers and reductions of ZeRO-3, on every micro-batch."""
    accumulation: Floats

    @property
    def total(self) -> Floats:
        terms = [getattr(self, f.name) for f in fields(self)]
        return sum(terms[1:], start=terms[0])

    def __add__(self, other: PassTimes) -> PassTimes:
        return PassTimes(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

    def scaled(self, factor: Floats | float) -> PassTimes:
        return PassTimes(**{f.name: getattr(self, f.name) * factor for f in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTimes:
    """One layer: passes, the part of the backward that computes weight gradients, and the selective recomputation."""

    forward: PassTimes
    backward: PassTimes
    weight_gradient: Floats
    selective: PassTimes
    """What selective recomputation adds to the backward pass: the attention core again."""


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


def dense_layer(inputs: Inputs, strategies: StrategyColumns, shard: Shard, groups: Groups, local: LocalParameters) -> LayerTimes:
    """A layer with a dense feed-forward."""
    gemms = operators.attention_projections(inputs, shard) + operators.feed_forward(inputs, shard, inputs.model.ffn)
    traffic = operators.attention_traffic(inputs, shard) + operators.feed_forward_traffic(inputs, shard, inputs.model.ffn)
    reductions = 2 - inputs.model.parallel_residual
    nothing = 0 * shard.tokens
    return _layer(inputs, strategies, shard, groups, gemms, traffic, reductions, nothing, local.dense_layer, nothing)


def moe_layer(inputs: Inputs, strategies: StrategyColumns, shard: Shard, groups: Groups, local: LocalParameters) -> LayerTimes:
    """A layer with experts, shared ones included."""
    model = inputs.model
    gemms = (
        operators.attention_projections(inputs, shard)
        + operators.expert_feed_forward(inputs, shard)
        + operators.feed_forward(inputs, shard, model.shared_ffn)
    )
    traffic = operators.attention_traffic(inputs, shard) + operators.expert_traffic(inputs, shard)
    reductions = 1 + (model.shared_ffn > 0)
    exchange = _expert_exchange_seconds(inputs, shard, groups)
    return _layer(inputs, strategies, shard, groups, gemms, traffic, reductions, exchange, local.moe_layer_shared, local.moe_layer_expert)


def _expert_exchange_seconds(inputs: Inputs, shard: Shard, groups: Groups) -> Floats:
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


def _layer(
    inputs: Inputs,
    strategies: StrategyColumns,
    shard: Shard,
    groups: Groups,
    gemms: Sequence[Gemm],
    traffic: Traffic,
    reductions: Floats,
    exchange: Floats,
    dense_parameters: Floats,
    expert_parameters: Floats,
) -> LayerTimes:
    framework = inputs.framework
    extra = framework.kernels_per_expert_layer * (expert_parameters > 0)
    forward_matrix, input_gradient, weight_gradient = _matrix_seconds(inputs, gemms)
    core_forward, core_backward = _attention_core_seconds(inputs, shard)
    elementwise_forward, elementwise_backward = _elementwise_seconds(inputs, traffic)
    collective = _tensor_collective_seconds(inputs, shard, groups) * reductions
    tensor_forward = collective - framework.tensor_overlap_forward * np.minimum(collective, forward_matrix)
    tensor_backward = collective - framework.tensor_overlap_backward * np.minimum(collective, weight_gradient)
    context_forward, context_backward = _context_seconds(inputs, shard, groups, core_forward, core_backward)
    busy_forward = forward_matrix + core_forward + elementwise_forward
    busy_backward = input_gradient + weight_gradient + core_backward + elementwise_backward
    sharded_forward, sharded_backward = _sharded_seconds(
        inputs, strategies, groups, dense_parameters, expert_parameters, busy_forward, busy_backward
    )
    forward = PassTimes(
        matrix=forward_matrix,
        attention=core_forward,
        elementwise=elementwise_forward,
        tensor=tensor_forward,
        context=context_forward,
        expert=exchange - framework.expert_overlap * np.minimum(exchange, busy_forward),
        sharded=sharded_forward,
        accumulation=0 * busy_forward,
        host=_host_seconds(inputs, shard, framework.kernels_per_layer_forward + extra, reductions, busy_forward + tensor_forward),
    )
    backward = PassTimes(
        matrix=input_gradient + weight_gradient,
        attention=core_backward,
        elementwise=elementwise_backward,
        tensor=tensor_backward,
        context=context_backward,
        expert=exchange - framework.expert_overlap * np.minimum(exchange, busy_backward),
        sharded=sharded_backward,
        accumulation=_accumulation_seconds(inputs, strategies, dense_parameters + expert_parameters),
        host=_host_seconds(inputs, shard, framework.kernels_per_layer_backward + extra, reductions, busy_backward + tensor_backward),
    )
    zero = 0 * busy_forward
    again = framework.selective_recomputed
    selective = PassTimes(
        matrix=again * forward_matrix,
        attention=core_forward,
        elementwise=_score_seconds(inputs, shard) + again * elementwise_forward,
        host=zero,
        tensor=zero,
        context=zero,
        expert=zero,
        sharded=zero,
        accumulation=zero,
    )
    return LayerTimes(forward=forward, backward=backward, weight_gradient=weight_gradient, selective=selective)


def _matrix_seconds(inputs: Inputs, gemms: Sequence[Gemm]) -> tuple[Floats, Floats, Floats]:
    """Forward, input-gradient and weight-gradient seconds of a list of linear layers."""
    forward: Floats = np.asarray(0.0)
    input_gradient: Floats = np.asarray(0.0)
    weight_gradient: Floats = np.asarray(0.0)
    for gemm in gemms:
        if not np.any(gemm.n > 0):
            continue
        present = gemm.n > 0
        m, n, k = np.maximum(gemm.m, 1), np.maximum(gemm.n, 1), gemm.k
        device = inputs.device if gemm.linear else inputs.wide_device
        low = inputs.training.low_precision_linear * gemm.linear
        casts = low * cast_seconds(device, gemm.count * (m * k + n * k))
        gradient_casts = low * cast_seconds(device, gemm.count * m * n)
        forward = forward + present * (gemm_seconds(device, m, n, k, layout=GemmLayout.FORWARD, count=gemm.count) + casts)
        input_gradient = input_gradient + present * (
            gemm_seconds(device, m, k, n, layout=GemmLayout.INPUT_GRADIENT, count=gemm.count) + gradient_casts
        )
        weight_gradient = weight_gradient + present * gemm_seconds(device, n, k, m, layout=GemmLayout.WEIGHT_GRADIENT, count=gemm.count)
    share = inputs.framework.gemm_share
    return forward / share, input_gradient / share, weight_gradient / share


def _attention_core_seconds(inputs: Inputs, shard: Shard) -> tuple[Floats, Floats]:
    """The attention core, fused or as batched products (their softmax traffic is elementwise)."""
    shape = operators.attention(inputs, shard)
    fused = inputs.framework.fused_attention > 0
    forward, backward = (
        attention_seconds(
            inputs.wide_device,
            batch=shape.batch,
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            query_length=shape.queries,
            key_length=shape.keys,
            head_dim=shape.qk_head_dim,
            v_head_dim=shape.v_head_dim,
            causal_fraction=shape.computed_fraction,
            backward=backward,
        )
        / inputs.framework.attention_share
        for backward in (False, True)
    )
    if np.all(fused):
        return forward, backward
    unfused = sum(
        (
            gemm_seconds(inputs.wide_device, gemm.m, gemm.n, gemm.k, count=gemm.count)
            for gemm in operators.unfused_attention_gemms(inputs, shard)
        ),
        start=np.asarray(0.0),
    )
    unfused = unfused / inputs.framework.gemm_share
    return np.where(fused, forward, unfused), np.where(fused, backward, 2 * unfused)


def _elementwise_seconds(inputs: Inputs, traffic: Traffic) -> tuple[Floats, Floats]:
    framework = inputs.framework
    device = inputs.wide_device
    ramp = (framework.elementwise_kernels - 1) * device.memory_half_bytes
    forward = memory_seconds(device, traffic.forward * framework.elementwise_forward_passes + ramp)
    backward = memory_seconds(device, traffic.backward * framework.elementwise_backward_passes + BACKWARD_KERNELS * ramp)
    return forward, backward


def _score_seconds(inputs: Inputs, shard: Shard) -> Floats:
    """Softmax and dropout over the scores, repeated by selective recomputation where attention is not fused."""
    framework = inputs.framework
    scores = inputs.training.activation_bytes * operators.score_elements(inputs, shard) * (1 - framework.fused_attention)
    return memory_seconds(inputs.wide_device, scores * (4 + 2.5 * framework.dropout) * framework.score_passes)


def _tensor_collective_seconds(inputs: Inputs, shard: Shard, groups: Groups) -> Floats:
    """One reduction of a layer's output over the tensor-parallel group: an all-reduce, or under sequence
    parallelism a reduce-scatter and the all-gather before the next block (Korthikanti 2022, section 4.2.2)."""
    size = shard.tokens * inputs.model.hidden * inputs.training.activation_bytes
    reduced = all_reduce_seconds(size, groups.tensor, inputs.links)
    if not np.any(shard.sp > 0):
        return reduced
    split = reduce_scatter_seconds(size, groups.tensor, inputs.links) + all_gather_seconds(size, groups.tensor, inputs.links)
    return np.where(shard.sp > 0, split, reduced)


def _context_seconds(inputs: Inputs, shard: Shard, groups: Groups, forward: Floats, backward: Floats) -> tuple[Floats, Floats]:
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


def _sharded_seconds(
    inputs: Inputs,
    strategies: StrategyColumns,
    groups: Groups,
    dense_parameters: Floats,
    expert_parameters: Floats,
    busy_forward: Floats,
    busy_backward: Floats,
) -> tuple[Floats, Floats]:
    """ZeRO-3: gather the layer before each pass and scatter its gradients after the backward one.

    A layer's transfers hide behind the compute of its neighbour, which is as long as its own.
    """
    zero = 0 * busy_forward
    is_sharded = strategies.zero_stage == 3
    if not np.any(is_sharded):
        return zero, zero
    training, links, overlap = inputs.training, inputs.links, inputs.framework.sharded_overlap
    gather = all_gather_seconds(dense_parameters * training.parameter_gather_bytes, groups.data, links)
    gather = gather + all_gather_seconds(expert_parameters * training.parameter_gather_bytes, groups.expert_data, links)
    scatter = reduce_scatter_seconds(dense_parameters * training.gradient_reduce_bytes, groups.data, links)
    scatter = scatter + reduce_scatter_seconds(expert_parameters * training.gradient_reduce_bytes, groups.expert_data, links)
    gather, scatter = gather / inputs.framework.sharded_bandwidth_share, scatter / inputs.framework.sharded_bandwidth_share
    forward = np.maximum(gather - overlap * busy_forward, (1 - overlap) * gather)
    backward = np.maximum(gather + scatter - overlap * busy_backward, (1 - overlap) * (gather + scatter))
    return np.where(is_sharded, forward, zero), np.where(is_sharded, backward, zero)


def _accumulation_seconds(inputs: Inputs, strategies: StrategyColumns, parameters: Floats) -> Floats:
    """Adding a micro-batch's gradients to the accumulated ones.

    Into wider gradients: write the low-precision gradient, read it, read and write the sum (12 bytes for 2 + 4);
    into gradients of the same width only from the second micro-batch on (read two, write one).
    """
    training, framework = inputs.training, inputs.framework
    narrow, wide = training.activation_bytes, training.gradient_bytes
    several = inputs.training.global_batch_size > strategies.data_parallel_size * strategies.micro_batch_size
    moved = np.where(wide > narrow, 2 * narrow + 2 * wide, 3 * wide * several)
    casts = training.autocast * (training.parameter_bytes + narrow)
    return memory_seconds(inputs.wide_device, parameters * (moved * (1 - framework.fused_gradient_accumulation) + casts))


def _host_seconds(inputs: Inputs, shard: Shard, kernels: Floats, reductions: Floats, busy: Floats) -> Floats:
    """Time the GPU waits for launches: how much longer than ``busy`` the pass takes because the host must launch it.

    The two run side by side, and the queue between them runs dry at times even when the host is the faster one:
    (host^s + busy^s)^(1/s) with s = HOST_SHARPNESS. Each tensor-parallel collective adds the wait for the slowest host.
    """
    framework = inputs.framework
    others = np.minimum(shard.tp - 1, LOCKSTEP_RANKS)
    waits = framework.host_seconds_per_collective * (others / LOCKSTEP_RANKS) ** 2
    host = kernels * inputs.device.launch_seconds * framework.host_launch_factor + reductions * waits
    ratio = host / np.maximum(busy, 1e-9)
    return busy * ((1 + ratio**HOST_SHARPNESS) ** (1 / HOST_SHARPNESS) - 1)
