"""One step over pools of unlike devices as data: the pipeline of the lane that ends last, pass by pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .axis_traffic import Axis, StageTraffic, Traffic, axis_groups, end_traffic, stage_traffic
from .columns import StrategyColumns
from .layer_costs import layer_costs
from .mixed import Machine, lane_strategy
from .pools import MixedProblem, stage_pools
from .spec.mixed import MixedStrategy
from .step_timeline import StepTimeline, timeline_of


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
    drawn = timeline_of(
        priced,
        _between(stage_pools(priced.shape, on), passes),
        tuple(ends[place][rank] for rank, place in enumerate(on)),
        axis_groups(priced.inputs, priced.layer),
    )
    return replace(drawn, pools=asked.pools)


def _between(pools: Sequence[int], passes: dict[int, tuple[StageTraffic, ...]]) -> tuple[StageTraffic, ...]:
    """Of every stage what it sends on its own pool; to a stage of another pool over the network."""
    last, found = len(pools) - 1, []
    for stage, place in enumerate(pools):
        own = passes[place][stage]
        forward = stage < last and pools[stage + 1] != place
        backward = stage > 0 and pools[stage - 1] != place
        found.append(
            StageTraffic(
                forward=_over_network(own.forward) if forward else own.forward,
                backward=_over_network(own.backward) if backward else own.backward,
            )
        )
    return tuple(found)


def _over_network(sent: Traffic) -> Traffic:
    """``sent`` with the pipeline's bytes on the first tier outside the innermost, where they were inside."""
    return tuple(
        replace(one, tier_bytes=(0.0, one.fast_bytes + one.tier_bytes[1], *one.tier_bytes[2:])) if one.axis is Axis.PIPELINE else one
        for one in sent
    )
