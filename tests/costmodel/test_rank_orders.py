"""Groups and hops under both orders of ranks, against the rank layout counted out, and what the order may change of an estimate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from autopar.catalog.fabric import Fabric, FabricKind, with_fabric
from autopar.catalog.links import link_profiles
from autopar.costmodel.columns import StrategyColumns
from autopar.costmodel.estimate import estimate
from autopar.costmodel.inputs import Inputs
from autopar.costmodel.layer_communication import Groups
from autopar.costmodel.layer_costs import boundary_crosses_domain, ends_cross_domain
from autopar.costmodel.rank_orders import brings_closer
from autopar.costmodel.sharding import Shard
from autopar.costmodel.spec.layout import RankLayout
from autopar.costmodel.spec.strategy import PipelineSchedule, RankOrder, Strategy
from autopar.costmodel.step import evaluate
from autopar.costmodel.topology import Group

from .problems import DENSE, EXPERTS, GROUPED, feasible, problem

POWER = st.sampled_from([1, 2, 4, 8])
ANY = st.integers(1, 6)
ORDER = st.sampled_from(list(RankOrder))


@cache
def inputs_of(domain: int, experts: bool = False) -> Inputs:
    inputs = Inputs.of(problem(EXPERTS if experts else DENSE, gpus=64))
    return replace(inputs, links=replace(inputs.links, fast_domain_size=np.asarray(float(domain))))


def placed(strategy: Strategy, domain: int) -> tuple[Groups, Inputs, Shard]:
    inputs = inputs_of(domain)
    shard = Shard.of(inputs, StrategyColumns.of([strategy]))
    return Groups.of(inputs, shard), inputs, shard


def plan(tp: int, cp: int, dp: int, pp: int, **more: object) -> Strategy:
    sizes = {"tensor_parallel_size": tp, "context_parallel_size": cp, "data_parallel_size": dp, "pipeline_parallel_size": pp}
    return Strategy(**{"rank_order": RankOrder.TP_CP_PP_DP, **sizes, **more})  # type: ignore[arg-type]


def replicas(layout: RankLayout, stages: tuple[int, ...]) -> Iterator[list[int]]:
    """The ranks that hold the same tensor slice of a stage that ``stages`` hold: shares of ZeRO are cut out of them in this order."""
    for tensor in range(layout.tp):
        yield [
            layout.rank({"tp": tensor, "cp": context, "dp": replica, "pp": stage})
            for stage in stages
            for replica in range(layout.dp)
            for context in range(layout.cp)
        ]


def dense_groups(strategy: Strategy, shard: int) -> tuple[list[list[int]], list[list[int]], list[list[int]]]:
    """All data groups, shard groups and groups of equal shares of the first stage and its copy."""
    layout = RankLayout.of(strategy)
    twice = strategy.pipeline_schedule is PipelineSchedule.DUALPIPE
    every = [(stage, layout.pp - 1 - stage) if twice else (stage,) for stage in range(layout.pp // 2 if twice else layout.pp)]
    whole = [group for stages in every for group in replicas(layout, stages)]
    within = [group[start : start + shard] for group in whole for start in range(0, len(group), shard)]
    across = [group[first::shard] for group in whole for first in range(shard)]
    return whole, within, across


def members(group: list[int], domain: int) -> list[int]:
    return list(Counter(rank // domain for rank in group).values())


def assert_exact(group: Group, truth: list[list[int]], domain: int) -> None:
    assert {int(group.size[0])} == {len(ranks) for ranks in truth}
    assert {int(group.members_per_domain[0])} == {count for ranks in truth for count in members(ranks, domain)}
    assert {int(group.num_domains[0])} == {len(members(ranks, domain)) for ranks in truth}


def assert_no_better(group: Group, truth: list[list[int]], domain: int) -> None:
    assert int(group.size[0]) == len(truth[0])
    assert group.members_per_domain[0] * group.num_domains[0] == group.size[0]
    assert group.members_per_domain[0] <= min(max(members(ranks, domain)) for ranks in truth)
    assert group.num_domains[0] >= max(len(members(ranks, domain)) for ranks in truth)


@given(tp=POWER, cp=POWER, dp=POWER, pp=POWER, domain=st.sampled_from([1, 2, 4, 8, 16, 64]), data=st.data())
def test_powers_of_two_are_placed_exactly_with_stages_between_replicas(
    tp: int, cp: int, dp: int, pp: int, domain: int, data: st.DataObject
) -> None:
    shard = data.draw(st.sampled_from([size for size in (1, 2, 4, 8, 16, 32, 64) if cp * dp % size == 0]))
    strategy = plan(tp, cp, dp, pp, shard_group_size=shard)
    groups, inputs, sizes = placed(strategy, domain)
    whole, within, across = dense_groups(strategy, shard)
    assert_exact(groups.data, whole, domain)
    assert_exact(groups.data_shard, within, domain)
    assert_exact(groups.data_replicas, across, domain)
    layout = RankLayout.of(strategy)
    hops = [
        (ranks[stage], ranks[stage + 1])
        for rank in range(layout.world_size)
        for ranks in [layout.group(rank, "pp")]
        for stage in range(pp - 1)
    ]
    assert bool(boundary_crosses_domain(inputs, sizes)[0]) == any(here // domain != there // domain for here, there in hops)
    ends = [layout.group(rank, "pp") for rank in range(layout.world_size)]
    if dp > 1 and pp > 1:
        assert bool(ends_cross_domain(inputs, sizes)[0]) == any(ranks[0] // domain != ranks[-1] // domain for ranks in ends)


@given(tp=ANY, cp=ANY, dp=ANY, pp=ANY, domain=st.integers(1, 16), data=st.data())
def test_other_sizes_are_never_flattered(tp: int, cp: int, dp: int, pp: int, domain: int, data: st.DataObject) -> None:
    shard = data.draw(st.sampled_from([size for size in range(1, cp * dp + 1) if cp * dp % size == 0]))
    strategy = plan(tp, cp, dp, pp, shard_group_size=shard)
    groups, inputs, sizes = placed(strategy, domain)
    whole, within, across = dense_groups(strategy, shard)
    assert_no_better(groups.data, whole, domain)
    assert_no_better(groups.data_shard, within, domain)
    assert_no_better(groups.data_replicas, across, domain)
    layout = RankLayout.of(strategy)
    lines = [layout.group(rank, "pp") for rank in range(layout.world_size)]
    crosses = any(here // domain != there // domain for ranks in lines for here, there in pairwise(ranks))
    assert bool(boundary_crosses_domain(inputs, sizes)[0]) >= crosses


@given(tp=POWER, cp=st.sampled_from([1, 2]), dp=POWER, pp=st.sampled_from([2, 4, 8]), domain=st.sampled_from([2, 4, 8, 16, 32]))
def test_both_ranks_of_a_stage_under_dualpipe_are_one_group(tp: int, cp: int, dp: int, pp: int, domain: int) -> None:
    assume(dp > 1)
    strategy = plan(tp, cp, dp, pp, pipeline_schedule=PipelineSchedule.DUALPIPE)
    groups, _, _ = placed(strategy, domain)
    assert_exact(groups.data, dense_groups(strategy, 1)[0], domain)


@given(tp=POWER, cp=st.sampled_from([1, 2]), dp=POWER, pp=POWER, etp=st.sampled_from([1, 2]), domain=st.sampled_from([2, 4, 8, 16]))
def test_expert_groups_fold_and_are_placed_exactly(tp: int, cp: int, dp: int, pp: int, etp: int, domain: int) -> None:
    assume(tp * cp % etp == 0)
    strategy = plan(tp, cp, dp, pp, expert_parallel_size=tp * cp // etp, expert_tensor_parallel_size=etp)
    groups, _, _ = placed(strategy, domain)
    layout = RankLayout.of(strategy)
    for group, axis in ((groups.expert_data, "edp"), (groups.expert, "ep"), (groups.expert_tensor, "etp")):
        truth = {layout.group(rank, axis, expert=True) for rank in range(layout.world_size)}
        assert_exact(group, [list(ranks) for ranks in truth], domain)


def mixed(strategies: tuple[Strategy, ...]) -> list[Strategy]:
    return [replace(row, rank_order=order) for row in strategies for order in RankOrder]


@pytest.mark.parametrize("name", ["grouped", "experts"])
def test_one_table_of_both_orders_is_two_tables(name: str) -> None:
    asked, strategies = feasible(name)
    inputs, rows = Inputs.of(asked), strategies[::7]
    whole = evaluate(inputs, StrategyColumns.of(mixed(rows)))
    for place, order in enumerate(RankOrder):
        own = evaluate(inputs, StrategyColumns.of([replace(row, rank_order=order) for row in rows]))
        for field in fields(own):
            assert np.array_equal(getattr(whole, field.name)[place::2], getattr(own, field.name))


@pytest.mark.parametrize("name", ["grouped", "experts"])
def test_rows_that_it_brings_nowhere_closer_take_no_less_time_and_all_take_the_same_memory(name: str) -> None:
    asked, strategies = feasible(name)
    inputs = Inputs.of(asked)
    others = StrategyColumns.of([replace(row, rank_order=RankOrder.TP_CP_PP_DP) for row in strategies])
    usual, other = evaluate(inputs, StrategyColumns.of(strategies)), evaluate(inputs, others)
    closer = brings_closer(inputs, others, RankOrder.TP_CP_DP_PP)
    assert 0 < closer.sum() < len(closer)
    assert np.all(other.step_time_seconds[~closer] >= usual.step_time_seconds[~closer] * (1 - 1e-12))
    assert np.any(other.step_time_seconds[closer] < usual.step_time_seconds[closer])
    assert np.array_equal(usual.peak_memory_bytes, other.peak_memory_bytes)
    assert not brings_closer(inputs, StrategyColumns.of(strategies), RankOrder.TP_CP_DP_PP).any()


@pytest.mark.parametrize("leaves", [(1.0, 4.0), (4.0, 1.0)])
@pytest.mark.parametrize("name", ["grouped", "experts"])
def test_the_same_on_a_network_of_three_levels(name: str, leaves: tuple[float, float]) -> None:
    asked, strategies = feasible(name)
    fabric = Fabric(
        kind=FabricKind.FAT_TREE,
        nodes_per_leaf=2,
        leaves_per_pod=2,
        leaf_oversubscription=leaves[0],
        spine_oversubscription=leaves[1],
    )
    cluster = with_fabric(asked.cluster, fabric)
    inputs = Inputs.of(replace(asked, cluster=cluster, links=link_profiles(cluster)))
    rows = strategies[::3]
    others = StrategyColumns.of([replace(row, rank_order=RankOrder.TP_CP_PP_DP) for row in rows])
    usual, other = evaluate(inputs, StrategyColumns.of(rows)).step_time_seconds, evaluate(inputs, others).step_time_seconds
    closer = brings_closer(inputs, others, RankOrder.TP_CP_DP_PP)
    assert np.all(other[~closer] >= usual[~closer] * (1 - 1e-12))


def test_the_pipeline_moves_into_the_node_and_the_replicas_out_of_it() -> None:
    asked = problem(GROUPED, gpus=64, batch=512)
    usual = Strategy(tensor_parallel_size=2, sequence_parallel=True, pipeline_parallel_size=4, data_parallel_size=8)
    before, after = estimate(asked, usual), estimate(asked, replace(usual, rank_order=RankOrder.TP_CP_PP_DP))
    assert after.time.exposed_pipeline_communication < before.time.exposed_pipeline_communication
    assert after.time.exposed_data_communication > before.time.exposed_data_communication
    assert after.time.exposed_tensor_communication == before.time.exposed_tensor_communication
    assert after.peak_memory_bytes == before.peak_memory_bytes
    assert "order=tp-cp-pp-dp" in replace(usual, rank_order=RankOrder.TP_CP_PP_DP).describe()
    assert "order" not in usual.describe()
