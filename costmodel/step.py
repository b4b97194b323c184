"""One training step: layers into pipeline stages, stages into a makespan, and the end of the step.

The one implementation behind ``estimate`` (one strategy), the search (many strategies of one problem) and the accuracy tables
(a problem a row). Rows that share a pipeline shape are evaluated together, as arrays of rows x stages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .columns import Bools, Floats, Ints, StrategyColumns, distinct_rows, gather
from .holdings import Holdings, exposed_data_seconds, held_by_ranks, rank_states
from .inputs import Inputs
from .layer_costs import LayerCosts, layer_costs, layer_sizes
from .makespan import makespan_seconds
from .pipeline_shape import PipelineShape, head_layers
from .rank_memory import RankMemory
from .stage_times import Repeated, StageTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCosts:
    """A group of strategies with one pipeline shape, as arrays of rows x ranks (or rows x virtual stages)."""

    rows: Ints
    inputs: Inputs
    """Of these rows."""
    shape: PipelineShape
    layer: LayerCosts
    times: StageTimes
    held: Holdings
    memory: RankMemory
    num_microbatches: Floats
    makespan: Floats
    exact: Bools
    """False where ``makespan`` is a lower bound."""
    data_seconds: Floats
    """rows x ranks: gradient reduction and parameter gather left exposed."""
    overhead: Floats
    """Jitter, stragglers, data loading and logging."""

    @property
    def tail(self) -> Floats:
        """Seconds from the last backward to the end of the step: the slowest rank's."""
        return np.asarray(np.max(self.data_seconds + self.held.optimizer_seconds, axis=1))

    @property
    def step_seconds(self) -> Floats:
        return np.asarray(self.makespan + self.tail + self.overhead)


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
        peak[group.rows] = np.max(group.memory.total, axis=1)
        allocated[group.rows] = np.max(group.memory.allocated, axis=1)
    capacity = np.broadcast_to(inputs.memory_bytes, (count,))
    return Evaluation(
        step_time_seconds=step, exact=exact, peak_memory_bytes=peak, allocated_memory_bytes=allocated, memory_capacity_bytes=capacity
    )


def peak_memory_bytes(inputs: Inputs, strategies: StrategyColumns) -> Floats:
    """Peak memory of each strategy, as :func:`evaluate` has it, without computing any time."""
    peak = np.empty(len(strategies))
    if inputs.num_gpus.ndim:
        sizes, index = layer_sizes(inputs, strategies), np.arange(len(strategies))
    else:
        first, index = distinct_rows(strategies, _LAYER_KEY)
        sizes = layer_sizes(inputs, strategies.take(first))
    for rows in _pipeline_groups(inputs, strategies):
        members, own = strategies.take(rows), gather(inputs, rows) if inputs.num_gpus.ndim else inputs
        shape, mine = PipelineShape.of(own, members), gather(sizes, index[rows])
        states = rank_states(own, members, mine, shape)
        peak[rows] = np.max(RankMemory.of(own, members, mine, shape, Repeated.by(members, shape), states).total, axis=1)
    return peak


def stage_groups(inputs: Inputs, strategies: StrategyColumns, *, simulate: bool = False) -> Iterator[StageCosts]:
    """The strategies in groups that share a pipeline shape and a model's layer pattern."""
    costs, index = shared_layer_costs(inputs, strategies)
    for rows in _pipeline_groups(inputs, strategies):
        members = strategies.take(rows)
        own = gather(inputs, rows) if inputs.num_gpus.ndim else inputs
        yield _stage_costs(own, members, gather(costs, index[rows]), rows, simulate=simulate)


_LAYER_KEY = (
    "tensor_parallel_size", "sequence_parallel", "context_parallel_size", "context_parallel_kind", "expert_parallel_size",
    "expert_tensor_parallel_size", "data_parallel_size", "micro_batch_size", "zero_stage", "pipeline_parallel_size", "shard_group_size",
    "stage_copies", "rank_order", "recompute_modules",
)  # fmt: skip


_SHAPE_KEY = ("pipeline_schedule", "pipeline_parallel_size", "virtual_pipeline_stages", "layer_split")


def shared_layer_costs(inputs: Inputs, strategies: StrategyColumns) -> tuple[LayerCosts, Ints]:
    """Layer costs once for every distinct combination of the sizes they depend on, and each strategy's row in them."""
    if inputs.num_gpus.ndim:
        return layer_costs(inputs, strategies), np.arange(len(strategies))
    first, index = distinct_rows(strategies, _LAYER_KEY)
    return layer_costs(inputs, strategies.take(first)), index


def _pipeline_groups(inputs: Inputs, strategies: StrategyColumns) -> Iterator[Ints]:
    """Row numbers of each group of equal schedule, p, v, layer pattern and explicit split."""
    model = inputs.model
    if not len(strategies):
        return
    _, codes = distinct_rows(strategies, _SHAPE_KEY)
    if model.num_layers.ndim:
        pattern = (model.num_layers, model.first_dense_layers, model.moe_layer_frequency, model.num_moe_layers, 1e6 * head_layers(inputs))
        _, codes = np.unique(np.stack([codes, *(c.astype(np.int64) for c in pattern)]), axis=1, return_inverse=True)
    order = np.argsort(codes, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(codes[order])) + 1):
        yield from np.array_split(rows, -(-len(rows) // 20_000))


def _stage_costs(inputs: Inputs, strategies: StrategyColumns, costs: LayerCosts, rows: Ints, *, simulate: bool) -> StageCosts:
    shape = PipelineShape.of(inputs, strategies)
    times = StageTimes.of(inputs, strategies, costs, shape)
    count = costs.shard.num_microbatches
    makespan, exact = makespan_seconds(
        shape.schedule,
        shape.pipeline_parallel_size,
        shape.virtual_pipeline_stages,
        count,
        times.forward,
        times.backward,
        times.weight,
        simulate=simulate,
    )
    held = held_by_ranks(inputs, strategies, costs, shape)
    data = exposed_data_seconds(inputs, costs, held, shape.on_ranks(times.forward), shape.on_ranks(times.backward + times.weight))
    busy = makespan + np.max(data + held.optimizer_seconds, axis=1)
    return StageCosts(
        rows=rows,
        inputs=inputs,
        shape=shape,
        layer=costs,
        times=times,
        held=held,
        memory=RankMemory.of(inputs, strategies, costs, shape, times, held.states),
        num_microbatches=count + 0 * makespan,
        makespan=makespan,
        exact=exact,
        data_seconds=data,
        overhead=overhead_seconds(inputs, busy),
    )


def overhead_seconds(inputs: Inputs, busy: Floats) -> Floats:
    """A share of the step, growing with every doubling of the nodes, and a fixed part."""
    framework = inputs.framework
    nodes = np.maximum(inputs.num_gpus / inputs.gpus_per_node, 1)
    share = framework.step_overhead_fraction + framework.straggler_fraction_per_doubling * np.log2(nodes)
    return np.asarray(busy * share + framework.step_overhead_seconds)
