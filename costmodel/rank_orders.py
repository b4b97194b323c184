"""Whether the order of ranks matters to a strategy: what another order would place elsewhere on the links."""

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
    same = same & _all_same(boundary_far_hops(inputs, shard), boundary_far_hops(inputs, other))
    if np.any(inputs.model.tied > 0):
        same = same & (ends_cross_domain(inputs, shard) == ends_cross_domain(inputs, other))
        same = same & _all_same(ends_far_hops(inputs, shard), ends_far_hops(inputs, other))
    groups, others = Groups.of(inputs, shard), Groups.of(inputs, other)
    kept = [f.name for f in fields(Groups) if "expert" not in f.name or np.any(inputs.model.num_experts > 0)]
    for name in kept:
        same = same & _same(getattr(groups, name), getattr(others, name))
    return np.asarray(same)


def _same(one: Group | Spread, other: Group | Spread) -> Bools:
    same = np.ones((), dtype=np.bool_)
    for field in fields(one):
        mine, theirs = getattr(one, field.name), getattr(other, field.name)
        same = same & (_all_same(mine, theirs) if isinstance(mine, tuple) else np.isclose(mine, theirs))
    return np.asarray(same)


def _all_same(spreads: Sequence[Spread], others: Sequence[Spread]) -> Bools:
    same = np.ones((), dtype=np.bool_)
    for one, other in zip(spreads, others, strict=True):
        same = same & _same(one, other)
    return np.asarray(same)
