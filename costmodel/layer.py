"""Seconds of one layer for one micro-batch on one GPU: forward, backward and what a recomputation repeats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from . import operator_shares, operators
from .columns import Bools, Floats, StrategyColumns
from .compute import GemmLayout, attention_seconds, cast_seconds, gemm_seconds, memory_curve, memory_seconds
from .inputs import Inputs
from .layer_communication import Groups, context_seconds, expert_exchange_seconds, sharded_seconds, tensor_collective_seconds
from .operators import Gemm, Traffic
from .recomputed_modules import repeated_work
from .sharding import LocalParameters, Shard

HOST_SHARPNESS = 4.0
LOCKSTEP_RANKS = 7.0
"""Other ranks of an eight-way group: where ``host_seconds_per_collective`` is quoted."""
SELECTIVE_GATHERS = 0.5
"""The gather's share of a reduce-scatter and an all-gather, which selective recomputation by operator repeats."""
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
        computed = self.matrix + self.attention + self.elementwise + self.host
        return computed + self.tensor + self.context + self.expert + self.sharded + self.accumulation

    def __add__(self, other: PassTimes) -> PassTimes:
        return PassTimes(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

    def scaled(self, factor: Floats | float) -> PassTimes:
        return PassTimes(**{f.name: getattr(self, f.name) * factor for f in fields(self)})


def chosen(which: Bools, first: PassTimes, second: PassTimes) -> PassTimes:
    """``first`` where ``which``, else ``second``."""
    return PassTimes(**{f.name: np.where(which, getattr(first, f.name), getattr(second, f.name)) for f in fields(PassTimes)})


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTimes:
    """One layer: passes, the part of the backward that computes weight gradients, and the selective recomputation."""

    forward: PassTimes
    backward: PassTimes
    weight_gradient: Floats
    selective: PassTimes
    """What selective recomputation adds to the backward pass: the attention core again, or the modules that a strategy names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWork:
    """What one kind of layer asks of a GPU for a micro-batch: counts, and the seconds of its expert exchange."""

    gemms: tuple[Gemm, ...]
    traffic: Traffic
    reductions: Floats
    """Outputs reduced over the tensor-parallel group, in each direction."""
    elementwise_shares: tuple[Floats, Floats]
    """Measured over formula of its memory-bound operators, forward and backward."""
    exchange: Floats
    """Seconds of dispatch and combine, in each direction."""
    dense_parameters: Floats
    expert_parameters: Floats
    moe: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTimes:
    """Seconds of a layer's kernels, without the host and without what other ranks send."""

    matrix: Floats
    input_gradient: Floats
    weight_gradient: Floats
    attention: Floats
    attention_backward: Floats
    elementwise: Floats
    elementwise_backward: Floats

    @property
    def forward(self) -> Floats:
        return self.matrix + self.attention + self.elementwise

    @property
    def backward(self) -> Floats:
        return self.input_gradient + self.weight_gradient + self.attention_backward + self.elementwise_backward

    @classmethod
    def of(cls, inputs: Inputs, shard: Shard, work: LayerWork) -> KernelTimes:
        """Times of the layer's products, its attention core and its memory-bound operators."""
        matrix, input_gradient, weight_gradient = _matrix_seconds(inputs, work.gemms, shard.num_microbatches)
        attention, attention_backward = _attention_core_seconds(inputs, shard)
        elementwise, elementwise_backward = _elementwise_seconds(inputs, work.traffic)
        share, share_backward = work.elementwise_shares
        return cls(
            matrix=matrix,
            input_gradient=input_gradient,
            weight_gradient=weight_gradient,
            attention=attention,
            attention_backward=attention_backward,
            elementwise=elementwise * share,
            elementwise_backward=elementwise_backward * share_backward,
        )


def dense_reductions(inputs: Inputs) -> Floats:
    """Outputs of a dense layer that its tensor-parallel ranks reduce, in each direction: one where both halves share a residual."""
    return np.asarray(2 - inputs.model.parallel_residual)


def expert_layer_reductions(inputs: Inputs) -> Floats:
    """The same of a layer with experts: attention's output, and the shared experts' where there are some."""
    return np.where(inputs.model.shared_ffn > 0, 2.0, 1.0)


def dense_layer(inputs: Inputs, strategies: StrategyColumns, shard: Shard, groups: Groups, local: LocalParameters) -> LayerTimes:
    """A layer with a dense feed-forward."""
    ffn, nothing = inputs.model.ffn, 0 * shard.tokens
    work = LayerWork(
        gemms=operators.attention_projections(inputs, shard) + operators.feed_forward(inputs, shard, ffn),
        traffic=operators.attention_traffic(inputs, shard) + operators.feed_forward_traffic(inputs, shard, ffn),
        elementwise_shares=operator_shares.layer_shares(inputs, shard, moe=False),
        reductions=dense_reductions(inputs),
        exchange=nothing,
        dense_parameters=local.dense_layer,
        expert_parameters=nothing,
        moe=False,
    )
    return _layer(inputs, strategies, shard, groups, work)


def moe_layer(inputs: Inputs, strategies: StrategyColumns, shard: Shard, groups: Groups, local: LocalParameters) -> LayerTimes:
    """A layer with experts, shared ones included."""
    shared = inputs.model.shared_ffn
    experts = operators.expert_feed_forward(inputs, shard) + operators.feed_forward(inputs, shard, shared)
    work = LayerWork(
        gemms=operators.attention_projections(inputs, shard) + experts,
        traffic=operators.attention_traffic(inputs, shard) + operators.expert_traffic(inputs, shard),
        elementwise_shares=operator_shares.layer_shares(inputs, shard, moe=True),
        reductions=expert_layer_reductions(inputs),
        exchange=expert_exchange_seconds(inputs, shard, groups),
        dense_parameters=local.moe_layer_shared,
        expert_parameters=local.moe_layer_expert,
        moe=True,
    )
    return _layer(inputs, strategies, shard, groups, work)


def _layer(inputs: Inputs, strategies: StrategyColumns, shard: Shard, groups: Groups, work: LayerWork) -> LayerTimes:
    """Both passes of a layer.

    Tensor- and context-parallel transfers stand between kernels and hide behind the one beside them. Expert exchange and the
    transfers of ZeRO-3 run beside the whole pass, its waits for the host included, and share it: what hides one hides no other.
    """
    framework = inputs.framework
    kernels = KernelTimes.of(inputs, shard, work)
    collective = tensor_collective_seconds(inputs, shard, groups) * work.reductions
    tensor = collective - framework.tensor_overlap_forward * np.minimum(collective, kernels.matrix)
    tensor_backward = collective - framework.tensor_overlap_backward * np.minimum(collective, kernels.weight_gradient)
    context, context_backward = context_seconds(inputs, shard, groups, kernels.attention, kernels.attention_backward)
    in_line, in_line_backward = kernels.forward + tensor + context, kernels.backward + tensor_backward + context_backward
    has_experts = work.expert_parameters > 0
    extra, each = framework.kernels_per_expert_layer * has_experts, framework.kernels_per_local_expert * shard.local_experts * has_experts
    launches = framework.kernels_per_layer_forward + extra + each
    launches_backward = framework.kernels_per_layer_backward + extra + 2 * each
    host = _host_seconds(inputs, shard, launches, work.reductions, in_line)
    host_backward = _host_seconds(inputs, shard, launches_backward, work.reductions, in_line_backward)
    hidden = framework.expert_overlap * np.minimum(work.exchange, in_line + host)
    hidden_backward = framework.expert_overlap * np.minimum(work.exchange, in_line_backward + host_backward)
    cover = (in_line + host - hidden, in_line_backward + host_backward - hidden_backward)
    parameters = (work.dense_parameters, work.expert_parameters)
    sharded, sharded_backward = sharded_seconds(inputs, strategies, groups, parameters, cover)
    forward = PassTimes(
        matrix=kernels.matrix,
        attention=kernels.attention,
        elementwise=kernels.elementwise,
        host=host,
        tensor=tensor,
        context=context,
        expert=work.exchange - hidden,
        sharded=sharded,
        accumulation=0 * kernels.forward,
    )
    backward = PassTimes(
        matrix=kernels.input_gradient + kernels.weight_gradient,
        attention=kernels.attention_backward,
        elementwise=kernels.elementwise_backward,
        host=host_backward,
        tensor=tensor_backward,
        context=context_backward,
        expert=work.exchange - hidden_backward,
        sharded=sharded_backward,
        accumulation=_accumulation_seconds(inputs, strategies, work.dense_parameters + work.expert_parameters),
    )
    selective = _selective(inputs, kernels, shard, (tensor, context))
    if np.any(shard.modules > 0):
        selective = chosen(shard.modules > 0, _named_modules(inputs, kernels, shard, work, forward), selective)
    return LayerTimes(forward=forward, backward=backward, weight_gradient=kernels.weight_gradient, selective=selective)


def _selective(inputs: Inputs, kernels: KernelTimes, shard: Shard, exposed: tuple[Floats, Floats]) -> PassTimes:
    """The attention core again, with its scores and its exchange, and the share of the rest that the framework repeats beside it.

    A framework that chooses by operator keeps the core and repeats what is memory-bound, and the gather in each of the tensor
    group's reductions (``exposed``: the forward pass's tensor and context transfers).
    """
    zero, again, by_operator = 0 * kernels.forward, inputs.framework.selective_recomputed, inputs.framework.selective_by_operator > 0
    tensor, context = exposed
    return PassTimes(
        matrix=again * kernels.matrix,
        attention=np.where(by_operator, 0.0, kernels.attention),
        elementwise=np.where(by_operator, kernels.elementwise, _score_seconds(inputs, shard) + again * kernels.elementwise),
        host=zero,
        tensor=np.where(by_operator & (shard.sp > 0), SELECTIVE_GATHERS * tensor, 0.0),
        context=np.where(by_operator, 0.0, context),
        expert=zero,
        sharded=zero,
        accumulation=zero,
    )


def _named_modules(inputs: Inputs, kernels: KernelTimes, shard: Shard, work: LayerWork, forward: PassTimes) -> PassTimes:
    """The forward work of the modules that a strategy names, once more; with ``mlp`` and ``moe`` what they send over other ranks."""
    again = repeated_work(inputs, shard, moe=work.moe)
    matrix = sum(
        (flag * _matrix_seconds(inputs, (gemm,), shard.num_microbatches)[0] for flag, gemm in again.gemms if np.any(flag > 0)),
        start=0 * kernels.matrix,
    )
    moved = memory_curve(inputs.wide_device, again.traffic * inputs.framework.elementwise_forward_passes) * work.elementwise_shares[0]
    zero = 0 * kernels.forward
    return PassTimes(
        matrix=matrix,
        attention=again.core_attention * kernels.attention,
        elementwise=again.core_attention * _score_seconds(inputs, shard) + np.where(again.traffic > 0, moved, 0.0),
        host=zero,
        tensor=again.reductions * forward.tensor / np.maximum(work.reductions, 1),
        context=again.core_attention * forward.context,
        expert=again.expert_exchange * forward.expert,
        sharded=zero,
        accumulation=zero,
    )


def _matrix_seconds(inputs: Inputs, gemms: Sequence[Gemm], micro_batches: Floats) -> tuple[Floats, Floats, Floats]:
    """Forward, input-gradient and weight-gradient seconds of a list of linear layers.

    FP8 casts the inputs on every micro-batch; weights once a step, for the first one, and keeps them.
    """
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
        casts = low * cast_seconds(device, gemm.count * (m * k + n * k / micro_batches))
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
    forward = memory_curve(device, traffic.forward * framework.elementwise_forward_passes + ramp)
    backward = memory_curve(device, traffic.backward * framework.elementwise_backward_passes + BACKWARD_KERNELS * ramp)
    return forward, backward


def _score_seconds(inputs: Inputs, shard: Shard) -> Floats:
    """Softmax and dropout over the scores, repeated by selective recomputation where attention is not fused."""
    framework = inputs.framework
    scores = inputs.training.activation_bytes * operators.score_elements(inputs, shard) * (1 - framework.fused_attention)
    seconds = memory_curve(inputs.wide_device, scores * (operators.SOFTMAX_PASSES + 2.5 * framework.dropout) * framework.score_passes)
    return seconds * operator_shares.score_share(inputs, shard) if np.any(scores > 0) else seconds


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
    A processor launches what it computes itself: there the two add up.
    """
    framework = inputs.framework
    others = np.minimum(shard.tp - 1, LOCKSTEP_RANKS)
    waits = framework.host_seconds_per_collective * (others / LOCKSTEP_RANKS) ** 2
    host = kernels * inputs.device.launch_seconds * framework.host_launch_factor + reductions * waits
    ratio = host / np.maximum(busy, 1e-9)
    beside = busy * ((1 + ratio**HOST_SHARPNESS) ** (1 / HOST_SHARPNESS) - 1)
    return np.where(inputs.device.host_is_device > 0, host, beside)
