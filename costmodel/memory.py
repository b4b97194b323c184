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
from .recomputed_modules import KeptParts, freed_bytes
from .sharding import ALL_GATHER, RING, ULYSSES, LocalParameters, Shard

STATISTIC_BYTES = 4
"""Norm statistics, log-sum-exp and rotary tables stay in fp32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerActivations:
    """Bytes one layer keeps for one micro-batch, under each recomputation choice."""

    kept: Floats
    selective: Floats
    """With what the recomputed modules make dropped: the attention core's scores where none are named."""
    checkpoint: Floats
    """Its input alone: what full recomputation keeps."""
    working: Floats
    """Beside what it keeps, while it runs backward: gradients that pass through it, and what its attention gathers."""


def attention_activations(inputs: Inputs, shard: Shard) -> tuple[Floats, Floats]:
    """Bytes the attention block keeps, and how many of them are scores.

    Norm input, output and statistics, q, k, v, the attention output, log-sum-exp; rotary adds rotated q and k (q, k, v
    stay as views of one product). Latent attention keeps q, k, v, the output and its compressed tensors with their norms, and
    the up-projections where another kernel rotates them. FP8 layers keep the output once more, as the input of the last
    product, and the norm's output for both down projections. Unfused attention keeps softmax output and, with dropout, its
    mask and result: 5 bytes a score at 2 bytes a value. With dropout, plain heads and no rotary it is table 2 of Korthikanti
    2022 to the byte, statistics aside. Context parallelism by all-gather keeps the other ranks' keys and values too, where the
    framework does not gather them again.
    """
    model, framework, e = inputs.model, inputs.framework, inputs.training.activation_bytes
    queries = shard.local_heads * model.qk_head_dim
    values = shard.local_heads * model.v_head_dim
    kv = shard.local_kv_heads * model.v_head_dim
    rotated = model.rotary * (queries + kv + framework.query_copies_kept * queries)
    plain = queries + 2 * kv + rotated + values
    latent = (2 + framework.unrotated_latent_kept) * (queries + values)
    width = np.where(model.latent > 0, latent, plain)
    compressed = model.latent * (2 * model.query_lora_rank + 2 * model.kv_lora_rank + model.rope_head_dim)
    if np.any(shard.cp > 1):
        gathers = framework.gathered_context_kept * (shard.cp > 1) * (shard.cp_kind == ALL_GATHER)
        width = width + gathers * (2 * kv * (shard.cp - 1) + values)
    outer = block_ends(inputs, shard, attention_input_bytes(inputs)) + shard.norm_tokens * e * compressed
    statistics = STATISTIC_BYTES * shard.local_heads * framework.fused_attention
    quantised = quantises_inputs(inputs) * linear_input_bytes(inputs) * values
    scores = score_elements(inputs, shard) * (1 - framework.fused_attention) * (e + framework.dropout * (e + 1))
    return outer + shard.tokens * (e * width + statistics + quantised) + scores, scores


def block_ends(inputs: Inputs, shard: Shard, output_bytes: Floats) -> Floats:
    """Bytes at the ends of a block (half a layer): its norm's input, output and statistics, and its dropout's mask.

    The norm's output, ``output_bytes`` a value, is kept as the input of linear layers; under sequence parallelism as it is
    gathered, where the framework does not gather it again.
    """
    model, e = inputs.model, inputs.training.activation_bytes
    copies = inputs.framework.rms_norm_copies_kept * (model.norm_statistics == 1)
    norm = model.hidden * (e * (1 + copies) + output_bytes) + STATISTIC_BYTES * model.norm_statistics
    mask = inputs.framework.dropout * model.hidden
    gathered = inputs.framework.gathered_inputs_kept * (shard.tokens - shard.norm_tokens) * model.hidden * linear_input_bytes(inputs)
    return np.asarray(shard.norm_tokens * (norm * model.norms_per_layer / 2 + mask) + gathered * model.norms_per_layer / 2)


def rotary_tables(inputs: Inputs, shard: Shard) -> Floats:
    """Bytes of the cosines and sines of rotary positions: one pair of fp32 tables for all layers of a rank."""
    model = inputs.model
    width = np.where(model.latent > 0, model.rope_head_dim, model.qk_head_dim)
    return np.asarray(2 * STATISTIC_BYTES * model.rotary * shard.sequence / shard.cp * width)


def quantises_inputs(inputs: Inputs) -> Floats:
    """1 where linear layers keep their inputs in FP8 or FP4, apart from what other operators keep of the same tensor."""
    return np.asarray(inputs.training.low_precision_linear * inputs.framework.low_precision_inputs)


def linear_input_bytes(inputs: Inputs) -> Floats:
    """Bytes of a value kept only to be the input of a linear layer: 1 where it is kept quantised."""
    return np.asarray(np.where(quantises_inputs(inputs) > 0, 1.0, inputs.training.activation_bytes))


def attention_input_bytes(inputs: Inputs) -> Floats:
    """Bytes of a value of the norm before attention: its input once, of latent attention once for either down projection."""
    return np.asarray(linear_input_bytes(inputs) * (1 + quantises_inputs(inputs) * (inputs.model.latent > 0)))


def expert_input_bytes(inputs: Inputs) -> Floats:
    """Bytes of a value of the norm before experts: as the router reads it, and quantised for shared experts."""
    shared = quantises_inputs(inputs) * (inputs.model.shared_ffn > 0)
    return np.asarray(inputs.training.activation_bytes + shared * linear_input_bytes(inputs))


def feed_forward_activations(inputs: Inputs, shard: Shard, width: Floats) -> Floats:
    """Bytes a dense feed-forward of ``width`` keeps: norm input and output, then its inner tensors.

    Plain: activation input and output. Gated: gate, up and product, and in eager PyTorch the activated gate.
    """
    return np.asarray(block_ends(inputs, shard, linear_input_bytes(inputs)) + _inner_activations(inputs, shard, width))


def _inner_activations(inputs: Inputs, shard: Shard, width: Floats) -> Floats:
    return np.asarray(shard.tokens * _inner_bytes(inputs) * width / shard.tp)


def _inner_bytes(inputs: Inputs) -> Floats:
    """Bytes of one element of the feed-forward's width: its inner tensors, of which the last is the input of a linear layer."""
    framework = inputs.framework
    tensors = np.where(inputs.model.gated > 0, framework.gated_tensors_kept, framework.plain_tensors_kept)
    return np.asarray(inputs.training.activation_bytes * (tensors - 1) + linear_input_bytes(inputs))


def expert_activations(inputs: Inputs, shard: Shard) -> Floats:
    """Bytes an expert layer's feed-forward keeps: norm, router, routed rows, shared expert."""
    ends = block_ends(inputs, shard, expert_input_bytes(inputs))
    return ends + routed_activations(inputs, shard) + _inner_activations(inputs, shard, inputs.model.shared_ffn)


def routed_activations(inputs: Inputs, shard: Shard) -> Floats:
    """Bytes of the router and of the routed rows: as the experts' input, as often as the framework keeps them beside it, and within.

    Permutation and exchange keep nothing: their backward moves rows back. Rows do not shrink with expert parallelism: a rank
    receives as many as it sends (balanced routing).
    """
    model, framework, e = inputs.model, inputs.framework, inputs.training.activation_bytes
    rows = shard.expert_rows * framework.expert_imbalance
    wide = linear_input_bytes(inputs) + framework.routed_rows_kept * e
    router = shard.norm_tokens * 2 * STATISTIC_BYTES * model.num_experts
    return np.asarray(rows * (wide * model.hidden + _inner_bytes(inputs) * model.moe_ffn / shard.etp) + router)


def layer_activations(inputs: Inputs, shard: Shard, *, moe: bool) -> LayerActivations:
    """Bytes one dense or expert layer keeps for one micro-batch."""
    attention, scores = attention_activations(inputs, shard)
    feed_forward = expert_activations(inputs, shard) if moe else feed_forward_activations(inputs, shard, inputs.model.ffn)
    kept = attention + feed_forward
    selective = (kept - scores) * inputs.framework.selective_kept
    if np.any(shard.modules > 0):
        named = kept - freed_bytes(shard, kept_parts(inputs, shard, scores, moe=moe))
        selective = np.where(shard.modules > 0, named, selective)
    checkpoint = inputs.training.activation_bytes * inputs.model.hidden * shard.norm_tokens + 0 * kept
    return LayerActivations(
        kept=kept,
        selective=selective,
        checkpoint=checkpoint,
        working=passing_gradients(inputs, shard) + attention_working_set(inputs, shard),
    )


def kept_parts(inputs: Inputs, shard: Shard, scores: Floats, *, moe: bool) -> KeptParts:
    """What the modules of a layer keep, which recomputing them frees.

    The output of attention is the next product's input and stays with any of them; so does what the first operator of a module reads.
    """
    model, e, nothing = inputs.model, inputs.training.activation_bytes, 0 * shard.tokens
    wide, inner = linear_input_bytes(inputs), _inner_activations(inputs, shard, model.ffn)
    heads = shard.local_heads * ((2 + inputs.framework.unrotated_latent_kept) * (model.qk_head_dim + model.v_head_dim) - model.v_head_dim)
    normed = attention_input_bytes(inputs) * (model.latent > 0) + expert_input_bytes(inputs) * moe
    return KeptParts(
        scores=scores,
        up_projections=shard.tokens * e * heads * (model.latent > 0),
        norms=shard.norm_tokens * model.hidden * normed,
        expert_activations=shard.expert_rows * wide * model.moe_ffn / shard.etp * moe,
        feed_forward=nothing if moe else inner + shard.norm_tokens * model.hidden * wide,
        routed=routed_activations(inputs, shard) if moe else nothing,
        shared=_inner_activations(inputs, shard, model.shared_ffn) if moe else nothing,
    )


def passing_gradients(inputs: Inputs, shard: Shard) -> Floats:
    """Bytes that pass through a block running backward, as wide as the model and for all tokens of the tensor-parallel region.

    The gradient of its output and of its input, and under sequence parallelism its input gathered once more where that is not kept.
    """
    framework, width = inputs.framework, inputs.model.hidden
    gathered = (1 - framework.gathered_inputs_kept) * (shard.tokens - shard.norm_tokens) * linear_input_bytes(inputs)
    return np.asarray(width * (2 * inputs.training.activation_bytes * shard.tokens + gathered))


def attention_working_set(inputs: Inputs, shard: Shard) -> Floats:
    """Bytes that one attention call gathers over context-parallel ranks: keys and values of all of them, which a ring collects too.

    PyTorch's repeats key-value heads for the queries first; Transformer Engine's ring also keeps the output of every step until it
    adds them up. Ulysses exchanges heads for tokens and gathers nothing.
    """
    if not np.any(shard.cp > 1):
        return np.asarray(0 * shard.tokens)
    framework, repeated = inputs.framework, inputs.framework.context_heads_repeated
    kv = 2 * np.where(repeated > 0, shard.local_heads, shard.local_kv_heads)
    steps = np.where((shard.cp_kind == RING) & (repeated == 0), shard.local_heads, 0)
    gathered = shard.cp * shard.tokens * inputs.training.activation_bytes * inputs.model.v_head_dim * (kv + steps)
    return np.where((shard.cp > 1) & (shard.cp_kind != ULYSSES), gathered * (1 - framework.gathered_context_kept), 0)


def logits_bytes(inputs: Inputs, shard: Shard) -> Floats:
    """Bytes the head and loss of one micro-batch hold at their peak: logits, fp32 copy, gradients; once for each prediction depth.

    Beside them the input of the last norm and of the head, gathered where the framework keeps it so.
    """
    framework, e = inputs.framework, inputs.training.activation_bytes
    split = np.where((shard.tp > 1) & (framework.split_logits_bytes > 0), framework.split_logits_bytes, framework.logits_bytes)
    gathered = framework.gathered_inputs_kept * (shard.tokens - shard.norm_tokens)
    inputs_kept = e * inputs.model.hidden * (2 * shard.norm_tokens + gathered)
    one = shard.tokens * shard.vocab / shard.tp * split + inputs_kept
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


def state_bytes(
    inputs: Inputs, strategies: StrategyColumns, parameters: Floats, shards: Floats, *, copied: Floats | None = None
) -> StateBytes:
    """States of ``parameters`` local parameters whose shards spread over ``shards`` ranks, per ZeRO stage.

    Stage 1 shards optimizer states and master weights, 2 gradients too, 3 parameters too (Rajbhandari 2020, figure 1), of which
    some frameworks keep the master's share alone. Cached low-precision copies are whole on every rank below stage 3, and made of
    ``copied`` parameters, those of linear layers; None: of all.
    """
    training, stage = inputs.training, strategies.zero_stage
    limit = np.where(strategies.shard_group_size > 0, strategies.shard_group_size, shards)
    over = np.minimum(shards, limit)
    sharded_optimizer = np.where(stage >= 1, over, 1)
    alone = (inputs.framework.sharded_master_alone > 0) & (training.master_weight_bytes > 0) & (stage >= 3)
    held = parameters * np.where(alone, 0.0, training.parameter_bytes)
    copies = (parameters if copied is None else copied) * training.cached_weight_bytes
    return StateBytes(
        parameters=(held + copies) / np.where(stage >= 3, over, 1),
        gradients=parameters
        * (training.gradient_bytes / np.where(stage >= 2, over, 1) + training.sharded_gradient_bytes / sharded_optimizer),
        master_weights=parameters * training.master_weight_bytes / sharded_optimizer,
        optimizer_states=parameters * training.optimizer_state_bytes / sharded_optimizer,
    )


def least_state_bytes(inputs: Inputs) -> Floats:
    """Bytes that parameters, master weights and optimizer states take on the whole cluster, each kept once: no layout has less."""
    training = inputs.training
    alone = (inputs.framework.sharded_master_alone > 0) & (training.master_weight_bytes > 0)
    parameters = np.where(alone, 0.0, training.parameter_bytes)
    return np.asarray(inputs.model.num_parameters * (parameters + training.master_weight_bytes + training.optimizer_state_bytes))


def gathered_bytes(inputs: Inputs, strategies: StrategyColumns, local: LocalParameters) -> Floats:
    """ZeRO-3's working set: two gathered layers and one layer's whole gradients.

    A framework that shards each layer on its own also copies a layer's gradients together to reduce them where it keeps the
    parameters whole (FSDP under a pipeline).
    """
    training, stage = inputs.training, strategies.zero_stage
    replicas = strategies.data_parallel_size * strategies.context_parallel_size
    largest = np.maximum(local.dense_layer, local.moe_layer_shared + local.moe_layer_expert)
    ends = np.maximum(local.embedding, local.head)
    reduced = largest * training.gradient_reduce_bytes
    working = np.maximum(2 * largest, ends + largest) * training.parameter_gather_bytes + reduced
    copied = (inputs.framework.sharded_master_alone > 0) & ((stage == 1) | (stage == 2)) & (replicas > 1)
    return np.where(stage == 3, working, np.where(copied, reduced, 0))
