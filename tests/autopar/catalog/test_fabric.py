"""Fabrics: from what a user says to link tiers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autopar.catalog import hardware
from autopar.catalog.fabric import Fabric, FabricKind, Regions, fabric_named, fabric_names, with_fabric
from autopar.catalog.links import link_profiles
from autopar.costmodel.spec.cluster import ClusterSpec, LinkKind
from autopar.costmodel.spec.errors import InvalidInputError, UnknownNameError

FAT = Fabric(kind=FabricKind.FAT_TREE)


def superpod(nodes: int = 64) -> ClusterSpec:
    return hardware.cluster("dgx-h100", 8 * nodes)


def levels(spec: ClusterSpec) -> list[tuple[str, int, float]]:
    return [(tier.name, tier.domain_size, tier.oversubscription) for tier in spec.tiers]


def read(folder: Path, **fields: Any) -> ClusterSpec:
    raw = {
        "id": "lab",
        "device": "h100",
        "gpus_per_node": 8,
        "tiers": [
            {"name": "nvlink", "kind": "nvlink", "domain_size": 8, "bandwidth": 450e9, "latency_seconds": 1e-6},
            {
                "name": "network", "kind": "network", "domain_size": 0, "bandwidth": 50e9, "latency_seconds": 5e-6, "ports_per_domain": 8,
                "oversubscription": 2.0,
            },
        ],
        **fields,
    }  # fmt: skip
    path = folder / "lab.json"
    path.write_text(json.dumps(raw))
    return hardware.read_cluster_file(path)


def faults(call: Any, *given: Any, **named: Any) -> list[str]:
    with pytest.raises(InvalidInputError) as caught:
        call(*given, **named)
    return [str(fault) for fault in caught.value.faults]


def test_a_fat_trees_leaf_takes_all_adapters_of_a_node_a_rails_one() -> None:
    assert FAT.leaf_nodes(superpod()) == 4  # 32 ports down, 8 a node
    assert Fabric(kind=FabricKind.RAIL_OPTIMIZED).leaf_nodes(superpod()) == 32
    assert replace(FAT, leaf_oversubscription=3.0).leaf_nodes(superpod()) == 6  # 48 ports down
    assert replace(FAT, nodes_per_leaf=7).leaf_nodes(superpod()) == 7
    assert FAT.leaf_nodes(hardware.cluster("aws-p4d", 64)) == 8  # 4 adapters


def test_a_network_is_divided_into_levels() -> None:
    fabric = replace(FAT, nodes_per_leaf=4, leaves_per_pod=4, leaf_oversubscription=2.0, spine_oversubscription=3.0)
    spec = with_fabric(superpod(), fabric)
    assert levels(spec) == [("nvlink", 8, 1), ("network", 32, 1), ("spine", 128, 2), ("core", 0, 6)]
    assert {tier.bandwidth for tier in spec.tiers[1:]} == {50e9}
    leaf, *above = link_profiles(spec)[1:]
    assert all(replace(profile, tier=leaf.tier, source=leaf.source) == leaf for profile in above), "one technology"


def test_one_node_and_one_nvlink_domain_have_no_fabric() -> None:
    assert with_fabric(superpod(1), FAT) == superpod(1)
    rack = hardware.cluster("nvl72-gb200", 72)
    assert with_fabric(rack, FAT) == rack


def test_equal_regions_are_a_tier() -> None:
    regions = Regions(nodes=(32, 32), bandwidth=100e9, latency_seconds=5e-3)
    spec = with_fabric(superpod(), replace(FAT, nodes_per_leaf=4, regions=regions))
    assert levels(spec) == [("nvlink", 8, 1), ("network", 32, 1), ("spine", 256, 1), ("region", 0, 1)]
    assert spec.hosts is None
    assert spec.tiers[-1].bandwidth * 256 == 100e9  # all GPUs of a region share its line
    assert link_profiles(spec)[-1].latency_seconds == 5e-3
    assert link_profiles(spec)[-1].origin.value == "analytic"


def test_unequal_regions_say_where_each_node_is() -> None:
    regions = Regions(nodes=(40, 24), bandwidth=96e9, latency_seconds=1e-2)
    spec = with_fabric(superpod(), Fabric(regions=regions))
    assert levels(spec) == [("nvlink", 8, 1), ("network", 320, 1), ("region", 0, 1)]
    assert spec.hosts is not None
    assert [spec.hosts.switches[0].count(name) for name in dict.fromkeys(spec.hosts.switches[0])] == [40, 24]
    assert spec.tiers[-1].bandwidth * 24 * 8 == 96e9


def test_leaves_end_with_their_region() -> None:
    regions = Regions(nodes=(6, 6), bandwidth=96e9, latency_seconds=1e-2)
    spec = with_fabric(superpod(12), replace(FAT, nodes_per_leaf=4, regions=regions))
    assert spec.hosts is not None
    leaf, region = spec.hosts.switches
    assert [leaf.count(name) for name in dict.fromkeys(leaf)] == [4, 2, 4, 2]
    assert [region.count(name) for name in dict.fromkeys(region)] == [6, 6]


def test_regions_smaller_than_a_leaf_have_no_spine() -> None:
    regions = Regions(nodes=(2, 2), bandwidth=96e9, latency_seconds=1e-2)
    spec = with_fabric(superpod(4), replace(FAT, nodes_per_leaf=4, regions=regions))
    assert [tier.name for tier in spec.tiers] == ["nvlink", "network", "region"]


def test_regions_that_do_not_add_up() -> None:
    regions = Regions(nodes=(32, 30), bandwidth=1e9, latency_seconds=1e-2)
    (said,) = faults(with_fabric, superpod(), Fabric(regions=regions))
    assert said == ("fabric.regions=32 + 30 nodes = 62: the regions together have the 64 nodes of the cluster; 496 GPUs fill them")


def test_a_network_is_divided_once() -> None:
    divided = with_fabric(superpod(), FAT)
    assert "network, spine: dgx-h100 has one network" in faults(with_fabric, divided, FAT)[0]
    flat = replace(superpod(), tiers=superpod().tiers[1:])
    assert "a tier inside its nodes" in faults(with_fabric, flat, FAT)[0]


@pytest.mark.parametrize("name", fabric_names())
def test_fabrics_of_the_catalog_say_their_source(name: str) -> None:
    fabric = fabric_named(name)
    assert fabric.kind is not None
    assert len(fabric.source) > 20
    spec = with_fabric(hardware.cluster("grand-teton-h100", 16_384), fabric)
    assert all(tier.kind is LinkKind.NETWORK for tier in spec.tiers[1:])
    assert fabric.source in spec.sources["tiers.spine.bandwidth"]


def test_the_llama_3_fabric_is_as_published() -> None:
    spec = with_fabric(hardware.cluster("grand-teton-h100", 24_576), fabric_named("llama3-roce"))
    assert levels(spec)[1:] == [("network", 16, 1), ("spine", 3072, 1), ("core", 0, 7)]


def test_unknown_fabric() -> None:
    with pytest.raises(UnknownNameError, match="llama3-roce"):
        fabric_named("lama3")


def test_a_cluster_file_may_have_a_fabric(tmp_path: Path) -> None:
    spec = read(tmp_path, num_gpus=256, fabric={"kind": "rail-optimized", "nodes_per_leaf": 16})
    assert levels(spec)[1:] == [("network", 128, 1), ("spine", 0, 2)]  # what the network blocks, its leaves' uplinks do
    again = read(tmp_path, num_gpus=16_384, fabric={"preset": "llama3-roce", "spine_oversubscription": 3.5})
    assert levels(again)[1:] == [("network", 16, 1), ("spine", 3072, 1), ("core", 0, 3.5)]
    regions = {"nodes": [16, 16], "bandwidth": 12.5e9, "latency_seconds": 0.01}
    assert levels(read(tmp_path, num_gpus=256, fabric={"regions": regions}))[1:] == [("network", 128, 2), ("region", 0, 1)]


@pytest.mark.parametrize(
    ("fabric", "said"),
    [
        ({"kind": "torus"}, "$.fabric.kind='torus'"),
        ({"preset": "lama"}, "$.fabric.preset='lama': one of alibaba-hpn, dgx-superpod, llama3-roce"),
        ({"kind": "fat-tree", "nodes_per_leaf": 0}, "$.fabric.nodes_per_leaf=0"),
        ({"kind": "fat-tree", "leaf_oversubscription": 0.5}, "$.fabric.leaf_oversubscription=0.5: greater than or equal to 1"),
        ({"kind": "fat-tree", "spine_oversubscription": -1}, "$.fabric.spine_oversubscription=-1"),
        ({"node_per_leaf": 4}, "did you mean nodes_per_leaf?"),
        ({"regions": {"nodes": [16, 16], "bandwidth": 0, "latency_seconds": 0.01}}, "$.fabric.regions.bandwidth=0"),
        ({"regions": {"nodes": [16, 0], "bandwidth": 1e9, "latency_seconds": 0.01}}, "$.fabric.regions.nodes[1]=0"),
        ({"regions": {"nodes": [16, 16], "bandwith": 1e9, "bandwidth": 1e9, "latency_seconds": 0.01}}, "did you mean bandwidth?"),
        ({"regions": {"nodes": [16], "bandwidth": 1e9, "latency_seconds": 0.01}}, "regions together have the 32 nodes"),
    ],
)
def test_wrong_fabrics(tmp_path: Path, fabric: dict[str, Any], said: str) -> None:
    found = faults(read, tmp_path, num_gpus=256, fabric=fabric)
    assert len(found) == 1
    assert said in found[0]
