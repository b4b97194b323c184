"""What one GPU holds of a micro-batch and of a layer after sharding: tokens, widths, parameters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .columns import MODULES, Bools, Floats, Ints, StrategyColumns
from .inputs import Inputs
from .spec.strategy import ContextParallelKind, RecomputeModule

RING, ALL_GATHER, ULYSSES = (list(ContextParallelKind).index(kind) for kind in ContextParallelKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Sizes of the strategies as floats, and the local sizes that follow.

    ``tokens`` are those of one micro-batch on one context-parallel rank; ``norm_tokens`` those the operators outside the
    tensor-parallel region see (divided again under sequence parallelism).
    """

    tp: Floats
    cp: Floats
    pp: Floats
    dp: Floats
    ep: Floats
    etp: Floats
    sp: Floats
    micro_batch: Floats
    num_microbatches: Floats
    """Of one data-parallel rank and step."""
    stage_copies: Floats
    """Pipeline ranks that hold the same stage and add up its gradients: 2 under DualPipe, else 1."""
    stages_first: Bools
    """Where the stages of a pipeline lie between its replicas (``RankOrder.TP_CP_PP_DP``)."""
    stage_stride: Floats
    """Ranks between neighbours of a pipeline."""
    shard_group: Floats
    """Ranks asked to share one copy of what ZeRO shards; infinite for all of them."""
    sequence: Floats
    tokens: Floats
    norm_tokens: Floats
    cp_kind: Floats
    local_heads: Floats
    local_kv_heads: Floats
    expert_rows: Floats
    """Token rows all experts of one rank process in a micro-batch, balanced routing."""
    local_experts: Floats
    vocab: Floats
    """Padded vocabulary, whole."""
    modules: Ints
    """Modules that selective recomputation repeats, a bit for each of ``MODULES``; 0: none is named."""

    @classmethod
    def of(cls, inputs: Inputs, strategies: StrategyColumns) -> Shard:
        """Local sizes of each strategy.

        KV heads below TP are replicated (Megatron). An expert rank receives ``experts_per_token x tokens x etp / tp`` rows:
        the expert grid folds over the ranks of a stage, each of which owns ``tokens / tp`` tokens.
        """
        model = inputs.model
        tp, cp, ep, etp = (
            np.asarray(column, dtype=np.float64)
            for column in (
                strategies.tensor_parallel_size,
                strategies.context_parallel_size,
                strategies.expert_parallel_size,
                strategies.expert_tensor_parallel_size,
            )
        )
        sp = np.asarray(strategies.sequence_parallel, dtype=np.float64)
        micro_batch = np.asarray(strategies.micro_batch_size, dtype=np.float64)
        dp = np.asarray(strategies.data_parallel_size, dtype=np.float64)
        tokens = inputs.training.sequence_length * micro_batch / cp
        multiple = inputs.framework.vocab_padding_multiple * tp
        padded = np.where(multiple > 0, np.ceil(model.vocab / np.maximum(multiple, 1)) * multiple, model.vocab)
        return cls(
            tp=tp,
            cp=cp,
            pp=np.asarray(strategies.pipeline_parallel_size, dtype=np.float64),
            dp=dp,
            ep=ep,
            etp=etp,
            sp=sp,
            micro_batch=micro_batch,
            num_microbatches=inputs.training.global_batch_size / (dp * micro_batch),
            stage_copies=np.asarray(strategies.stage_copies, dtype=np.float64),
            stages_first=strategies.stages_first,
            stage_stride=np.asarray(strategies.stage_stride, dtype=np.float64),
            shard_group=np.where(strategies.shard_group_size > 0, strategies.shard_group_size, np.inf),
            sequence=inputs.training.sequence_length,
            tokens=tokens,
            norm_tokens=tokens / np.where(sp > 0, tp, 1),
            cp_kind=np.asarray(strategies.context_parallel_kind, dtype=np.float64),
            local_heads=model.heads / tp,
            local_kv_heads=np.maximum(model.kv_heads / tp, 1),
            expert_rows=model.experts_per_token * tokens * etp / tp,
            local_experts=model.num_experts / ep,
            vocab=padded,
            modules=strategies.recompute_modules,
        )

    def repeats(self, module: RecomputeModule) -> Floats:
        """1 where selective recomputation repeats ``module`` by name."""
        return np.asarray(self.modules >> MODULES.index(module) & 1, dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalParameters:
    """Parameters of one layer (or end) on one GPU, before ZeRO sharding.

    ``dense_*`` shard over the dense grid's data ranks, ``expert`` over the expert grid's.
    """

    dense_layer: Floats
    moe_layer_shared: Floats
    """Of an expert layer: attention, norms, router, shared experts."""
    moe_layer_expert: Floats
    embedding: Floats
    head: Floats
    """Output matrix and final norm; a tied matrix is held again by the last stage when there is more than one.

    With it the projections and norms of multi-token-prediction modules, whose decoder layers count as layers, and the
    copy of the token table that they read on a last stage that is not the first.
    """

    @classmethod
    def of(cls, inputs: Inputs, shard: Shard) -> LocalParameters:
        """Counts by the shapes of Megatron's sharding: matrices over TP, norms, output biases and router whole on every rank."""
        model, h, tp = inputs.model, inputs.model.hidden, shard.tp
        vectors = model.attention_split_parameters / tp + model.attention_replicated_parameters
        attention = attention_matrix_parameters(inputs, shard) + vectors
        norms = model.norms_per_layer * model.norm_parameters
        router = h * model.num_experts + model.router_extra_parameters
        table = shard.vocab * h / tp
        prediction = model.mtp_layers * (2 * h**2 / tp + 3 * model.norm_parameters)
        prediction = prediction + np.where((model.mtp_layers > 0) & (shard.pp > 1), table, 0)
        untied = (model.tied == 0) | (shard.pp > 1)
        return cls(
            dense_layer=attention + norms + _feed_forward_parameters(inputs, model.ffn, tp, model.mlp_bias),
            moe_layer_shared=attention + norms + router + _feed_forward_parameters(inputs, model.shared_ffn, tp, 0 * model.mlp_bias),
            moe_layer_expert=_feed_forward_parameters(inputs, model.moe_ffn, shard.etp, model.expert_bias) * shard.local_experts,
            embedding=table + model.embedding_rows_parameters,
            head=np.where(untied, table, 0) + model.final_parameters + prediction,
        )


def _feed_forward_parameters(inputs: Inputs, width: Floats, tp: Floats, biased: Floats) -> Floats:
    """Matrices of one feed-forward over ``tp`` ranks; its inner biases are split with them, its output bias is whole."""
    model = inputs.model
    inner = (model.mlp_matrices - 1) * width / tp
    return np.asarray(model.mlp_matrices * model.hidden * width / tp + biased * (inner + model.hidden))


def attention_matrix_parameters(inputs: Inputs, shard: Shard) -> Floats:
    """Weights of the attention projections on one rank.

    Latent attention (DeepSeek-V2): the down projections are whole on every tensor-parallel rank.
    """
    model, h = inputs.model, inputs.model.hidden
    plain = h * (2 * shard.local_heads * model.v_head_dim + 2 * shard.local_kv_heads * model.v_head_dim)
    query = np.where(
        model.query_lora_rank > 0,
        h * model.query_lora_rank + model.query_lora_rank * shard.local_heads * model.qk_head_dim,
        h * shard.local_heads * model.qk_head_dim,
    )
    up = model.kv_lora_rank * shard.local_heads * (model.qk_head_dim - model.rope_head_dim + model.v_head_dim)
    latent = query + h * (model.kv_lora_rank + model.rope_head_dim) + up + shard.local_heads * model.v_head_dim * h
    return np.where(model.latent > 0, latent, plain)
