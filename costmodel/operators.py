"""The operators of one layer, with the shapes they have on one GPU.

Everything here is a count: FLOPs (a multiply-add is 2), bytes, elements. Seconds come from :mod:`compute` and
:mod:`communication`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .columns import Floats
from .inputs import Inputs
from .sharding import ULYSSES, Shard


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm:
    """``count`` equal products of an (m x k) activation with a (k x n) weight, run as one kernel."""

    m: Floats
    n: Floats
    k: Floats
    count: Floats
    linear: bool = True
    """A linear layer, which runs in the precision's low-precision type; False for router, head and attention."""

    @property
    def flops(self) -> Floats:
        return 2 * self.m * self.n * self.k * self.count


ONE: Floats = np.asarray(1.0)
SOFTMAX_PASSES = 2.0
"""Values of the scores that their softmax moves forward, where attention is not fused: read, write."""
SOFTMAX_BACKWARD_PASSES = 3.0
"""The same backward: its output and the gradient read, the gradient of the scores written."""


def attention_projections(inputs: Inputs, shard: Shard) -> tuple[Gemm, ...]:
    """QKV and output projections; the latent down and up projections where the model has them.

    A projection that a model lacks has zero columns, and costs nothing.
    """
    model, h = inputs.model, inputs.model.hidden
    is_latent = model.latent
    values = shard.local_heads * model.v_head_dim
    qkv = np.where(is_latent > 0, 0, values + 2 * shard.local_kv_heads * model.v_head_dim)
    query = shard.local_heads * model.qk_head_dim
    query_down = np.where(model.query_lora_rank > 0, model.query_lora_rank, 0) * is_latent
    query_up_k = np.where(model.query_lora_rank > 0, model.query_lora_rank, h)
    kv_up = shard.local_heads * (model.qk_head_dim - model.rope_head_dim + model.v_head_dim) * is_latent
    return (
        Gemm(m=shard.tokens, n=qkv, k=h, count=ONE),
        Gemm(m=shard.norm_tokens, n=query_down, k=h, count=ONE),
        Gemm(m=shard.tokens, n=query * is_latent, k=query_up_k, count=ONE),
        Gemm(m=shard.norm_tokens, n=(model.kv_lora_rank + model.rope_head_dim) * is_latent, k=h, count=ONE),
        Gemm(m=shard.tokens, n=kv_up, k=np.maximum(model.kv_lora_rank, 1), count=ONE),
        Gemm(m=shard.tokens, n=h, k=values, count=ONE),
    )


def feed_forward(inputs: Inputs, shard: Shard, width: Floats) -> tuple[Gemm, ...]:
    """Up (and gate) and down projections of a dense or shared-expert feed-forward of ``width``."""
    model = inputs.model
    local = width / shard.tp
    present = np.where(width > 0, 1.0, 0.0)
    return (
        Gemm(m=shard.tokens, n=local * (1 + model.gated), k=model.hidden, count=ONE),
        Gemm(m=shard.tokens, n=model.hidden * present, k=np.maximum(local, 1), count=ONE),
    )


def expert_feed_forward(inputs: Inputs, shard: Shard) -> tuple[Gemm, ...]:
    """Router and the grouped products of the local experts; the busiest rank sets the pace."""
    model = inputs.model
    local = model.moe_ffn / shard.etp
    experts = np.maximum(shard.local_experts, 1)
    rows = shard.expert_rows * inputs.framework.expert_imbalance / experts
    present = np.where(model.num_experts > 0, 1.0, 0.0)
    return (
        Gemm(m=shard.norm_tokens, n=model.num_experts, k=model.hidden, count=ONE, linear=False),
        Gemm(m=rows, n=local * (1 + model.gated), k=model.hidden, count=experts),
        Gemm(m=rows, n=model.hidden * present, k=np.maximum(local, 1), count=experts),
    )


def head(inputs: Inputs, shard: Shard) -> Gemm:
    """Output matrix over the padded vocabulary."""
    return Gemm(m=shard.tokens, n=shard.vocab / shard.tp, k=inputs.model.hidden, count=ONE, linear=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """One attention call on one GPU."""

    batch: Floats
    heads: Floats
    kv_heads: Floats
    queries: Floats
    keys: Floats
    qk_head_dim: Floats
    v_head_dim: Floats
    computed_fraction: Floats
    """Share of the queries x keys square that the kernel computes: about half for causal attention."""


def attention(inputs: Inputs, shard: Shard) -> AttentionShape:
    """The fused attention call of one layer, sliding and full layers averaged by the share of the square they compute.

    Ring and all-gather context parallelism give a rank s/c queries against all s keys; Ulysses gives it whole sequences of
    a/(t c) heads.
    """
    model, s = inputs.model, shard.sequence
    ulysses = shard.cp_kind == ULYSSES
    window = np.where(model.sliding_window > 0, np.minimum(model.sliding_window, s), s)
    sliding = window / s - 0.5 * (window / s) ** 2
    return AttentionShape(
        batch=shard.micro_batch,
        heads=np.where(ulysses, shard.local_heads / shard.cp, shard.local_heads),
        kv_heads=np.where(ulysses, np.maximum(shard.local_kv_heads / shard.cp, 1), shard.local_kv_heads),
        queries=np.where(ulysses, s, s / shard.cp),
        keys=s + 0 * shard.cp,
        qk_head_dim=model.qk_head_dim,
        v_head_dim=model.v_head_dim,
        computed_fraction=(1 - model.sliding_fraction) * 0.5 + model.sliding_fraction * sliding,
    )


def unfused_attention_gemms(inputs: Inputs, shard: Shard) -> tuple[Gemm, Gemm]:
    """Scores and context as batched products over the whole square, as kernels without causal skipping compute them."""
    model = inputs.model
    heads, queries = shard.micro_batch * shard.local_heads, shard.sequence / shard.cp
    return (
        Gemm(m=queries, n=shard.sequence, k=model.qk_head_dim, count=heads, linear=False),
        Gemm(m=queries, n=model.v_head_dim, k=shard.sequence, count=heads, linear=False),
    )


def score_elements(inputs: Inputs, shard: Shard) -> Floats:
    """Elements of the s x s score matrices of one layer on one GPU."""
    return shard.tokens * shard.sequence * shard.local_heads + 0 * inputs.model.hidden


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes that memory-bound operators move, forward and backward."""

    forward: Floats
    backward: Floats

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(forward=self.forward + other.forward, backward=self.backward + other.backward)


def attention_traffic(inputs: Inputs, shard: Shard) -> Traffic:
    """Norm, rotary and residual around attention, with one kernel an operator.

    In units of values: norm 2 forward (read, write), 3 backward; residual add 3 and 2; rotary 2 and 2.
    Unfused attention adds the softmax over the scores: 2 values forward (read, write) and 3 backward (its output and two
    gradients), with dropout 2.5 more each way (a mask of one byte). What the two products read and write of the scores is their
    own traffic, which bounds them (:func:`unfused_attention_gemms`), and is not counted again.
    """
    model, e = inputs.model, inputs.training.activation_bytes
    norms = model.norms_per_layer / 2
    token_width = e * model.hidden * shard.norm_tokens
    rotated = e * shard.tokens * (shard.local_heads * model.qk_head_dim + shard.local_kv_heads * model.qk_head_dim) * model.rotary
    rotated = rotated * inputs.framework.rotary_passes
    scores = e * score_elements(inputs, shard) * (1 - inputs.framework.fused_attention)
    forward_scores = scores * inputs.framework.score_passes / inputs.framework.elementwise_forward_passes
    backward_scores = scores * inputs.framework.score_passes / inputs.framework.elementwise_backward_passes
    dropout = token_width * 2.5 * inputs.framework.dropout
    return Traffic(
        forward=token_width * (2 * norms + 3) + 2 * rotated + dropout + forward_scores * (SOFTMAX_PASSES + 2.5 * inputs.framework.dropout),
        backward=token_width * (3 * norms + 2)
        + 2 * rotated
        + dropout
        + backward_scores * (SOFTMAX_BACKWARD_PASSES + 2.5 * inputs.framework.dropout),
    )


def feed_forward_traffic(inputs: Inputs, shard: Shard, width: Floats) -> Traffic:
    """Norm, activation function and residual of a dense or shared feed-forward of ``width``."""
    model, e = inputs.model, inputs.training.activation_bytes
    norms = model.norms_per_layer / 2
    token_width = e * model.hidden * shard.norm_tokens
    hidden_width = e * shard.tokens * width / shard.tp
    hidden_width = hidden_width * activation_passes(inputs)
    dropout = token_width * 2.5 * inputs.framework.dropout
    return Traffic(
        forward=token_width * (2 * norms + 3) + hidden_width * (2 + model.gated) + dropout,
        backward=token_width * (3 * norms + 2) + hidden_width * (3 + 2 * model.gated) + dropout,
    )


def activation_passes(inputs: Inputs) -> Floats:
    """Passes over a gated activation's tensors; 1 for a plain one."""
    return np.where(inputs.model.gated > 0, inputs.framework.gated_activation_passes, 1.0)


def expert_traffic(inputs: Inputs, shard: Shard) -> Traffic:
    """Permutation to experts and back, activation of the routed rows, and the shared expert with the layer's norm."""
    moved = inputs.training.activation_bytes * _busiest_rows(inputs, shard) * inputs.model.hidden
    return _routed_traffic(inputs, shard, moved=moved) + feed_forward_traffic(inputs, shard, inputs.model.shared_ffn)


def routed_activation_traffic(inputs: Inputs, shard: Shard) -> Traffic:
    """Of :func:`expert_traffic` the activation of the routed rows alone."""
    return _routed_traffic(inputs, shard, moved=np.asarray(0.0))


def _busiest_rows(inputs: Inputs, shard: Shard) -> Floats:
    return shard.expert_rows * inputs.framework.expert_imbalance


def _routed_traffic(inputs: Inputs, shard: Shard, *, moved: Floats) -> Traffic:
    """Traffic of ``moved`` bytes there and back, and of the activation between an expert's products."""
    model, framework = inputs.model, inputs.framework
    unfused = np.where(model.expert_bias > 0, framework.biased_expert_passes, 1.0)
    activated = inputs.training.activation_bytes * _busiest_rows(inputs, shard) * model.moe_ffn / shard.etp
    activated = activated * activation_passes(inputs) * unfused
    return Traffic(
        forward=(4 * moved + activated * (2 + model.gated)) * framework.expert_passes / framework.elementwise_forward_passes,
        backward=(4 * moved + activated * (3 + 2 * model.gated)) * framework.expert_passes / framework.elementwise_backward_passes,
    )


def loss_bytes(inputs: Inputs, shard: Shard) -> Floats:
    """Bytes the cross-entropy moves over the logits, forward and backward."""
    return 4 * inputs.framework.loss_passes * shard.tokens * shard.vocab / shard.tp
