"""Whether another order of ranks can do a strategy good: what it brings closer together on the links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np

from .columns import RANK_ORDERS, Bools, StrategyColumns, distinct_rows
from .inputs import Inputs
from .layer_communication import Groups
from .layer_costs import boundary_crosses_domain, boundary_far_hops, ends_cross_domain, ends_far_hops
from .sharding import Shard
from .spec.strategy import RankOrder
from .topology import Group, Spread

_KEY = (
    "tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size", "data_parallel_size", "expert_parallel_size",
    "expert_tensor_parallel_size", "stage_copies", "shard_group_size", "rank_order",
)  # fmt: skip
_SAME = 1e-9


def brings_closer(inputs: Inputs, strategies: StrategyColumns, order: RankOrder) -> Bools:
    """Whether some group of each strategy has more members in a domain, or some neighbours share one, than they would in ``order``.

    The others take no less time than in ``order``: nothing else of the cost model knows the order.
    """
    closer = np.zeros(len(strategies), dtype=np.bool_)
    rows = np.flatnonzero(~strategies.is_order(order))
    if not len(rows):
        return closer
    first, index = distinct_rows(strategies.take(rows), _KEY)
    own = strategies.take(rows[first])
    usual = own.with_columns(rank_order=np.full(len(own), RANK_ORDERS.index(order), dtype=np.int64))
    closer[rows] = _closer(inputs, Shard.of(inputs, own), Shard.of(inputs, usual))[index]
    return closer


def _closer(inputs: Inputs, shard: Shard, usual: Shard) -> Bools:
    found = ~boundary_crosses_domain(inputs, shard) & boundary_crosses_domain(inputs, usual)
    found = found | _any_closer(boundary_far_hops(inputs, shard), boundary_far_hops(inputs, usual))
    if np.any(inputs.model.tied > 0):
        found = found | (~ends_cross_domain(inputs, shard) & ends_cross_domain(inputs, usual))
        found = found | _any_closer(ends_far_hops(inputs, shard), ends_far_hops(inputs, usual))
    groups, others = Groups.of(inputs, shard), Groups.of(inputs, usual)
    for field in fields(Groups):
        if "expert" not in field.name or np.any(inputs.model.num_experts > 0):
            group: Group = getattr(groups, field.name)
            other: Group = getattr(others, field.name)
            found = found | (group.members_per_domain > other.members_per_domain) | _any_closer(group.beyond, other.beyond)
    return np.asarray(found)


def _any_closer(spreads: Sequence[Spread], usual: Sequence[Spread]) -> Bools:
    """On some tier: more members in a domain, fewer passages between domains, or fewer messages out of one."""
    found = np.zeros((), dtype=np.bool_)
    for one, other in zip(spreads, usual, strict=True):
        fewer = (one.domains < other.domains) | (one.load < other.load * (1 - _SAME)) | (one.messages < other.messages * (1 - _SAME))
        found = found | (other.crosses & (fewer | (one.members > other.members)))
    return np.asarray(found)
