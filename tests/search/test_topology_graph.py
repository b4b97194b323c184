"""The graph of a cluster, and the cost model's tiers held to it: minimum cuts, and messages counted link by link."""

from __future__ import annotations

from dataclasses import replace

import networkx
import pytest

from autopar.catalog.fabric import Fabric, FabricKind, with_fabric
from autopar.catalog.hardware import cluster
from autopar.catalog.links import link_profiles
from autopar.costmodel.spec.cluster import ClusterSpec, Hosts
from autopar.costmodel.spec.errors import InvalidInputError, UnavailableError
from autopar.costmodel.spec.layout import RankLayout
from autopar.costmodel.topology import LinkColumns, far_rate, network_rate, place
from autopar.search import topology_graph
from autopar.search.topology_graph import check_connected, cluster_graph, ring_loads, uplink_capacity


def fabric(name: str = "dgx-h100", nodes: int = 8, **fields: object) -> ClusterSpec:
    flat = cluster(name, nodes * cluster(name, 1).gpus_per_node)
    return with_fabric(flat, replace(Fabric(kind=FabricKind.FAT_TREE, nodes_per_leaf=2), **fields))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["dgx-h100", "aws-p4d", "dgx-a100", "pcie-box-8", "aws-p5"])
def test_the_cut_around_a_domain_is_the_rate_of_its_tier(name: str) -> None:
    spec = fabric(name, leaf_oversubscription=3.0, leaves_per_pod=2, spine_oversubscription=2.0)
    graph, links = cluster_graph(spec), LinkColumns.of(spec, link_profiles(spec))
    check_connected(graph)
    node = uplink_capacity(graph, range(8), spec.num_gpus)
    assert node == pytest.approx(8 * float(links.network.bandwidth))
    assert float(network_rate(8, links)) == pytest.approx(node)
    for far in links.beyond:
        gpus = int(far.domain_size)
        cut = uplink_capacity(graph, range(gpus), spec.num_gpus)
        assert cut == pytest.approx(gpus * float(far.link.bandwidth) / float(far.oversubscription))
        assert float(far_rate(1 / far.domain_size, far)) == pytest.approx(cut)


def test_half_of_a_cluster_sends_through_the_uplinks_of_its_leaves() -> None:
    spec = fabric(leaf_oversubscription=2.0)
    half = range(spec.num_gpus // 2)
    assert uplink_capacity(cluster_graph(spec), half, spec.num_gpus) == pytest.approx(len(half) * spec.tiers[1].bandwidth / 2)


def test_nvlink_joins_the_gpus_of_a_rack() -> None:
    spec = cluster("nvl72-gb200", 144)
    graph = cluster_graph(spec)
    assert len([vertex for vertex in graph if vertex[0] == "fast"]) == 2
    assert networkx.shortest_path_length(graph, ("gpu", 0), ("gpu", 71), "weight") == 1
    assert uplink_capacity(graph, range(72), 144) == pytest.approx(72 * 50e9)


@pytest.mark.parametrize(("tp", "cp", "dp", "pp"), [(8, 1, 8, 1), (2, 2, 16, 1), (4, 1, 4, 4), (1, 1, 64, 1), (8, 1, 2, 4), (2, 1, 4, 8)])
def test_messages_of_rings_are_those_of_the_closed_form(tp: int, cp: int, dp: int, pp: int) -> None:
    spec = fabric(leaves_per_pod=2)
    graph, links = cluster_graph(spec), LinkColumns.of(spec, link_profiles(spec))
    layout = RankLayout(tp=tp, cp=cp, dp=dp, pp=pp, ep=1, etp=1)
    for axis, (size, stride) in layout.axes().items():
        group = place(size, stride, links)
        rings = sorted({layout.group(rank, axis) for rank in range(layout.world_size)})
        loads = ring_loads(graph, rings)
        up = {way: max((count for (one, other), count in loads.items() if (one[0], other[0]) == way), default=0) for way in WAYS}
        out_of_node = sum(count for (one, other), count in loads.items() if one == ("gpu", 0) and other[0] == "adapter")
        assert (out_of_node > 0) <= bool(group.crosses)
        for way, spread in zip(WAYS, group.beyond, strict=True):
            assert up[way] == (round(float(spread.messages)) if spread.crosses else 0)


WAYS = (("network", "spine"), ("spine", "core"))


def test_interleaved_hosts_load_the_uplinks_once_a_node() -> None:
    spec = fabric(nodes=4)
    turned = replace(spec, hosts=Hosts(names=("a", "b", "c", "d"), switches=(("left", "right", "left", "right"),)))
    for each, expected in ((spec, 8), (turned, 16)):
        rings = [tuple(range(local, 32, 8)) for local in range(8)]
        loads = ring_loads(cluster_graph(each), rings)
        assert max(count for (one, other), count in loads.items() if other[0] == "spine") == expected
        (spread,) = place(4, 8, LinkColumns.of(each, link_profiles(each))).beyond
        assert float(spread.messages) == expected


def test_unlike_ranks_of_a_rail_group_take_nvlink_and_no_spine() -> None:
    spec = fabric(kind=FabricKind.RAIL_OPTIMIZED)
    graph = cluster_graph(spec, rails=True)
    same, unlike, far = (networkx.shortest_path(graph, ("gpu", 0), ("gpu", rank), "weight") for rank in (8, 13, 16))
    assert [vertex[0] for vertex in same] == ["gpu", "adapter", "network", "adapter", "gpu"]
    assert sorted(vertex[0] for vertex in unlike) == ["adapter", "adapter", "fast", "gpu", "gpu", "gpu", "network"]
    assert "spine" in [vertex[0] for vertex in far]
    assert uplink_capacity(graph, range(16), spec.num_gpus) == pytest.approx(16 * spec.tiers[1].bandwidth)


def test_a_graph_in_two_parts_says_what_cannot_be_reached() -> None:
    graph = cluster_graph(fabric(nodes=4))
    graph.remove_edge(("network", 1), ("spine", 0))
    with pytest.raises(InvalidInputError, match=r"GPUs 16, 17, 18 and 13 more: a path to GPU 0"):
        check_connected(graph)


def test_without_networkx_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology_graph, "find_spec", lambda name: None)  # noqa: ARG005 - as importlib calls it
    with pytest.raises(UnavailableError, match=r"autopar\[search\]"):
        cluster_graph(fabric())
