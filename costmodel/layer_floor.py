"""What a layer takes and holds at least on a rank, a number for each strategy whatever its pipeline looks like.

The parts of :class:`~autopar.costmodel.stage_times.StageTimes` and :class:`~autopar.costmodel.rank_memory.RankMemory` that grow with a
rank's layers, read off the same layer costs. Nothing here knows a pipeline's shape, so that all strategies of a space are asked about
at once; what depends on it (transfers, the second kind of layers, prediction modules) is left out, and only adds. In models with experts
a layer is one of experts.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from . import memory
from .columns import Bools, Floats, Ints, StrategyColumns
from .holdings import uncopied_ends
from .inputs import Inputs
from .layer import LayerTimes
from .layer_costs import LayerCosts
from .step import shared_layer_costs


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFloor:
    """``[N]`` of N strategies on one kind of GPU; bytes with the share of them that the allocator loses."""

    seconds: Floats
    """Of a micro-batch in a layer, forward and backward, nothing recomputed."""
    least_seconds: Floats
    """The same of the quicker kind of layer."""
    all_layers_seconds: Floats
    """And of all layers of the model."""
    repeated_seconds: Floats
    """What recomputing a layer adds."""
    first_seconds: Floats
    """Of the embedding, both passes."""
    last_seconds: Floats
    """Of the head and the loss."""
    layer_bytes: Floats
    """States of a layer."""
    kept_bytes: Floats
    """Activations of a layer and micro-batch."""
    checkpoint_bytes: Floats
    """The same of a layer that is recomputed."""
    boundary_bytes: Floats
    """What a virtual stage keeps of a micro-batch beside its layers; none without a pipeline."""
    fixed_bytes: Floats
    """Of every rank: reserve, tables, ZeRO-3's working set."""
    first_bytes: Floats
    """States of the embedding."""
    last_bytes: Floats
    """States and logits of the head."""
    running_bytes: Floats
    """What a layer holds beside what it keeps while it runs backward."""
    last_running_bytes: Floats
    """The same beside the logits, at another moment than theirs."""
    working_bytes: Floats
    """The set of the layer that recomputation unfolds."""
    last_working_bytes: Floats
    """What it adds to the last rank's peak."""
    num_microbatches: Floats
    capacity_bytes: Floats

    def take(self, rows: Ints | Bools) -> LayerFloor:
        """Some of the strategies."""
        return LayerFloor(**{name: getattr(self, name)[rows] for name in _NAMES})


_NAMES = tuple(each.name for each in fields(LayerFloor))


def layer_floor(inputs: Inputs, strategies: StrategyColumns, *, selective: bool = False) -> LayerFloor:
    """The floor of ``strategies`` of one problem; their splits and recomputation do not matter.

    Args:
        inputs: the constants of the problem.
        strategies: sizes.
        selective: whether layers may also be recomputed in part, which then counts as free of time.
    """
    costs, index = shared_layer_costs(inputs, strategies)
    first = np.zeros(len(costs.shard.tp), dtype=np.int64)
    first[index] = np.arange(len(strategies))
    return _floor(inputs, strategies.take(first), costs, selective=selective).take(index)


def _floor(inputs: Inputs, rows: StrategyColumns, costs: LayerCosts, *, selective: bool) -> LayerFloor:
    """A number for each of the distinct ``rows`` that ``costs`` are of."""
    model, framework = inputs.model, inputs.framework
    has_experts = bool(np.any(model.num_moe_layers > 0))
    layer, held = (costs.moe, costs.moe_activations) if has_experts else (costs.dense, costs.dense_activations)
    dense, experts = _both(costs.dense), _both(costs.moe)
    lost = 1 + framework.fragmentation
    kept = np.minimum(held.kept, held.selective) if selective else held.kept
    lightest = np.minimum(costs.dense_activations.kept, costs.moe_activations.kept)
    running = np.minimum(costs.dense_activations.working, costs.moe_activations.working)
    beside_logits = np.maximum(running - costs.logits, 0)
    embedding, head = uncopied_ends(inputs, costs)
    heads = 1 + model.mtp_layers
    fixed = memory.rotary_tables(inputs, costs.shard) + memory.gathered_bytes(inputs, rows, costs.local)
    found = {
        "seconds": _both(layer),
        "least_seconds": np.minimum(dense, experts),
        "all_layers_seconds": (model.num_layers - model.num_moe_layers) * dense + model.num_moe_layers * experts,
        "repeated_seconds": layer.forward.total - layer.forward.sharded,
        "first_seconds": costs.ends.embedding_forward + costs.ends.embedding_backward,
        "last_seconds": heads * (costs.ends.head_forward + costs.ends.head_backward),
        "layer_bytes": lost * _layer_states(inputs, rows, costs, has_experts=has_experts),
        "kept_bytes": lost * kept,
        "checkpoint_bytes": lost * held.checkpoint,
        "boundary_bytes": lost * framework.boundary_tensors_kept * costs.dense_activations.checkpoint * (costs.shard.pp > 1),
        "fixed_bytes": framework.memory_reserve_bytes + lost * fixed,
        "first_bytes": lost * _states(inputs, rows, costs, costs.local.embedding, uncopied=embedding),
        "last_bytes": lost * (_states(inputs, rows, costs, costs.local.head, uncopied=head) + costs.logits),
        "running_bytes": lost * running,
        "last_running_bytes": lost * beside_logits,
        "working_bytes": lost * lightest,
        "last_working_bytes": lost * (np.maximum(running + lightest - costs.logits, 0) - beside_logits),
        "num_microbatches": costs.shard.num_microbatches,
        "capacity_bytes": inputs.memory_bytes,
    }
    return LayerFloor(**{name: np.broadcast_to(np.asarray(each, dtype=np.float64), (len(rows),)) for name, each in found.items()})


def _both(layer: LayerTimes) -> Floats:
    return np.asarray(layer.forward.total + layer.backward.total)


def _layer_states(inputs: Inputs, rows: StrategyColumns, costs: LayerCosts, *, has_experts: bool) -> Floats:
    """Bytes of a layer's parameters, gradients and optimizer."""
    if not has_experts:
        return _states(inputs, rows, costs, costs.local.dense_layer)
    shared = _states(inputs, rows, costs, costs.local.moe_layer_shared)
    return shared + _states(inputs, rows, costs, costs.local.moe_layer_expert, experts=True)


def _states(
    inputs: Inputs, rows: StrategyColumns, costs: LayerCosts, parameters: Floats, *, uncopied: Floats | float = 0.0, experts: bool = False
) -> Floats:
    """Without the gradients where a single micro-batch makes them anew in the place of what its backward pass frees."""
    group = costs.groups.expert_data if experts else costs.groups.data
    states = memory.state_bytes(inputs, rows, parameters, group.size, copied=parameters - uncopied)
    anew = (inputs.framework.persistent_gradients == 0) & (costs.shard.num_microbatches == 1)
    return np.asarray(states.total - np.where(anew, states.gradients, 0))
