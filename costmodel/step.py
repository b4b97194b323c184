"""One training step: layers into pipeline stages, stages into a makespan, and the end of the step.

The one implementation behind ``estimate`` (one strategy), the search (many strategies of one problem) and the accuracy tables
(a problem a row). Rows that share a pipeline shape are evaluated together, as arrays of rows x stages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from . import layer, memory, operators
from .columns import SCHEDULES, Bools, Floats, Ints, StrategyColumns, gather, trailing
from .communication import all_gather_seconds, all_reduce_seconds, p2p_seconds, reduce_scatter_seconds
from .compute import GemmLayout, gemm_seconds, memory_seconds, optimizer_seconds
from .inputs import Inputs
from .layer import Groups, LayerTimes, PassTimes
from .memory import LayerActivations, StateBytes
from .makespan import makespan_seconds
from .pipeline_closed_form import in_flight_microbatches
from .sharding import LocalParameters, Shard
from .spec.schedule import stage_ranks
from .spec.strategy import PipelineSchedule, Recompute, balanced_layers
from .topology import crosses_domain

ADAM_TRAFFIC_BYTES = 2
"""Bytes of the updated low-precision parameter that the optimizer writes, beside reading and writing its states."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCosts:
    """A group of strategies with one pipeline shape, as arrays of rows x ranks (or rows x virtual stages)."""

    rows: Ints
    schedule: PipelineSchedule
    pipeline_parallel_size: int
    virtual_pipeline_stages: int
    dense_layers: Ints
    """Dense layers of each virtual stage."""
    moe_layers: Ints
    stage_ranks: tuple[int, ...]
    on_rank: Floats
    """ranks x virtual stages: 1 where the rank runs the stage."""
    layer: LayerCosts
    recomputed: Floats
    """rows x ranks: share of the layers that full recomputation repeats."""
    selective: Floats
    end_forward: Floats
    end_backward: Floats
    transfers: Floats
    """rows x virtual stages: exposed pipeline transfers, both directions."""
    forward: Floats
    """rows x virtual stages: seconds of one micro-batch."""
    backward: Floats
    makespan: Floats
    exact: Bools
    """False where ``makespan`` is a lower bound."""
    num_microbatches: Floats
    data_seconds: Floats
    """rows x ranks: gradient reduction and parameter gather left exposed."""
    optimizer_seconds: Floats
    parameters: Floats
    states: StateBytes
    activations: Floats
    in_flight: Floats
    logits: Floats
    buffers: Floats
    reserve: Floats
    overhead: Floats

    @property
    def tail(self) -> Floats:
        """Seconds from the last backward to the end of the step: the slowest rank's."""
        return np.max(self.data_seconds + self.optimizer_seconds, axis=1)

    @property
    def step_seconds(self) -> Floats:
        return self.makespan + self.tail + self.overhead

    @property
    def rank_memory(self) -> Floats:
        """rows x ranks: bytes at the peak, everything counted."""
        return self.states.total + self.activations + self.logits + self.buffers + self.reserve


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What the search needs of each strategy."""

    step_time_seconds: Floats
    exact: Bools
    """False where the step time is a lower bound, until the schedule is simulated."""
    peak_memory_bytes: Floats
    allocated_memory_bytes: Floats
    """The tensors alone: what the framework's allocator calls its peak."""
    memory_capacity_bytes: Floats

    @property
    def fits(self) -> Bools:
        return self.peak_memory_bytes <= self.memory_capacity_bytes


def evaluate(inputs: Inputs, strategies: StrategyColumns, *, simulate: bool = False) -> Evaluation:
    """Step time and peak memory of each strategy. Feasible strategies only: see :mod:`autopar.search.feasibility`.

    ``simulate`` replaces lower bounds by simulated schedules, which costs milliseconds a strategy.
    """
    count = len(strategies)
    step, peak, allocated, exact = np.empty(count), np.empty(count), np.empty(count), np.empty(count, dtype=np.bool_)
    for group in stage_groups(inputs, strategies, simulate=simulate):
        step[group.rows], exact[group.rows] = group.step_seconds, group.exact
        peak[group.rows] = np.max(group.rank_memory, axis=1)
        allocated[group.rows] = np.max(group.rank_memory - group.reserve, axis=1)
    capacity = np.broadcast_to(inputs.memory_bytes, (count,))
    return Evaluation(
        step_time_seconds=step, exact=exact, peak_memory_bytes=peak, allocated_memory_bytes=allocated, memory_capacity_bytes=capacity
    )


def stage_groups(inputs: Inputs, strategies: StrategyColumns, *, simulate: bool = False) -> Iterator[StageCosts]:
    """The strategies in groups that share a pipeline shape and a model's layer pattern."""
    costs, index = _shared_layer_costs(inputs, strategies)
    for rows in _pipeline_groups(inputs, strategies):
        members = strategies.take(rows)
        own = gather(inputs, rows) if inputs.num_gpus.ndim else inputs
        yield _stage_costs(own, members, gather(costs, index[rows]), rows, simulate=simulate)


_LAYER_KEY = (
    "tensor_parallel_size", "sequence_parallel", "context_parallel_size", "context_parallel_kind", "expert_parallel_size",
    "expert_tensor_parallel_size", "data_parallel_size", "micro_batch_size", "zero_stage", "pipeline_parallel_size", "shard_group_size",
)  # fmt: skip


def _shared_layer_costs(inputs: Inputs, strategies: StrategyColumns) -> tuple[LayerCosts, Ints]:
    """Layer costs once for every distinct combination of the sizes they depend on, and each strategy's row in them."""
    if inputs.num_gpus.ndim:
        return layer_costs(inputs, strategies), np.arange(len(strategies))
    first, index = _distinct(strategies, _LAYER_KEY)
    return layer_costs(inputs, strategies.take(first)), index


def _distinct(strategies: StrategyColumns, names: tuple[str, ...]) -> tuple[Ints, Ints]:
    """A row for each distinct combination of the named columns, and for each strategy its place among them."""
    key = np.zeros(len(strategies), dtype=np.int64)
    for name in names:
        column = getattr(strategies, name)
        key = key * (int(column.max(initial=0)) + 1) + column
        if key.max(initial=0) > 2**31:
            _, key = np.unique(key, return_inverse=True)
    _, first, index = np.unique(key, return_index=True, return_inverse=True)
    return first, index


def _pipeline_groups(inputs: Inputs, strategies: StrategyColumns) -> Iterator[Ints]:
    """Row numbers of each group of equal schedule, p, v, layer pattern and explicit split."""
    model = inputs.model
    key = [strategies.pipeline_schedule, strategies.pipeline_parallel_size, strategies.virtual_pipeline_stages]
    if model.num_layers.ndim:
        pattern = (model.num_layers, model.first_dense_layers, model.moe_layer_frequency, model.num_moe_layers, 1e6 * _head_layers(inputs))
        key += [c.astype(np.int64) for c in pattern]
    if strategies.pipeline_layers:
        splits = {split: code for code, split in enumerate(dict.fromkeys(strategies.pipeline_layers))}
        key.append(np.array([splits[split] for split in strategies.pipeline_layers]))
    if not len(strategies):
        return
    _, codes = np.unique(np.stack(key), axis=1, return_inverse=True)
    order = np.argsort(codes, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(codes[order])) + 1):
        yield from np.array_split(rows, -(-len(rows) // 20_000))


def _head_layers(inputs: Inputs) -> Floats:
    """What the output matrix weighs, in layers of the model: by the parameters a token passes through."""
    model = inputs.model
    table = model.vocab * model.hidden
    in_layers = np.maximum(model.num_active_parameters - table * (2 - model.tied), table * 0.01)
    return table * model.num_layers / in_layers


def _layer_split(inputs: Inputs, strategies: StrategyColumns) -> tuple[Ints, Ints]:
    """Dense and expert layers of each virtual stage; equal for every row of a group."""
    model = inputs.model
    first = [int(np.ravel(c)[0]) for c in (model.num_layers, model.num_moe_layers, model.first_dense_layers, model.moe_layer_frequency)]
    num_layers, num_moe, first_dense, frequency = first
    stages = int(strategies.pipeline_parallel_size[0] * strategies.virtual_pipeline_stages[0])
    split = strategies.pipeline_layers[0] if strategies.pipeline_layers else ()
    layers = np.array(split or balanced_layers(num_layers, stages, head_layers=float(np.ravel(_head_layers(inputs))[0])))
    index = np.arange(num_layers)
    is_moe = (index >= first_dense) & ((index - first_dense + 1) % frequency == 0) & (num_moe > 0)
    ends = np.cumsum(layers)
    counts = np.concatenate([[0], np.cumsum(is_moe)])
    moe = counts[ends] - counts[ends - layers]
    return layers - moe, moe


def _stage_costs(inputs: Inputs, strategies: StrategyColumns, costs: LayerCosts, rows: Ints, *, simulate: bool) -> StageCosts:
    p, v = int(strategies.pipeline_parallel_size[0]), int(strategies.virtual_pipeline_stages[0])
    schedule = SCHEDULES[int(strategies.pipeline_schedule[0])]
    dense, moe = _layer_split(inputs, strategies)
    ranks = stage_ranks(schedule, p, v)
    count = inputs.training.global_batch_size / (costs.shard.dp * costs.shard.micro_batch)
    times = _stage_seconds(inputs, strategies, costs, dense, moe, schedule)
    forward, backward, weight = times.forward, times.backward, times.weight
    makespan, exact = makespan_seconds(schedule, p, v, count, forward, backward, weight, simulate=simulate)
    on_rank = np.zeros((p, p * v))
    on_rank[list(ranks), np.arange(len(ranks)) % (p * v)] = 1
    held = _held_by_ranks(inputs, strategies, costs, dense, moe, on_rank)
    states, optimizer = held.states, held.optimizer_seconds
    data = _exposed_data_seconds(inputs, costs, held, forward @ on_rank.T, (backward + weight) @ on_rank.T)
    activations, in_flight = _rank_activations(inputs, strategies, costs, dense, moe, on_rank, schedule, count)
    last = on_rank[:, -1]
    buffers = memory.gathered_bytes(inputs, strategies, costs.local)
    states, activations = _without_early_gradients(inputs, states, activations, count)
    tensors = states.total + activations + _column(costs.logits) * last + _column(buffers)
    busy = makespan + np.max(data + optimizer, axis=1)
    nodes = np.maximum(inputs.num_gpus / inputs.gpus_per_node, 1)
    framework = inputs.framework
    overhead = busy * (framework.step_overhead_fraction + framework.straggler_fraction_per_doubling * np.log2(nodes))
    return StageCosts(
        rows=rows,
        schedule=schedule,
        pipeline_parallel_size=p,
        virtual_pipeline_stages=v,
        dense_layers=dense,
        moe_layers=moe,
        stage_ranks=ranks,
        layer=costs,
        on_rank=on_rank,
        recomputed=np.broadcast_to(times.recomputed, (len(rows), p)),
        selective=np.asarray(strategies.is_recompute(Recompute.SELECTIVE), dtype=np.float64),
        end_forward=times.end_forward,
        end_backward=times.end_backward,
        transfers=times.transfers,
        forward=forward,
        backward=backward + weight,
        makespan=makespan,
        exact=exact,
        num_microbatches=count + 0 * makespan,
        data_seconds=data,
        optimizer_seconds=optimizer,
        parameters=held.parameters,
        states=states,
        activations=activations,
        in_flight=in_flight,
        logits=_column(costs.logits) * last,
        buffers=_column(buffers) + 0 * tensors,
        reserve=_column(framework.memory_reserve_bytes) + _column(framework.fragmentation) * tensors,
        overhead=overhead + framework.step_overhead_seconds,
    )


def _column(values: Floats) -> Floats:
    """A per-row value that broadcasts over stages."""
    return np.asarray(values)[..., None]


def recomputed_share(strategies: StrategyColumns, layers_of_rank: Floats) -> Floats:
    """Share of a rank's layers that full recomputation covers."""
    asked = _column(np.asarray(strategies.num_recompute_layers, dtype=np.float64))
    covered = np.where(asked > 0, np.minimum(asked / np.maximum(layers_of_rank, 1), 1), 1.0)
    return covered * _column(strategies.is_recompute(Recompute.FULL))


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """rows x virtual stages, seconds of one micro-batch."""

    forward: Floats
    backward: Floats
    """Without the weight gradients."""
    weight: Floats
    end_forward: Floats
    end_backward: Floats
    transfers: Floats
    recomputed: Floats


def _stage_seconds(
    inputs: Inputs, strategies: StrategyColumns, costs: LayerCosts, dense: Ints, moe: Ints, schedule: PipelineSchedule
) -> StageTimes:
    """Forward, backward (input part) and weight-gradient seconds, rows x virtual stages, exposed transfers folded in."""
    stages = len(dense)
    extra = _extra_prediction_layers(inputs, stages)
    moe_count = moe + extra * (moe.sum() > 0)
    dense_count = dense + extra * (moe.sum() == 0)

    def over_layers(of_dense: Floats, of_moe: Floats) -> Floats:
        return _column(of_dense) * dense_count + _column(of_moe) * moe_count

    share = recomputed_share(strategies, np.asarray(float(dense.sum() + moe.sum()) / float(strategies.pipeline_parallel_size[0])))
    selective = _column(strategies.is_recompute(Recompute.SELECTIVE))
    forward = over_layers(costs.dense.forward.total, costs.moe.forward.total)
    repeated = share * forward + selective * over_layers(costs.dense.selective.total, costs.moe.selective.total)
    backward = over_layers(costs.dense.backward.total, costs.moe.backward.total) + repeated
    weight = over_layers(costs.dense.weight_gradient, costs.moe.weight_gradient)
    first, last = np.arange(stages) == 0, np.arange(stages) == stages - 1
    heads = 1 + np.asarray(inputs.model.mtp_layers)
    end_forward = _column(costs.ends.embedding_forward) * first + _column(costs.ends.head_forward * heads) * last
    end_backward = _column(costs.ends.embedding_backward) * first + _column(costs.ends.head_backward * heads) * last
    hides = schedule not in (PipelineSchedule.GPIPE, PipelineSchedule.ONE_F_ONE_B)
    boundary = _column(costs.boundary * (1 - inputs.framework.pipeline_overlap * hides))
    return StageTimes(
        forward=forward + end_forward + boundary * ~last,
        backward=backward - weight + end_backward + boundary * ~first,
        weight=weight,
        end_forward=end_forward,
        end_backward=end_backward,
        transfers=boundary * ~last + boundary * ~first,
        recomputed=share,
    )


def _extra_prediction_layers(inputs: Inputs, stages: int) -> Floats:
    """Multi-token-prediction layers, all on the last virtual stage."""
    last = np.arange(stages) == stages - 1
    return _column(inputs.model.mtp_layers) * last if np.ndim(inputs.model.mtp_layers) else inputs.model.mtp_layers * last


def _rank_parameters(inputs: Inputs, costs: LayerCosts, dense: Ints, moe: Ints, on_rank: Floats) -> tuple[Floats, Floats]:
    """Parameters of each rank that shard over the dense grid, and those that shard over the expert grid."""
    stages = len(dense)
    extra = _extra_prediction_layers(inputs, stages)
    moe_count = moe + extra * (moe.sum() > 0)
    dense_count = dense + extra * (moe.sum() == 0)
    local = costs.local
    first, last = np.arange(stages) == 0, np.arange(stages) == stages - 1
    shared = _column(local.dense_layer) * dense_count + _column(local.moe_layer_shared) * moe_count
    shared = shared + _column(local.embedding) * first + _column(local.head) * last
    expert = _column(local.moe_layer_expert) * moe_count
    return shared @ on_rank.T, expert @ on_rank.T


def _rank_states(inputs: Inputs, strategies: StrategyColumns, costs: LayerCosts, dense: Floats, expert: Floats) -> StateBytes:
    """State bytes of each rank: dense parameters over data x context ranks, experts over expert-data ranks."""
    wide = trailing(inputs) if inputs.num_gpus.ndim else inputs
    sharding = strategies.with_columns(zero_stage=_column(strategies.zero_stage), shard_group_size=_column(strategies.shard_group_size))
    parts = [
        memory.state_bytes(wide, sharding, parameters, _column(group.size))
        for parameters, group in ((dense, costs.groups.data), (expert, costs.groups.expert_data))
    ]
    names = ("parameters", "gradients", "master_weights", "optimizer_states")
    return StateBytes(**{name: getattr(parts[0], name) + getattr(parts[1], name) for name in names})


def _rank_activations(
    inputs: Inputs,
    strategies: StrategyColumns,
    costs: LayerCosts,
    dense: Ints,
    moe: Ints,
    on_rank: Floats,
    schedule: PipelineSchedule,
    count: Floats,
) -> tuple[Floats, Floats]:
    """Activation bytes at each rank's peak, and the virtual-stage activations in flight there.

    A rank holds ``in flight`` times its average virtual stage, and, under full recomputation, one layer's whole set.
    """
    p, v = int(strategies.pipeline_parallel_size[0]), int(strategies.virtual_pipeline_stages[0])
    chunks = on_rank.sum(axis=1)
    share = recomputed_share(strategies, np.asarray(float(dense.sum() + moe.sum()) / p))
    selective = _column(strategies.is_recompute(Recompute.SELECTIVE))

    def kept(activations: LayerActivations) -> Floats:
        whole = np.where(selective, _column(activations.selective), _column(activations.kept))
        return share * _column(activations.checkpoint) + (1 - share) * whole

    stage = kept(costs.dense_activations) * dense + kept(costs.moe_activations) * moe
    of_rank = stage @ on_rank.T / chunks
    in_flight = in_flight_microbatches(schedule, p, v, np.broadcast_to(count, (len(of_rank),)).astype(np.int64))
    has_moe = (moe @ on_rank.T) > 0
    one_layer = np.where(has_moe, _column(costs.moe_activations.kept), _column(costs.dense_activations.kept))
    return in_flight * of_rank + (share > 0) * one_layer, in_flight


def _without_early_gradients(
    inputs: Inputs, states: StateBytes, activations: Floats, count: Floats
) -> tuple[StateBytes, Floats]:
    """Where gradients are made anew by the backward pass of a single micro-batch, they take the place of the activations it frees.

    The peak is the larger of the two ends of that pass, not their sum.
    """
    fresh = _column((inputs.framework.persistent_gradients == 0) & (count == 1))
    early = activations >= states.gradients
    gradients = np.where(fresh & early, 0.0, states.gradients)
    return replace(states, gradients=gradients), np.where(fresh & ~early, 0.0, activations)


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
    "zero_stage", "shard_group_size",
)  # fmt: skip
_WORTH_SHARING = 256
"""Below so many strategies, finding the distinct ones takes longer than computing them all."""


def _held_by_ranks(
    inputs: Inputs, strategies: StrategyColumns, costs: LayerCosts, dense: Ints, moe: Ints, on_rank: Floats
) -> Holdings:
    """Computed once for every distinct combination of the sizes it depends on, whatever the micro-batch and the recomputation."""
    if inputs.num_gpus.ndim or len(strategies) < _WORTH_SHARING:
        return _holdings(inputs, strategies, costs, dense, moe, on_rank)
    first, index = _distinct(strategies, _HOLDING_KEY)
    return gather(_holdings(inputs, strategies.take(first), gather(costs, first), dense, moe, on_rank), index)


def _holdings(inputs: Inputs, strategies: StrategyColumns, costs: LayerCosts, dense: Ints, moe: Ints, on_rank: Floats) -> Holdings:
    dense_params, expert_params = _rank_parameters(inputs, costs, dense, moe, on_rank)
    training, links = trailing(inputs.training), trailing(inputs.links)
    stage = _column(strategies.zero_stage)
    reduce, gathers, shards = [], [], []
    grids = ((dense_params, costs.groups.data), (expert_params, costs.groups.expert_data))
    for parameters, placed in grids if np.any(expert_params) else grids[:1]:
        group = trailing(placed)
        gradients = parameters * training.gradient_reduce_bytes
        reduced = reduce_scatter_seconds(gradients, group, links)
        if np.any(stage == 0):
            reduced = np.where(stage == 0, all_reduce_seconds(gradients, group, links), reduced)
        reduce.append(reduced)
        gathers.append(np.where(stage == 0, 0, all_gather_seconds(parameters * training.parameter_gather_bytes, group, links)))
        shards.append(parameters / np.where(stage >= 1, group.size, 1))
    in_step = np.where(stage == 3, 0.0, 1.0)
    return Holdings(
        parameters=dense_params + expert_params,
        states=_rank_states(inputs, strategies, costs, dense_params, expert_params),
        reduction_seconds=sum(reduce[1:], start=reduce[0]) * in_step,
        gather_seconds=sum(gathers[1:], start=gathers[0]) * in_step,
        optimizer_seconds=_optimizer_seconds(inputs, sum(shards[1:], start=shards[0])),
    )


def _exposed_data_seconds(inputs: Inputs, costs: LayerCosts, held: Holdings, forward: Floats, backward: Floats) -> Floats:
    """Exposed data-parallel communication of each rank, rows x ranks.

    The gradient reduction hides behind the last micro-batch's backward, and rank r finishes before the ranks below it,
    whose backward passes it also hides behind; the parameter gather of ZeRO-1 and 2 hides behind the first forward the same way.
    """
    framework, ranks = inputs.framework, forward.shape[1]
    slack_forward = np.cumsum(forward, axis=1) - forward
    slack_backward = np.cumsum(backward, axis=1) - backward
    exposed = _exposed(held.reduction_seconds, _column(framework.data_overlap), backward, slack_backward)
    exposed = exposed + _exposed(held.gather_seconds, _column(framework.param_gather_overlap), forward, slack_forward)
    return exposed + _column(_tied_embedding_seconds(inputs, costs)) * np.isin(np.arange(ranks), [0, ranks - 1])


def _exposed(seconds: Floats, overlap: Floats, own: Floats, slack: Floats) -> Floats:
    """What is left of a transfer after hiding ``overlap`` of it at most behind the rank's own pass and its slack."""
    hidden = np.minimum(seconds * overlap, own)
    return np.maximum(seconds - hidden - slack, 0)


def _tied_embedding_seconds(inputs: Inputs, costs: LayerCosts) -> Floats:
    """First and last pipeline rank add up their gradients of a tied embedding, after everything else."""
    table = costs.shard.vocab * inputs.model.hidden / costs.shard.tp * inputs.training.gradient_reduce_bytes
    distance = costs.shard.tp * costs.shard.cp * costs.shard.dp * (costs.shard.pp - 1)
    seconds = p2p_seconds(table, crosses_domain(distance, inputs.links), inputs.links)
    return np.where((inputs.model.tied > 0) & (costs.shard.pp > 1), seconds, 0)


def _optimizer_seconds(inputs: Inputs, parameters: Floats) -> Floats:
    """Adam over the rank's shard and the gradient norm before it.

    Reads gradient, weight and states, writes weight, states and the low-precision parameter; the norm reads the gradient once more.
    """
    training = inputs.training
    weight = np.where(training.master_weight_bytes > 0, training.master_weight_bytes, training.parameter_bytes)
    copies = np.where(training.master_weight_bytes > 0, ADAM_TRAFFIC_BYTES, 0)
    per_parameter = 2 * training.gradient_bytes + 2 * weight + 2 * training.optimizer_state_bytes + copies
    return optimizer_seconds(trailing(inputs.wide_device), parameters * _column(per_parameter))


__all__ = ["Evaluation", "LayerCosts", "PassTimes", "StageCosts", "evaluate", "layer_costs", "stage_groups"]
