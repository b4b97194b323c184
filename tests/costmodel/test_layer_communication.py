"""Hybrid sharding keeps its gathers inside the shard group, and a gathered context comes before attention."""

from __future__ import annotations

from dataclasses import replace

from autopar.costmodel.estimate import estimate
from autopar.costmodel.spec.strategy import ContextParallelKind, Strategy

from .problems import DENSE, problem

SHARDED = Strategy(data_parallel_size=16, zero_stage=3)


def test_a_shard_group_of_all_ranks_is_no_group() -> None:
    asked = problem(DENSE, gpus=16)
    whole = estimate(asked, SHARDED)
    named = estimate(asked, replace(SHARDED, shard_group_size=16))
    assert named.time == whole.time
    assert named.peak_memory_bytes == whole.peak_memory_bytes


def test_a_shard_group_inside_the_node_trades_memory_for_the_network() -> None:
    asked = problem(DENSE, gpus=16)
    whole, grouped = estimate(asked, SHARDED), estimate(asked, replace(SHARDED, shard_group_size=8))
    assert grouped.peak_memory_bytes > whole.peak_memory_bytes
    assert grouped.time.optimizer > whole.time.optimizer


def test_a_gathered_context_is_exposed_and_a_ring_hides() -> None:
    asked = problem(DENSE, gpus=8)
    strategy = Strategy(context_parallel_size=8, context_parallel_kind=ContextParallelKind.ALL_GATHER)
    exposed = estimate(asked, strategy).time.exposed_context_communication
    hiding = replace(asked, framework=replace(asked.framework, context_overlap=0.0))
    assert exposed > 0
    assert estimate(hiding, strategy).time.exposed_context_communication == exposed
    ring = replace(strategy, context_parallel_kind=ContextParallelKind.RING)
    assert estimate(asked, ring).time.exposed_context_communication < estimate(hiding, ring).time.exposed_context_communication
