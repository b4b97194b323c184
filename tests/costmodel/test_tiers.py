"""Tiers beyond the network: placement against enumeration of the groups, and laws of the seconds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar.catalog.fabric import Fabric, FabricKind, with_fabric
from autopar.catalog.hardware import cluster
from autopar.catalog.links import link_profiles
from autopar.costmodel import communication as comm
from autopar.costmodel.axis_traffic import exchange_sent, ring_sent
from autopar.costmodel.columns import Floats
from autopar.costmodel.domains import DomainMap
from autopar.costmodel.spec.cluster import ClusterSpec, Hosts
from autopar.costmodel.spec.layout import RankLayout
from autopar.costmodel.spec.strategy import RankOrder
from autopar.costmodel.topology import FarTier, LinkColumns, Spread, far_hops, far_rate, place, place_product

Collective = Callable[..., Floats]
COLLECTIVES: tuple[Collective, ...] = (
    comm.all_reduce_seconds,
    comm.all_gather_seconds,
    comm.reduce_scatter_seconds,
    comm.all_to_all_seconds,
)
POWER = st.sampled_from([1, 2, 4, 8])
GIB = 2**30


def columns(spec: ClusterSpec) -> LinkColumns:
    return LinkColumns.of(spec, link_profiles(spec))


def fat_tree(name: str, nodes: int, *, leaf: int, pod: int = 0, leaf_over: float = 1.0, spine_over: float = 1.0) -> ClusterSpec:
    flat = cluster(name, nodes * cluster(name, 1).gpus_per_node)
    fabric = Fabric(
        kind=FabricKind.FAT_TREE,
        nodes_per_leaf=leaf,
        leaves_per_pod=pod,
        leaf_oversubscription=leaf_over,
        spine_oversubscription=spine_over,
    )
    return with_fabric(flat, fabric)


@cache
def links_of(nodes: int = 64, leaf: int = 4, pod: int = 4, leaf_over: float = 1.0, spine_over: float = 1.0) -> LinkColumns:
    return columns(fat_tree("dgx-h100", nodes, leaf=leaf, pod=pod, leaf_over=leaf_over, spine_over=spine_over))


def with_map(links: LinkColumns, domains: Sequence[int]) -> LinkColumns:
    """``links`` whose first tier beyond the network joins the given domains, one number a rank."""
    return replace(links, beyond=(replace(links.beyond[0], map=DomainMap(domains)),))


def groups_of(layout: RankLayout, axis: str) -> list[tuple[int, ...]]:
    return sorted({layout.group(rank, axis) for rank in range(layout.world_size)})


def worst(groups: Sequence[Sequence[int]], domains: Sequence[int]) -> tuple[int, int, float]:
    """Fewest members in a domain, most passages of a ring, most messages out of a domain a GPU of it: by counting."""
    gpus, out = Counter(domains), Counter[int]()
    fewest, passages = len(groups[0]), 1
    for group in groups:
        inside = [domains[rank] for rank in group]
        fewest = min(fewest, *Counter(inside).values())
        left = [mine for mine, its in zip(inside, [*inside[1:], inside[0]], strict=True) if mine != its]
        passages = max(passages, len(left))
        out.update(left)
    return fewest, passages, max((out[domain] / gpus[domain] for domain in gpus), default=0.0)


@given(tp=POWER, cp=POWER, dp=POWER, pp=POWER, leaf=st.sampled_from([2, 4]), pod=st.sampled_from([2, 4]))
def test_aligned_groups_are_placed_exactly_on_every_tier(tp: int, cp: int, dp: int, pp: int, leaf: int, pod: int) -> None:
    layout = RankLayout(tp=tp, cp=cp, dp=dp, pp=pp, ep=1, etp=1)
    links = links_of(512, leaf, pod)
    for axis, (size, stride) in layout.axes().items():
        group = place(size, stride, links)
        for spread, far in zip(group.beyond, links.beyond, strict=True):
            domains = [rank // int(far.domain_size) for rank in range(layout.world_size)]
            fewest, passages, load = worst(groups_of(layout, axis), domains)
            assert (spread.members, spread.domains) == (fewest, passages)
            if spread.crosses:
                assert spread.load == pytest.approx(load)


@given(tp=st.integers(1, 6), dp=st.integers(1, 9), pp=st.integers(1, 4), nodes=st.integers(2, 5))
def test_other_sizes_are_never_flattered(tp: int, dp: int, pp: int, nodes: int) -> None:
    layout = RankLayout(tp=tp, cp=1, dp=dp, pp=pp, ep=1, etp=1)
    links = links_of(30 * nodes, nodes, 0)
    for axis, (size, stride) in layout.axes().items():
        (spread,) = place(size, stride, links).beyond
        domains = [rank // (8 * nodes) for rank in range(layout.world_size)]
        _, passages, load = worst(groups_of(layout, axis), domains)
        assert spread.domains >= passages
        if passages > 1 and layout.world_size % (8 * nodes) == 0:  # whole leaves: a leaf that is not full is enumerated
            assert spread.load >= load * (1 - 1e-12)


@given(
    shape=st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(1, 4)).filter(lambda shape: shape[0] * shape[1] * shape[2] > 1),
    draw=st.data(),
)
def test_uneven_domains_are_enumerated(shape: tuple[int, int, int], draw: st.DataObject) -> None:
    layout = RankLayout(tp=shape[0], cp=1, dp=shape[1], pp=shape[2], ep=1, etp=1)
    domains = draw.draw(st.lists(st.integers(0, 3), min_size=layout.world_size, max_size=layout.world_size))
    links = with_map(links_of(64, 4, 0), domains)
    for axis, (size, stride) in layout.axes().items():
        (spread,) = place(size, stride, links).beyond
        fewest, passages, load = worst(groups_of(layout, axis), domains)
        if passages > 1:
            assert (spread.members, spread.domains) == (fewest, passages)
            assert spread.load == pytest.approx(load)
        else:
            assert not spread.crosses


def replicas_of(layout: RankLayout) -> list[tuple[int, ...]]:
    """The groups over context and replicas together: what reduces gradients, stages in between or not."""
    ranks = range(layout.world_size)
    members: dict[tuple[int, int], list[int]] = {}
    for rank in ranks:
        at = layout.coordinates(rank)
        members.setdefault((at["tp"], at["pp"]), []).append(rank)
    return [tuple(group) for group in members.values()]


def over_replicas(layout: RankLayout, links: LinkColumns) -> Spread:
    axes = layout.axes()
    (spread,) = place_product((axes["cp"], axes["dp"]), links).beyond
    return spread


@given(tp=POWER, cp=POWER, dp=POWER, pp=POWER, leaf=st.sampled_from([2, 4]), order=st.sampled_from(RankOrder))
def test_groups_over_two_axes_are_placed_exactly(tp: int, cp: int, dp: int, pp: int, leaf: int, order: RankOrder) -> None:
    layout = RankLayout(tp=tp, cp=cp, dp=dp, pp=pp, ep=1, etp=1, order=order)
    spread = over_replicas(layout, links_of(512, leaf, 0))
    fewest, passages, load = worst(replicas_of(layout), [rank // (8 * leaf) for rank in range(layout.world_size)])
    assert (spread.members, spread.domains) == (fewest, passages)
    if spread.crosses:
        assert spread.load == pytest.approx(load)


@given(
    shape=st.tuples(*[st.integers(1, 4)] * 4).filter(lambda shape: shape[1] * shape[2] > 1),
    order=st.sampled_from(RankOrder),
    draw=st.data(),
)
def test_groups_over_two_axes_are_enumerated_where_domains_are_uneven(
    shape: tuple[int, int, int, int], order: RankOrder, draw: st.DataObject
) -> None:
    tp, cp, dp, pp = shape
    layout = RankLayout(tp=tp, cp=cp, dp=dp, pp=pp, ep=1, etp=1, order=order)
    domains = draw.draw(st.lists(st.integers(0, 3), min_size=layout.world_size, max_size=layout.world_size))
    spread = over_replicas(layout, with_map(links_of(64, 4, 0), domains))
    fewest, passages, load = worst(replicas_of(layout), domains)
    if passages > 1:
        assert (spread.members, spread.domains) == (fewest, passages)
        assert spread.load == pytest.approx(load)
    else:
        assert not spread.crosses


@given(distance=st.integers(1, 6), size=st.integers(2, 5), blocks=st.integers(1, 2), draw=st.data())
def test_hops_of_a_line_are_counted(distance: int, size: int, blocks: int, draw: st.DataObject) -> None:
    ranks = distance * size * blocks
    domains = draw.draw(st.lists(st.integers(0, 2), min_size=ranks, max_size=ranks))
    (spread,) = far_hops(distance, with_map(links_of(64, 4, 0), domains), size)
    pairs = [(rank, rank + distance) for rank in range(ranks) if rank // distance % size < size - 1]
    crossing = [(domains[one], domains[other]) for one, other in pairs if domains[one] != domains[other]]
    assert bool(spread.crosses) == bool(crossing)
    if crossing:
        gpus = Counter(domains)
        ways = Counter(one for one, _ in crossing), Counter(other for _, other in crossing)
        assert spread.load == pytest.approx(max(way[domain] / gpus[domain] for way in ways for domain in way))


def test_the_ends_of_a_pipeline_are_further_apart_than_its_half() -> None:
    links = with_map(links_of(64, 4, 0), [0] * 24 + [1] * 8)
    (spread,) = far_hops(24, links)  # 4 stages of 8: the first and the last
    assert spread.crosses
    assert spread.messages == 8


def test_a_map_of_even_domains_is_the_closed_form() -> None:
    even = links_of(16, 4, 0)
    mapped = with_map(even, [rank // 32 for rank in range(128)])
    sizes, strides = np.array([2, 4, 8, 16, 16, 64]), np.array([8, 8, 8, 1, 8, 2])
    for one, other in zip(place(sizes, strides, even).beyond, place(sizes, strides, mapped).beyond, strict=True):
        assert one.members.tolist() == other.members.tolist()
        assert one.domains.tolist() == other.domains.tolist()
        assert one.load[one.crosses] == pytest.approx(other.load[one.crosses])
        assert one.messages[one.crosses] == pytest.approx(other.messages[one.crosses])


def test_a_partial_last_leaf_is_looked_at() -> None:
    spec = fat_tree("dgx-h100", 6, leaf=4)
    links = columns(spec)
    assert links.beyond[0].map is not None
    (spread,) = place(6, 8, links).beyond  # one rank a node: 4 + 2
    assert (spread.members, spread.domains, spread.load) == (2, 2, 8 / 16)


@given(
    run=st.sampled_from(COLLECTIVES),
    size=st.sampled_from([2, 3, 8, 16, 24, 128]),
    stride=st.sampled_from([1, 2, 8, 16]),
    message=st.floats(1, 1e10),
    name=st.sampled_from(["dgx-h100", "aws-p4d", "nvl72-gb200", "dgx-1v", "pcie-box-8", "jean-zay-v100"]),
)
def test_a_fabric_that_does_not_block_changes_nothing(run: Collective, size: int, stride: int, message: float, name: str) -> None:
    nodes = 288
    flat = columns(cluster(name, nodes * cluster(name, 1).gpus_per_node))
    levels = columns(fat_tree(name, nodes, leaf=36, pod=4))
    assert len(levels.beyond) == 2
    assert run(message, place(size, stride, levels), levels) == pytest.approx(run(message, place(size, stride, flat), flat), rel=1e-12)


@given(
    run=st.sampled_from(COLLECTIVES),
    size=st.sampled_from([2, 3, 8, 16, 24, 128]),
    stride=st.sampled_from([1, 2, 8, 16]),
    message=st.floats(1, 1e10),
    over=st.floats(1, 16),
    more=st.floats(1, 4),
)
def test_blocking_more_is_never_faster(run: Collective, size: int, stride: int, message: float, over: float, more: float) -> None:
    one, other = (columns(fat_tree("dgx-h100", 64, leaf=4, pod=4, leaf_over=o, spine_over=2.0)) for o in (over, over * more))
    first = run(message, place(size, stride, one), one)
    assert run(message, place(size, stride, other), other) >= first * (1 - 1e-12)


@given(
    run=st.sampled_from(COLLECTIVES),
    size=st.sampled_from([2, 8, 24, 128]),
    stride=st.sampled_from([1, 8, 16]),
    message=st.floats(1, 1e10),
    factor=st.floats(1, 8),
    tier=st.integers(0, 3),
    name=st.sampled_from(["dgx-h100", "a40-box", "mi250x-frontier"]),
)
def test_more_bandwidth_of_any_tier_never_slows(
    run: Collective, size: int, stride: int, message: float, factor: float, tier: int, name: str
) -> None:
    spec = fat_tree(name, 64, leaf=4, leaf_over=3.0)
    place_of = min(tier, len(spec.tiers) - 1)
    tiers = list(spec.tiers)
    tiers[place_of] = replace(tiers[place_of], bandwidth=tiers[place_of].bandwidth * factor)
    links, profiles = columns(spec), link_profiles(spec)  # the same efficiencies: only the rating changes
    faster = LinkColumns.of(replace(spec, tiers=tuple(tiers)), profiles)
    assert run(message, place(size, stride, faster), faster) <= run(message, place(size, stride, links), links) * (1 + 1e-12)


def test_oversubscription_divides_the_rate_of_what_leaves_a_leaf() -> None:
    flat, blocking = links_of(64, 4, 0), links_of(64, 4, 0, 4.0)
    inside, across = place(4, 8, blocking), place(16, 8, blocking)
    assert comm.all_gather_seconds(GIB, inside, blocking) == comm.all_gather_seconds(GIB, inside, flat)
    fast, slow = (comm.all_gather_seconds(64 * GIB, across, links) for links in (flat, blocking))
    # 4 nodes of the leaf send each a message out of the node, and one of the four out of the leaf: 4 x blocking costs nothing yet
    assert slow == pytest.approx(fast, rel=1e-9)
    spread = place(16, 32, blocking)  # every node of the leaf has its own groups: all of it leaves
    assert comm.all_gather_seconds(64 * GIB, spread, blocking) == pytest.approx(
        4 * comm.all_gather_seconds(64 * GIB, spread, flat), rel=0.01
    )


def test_a_hop_takes_the_slowest_tier_that_some_neighbours_cross() -> None:
    flat, blocking = links_of(64, 4, 0), links_of(64, 4, 0, 8.0)
    inside, out = far_hops(8, blocking, 4), far_hops(32, blocking, 4)
    assert not inside[0].crosses
    assert out[0].crosses
    near, far = (comm.p2p_seconds(GIB, True, blocking, beyond=beyond) for beyond in (inside, out))
    assert near == comm.p2p_seconds(GIB, True, flat)
    assert far == pytest.approx(8 * near, rel=0.01)


def test_few_senders_share_the_uplinks_of_a_leaf() -> None:
    blocking = links_of(64, 4, 0, 4.0)
    few, all_of_them = far_hops(8, blocking, 64)[0], far_hops(32, blocking, 4)[0]
    assert (few.messages, all_of_them.messages) == (8, 32)
    one, other = (comm.p2p_seconds(GIB, True, blocking, beyond=(hop,)) for hop in (few, all_of_them))
    assert other == pytest.approx(4 * one, rel=0.01)


def test_clusters_of_unlike_depth_share_a_table() -> None:
    rows = [columns(cluster("dgx-h100", 512)), links_of(64, 4, 4, 2.0, 2.0), links_of(64, 4, 0, 3.0), columns(cluster("a40-box", 512))]
    sizes, strides = np.array([64, 64, 64, 64]), np.array([8, 8, 8, 8])
    table = LinkColumns.stack(rows)
    assert len(table.beyond) == 2
    for run in COLLECTIVES:
        together = run(float(GIB), place(sizes, strides, table), table)
        for row, links in enumerate(rows):
            assert together[row] == run(float(GIB), place(64, 8, links), links)
    hops = comm.p2p_seconds(float(GIB), np.ones(4, dtype=np.bool_), table, beyond=far_hops(np.full(4, 128), table, np.full(4, 4)))
    for row, links in enumerate(rows):
        assert hops[row] == comm.p2p_seconds(float(GIB), True, links, beyond=far_hops(128, links, 4))
    assert table.take(np.array([1])).beyond[1].oversubscription.tolist() == [4.0]


def test_pcie_between_bridged_pairs_is_no_network() -> None:
    links = columns(cluster("a40-box", 64))
    (far,) = links.beyond
    assert isinstance(far, FarTier)
    assert (links.network.bandwidth, far.link.bandwidth, far.domain_size, far.cut_through) == (31.5e9, 1.5625e9, 8, 0)
    inside, across = (comm.all_gather_seconds(float(GIB), place(8, stride, links), links) for stride in (1, 8))
    assert inside * 10 < across  # what stays on PCIe is not charged at the network's rate


def test_a_group_with_many_members_uses_all_adapters_of_a_node() -> None:
    links = columns(cluster("mi250x-frontier", 64))  # 8 dies, 4 adapters of 25 GB/s, the third tier
    (far,) = links.beyond
    assert [float(far_rate(np.asarray(1 / k), far, k)) for k in (1.0, 2.0, 8.0)] == [12.5e9, 25e9, 100e9]
    assert float(far_rate(np.asarray(1 / 8), far)) == 25e9  # one message goes through one adapter


def test_leaves_of_racks_hold_what_jobs_take_of_a_rack() -> None:
    spec = fat_tree("nvl72-gb200", 128, leaf=36)  # two racks under a leaf; 64 of the 72 GPUs of each
    assert spec.domain_sizes == (64, 128, 512)
    assert float(columns(spec).beyond[0].domain_size) == 128


def test_hosts_under_two_leaves() -> None:
    flat = fat_tree("dgx-h100", 8, leaf=5)
    uneven = replace(flat, hosts=Hosts(switches=(("a",) * 5 + ("b",) * 3,)))
    turned = replace(flat, hosts=Hosts(switches=(("a", "b") * 3 + ("a", "a"),)))
    spreads = [place(8, 8, columns(spec)).beyond[0] for spec in (uneven, turned)]
    assert [float(spread.domains) for spread in spreads] == [2, 6]
    assert [float(spread.load) for spread in spreads] == [8 / 24, 24 / 24]


def test_bytes_count_at_the_outermost_tier_that_they_cross() -> None:
    links = links_of(64, 4, 4)
    group = place(64, 8, links)  # one rank a node, 4 nodes a leaf, 4 leaves a pod
    assert [float(sent) for sent in ring_sent(64.0, group).tiers] == [0.0, 63 - 63 / 4, 63 / 4 - 63 / 16, 63 / 16]
    assert [float(sent) for sent in exchange_sent(64.0, group).tiers] == [0.0, 3.0, 12.0, 48.0]
    inside = place(4, 8, links)
    assert [float(sent) for sent in ring_sent(4.0, inside).tiers] == [0.0, 3.0, 0.0, 0.0]


@given(size=st.sampled_from([1, 2, 6, 8, 24, 64]), stride=st.sampled_from([1, 2, 8, 12]), bytes_=st.floats(1, 1e9))
def test_no_byte_is_lost_between_tiers(size: int, stride: int, bytes_: float) -> None:
    group = place(size, stride, links_of(64, 4, 4))
    for sent in (ring_sent(bytes_, group), exchange_sent(bytes_, group)):
        assert sum(map(float, sent.tiers)) == pytest.approx(bytes_ * (size - 1) / size)
        assert all(float(each) >= -1e-9 for each in sent.tiers)


def test_the_network_is_scaled_at_all_its_levels() -> None:
    spec = fat_tree("dgx-h100", 64, leaf=4, pod=4)
    halved = spec.with_network_scaled(0.5)
    assert [new.bandwidth / old.bandwidth for old, new in zip(spec.tiers, halved.tiers, strict=True)] == [1, 0.5, 0.5, 0.5]
    rack = cluster("nvl72-gb200", 72)
    assert rack.with_network_scaled(0.5).tiers[0].bandwidth == rack.tiers[0].bandwidth / 2
