"""Bytes on each pipeline rank at its peak."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from . import memory
from .columns import Bools, Floats, StrategyColumns, column
from .inputs import Inputs
from .layer_costs import LayerSizes
from .memory import LayerActivations, StateBytes
from .pipeline_closed_form import in_flight_microbatches
from .pipeline_shape import PipelineShape
from .stage_times import Repeated


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """rows x ranks, bytes at the peak by kind."""

    states: StateBytes
    activations: Floats
    in_flight: Floats
    """Virtual-stage activations held at once."""
    logits: Floats
    buffers: Floats
    reserve: Floats
    """Context, communicators, workspace, and what the allocator loses."""

    @property
    def allocated(self) -> Floats:
        """The tensors alone: what the framework's allocator calls its peak."""
        return np.asarray(self.states.total + self.activations + self.logits + self.buffers)

    @property
    def total(self) -> Floats:
        return np.asarray(self.allocated + self.reserve)

    @classmethod
    def of(
        cls, inputs: Inputs, strategies: StrategyColumns, costs: LayerSizes, shape: PipelineShape, times: Repeated, states: StateBytes
    ) -> RankMemory:
        """States, what is in flight under the schedule, logits on the last rank, buffers, and the framework's reserve.

        A layer that runs backward adds its working set, and what recomputation makes anew of it, at another moment than the logits:
        the larger of the two counts.
        """
        held_activations, in_flight = _activations(inputs, costs, shape, times)
        logits = column(costs.logits) * shape.on_rank[:, -1]
        beside, whole = _one_layer(costs, shape, times)
        activations = held_activations + np.maximum(beside - logits, 0)
        single = costs.shard.num_microbatches == 1
        states, activations, logits = _without_early_gradients(inputs, states, activations, logits, whole, single)
        buffers = column(memory.gathered_bytes(inputs, strategies, costs.local)) + 0 * activations
        framework = inputs.framework
        held = cls(states=states, activations=activations, in_flight=in_flight, logits=logits, buffers=buffers, reserve=0 * activations)
        reserve = column(framework.memory_reserve_bytes) + column(framework.fragmentation) * held.allocated
        return replace(held, reserve=reserve)


def _on_some_stage(recomputes: Bools, shape: PipelineShape) -> Bools:
    """rows x ranks (or x 1 where all stages are alike): whether a rank recomputes on any stage of its own."""
    return recomputes if recomputes.shape[1] == 1 else np.asarray(shape.on_ranks(recomputes.astype(np.float64)) > 0)


def _activations(inputs: Inputs, costs: LayerSizes, shape: PipelineShape, times: Repeated) -> tuple[Floats, Floats]:
    """Activation bytes at each rank's peak, and the virtual-stage activations in flight there.

    A rank holds ``in flight`` times its average virtual stage (with the boundary tensors the framework keeps beside it), and the
    tables that its layers share. A multi-token-prediction module counts as a layer of the last stage.
    """

    def kept(activations: LayerActivations) -> Floats:
        whole = np.where(times.selective > 0, column(activations.selective), column(activations.kept))
        return np.asarray(times.recomputed * column(activations.checkpoint) + (1 - times.recomputed) * whole)

    dense_count, moe_count = shape.layer_counts(inputs)
    stage = kept(costs.dense_activations) * dense_count + kept(costs.moe_activations) * moe_count
    if shape.pipeline_parallel_size > 1:
        stage = stage + column(inputs.framework.boundary_tensors_kept * costs.dense_activations.checkpoint)
    of_rank = shape.on_ranks(stage) / shape.on_rank.sum(axis=1)
    counts = np.broadcast_to(costs.shard.num_microbatches, (len(of_rank),)).astype(np.int64)
    in_flight = in_flight_microbatches(shape.schedule, shape.pipeline_parallel_size, shape.virtual_pipeline_stages, counts)
    return np.asarray(in_flight * of_rank + column(memory.rotary_tables(inputs, costs.shard))), in_flight


def _one_layer(costs: LayerSizes, shape: PipelineShape, times: Repeated) -> tuple[Floats, Floats]:
    """rows x ranks: what the heavier layer kind a rank has holds while it runs backward, beside what is kept of it, and in all."""
    has_moe = shape.on_ranks(np.asarray(shape.moe_layers, dtype=np.float64)) > 0

    def heavier(of_moe: Floats, of_dense: Floats) -> Floats:
        return np.where(has_moe, column(of_moe), column(of_dense))

    dense, moe = costs.dense_activations, costs.moe_activations
    repeated = heavier(moe.kept - moe.selective, dense.kept - dense.selective) * (times.selective > 0)
    working, whole = heavier(moe.working, dense.working), heavier(moe.kept, dense.kept)
    return working + np.where(_on_some_stage(times.recomputed > 0, shape), whole, repeated), working + whole


def _without_early_gradients(
    inputs: Inputs, states: StateBytes, activations: Floats, logits: Floats, one_layer: Floats, single: Bools
) -> tuple[StateBytes, Floats, Floats]:
    """Where a single micro-batch's backward pass makes the gradients anew, they take the place of what it frees.

    The peak is the larger of the two ends of that pass: activations, logits and autocast's copies at its start,
    gradients and one layer at its end.
    """
    fresh = column((inputs.framework.persistent_gradients == 0) & single)
    copies = column(inputs.training.cached_weight_bytes / (inputs.training.parameter_bytes + inputs.training.cached_weight_bytes))
    cached = states.parameters * copies
    early = activations + logits + cached
    late = states.gradients + one_layer
    starts, ends = fresh & (early >= late), fresh & (early < late)
    at_peak = replace(
        states,
        gradients=np.where(starts, 0.0, states.gradients),
        parameters=np.where(ends, states.parameters - cached, states.parameters),
    )
    return at_peak, np.where(ends, one_layer, activations), np.where(ends, 0.0, logits)
