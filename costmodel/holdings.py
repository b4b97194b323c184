"""What the parameters of a pipeline rank cost outside the micro-batches: bytes, reductions, gathers, the optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from . import memory
from .columns import Floats, StrategyColumns, column, distinct_rows, gather, trailing
from .communication import all_gather_seconds, all_reduce_seconds, p2p_seconds
from .compute import optimizer_seconds
from .inputs import Inputs
from .layer_communication import scattered_seconds
from .layer_costs import LayerCosts, LayerSizes, ends_cross_domain, ends_far_hops
from .memory import StateBytes
from .pipeline_shape import PipelineShape

ADAM_TRAFFIC_BYTES = 2
"""Bytes of the updated low-precision parameter that the optimizer writes, beside reading and writing its states."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """rows x ranks: what the parameters of each pipeline rank cost outside the micro-batches."""

    parameters: Floats
    states: StateBytes
    reduction_seconds: Floats
    """Gradient reduction at the end of the step; none under ZeRO-3, which reduces on every micro-batch."""
    gather_seconds: Floats
    """Parameter gather of ZeRO-1 and 2."""
    optimizer_seconds: Floats


_HOLDING_KEY = (
    "tensor_parallel_size", "context_parallel_size", "expert_parallel_size", "expert_tensor_parallel_size", "data_parallel_size",
    "zero_stage", "shard_group_size", "stage_copies", "rank_order",
)  # fmt: skip
_WORTH_SHARING = 256
"""Below so many strategies, finding the distinct ones takes longer than computing them all."""


def held_by_ranks(inputs: Inputs, strategies: StrategyColumns, costs: LayerCosts, shape: PipelineShape) -> Holdings:
    """Computed once for every distinct combination of the sizes it depends on, whatever the micro-batch and the recomputation."""
    if inputs.num_gpus.ndim or len(strategies) < _WORTH_SHARING:
        return _holdings(inputs, strategies, costs, shape)
    first, index = distinct_rows(strategies, _HOLDING_KEY)
    return gather(_holdings(inputs, strategies.take(first), gather(costs, first), shape), index)


def _holdings(inputs: Inputs, strategies: StrategyColumns, costs: LayerCosts, shape: PipelineShape) -> Holdings:
    parameters = rank_parameters(inputs, costs, shape)
    return holdings_of(inputs, strategies, costs, *parameters, uncopied=_uncopied_parameters(inputs, costs, shape))


def holdings_of(
    inputs: Inputs,
    strategies: StrategyColumns,
    costs: LayerCosts,
    dense_params: Floats,
    expert_params: Floats,
    *,
    uncopied: Floats | None = None,
) -> Holdings:
    """What so many parameters cost, those that shard over the dense grid and those over the expert grid: rows x anything.

    Of ``uncopied`` of the dense ones no low-precision copy is kept.
    """
    training, links = trailing(inputs.training), trailing(inputs.links)
    stage = column(strategies.zero_stage)
    reduce, gathers, shards = [], [], []
    groups = costs.groups
    grids = (
        (dense_params, groups.data, groups.data_shard, groups.data_replicas),
        (expert_params, groups.expert_data, groups.expert_shard, groups.expert_replicas),
    )
    for parameters, *placed in grids if np.any(expert_params) else grids[:1]:
        whole, within, across = (trailing(group) for group in placed)
        gradients = parameters * training.gradient_reduce_bytes
        reduced = scattered_seconds(gradients, within, across, links)
        if np.any(stage == 0):
            reduced = np.where(stage == 0, all_reduce_seconds(gradients, whole, links), reduced)
        reduce.append(reduced)
        gathers.append(np.where(stage == 0, 0, all_gather_seconds(parameters * training.parameter_gather_bytes, within, links)))
        shards.append(parameters / np.where(stage >= 1, within.size, 1))
    in_step = np.where(stage == 3, 0.0, 1.0)
    return Holdings(
        parameters=dense_params + expert_params,
        states=_rank_states(inputs, strategies, costs, dense_params, expert_params, uncopied=uncopied),
        reduction_seconds=sum(reduce[1:], start=reduce[0]) * in_step,
        gather_seconds=sum(gathers[1:], start=gathers[0]) * in_step,
        optimizer_seconds=_optimizer_seconds(inputs, sum(shards[1:], start=shards[0])),
    )


def rank_states(inputs: Inputs, strategies: StrategyColumns, sizes: LayerSizes, shape: PipelineShape) -> StateBytes:
    """rows x ranks: bytes of parameters, gradients and optimizer."""
    parameters = rank_parameters(inputs, sizes, shape)
    return _rank_states(inputs, strategies, sizes, *parameters, uncopied=_uncopied_parameters(inputs, sizes, shape))


def exposed_data_seconds(inputs: Inputs, costs: LayerCosts, held: Holdings, forward: Floats, backward: Floats) -> Floats:
    """Exposed data-parallel communication of each rank, rows x ranks.

    The gradient reduction hides behind the last micro-batch's backward, and rank r finishes before the ranks below it,
    whose backward passes it also hides behind; the parameter gather of ZeRO-1 and 2 hides behind the first forward the same way.
    """
    exposed, ranks = exposed_transfer_seconds(inputs, held, forward, backward), np.arange(forward.shape[1])
    return exposed + column(tied_embedding_seconds(inputs, costs)) * np.isin(ranks, [0, len(ranks) - 1])


def exposed_transfer_seconds(inputs: Inputs, held: Holdings, forward: Floats, backward: Floats) -> Floats:
    """:func:`exposed_data_seconds` without the tied embedding: the reduction and the gather of ``held``, rows x ranks."""
    framework = inputs.framework
    slack_forward = np.cumsum(forward, axis=1) - forward
    slack_backward = np.cumsum(backward, axis=1) - backward
    exposed = _exposed(held.reduction_seconds, column(framework.data_overlap), backward, slack_backward)
    return exposed + _exposed(held.gather_seconds, column(framework.param_gather_overlap), forward, slack_forward)


_TAIL_PARTS = ("reduction_seconds", "gather_seconds", "rest_seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tails:
    """What follows a rank's last backward, rows x ranks x what it may hold: nothing yet hidden behind the passes of the ranks before it."""

    reduction_seconds: Floats
    gather_seconds: Floats
    rest_seconds: Floats
    """The optimizer, and the sum of tied embeddings."""

    @classmethod
    def none(cls, rows: int) -> Tails:
        """Of ``rows`` strategies whose ranks have no copies to reduce with."""
        return cls(**{name: np.zeros((rows, 1, 1)) for name in _TAIL_PARTS})

    @classmethod
    def shortest(cls, choices: Sequence[Tails], *, first: Tails | None) -> Tails:
        """The shortest of ``choices`` in every part; of the first rank ``first``, where it is known."""
        parts = {name: np.min([getattr(each, name) for each in choices], axis=0) for name in _TAIL_PARTS}
        if first is not None:
            for name, part in parts.items():
                part[:, 0] = getattr(first, name)[:, 0]
        return cls(**parts)

    def take(self, row: int) -> Tails:
        """One of the strategies."""
        return Tails(**{name: getattr(self, name)[row : row + 1] for name in _TAIL_PARTS})

    def seconds(self, forward_before: Floats, backward_before: Floats) -> Floats:
        """Exposed, with the passes of a micro-batch that the ranks before run meanwhile."""
        reduced = np.maximum(self.reduction_seconds - backward_before, 0)
        return np.asarray(reduced + np.maximum(self.gather_seconds - forward_before, 0) + self.rest_seconds)


def rank_tails(
    inputs: Inputs, strategies: StrategyColumns, costs: LayerCosts, parameters: tuple[Floats, Floats], own: tuple[Floats, Floats]
) -> Tails:
    """The tails of ranks with ``parameters`` (over the dense and over the expert grid) and their ``own`` forward and backward seconds.

    All ``[rows, ranks, choices]``, of all ranks or of the first alone. As :func:`exposed_data_seconds` of a whole pipeline.
    """
    rows, ranks, choices = own[0].shape
    flat = [np.broadcast_to(each, own[0].shape).reshape(rows, -1) for each in (*parameters, *own)]
    held, framework = holdings_of(inputs, strategies, costs, flat[0], flat[1]), inputs.framework
    reduced = _exposed(held.reduction_seconds, column(framework.data_overlap), flat[3], np.zeros(1))
    gathered = _exposed(held.gather_seconds, column(framework.param_gather_overlap), flat[2], np.zeros(1))
    ends = np.isin(np.arange(ranks), [0, ranks - 1])[:, None] * np.ones(choices)
    rest = held.optimizer_seconds + column(tied_embedding_seconds(inputs, costs)) * ends.ravel()
    shape = (rows, ranks, choices)
    return Tails(reduction_seconds=reduced.reshape(shape), gather_seconds=gathered.reshape(shape), rest_seconds=rest.reshape(shape))


def _exposed(seconds: Floats, overlap: Floats, own: Floats, slack: Floats) -> Floats:
    """What is left of a transfer after hiding ``overlap`` of it at most behind the rank's own pass and its slack."""
    hidden = np.minimum(seconds * overlap, own)
    return np.maximum(seconds - hidden - slack, 0)


def tied_embedding_bytes(inputs: Inputs, costs: LayerSizes) -> Floats:
    """Gradients of the token table on one GPU, which the first and the last pipeline rank add up where it is tied; else 0."""
    shard = costs.shard
    table = shard.vocab * inputs.model.hidden / shard.tp * inputs.training.gradient_reduce_bytes
    return np.where((inputs.model.tied > 0) & (shard.pp > 1), table, 0)


def tied_embedding_seconds(inputs: Inputs, costs: LayerCosts) -> Floats:
    """First and last pipeline rank add up their gradients of a tied embedding, after everything else."""
    table = tied_embedding_bytes(inputs, costs)
    far = ends_far_hops(inputs, costs.shard)
    return p2p_seconds(table, ends_cross_domain(inputs, costs.shard), inputs.links, beyond=far)


def _optimizer_seconds(inputs: Inputs, parameters: Floats) -> Floats:
    """Adam over the rank's shard and the gradient norm before it.

    Reads gradient, weight and states, writes weight, states and the low-precision parameter; the norm reads the gradient once more.
    """
    training = inputs.training
    weight = np.where(training.master_weight_bytes > 0, training.master_weight_bytes, training.parameter_bytes)
    copies = np.where(training.master_weight_bytes > 0, ADAM_TRAFFIC_BYTES, 0)
    per_parameter = 2 * training.gradient_bytes + 2 * weight + 2 * training.optimizer_state_bytes + copies
    return optimizer_seconds(trailing(inputs.wide_device), parameters * column(per_parameter))


def rank_parameters(inputs: Inputs, costs: LayerSizes, shape: PipelineShape) -> tuple[Floats, Floats]:
    """Parameters of each rank that shard over the dense grid, and those that shard over the expert grid."""
    dense_count, moe_count = shape.layer_counts(inputs)
    local = costs.local
    shared = column(local.dense_layer) * dense_count + column(local.moe_layer_shared) * moe_count
    shared = shared + column(local.embedding) * shape.is_first + column(local.head) * shape.is_last
    return shape.on_ranks(shared), shape.on_ranks(column(local.moe_layer_expert) * moe_count)


def uncopied_ends(inputs: Inputs, costs: LayerSizes) -> tuple[Floats, Floats]:
    """Parameters of the embedding and of the head of which no low-precision copy is kept.

    The token table is only read, unless it is the output matrix too; FP8 leaves the output matrix alone as well, autocast casts it.
    """
    local = costs.local
    read_only = (inputs.model.tied == 0) | (costs.shard.pp > 1)
    wide_head = inputs.training.low_precision_linear > 0
    return np.where(read_only, local.embedding, 0), np.where(wide_head, local.head, 0)


def _uncopied_parameters(inputs: Inputs, costs: LayerSizes, shape: PipelineShape) -> Floats | None:
    """:func:`uncopied_ends` on the ranks that hold them; None where there are no copies at all."""
    if not np.any(inputs.training.cached_weight_bytes > 0):
        return None
    embedding, head = uncopied_ends(inputs, costs)
    return shape.on_ranks(column(embedding) * shape.is_first + column(head) * shape.is_last + 0 * column(costs.local.dense_layer))


def _rank_states(
    inputs: Inputs, strategies: StrategyColumns, costs: LayerSizes, dense: Floats, expert: Floats, *, uncopied: Floats | None = None
) -> StateBytes:
    """State bytes of each rank: dense parameters over data x context ranks, experts over expert-data ranks."""
    wide = trailing(inputs) if inputs.num_gpus.ndim else inputs
    sharding = strategies.with_columns(zero_stage=column(strategies.zero_stage), shard_group_size=column(strategies.shard_group_size))
    copied = dense if uncopied is None else np.maximum(dense - uncopied, 0)
    parts = [
        memory.state_bytes(wide, sharding, parameters, column(group.size), copied=linear)
        for parameters, linear, group in ((dense, copied, costs.groups.data), (expert, expert, costs.groups.expert_data))
    ]
    names = ("parameters", "gradients", "master_weights", "optimizer_states")
    return StateBytes(**{name: getattr(parts[0], name) + getattr(parts[1], name) for name in names})
