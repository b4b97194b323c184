"""One step over pools of unlike devices as data: the pipeline of the lane that ends last, pass by pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from .axis_traffic import Axis, AxisTraffic, StageTraffic, Traffic, axis_groups, end_traffic, stage_traffic
from .columns import StrategyColumns
from .layer_costs import layer_costs
from .mixed import Machine, lane_strategy
from .pools import MixedProblem, stage_pools
from .spec.mixed import Lane, MixedStrategy
from .spec.strategy import Strategy
from .step_timeline import StepTimeline, timeline_of
from .topology import crosses_domain


def pool_timeline(problem: MixedProblem, mixed: MixedStrategy) -> StepTimeline:
    """The timeline of ``mixed``, which must be feasible; its step time is that of :func:`~autopar.costmodel.mixed_estimate.mixed_estimate`.

    Of replicas in several pools the lane that ends last is drawn. What a stage sends is what it sends on its own pool; between two pools
    it goes over the network. Groups are those of the pool that paces the step.

    Raises:
        InvalidInputError: the step has too many actions to be drawn.
    """
    machine = Machine.of(problem)
    costs = machine.costs(mixed, simulate=True)
    lane, on, asked = costs.lanes[costs.pacing], costs.on[costs.pacing], mixed.lanes[costs.pacing]
    priced = replace(lane, held=replace(lane.held, optimizer_seconds=costs.optimizer_seconds[None]), overhead=costs.overhead)
    columns = StrategyColumns.of([lane_strategy(mixed.strategy, asked)])
    batch = asked.num_microbatches * mixed.strategy.data_parallel_size * mixed.strategy.micro_batch_size
    passes: dict[int, tuple[StageTraffic, ...]] = {}
    ends: dict[int, tuple[Traffic, ...]] = {}
    for place in set(on):
        inputs = machine.pools[place].with_batch(batch).own
        pooled = replace(priced, inputs=inputs, layer=layer_costs(inputs, columns))
        passes[place], ends[place] = stage_traffic(inputs, columns, pooled), end_traffic(inputs, columns, pooled)
    inside = {place: not _leaves_domain(machine, mixed.strategy, asked, on, place) for place in set(on)}
    drawn = timeline_of(
        priced,
        _routed(stage_pools(priced.shape, on), passes, inside),
        tuple(ends[place][rank] for rank, place in enumerate(on)),
        axis_groups(priced.inputs, priced.layer),
    )
    return replace(drawn, pools=asked.pools)


def _leaves_domain(machine: Machine, strategy: Strategy, lane: Lane, on: Sequence[int], place: int) -> bool:
    """Whether neighbours of the pipeline inside a pool are in two of its innermost domains."""
    stride = np.asarray(strategy.tensor_parallel_size * strategy.context_parallel_size * lane.data_parallel_size)
    return bool(crosses_domain(stride, machine.pools[place].own.links, float(on.count(place))))


def _routed(pools: Sequence[int], passes: Mapping[int, tuple[StageTraffic, ...]], inside: Mapping[int, bool]) -> tuple[StageTraffic, ...]:
    """Of every stage what it sends on its own pool; to a stage of another pool over the network, to one of its own as the pool lies."""

    def sent(traffic: Traffic, here: int, there: int | None) -> Traffic:
        other = there is not None and pools[there] != pools[here]
        if not other and not inside[pools[here]]:
            return traffic
        return tuple(_on_tier(one, network=other) if one.axis is Axis.PIPELINE else one for one in traffic)

    found = []
    for stage, place in enumerate(pools):
        own = passes[place][stage]
        following, before = (stage + 1 if stage + 1 < len(pools) else None), (stage - 1 if stage else None)
        found.append(StageTraffic(forward=sent(own.forward, stage, following), backward=sent(own.backward, stage, before)))
    return tuple(found)


def _on_tier(sent: AxisTraffic, *, network: bool) -> AxisTraffic:
    """``sent`` with all of its bytes on the innermost tier, or what was there on the first outside it."""
    if not network:
        return replace(sent, tier_bytes=(sent.sent_bytes, *(0.0 for _ in sent.tier_bytes[1:])))
    return replace(sent, tier_bytes=(0.0, sent.fast_bytes + sent.tier_bytes[1], *sent.tier_bytes[2:]))
