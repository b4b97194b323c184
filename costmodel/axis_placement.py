"""On which tiers each parallel axis talks, over how many domains, and how many share the way out of one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .axis_traffic import Axis
from .columns import Floats, StrategyColumns
from .inputs import Inputs
from .layer_communication import Groups
from .layer_costs import boundary_crosses_domain, boundary_far_hops
from .problem import Problem
from .sharding import Shard
from .spec.cluster import ClusterSpec
from .spec.plan import AxisPlacement, TierUse
from .spec.strategy import Strategy
from .topology import Group, Spread


def axis_placements(problem: Problem, strategy: Strategy) -> tuple[AxisPlacement, ...]:
    """Every axis of more than one rank, with the tiers outside the innermost one that its groups cross: the worst group of each."""
    inputs = Inputs.of(problem)
    shard = Shard.of(inputs, StrategyColumns.of([strategy]))
    groups = Groups.of(inputs, shard)
    placed = {Axis.TENSOR: groups.tensor, Axis.CONTEXT: groups.context, Axis.EXPERT: groups.expert, Axis.DATA: groups.data}
    found = {axis: (group.size, tuple(_group_uses(problem.cluster, group))) for axis, group in placed.items()}
    found[Axis.PIPELINE] = shard.pp, tuple(_boundary_uses(problem.cluster, inputs, shard))
    return tuple(AxisPlacement(axis=axis.value, size=_whole(found[axis][0]), tiers=found[axis][1]) for axis in Axis if found[axis][0] > 1)


def _group_uses(cluster: ClusterSpec, group: Group) -> Iterator[TierUse]:
    if group.crosses:
        yield TierUse(tier=cluster.tiers[1].name, domains=_whole(group.num_domains), sharing=_whole(group.concurrent_groups))
    yield from _far_uses(cluster, group.beyond)


def _boundary_uses(cluster: ClusterSpec, inputs: Inputs, shard: Shard) -> Iterator[TierUse]:
    """Of two neighbours: all ranks of a domain send at once, or as many as sit in one stage."""
    if boundary_crosses_domain(inputs, shard):
        yield TierUse(tier=cluster.tiers[1].name, domains=2, sharing=_whole(inputs.links.fast_domain_size))
    yield from _far_uses(cluster, boundary_far_hops(inputs, shard))


def _far_uses(cluster: ClusterSpec, spreads: tuple[Spread, ...]) -> Iterator[TierUse]:
    for place, spread in enumerate(spreads, start=2):
        if spread.crosses:
            yield TierUse(tier=cluster.tiers[place].name, domains=_whole(spread.domains), sharing=_whole(spread.messages))


def _whole(value: Floats) -> int:
    return max(round(float(np.ravel(value)[0])), 1)
