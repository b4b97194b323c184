"""Fabrics above the nodes: what a network is made of, as link tiers of a cluster.

A cluster file knows one network. A fabric divides it into levels: nodes under one leaf (or one set of rail switches) talk at
the full rate, what leaves it takes the leaf's uplinks to the spine, what leaves a pod the spine's uplinks to the core, and what
leaves a region the lines between regions. See docs/design/topology.md for what is approximated.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from autopar.costmodel.spec.cluster import ClusterSpec, Hosts, LinkKind, LinkTier
from autopar.costmodel.spec.errors import Fault, UnknownNameError, raise_if

SWITCH_PORTS = 64
"""Of the usual switch at a node's rate: 64 x 400 Gb/s (NVIDIA QM9700, Broadcom Tomahawk 4 and 5)."""


class FabricKind(StrEnum):
    FAT_TREE = "fat-tree"
    """All adapters of a node go to one leaf switch."""
    RAIL_OPTIMIZED = "rail-optimized"
    """The i-th adapters of all nodes go to one leaf switch, so that a set of leaves serves as many nodes as a leaf has ports down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Regions:
    """Sites that a job spans."""

    nodes: tuple[int, ...]
    """Of each region, in rank order."""
    bandwidth: float
    """Bytes/s in one direction, all that a region sends to the others together."""
    latency_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """Levels of a network. Oversubscription is what comes in from below over what goes up: 1 does not block."""

    kind: FabricKind | None = None
    """None: one network, of which only the regions are told."""
    nodes_per_leaf: int = 0
    """0: as many as ``switch_ports`` allows."""
    switch_ports: int = SWITCH_PORTS
    leaves_per_pod: int = 0
    """Leaves (or sets of rail switches) under one spine; 0: one spine joins them all."""
    leaf_oversubscription: float | None = None
    """None: that of the cluster's network."""
    spine_oversubscription: float = 1.0
    regions: Regions | None = None
    source: str = "cluster file"

    def leaf_nodes(self, cluster: ClusterSpec) -> int:
        """Nodes under one leaf: given, or the ports that face down over the adapters that a node has on each switch.

        Of P ports at an oversubscription o, P o / (1 + o) face down. A fat tree's leaf takes all adapters of a node, a rail's one.
        """
        if self.nodes_per_leaf:
            return self.nodes_per_leaf
        o = self.leaf_oversubscription or cluster.network_tier.oversubscription
        down = int(self.switch_ports * o / (1 + o))
        adapters = cluster.network_tier.ports_per_domain or cluster.gpus_per_node
        return max(down // adapters if self.kind is FabricKind.FAT_TREE else down, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Level:
    """A tier above the nodes, and how many nodes one of the domains that it joins has."""

    name: str
    nodes_below: int
    oversubscription: float
    bandwidth: float
    latency_seconds: float


def with_fabric(cluster: ClusterSpec, fabric: Fabric) -> ClusterSpec:
    """``cluster`` with its network divided into the levels of ``fabric``; a single node or one NVLink domain stays as it is.

    Raises:
        InvalidInputError: the cluster's network is divided already, or the regions do not hold its nodes.
    """
    raise_if(list(_faults(cluster, fabric)))
    if cluster.network_tier.kind is not LinkKind.NETWORK:
        return cluster
    network, levels = cluster.network_tier, _levels(cluster, fabric)
    if not levels:
        return cluster
    own = network.oversubscription if fabric.kind is None else 1.0
    below = [level.nodes_below * cluster.gpus_per_node for level in levels]
    tiers = [replace(network, domain_size=below[0], oversubscription=own)]
    for level, size in zip(levels, [*below[1:], 0], strict=True):
        tiers.append(
            LinkTier(
                name=level.name,
                kind=LinkKind.NETWORK,
                domain_size=size,
                bandwidth=level.bandwidth,
                latency_seconds=level.latency_seconds,
                ports_per_domain=network.ports_per_domain,
                oversubscription=level.oversubscription,
            )
        )
    sources = dict(cluster.sources)
    for level in levels:
        sources |= {} if level.name == "region" else cluster.sources_for(level.name, fabric.source)
    return replace(cluster, tiers=(*cluster.tiers[:-1], *tiers), sources=sources, hosts=_uneven(cluster, fabric, levels))


def _faults(cluster: ClusterSpec, fabric: Fabric) -> Iterator[Fault]:
    networks = [tier.name for tier in cluster.tiers if tier.kind is LinkKind.NETWORK]
    if len(networks) > 1:
        yield Fault(field="fabric", given=", ".join(networks), required=f"{cluster.id} has one network, which the fabric divides")
    elif cluster.tiers[0].kind is LinkKind.NETWORK:
        yield Fault(
            field="fabric", given=networks[0], required=f"{cluster.id} has a tier inside its nodes", fix="add one, of kind pcie or nvlink"
        )
    if fabric.regions is not None and sum(fabric.regions.nodes) != cluster.num_nodes:
        given = f"{' + '.join(map(str, fabric.regions.nodes))} nodes = {sum(fabric.regions.nodes)}"
        required = f"the regions together have the {cluster.num_nodes} nodes of the cluster"
        yield Fault(
            field="fabric.regions",
            given=given,
            required=required,
            fix=f"{sum(fabric.regions.nodes) * cluster.gpus_per_node} GPUs fill them",
        )


def _levels(cluster: ClusterSpec, fabric: Fabric) -> list[_Level]:
    """The tiers above the network's own, from the inside out; none inside a region that is smaller than what it would join."""
    network, levels = cluster.network_tier, []
    regions = fabric.regions if fabric.regions is not None and len(fabric.regions.nodes) > 1 else None
    largest = max(regions.nodes) if regions else 0
    leaf = fabric.leaf_oversubscription or network.oversubscription
    inside = [] if fabric.kind is None else [("spine", fabric.leaf_nodes(cluster), leaf)]
    if inside and fabric.leaves_per_pod:
        inside.append(("core", inside[0][1] * fabric.leaves_per_pod, leaf * fabric.spine_oversubscription))
    for name, nodes, oversubscription in inside:
        if not regions or nodes < largest:
            levels.append(
                _Level(
                    name=name,
                    nodes_below=nodes,
                    oversubscription=oversubscription,
                    bandwidth=network.bandwidth,
                    latency_seconds=network.latency_seconds,
                )
            )
    if regions:
        # a region's line is shared by its GPUs, of the smallest region by the fewest: its rate a GPU gives each its whole line
        each = regions.bandwidth / (min(regions.nodes) * cluster.gpus_per_node)
        levels.append(
            _Level(name="region", nodes_below=largest, oversubscription=1.0, bandwidth=each, latency_seconds=regions.latency_seconds)
        )
    return levels


def _uneven(cluster: ClusterSpec, fabric: Fabric, levels: list[_Level]) -> Hosts | None:
    """The switch above each node, where regions are unlike or end in the middle of a leaf."""
    regions = fabric.regions.nodes if fabric.regions is not None else ()
    if len(set(regions)) <= 1 and all(regions[0] % level.nodes_below == 0 for level in levels if regions):
        return cluster.hosts
    places = [(region, node) for region, count in enumerate(regions) for node in range(count)]
    rows = [tuple(f"region{region}.{level.name}{node // level.nodes_below}" for region, node in places) for level in levels]
    return Hosts(names=cluster.hosts.names if cluster.hosts else (), switches=tuple(rows))


@cache
def fabric_names() -> tuple[str, ...]:
    """Every fabric of the catalog, sorted."""
    return tuple(sorted(_presets()))


def fabric_named(name: str) -> Fabric:
    """The catalog's fabric ``name``.

    Raises:
        UnknownNameError: no such fabric.
    """
    spelled = name.strip().lower()
    if spelled not in _presets():
        raise UnknownNameError("fabric", name, fabric_names())
    return fabric_of(_presets()[spelled])


def fabric_of(fields: Mapping[str, Any]) -> Fabric:
    """The fabric of a ``[fabric]`` table that was validated; ``preset`` gives what the table does not say."""
    given = {name: value for name, value in fields.items() if value is not None}
    base = Fabric()
    if "preset" in given:
        base = fabric_named(given.pop("preset"))
        given["source"] = base.source
    regions = given.pop("regions", None)
    if "kind" in given:
        given["kind"] = FabricKind(given["kind"])
    if regions is not None:
        given["regions"] = Regions(**{**regions, "nodes": tuple(regions["nodes"])})
    return replace(base, **given)


@cache
def _presets() -> Mapping[str, Mapping[str, Any]]:
    path = Path(__file__).parent / "fabrics.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))
