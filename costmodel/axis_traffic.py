"""Bytes that one GPU sends in a step, by parallel axis and link tier, and the seconds of them that stay exposed.

The messages are those whose seconds :mod:`~autopar.costmodel.communication` computes; volumes are what a ring sends. A ring
over d domains with k members in each leaves a domain once for every k hops: of V bytes a rank, V / k cross the network and the
rest stays on the fast tier; of those V / K leave a domain of the next tier, with K members in each. Bytes count at the outermost
tier that they cross. A switch that reduces (NVLS) moves less over the fast tier than is counted here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from .columns import Floats, StrategyColumns
from .holdings import rank_parameters, tied_embedding_bytes
from .inputs import Inputs
from .layer import SELECTIVE_GATHERS, PassTimes, dense_reductions, expert_layer_reductions
from .layer_communication import context_message_bytes, expert_message_bytes, tensor_message_bytes
from .layer_costs import (
    LayerCosts,
    boundary_crosses_domain,
    boundary_far_hops,
    boundary_message_bytes,
    ends_cross_domain,
    ends_far_hops,
)  # fmt: skip
from .pipeline_shape import PipelineShape
from .sharding import RING, ULYSSES
from .stage_times import StageTimes
from .step import StageCosts
from .topology import Group, LinkColumns, Spread


class Axis(StrEnum):
    """Who talks: the ranks of one parallel axis."""

    TENSOR = "tensor"
    CONTEXT = "context"
    EXPERT = "expert"
    PIPELINE = "pipeline"
    DATA = "data"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """Bytes that one GPU sends over each tier, from the inside out."""

    tiers: tuple[Floats, ...]

    @classmethod
    def nothing(cls, links: LinkColumns, count: int) -> Sent:
        """Nothing by ``count`` stages or ranks."""
        return cls(tiers=(np.zeros(count),) * (2 + len(links.beyond)))

    def __add__(self, other: Sent) -> Sent:
        return Sent(tiers=tuple(mine + its for mine, its in zip(self.tiers, other.tiers, strict=True)))

    def scaled(self, factor: Floats | float) -> Sent:
        return Sent(tiers=tuple(np.asarray(each * factor) for each in self.tiers))


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisTraffic:
    """What one axis sends in a pass of one micro-batch (or at the end of the step), and the seconds that stay exposed."""

    axis: Axis
    tier_bytes: tuple[float, ...]
    """By tier from the inside out: bytes count at the outermost one that they cross."""
    exposed_seconds: float

    @property
    def fast_bytes(self) -> float:
        return self.tier_bytes[0]

    @property
    def network_bytes(self) -> float:
        """What leaves the innermost domains."""
        return sum(self.tier_bytes[1:])

    @property
    def sent_bytes(self) -> float:
        return self.fast_bytes + self.network_bytes


Traffic = tuple[AxisTraffic, ...]
"""The axes that send anything, in the order of :class:`Axis`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTraffic:
    """What one GPU of a model stage sends in one pass of a micro-batch."""

    forward: Traffic
    backward: Traffic
    """With the input part, where the backward is split; the weight part sends nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisGroup:
    """Where the groups of an axis sit: ``size`` ranks over ``num_domains`` domains of the innermost tier."""

    axis: Axis
    size: int
    num_domains: int


_Passes = dict[Axis, tuple[Sent, Floats]]


def stage_traffic(inputs: Inputs, strategies: StrategyColumns, costs: StageCosts) -> tuple[StageTraffic, ...]:
    """Traffic of each model stage of a single strategy."""
    forward, backward = _forward(inputs, strategies, costs), _backward(inputs, strategies, costs)
    return tuple(
        StageTraffic(forward=_of_stage(forward, stage), backward=_of_stage(backward, stage)) for stage in range(costs.shape.num_stages)
    )


def end_traffic(inputs: Inputs, strategies: StrategyColumns, costs: StageCosts) -> tuple[Traffic, ...]:
    """What one GPU of each pipeline rank sends once a step: gradients to reduce, parameters to gather, the tied embedding."""
    stage, groups, training = int(strategies.zero_stage[0]), costs.layer.groups, inputs.training
    sent = Sent.nothing(inputs.links, costs.shape.pipeline_parallel_size)
    dense, expert = (parameters[0] for parameters in rank_parameters(inputs, costs.layer, costs.shape))
    grids = (
        (dense, groups.data, groups.data_shard, groups.data_replicas),
        (expert, groups.expert_data, groups.expert_shard, groups.expert_replicas),
    )
    for parameters, whole, within, across in grids:
        gradients = parameters * training.gradient_reduce_bytes
        if stage == 0:
            sent = sent + ring_sent(gradients, whole, turns=2)
        elif stage < 3:
            sent = sent + ring_sent(gradients, within) + ring_sent(gradients / within.size, across, turns=2)
            sent = sent + ring_sent(parameters * training.parameter_gather_bytes, within)
    at_ends = np.isin(np.arange(costs.shape.pipeline_parallel_size), [0, costs.shape.pipeline_parallel_size - 1])
    table, shard = tied_embedding_bytes(inputs, costs.layer) * at_ends, costs.layer.shard
    sent = sent + _hop(table, ends_cross_domain(inputs, shard), ends_far_hops(inputs, shard))
    passes: _Passes = {Axis.DATA: (sent, costs.data_seconds[0])}
    return tuple(_of_stage(passes, rank) for rank in range(costs.shape.pipeline_parallel_size))


def axis_groups(inputs: Inputs, costs: LayerCosts) -> tuple[AxisGroup, ...]:
    """Size and domains of the groups of every axis of a single strategy that has more than one rank."""
    groups, shard = costs.groups, costs.shard
    placed = {Axis.TENSOR: groups.tensor, Axis.CONTEXT: groups.context, Axis.EXPERT: groups.expert, Axis.DATA: groups.data}
    found = {axis: (int(group.size[0]), int(group.num_domains[0])) for axis, group in placed.items()}
    found[Axis.PIPELINE] = int(shard.pp[0]), 2 if bool(boundary_crosses_domain(inputs, shard)[0]) else 1
    return tuple(AxisGroup(axis=axis, size=found[axis][0], num_domains=found[axis][1]) for axis in Axis if found[axis][0] > 1)


def ring_sent(message_bytes: npt.ArrayLike, group: Group, turns: int = 1) -> Sent:
    """A ring passes (n - 1) / n of the message on, once to gather or to scatter it, twice to reduce it everywhere."""
    volume = turns * np.asarray(message_bytes) * (group.size - 1) / group.size
    out = np.where(group.crosses, volume / group.members_per_domain, 0.0)
    further = (np.where(spread.crosses, volume * spread.load, 0.0) for spread in group.beyond)
    return _by_tier(volume, [out, *further])


def exchange_sent(sent_bytes: npt.ArrayLike, group: Group) -> Sent:
    """An all-to-all sends a share of 1 / n to each rank: k - 1 of them in the same domain, n - k outside."""
    share = np.asarray(sent_bytes) / group.size
    inside = share * (group.members_per_domain - 1)
    out = share * (group.size - group.members_per_domain)
    further = [share * (group.size - spread.members) for spread in group.beyond]
    return Sent(tiers=(inside, *_by_tier(out, further).tiers))


def _by_tier(volume: Floats, leaving: Iterable[Floats]) -> Sent:
    """``volume`` bytes of which ``leaving`` leave the domains of each tier: what is left at each of them."""
    levels = [volume, *leaving]
    return Sent(tiers=(*(np.asarray(inner - outer) for inner, outer in pairwise(levels)), levels[-1]))


def _hop(message_bytes: npt.ArrayLike, crosses: npt.ArrayLike, beyond: Sequence[Spread]) -> Sent:
    """A message counts at the outermost tier that the slowest hop crosses."""
    size = np.asarray(message_bytes)
    return _by_tier(size, [np.where(crosses, size, 0.0), *(np.where(spread.crosses, size, 0.0) for spread in beyond)])


def _forward(inputs: Inputs, strategies: StrategyColumns, costs: StageCosts) -> _Passes:
    """By axis, the bytes of a forward pass on each stage, and what stays exposed."""
    shape, exposed = costs.shape, _exposed(inputs, costs, "forward")
    away = boundary_message_bytes(inputs, costs.layer.shard) * (1 - shape.is_last) * (costs.layer.shard.pp > 1)
    sent = {
        Axis.TENSOR: _tensor(inputs, costs, at_first=1.0, at_last=0.0),
        Axis.CONTEXT: _context(inputs, costs, turns=1),
        Axis.EXPERT: _expert(inputs, costs),
        Axis.PIPELINE: _boundary(inputs, costs, away),
        Axis.DATA: _sharded(inputs, strategies, costs, scatter=False),
    }
    return {axis: (sent[axis], exposed[axis]) for axis in Axis}


def _backward(inputs: Inputs, strategies: StrategyColumns, costs: StageCosts) -> _Passes:
    """The same of the backward pass, with the messages that a recomputation sends again."""
    shape, times, exposed = costs.shape, costs.times, _exposed(inputs, costs, "backward")
    full = np.broadcast_to(times.recomputed[0], (shape.num_stages,))
    selective = float(times.selective[0, 0])
    away = boundary_message_bytes(inputs, costs.layer.shard) * (1 - shape.is_first) * (costs.layer.shard.pp > 1)
    layers, by_operator = _tensor(inputs, costs, at_first=0.0, at_last=0.0), float(inputs.framework.selective_by_operator)
    gathers = SELECTIVE_GATHERS * selective * by_operator * float(costs.layer.shard.sp[0] > 0)
    sent = {
        Axis.TENSOR: _tensor(inputs, costs, at_first=0.0, at_last=1.0) + layers.scaled(full + gathers),
        Axis.CONTEXT: _context(inputs, costs, turns=2) + _context(inputs, costs, turns=1).scaled(full + selective * (1 - by_operator)),
        Axis.EXPERT: _expert(inputs, costs).scaled(1 + full),
        Axis.PIPELINE: _boundary(inputs, costs, away),
        Axis.DATA: _sharded(inputs, strategies, costs, scatter=True),
    }
    return {axis: (sent[axis], exposed[axis]) for axis in Axis}


def _boundary(inputs: Inputs, costs: StageCosts, away: Floats) -> Sent:
    shard = costs.layer.shard
    return _hop(away, boundary_crosses_domain(inputs, shard), boundary_far_hops(inputs, shard))


def _exposed(inputs: Inputs, costs: StageCosts, direction: str) -> dict[Axis, Floats]:
    """Exposed seconds of a pass on each stage, by axis; what a recomputation repeats is not among them."""
    dense_count, moe_count = costs.shape.layer_counts(inputs)
    dense: PassTimes = getattr(costs.layer.dense, direction)
    moe: PassTimes = getattr(costs.layer.moe, direction)
    both = dense.scaled(dense_count) + moe.scaled(moe_count)
    return {
        Axis.TENSOR: np.ravel(both.tensor),
        Axis.CONTEXT: np.ravel(both.context),
        Axis.EXPERT: np.ravel(both.expert),
        Axis.PIPELINE: _exposed_transfers(costs.times, costs.shape, direction),
        Axis.DATA: np.ravel(both.sharded),
    }


def _exposed_transfers(times: StageTimes, shape: PipelineShape, direction: str) -> Floats:
    """A stage's transfers are as long in both directions; an end has but one."""
    here, there = (shape.is_last, shape.is_first) if direction == "forward" else (shape.is_first, shape.is_last)
    directions = np.maximum((1 - here) + (1 - there), 1)
    return np.asarray(times.transfers[0] * (1 - here) / directions)


def _tensor(inputs: Inputs, costs: StageCosts, *, at_first: float, at_last: float) -> Sent:
    """Reductions of every layer's outputs, and of the embedding's and the head's where the pass has them."""
    shape, group = costs.shape, costs.layer.groups.tensor
    dense_count, moe_count = shape.layer_counts(inputs)
    outputs = dense_count * dense_reductions(inputs) + moe_count * expert_layer_reductions(inputs)
    ends = at_first * shape.is_first + at_last * shape.is_last * (1 + inputs.model.mtp_layers)
    message = tensor_message_bytes(inputs, costs.layer.shard)
    return ring_sent(message * np.ravel(outputs + ends), group, turns=2)


def _context(inputs: Inputs, costs: StageCosts, *, turns: int) -> Sent:
    """Keys and values around the context-parallel group in every layer; Ulysses exchanges as much in both directions."""
    shard, group = costs.layer.shard, costs.layer.groups.context
    block, heads = context_message_bytes(inputs, shard)
    kind = int(shard.cp_kind[0])
    if kind == ULYSSES:
        one = exchange_sent(heads, group)
    elif kind == RING:
        one = _hop((shard.cp - 1) * block * turns, group.crosses, group.beyond)
    else:
        one = ring_sent(block * shard.cp * turns, group)
    return one.scaled(np.ravel(sum(costs.shape.layer_counts(inputs))))


def _expert(inputs: Inputs, costs: StageCosts) -> Sent:
    """Dispatch and combine, and the gather and scatter of the expert-tensor group, in every layer with experts."""
    groups = costs.layer.groups
    sent, rows = expert_message_bytes(inputs, costs.layer.shard, groups)
    one = exchange_sent(2 * sent * inputs.framework.expert_imbalance, groups.expert) + ring_sent(rows, groups.expert_tensor, turns=2)
    return one.scaled(np.ravel(costs.shape.layer_counts(inputs)[1] * (inputs.model.num_experts > 0)))


def _sharded(inputs: Inputs, strategies: StrategyColumns, costs: StageCosts, *, scatter: bool) -> Sent:
    """ZeRO-3: the layers' parameters gathered before a pass, their gradients scattered after the backward one."""
    groups, local, training = costs.layer.groups, costs.layer.local, inputs.training
    dense_count, moe_count = (np.ravel(counts) for counts in costs.shape.layer_counts(inputs))
    sharing = float(strategies.zero_stage[0] == 3)
    shared = local.dense_layer * dense_count + local.moe_layer_shared * moe_count
    total = Sent.nothing(inputs.links, costs.shape.num_stages)
    for parameters, within, across in (
        (shared, groups.data_shard, groups.data_replicas),
        (local.moe_layer_expert * moe_count, groups.expert_shard, groups.expert_replicas),
    ):
        total = total + ring_sent(parameters * training.parameter_gather_bytes, within)
        if scatter:
            gradients = parameters * training.gradient_reduce_bytes
            total = total + ring_sent(gradients, within) + ring_sent(gradients / within.size, across, turns=2)
    return total.scaled(sharing)


def _of_stage(passes: _Passes, stage: int) -> Traffic:
    found = (
        AxisTraffic(
            axis=axis,
            tier_bytes=tuple(float(np.ravel(tier)[stage]) for tier in sent.tiers),
            exposed_seconds=float(exposed[stage]),
        )
        for axis, (sent, exposed) in passes.items()
    )
    return tuple(one for one in found if one.sent_bytes > 0 or one.exposed_seconds > 0)
