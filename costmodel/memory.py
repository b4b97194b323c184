"""Bytes on one GPU: what a layer keeps, what a parameter costs, what is in flight.

Activation bytes count every tensor autograd keeps between forward and backward, once (Korthikanti 2022, section 4, with the
terms of fused attention, gated feed-forwards, rotary positions and experts added). They reproduce the bytes measured for
eager PyTorch layers to 1 % (benchmarks/data/h200/layer.csv).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .columns import Floats, StrategyColumns
from .inputs import Inputs
from .operators import score_elements
from .sharding import ALL_GATHER, LocalParameters, Shard

STATISTIC_BYTES = 4
"""Norm statistics, log-sum-exp and rotary tables stay in fp32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerActivations:
    """Bytes one layer keeps for one micro-batch, under each recomputation choice."""

    kept: Floats
    selective: Floats
    """With the attention core's scores dropped."""
    checkpoint: Floats
    """Its input alone: what full recomputation keeps."""


def attention_activations(inputs: Inputs, shard: Shard) -> tuple[Floats, Floats]:
    """Bytes the attention block keeps, and how many of them are scores.

    Norm input, output and statistics, q, k, v, the attention output, log-sum-exp; rotary adds rotated q and k (q, k, v
    stay as views of one product). Latent attention keeps q, k, v, their up-projections and its compressed tensors with
    their norms. Unfused attention keeps softmax output and, with dropout, its mask and result: 5 bytes a score at 2
    bytes a value. With dropout, plain heads and no rotary it is table 2 of Korthikanti 2022 to the byte, statistics aside.
    Context parallelism by all-gather keeps the other ranks' keys and values too, where the framework does not gather them again.
    """
    model, framework, e = inputs.model, inputs.framework, inputs.training.activation_bytes
    queries = shard.local_heads * model.qk_head_dim
    values = shard.local_heads * model.v_head_dim
    kv = shard.local_kv_heads * model.v_head_dim
    rotated = model.rotary * (queries + kv + framework.query_copies_kept * queries)
    plain = queries + 2 * kv + rotated + values
    latent = 3 * (queries + values)
    width = np.where(model.latent > 0, latent, plain)
    compressed = model.latent * (2 * model.query_lora_rank + 2 * model.kv_lora_rank + model.rope_head_dim)
    if np.any(shard.cp > 1):
        gathers = framework.gathered_context_kept * (shard.cp > 1) * (shard.cp_kind == ALL_GATHER)
        width = width + gathers * (2 * kv * (shard.cp - 1) + values)
    outer = block_ends(inputs, shard) + shard.norm_tokens * e * compressed
    statistics = STATISTIC_BYTES * shard.local_heads * framework.fused_attention
    scores = score_elements(inputs, shard) * (1 - framework.fused_attention) * (e + framework.dropout * (e + 1))
    return outer + shard.tokens * (e * width + statistics) + scores, scores


def block_ends(inputs: Inputs, shard: Shard) -> Floats:
    """Bytes at the ends of a block (half a layer): its norm's input, output and statistics, and its dropout's mask.

    The norm's output is kept as the input of linear layers, which FP8 stores in one byte; under sequence parallelism as it
    is gathered, where the framework does not gather it again.
    """
    model, e = inputs.model, inputs.training.activation_bytes
    copies = inputs.framework.rms_norm_copies_kept * (model.norm_statistics == 1)
    norm = model.hidden * (e * (1 + copies) + linear_input_bytes(inputs)) + STATISTIC_BYTES * model.norm_statistics
    mask = inputs.framework.dropout * model.hidden
    gathered = inputs.framework.gathered_inputs_kept * (shard.tokens - shard.norm_tokens) * model.hidden * linear_input_bytes(inputs)
    return np.asarray(shard.norm_tokens * (norm * model.norms_per_layer / 2 + mask) + gathered * model.norms_per_layer / 2)


def rotary_tables(inputs: Inputs, shard: Shard) -> Floats:
    """Bytes of the cosines and sines of rotary positions: one pair of fp32 tables for all layers of a rank."""
    model = inputs.model
    width = np.where(model.latent > 0, model.rope_head_dim, model.qk_head_dim)
    return np.asarray(2 * STATISTIC_BYTES * model.rotary * shard.sequence / shard.cp * width)


def linear_input_bytes(inputs: Inputs) -> Floats:
    """Bytes of a value kept only to be the input of a linear layer: 1 where those run in FP8."""
    return np.asarray(np.where(inputs.training.low_precision_linear > 0, 1.0, inputs.training.activation_bytes))


def feed_forward_activations(inputs: Inputs, shard: Shard, width: Floats) -> Floats:
    """Bytes a dense feed-forward of ``width`` keeps: norm input and output, then its inner tensors.

    Plain: activation input and output. Gated: gate, up and product, and in eager PyTorch the activated gate.
    """
    return np.asarray(block_ends(inputs, shard) + shard.tokens * _inner_bytes(inputs) * width / shard.tp)


def _inner_bytes(inputs: Inputs) -> Floats:
    """Bytes of one element of the feed-forward's width: its inner tensors, of which the last is the input of a linear layer."""
    framework = inputs.framework
    tensors = np.where(inputs.model.gated > 0, framework.gated_tensors_kept, framework.plain_tensors_kept)
    return np.asarray(inputs.training.activation_bytes * (tensors - 1) + linear_input_bytes(inputs))


def expert_activations(inputs: Inputs, shard: Shard) -> Floats:
    """Bytes an expert layer's feed-forward keeps: router, routed rows (as permuted, as dispatched, expert output, as
    returned), inner tensors of the routed rows, shared expert.

    Rows do not shrink with expert parallelism: a rank receives as many as it sends (balanced routing).
    """
    model, framework, e = inputs.model, inputs.framework, inputs.training.activation_bytes
    rows = shard.expert_rows * framework.expert_imbalance
    wide = linear_input_bytes(inputs)
    routed = rows * ((wide + 3 * e) * model.hidden + _inner_bytes(inputs) * model.moe_ffn / shard.etp)
    router = shard.norm_tokens * 2 * STATISTIC_BYTES * model.num_experts
    return routed + router + feed_forward_activations(inputs, shard, model.shared_ffn)


def layer_activations(inputs: Inputs, shard: Shard, *, moe: bool) -> LayerActivations:
    """Bytes one dense or expert layer keeps for one micro-batch."""
    attention, scores = attention_activations(inputs, shard)
    feed_forward = expert_activations(inputs, shard) if moe else feed_forward_activations(inputs, shard, inputs.model.ffn)
    kept = attention + feed_forward
    checkpoint = inputs.training.activation_bytes * inputs.model.hidden * shard.norm_tokens + 0 * kept
    return LayerActivations(kept=kept, selective=(kept - scores) * inputs.framework.selective_kept, checkpoint=checkpoint)


def logits_bytes(inputs: Inputs, shard: Shard) -> Floats:
    """Bytes the head and loss of one micro-batch hold at their peak: logits, fp32 copy, gradients; once for each prediction depth."""
    inputs_kept = 2 * inputs.training.activation_bytes * inputs.model.hidden * shard.norm_tokens
    one = shard.tokens * shard.vocab / shard.tp * inputs.framework.logits_bytes + inputs_kept
    return np.asarray(one * (1 + inputs.model.mtp_layers))


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBytes:
    """Bytes a rank's parameters cost, by kind."""

    parameters: Floats
    gradients: Floats
    master_weights: Floats
    optimizer_states: Floats

    @property
    def total(self) -> Floats:
        return self.parameters + self.gradients + self.master_weights + self.optimizer_states


def state_bytes(inputs: Inputs, strategies: StrategyColumns, parameters: Floats, shards: Floats) -> StateBytes:
    """States of ``parameters`` local parameters whose shards spread over ``shards`` ranks, per ZeRO stage.

    Stage 1 shards optimizer states and master weights, 2 gradients too, 3 parameters too (Rajbhandari 2020, figure 1).
    Cached low-precision copies are whole on every rank below stage 3.
    """
    training, stage = inputs.training, strategies.zero_stage
    limit = np.where(strategies.shard_group_size > 0, strategies.shard_group_size, shards)
    over = np.minimum(shards, limit)
    sharded_optimizer = np.where(stage >= 1, over, 1)
    return StateBytes(
        parameters=parameters * (training.parameter_bytes + training.cached_weight_bytes) / np.where(stage >= 3, over, 1),
        gradients=parameters
        * (training.gradient_bytes / np.where(stage >= 2, over, 1) + training.sharded_gradient_bytes / sharded_optimizer),
        master_weights=parameters * training.master_weight_bytes / sharded_optimizer,
        optimizer_states=parameters * training.optimizer_state_bytes / sharded_optimizer,
    )


def least_state_bytes(inputs: Inputs) -> Floats:
    """Bytes that parameters, master weights and optimizer states take on the whole cluster, each kept once: no layout has less."""
    training = inputs.training
    return np.asarray(
        inputs.model.num_parameters * (training.parameter_bytes + training.master_weight_bytes + training.optimizer_state_bytes)
    )


def gathered_bytes(inputs: Inputs, strategies: StrategyColumns, local: LocalParameters) -> Floats:
    """ZeRO-3's working set: two gathered layers and one layer's whole gradients."""
    training = inputs.training
    largest = np.maximum(local.dense_layer, local.moe_layer_shared + local.moe_layer_expert)
    ends = np.maximum(local.embedding, local.head)
    working = np.maximum(2 * largest, ends + largest) * training.parameter_gather_bytes + largest * training.gradient_reduce_bytes
    return np.where(strategies.zero_stage == 3, working, 0)
