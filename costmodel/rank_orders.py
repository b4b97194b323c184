"""Whether the order of ranks matters to a strategy: what another order would place elsewhere on the links."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from .columns import RANK_ORDERS, Bools, StrategyColumns, distinct_rows
from .inputs import Inputs
from .layer_communication import Groups
from .layer_costs import boundary_crosses_domain, ends_cross_domain
from .sharding import Shard
from .spec.strategy import RankOrder
from .topology import Group

_KEY = (
    "tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size", "data_parallel_size", "expert_parallel_size",
    "expert_tensor_parallel_size", "stage_copies", "shard_group_size", "rank_order",
)  # fmt: skip


def placed_alike(inputs: Inputs, strategies: StrategyColumns, order: RankOrder) -> Bools:
    """Whether all groups of each strategy and the neighbours of its pipeline sit on the links as they would in ``order``.

    Such strategies take the same time: nothing else of the cost model knows the order.
    """
    alike = np.ones(len(strategies), dtype=np.bool_)
    rows = np.flatnonzero(~strategies.is_order(order))
    if not len(rows):
        return alike
    first, index = distinct_rows(strategies.take(rows), _KEY)
    own = strategies.take(rows[first])
    other = own.with_columns(rank_order=np.full(len(own), RANK_ORDERS.index(order), dtype=np.int64))
    alike[rows] = _alike(inputs, Shard.of(inputs, own), Shard.of(inputs, other))[index]
    return alike


def _alike(inputs: Inputs, shard: Shard, other: Shard) -> Bools:
    same = boundary_crosses_domain(inputs, shard) == boundary_crosses_domain(inputs, other)
    if np.any(inputs.model.tied > 0):
        same = same & (ends_cross_domain(inputs, shard) == ends_cross_domain(inputs, other))
    groups, others = Groups.of(inputs, shard), Groups.of(inputs, other)
    kept = [f.name for f in fields(Groups) if "expert" not in f.name or np.any(inputs.model.num_experts > 0)]
    for name in kept:
        same = same & _same(getattr(groups, name), getattr(others, name))
    return np.asarray(same)


def _same(group: Group, other: Group) -> Bools:
    same = np.ones((), dtype=np.bool_)
    for field in fields(Group):
        same = same & np.isclose(getattr(group, field.name), getattr(other, field.name))
    return np.asarray(same)
