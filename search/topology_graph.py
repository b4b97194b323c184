"""A cluster as a networkx graph, down to the GPU: NVLink domains, nodes, network adapters, switches. Needs networkx.

The graph is what the closed forms of :mod:`autopar.costmodel.topology` stand for, written out: capacities are rated bytes/s in one
direction, so that a minimum cut says what leaves a domain and :func:`ring_loads` which link carries how many messages. The tests
hold the cost model to both. It has a vertex for every GPU and adapter: for looking at a cluster, not for searching on a large one.

Vertices are pairs of a kind and a number or a name: ``("gpu", 0)``, ``("fast", 0)``, ``("adapter", (0, 3))`` for the fourth of the
first node, and switches by the names of the network's tiers: ``("network", "leaf1")`` joins nodes, ``("spine", 0)`` leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

from autopar.costmodel.spec.cluster import ClusterSpec, LinkKind
from autopar.costmodel.spec.errors import Fault, InvalidInputError, UnavailableError

Vertex = tuple[str, Any]
Graph = Any
"""networkx's, which has no types."""

_SHORT = 0.5
"""Weight of a hop inside a node: NVLink is taken to another GPU's adapter before a switch above the leaves (NCCL's PXN)."""


def cluster_graph(cluster: ClusterSpec, *, rails: bool = False) -> Graph:
    """GPUs, the domains of the innermost tier, nodes, adapters and switches of ``cluster``, each link with its ``capacity``.

    Args:
        rails: one leaf switch for the i-th adapters of all nodes of a leaf group (rail-optimized); without, one switch for all of them.

    Raises:
        UnavailableError: networkx is not there; says how to get it.
    """
    graph: Graph = _networkx().Graph()
    sizes = cluster.domain_sizes
    networks = [place for place, tier in enumerate(cluster.tiers) if tier.kind is LinkKind.NETWORK]
    for rank in range(cluster.num_gpus):
        gpu: Vertex = ("gpu", rank)
        graph.add_edge(gpu, ("fast", rank // sizes[0]), capacity=cluster.fast_tier.bandwidth, weight=_SHORT)
        for place in range(1, networks[0] if networks else len(cluster.tiers)):  # PCIe between pairs: each GPU's own link
            graph.add_edge(gpu, (cluster.tiers[place].name, rank // sizes[place]), capacity=cluster.tiers[place].bandwidth, weight=1)
    if networks:
        _add_network(graph, cluster, networks, rails)
    return graph


def _add_network(graph: Graph, cluster: ClusterSpec, networks: Sequence[int], rails: bool) -> None:
    """Adapters of every node, and the switches of every level of the network above them."""
    first, each = cluster.tiers[networks[0]], cluster.gpus_per_node
    adapters = first.ports_per_domain or each
    rate = first.bandwidth * each / adapters
    for rank in range(cluster.num_gpus):
        node, local = divmod(rank, each)
        leaf = _switch(cluster, networks[0], node)
        for adapter in range(local * adapters // each, max((local + 1) * adapters // each, local * adapters // each + 1)):
            graph.add_edge(("gpu", rank), ("adapter", (node, adapter)), capacity=rate, weight=1)
            graph.add_edge(("adapter", (node, adapter)), (leaf[0], (leaf[1], adapter)) if rails else leaf, capacity=rate, weight=1)
    for place in networks[1:]:
        tier = cluster.tiers[place]
        below = [_switch(cluster, place - 1, node) for node in range(cluster.num_nodes)]
        for node, switch in enumerate(below):
            split = adapters if rails and place == networks[1] else 1
            for part in range(split):
                lower = (switch[0], (switch[1], part)) if split > 1 else switch
                upper = _switch(cluster, place, node)
                more = min(each, cluster.num_gpus - node * each) * tier.bandwidth / tier.oversubscription / split
                had = graph.edges[lower, upper]["capacity"] if graph.has_edge(lower, upper) else 0.0
                graph.add_edge(lower, upper, capacity=had + more, weight=1)


def _switch(cluster: ClusterSpec, place: int, node: int) -> Vertex:
    """The switch of one level of the network above a node."""
    named = cluster.switches_of(place)
    return cluster.tiers[place].name, named[node] if named else node * cluster.gpus_per_node // cluster.domain_sizes[place]


def check_connected(graph: Graph) -> None:
    """Raises:
    InvalidInputError: some GPUs cannot be reached: says which, and from where.
    """
    parts = sorted(_networkx().connected_components(graph), key=len, reverse=True)
    if len(parts) > 1:
        cut_off = sorted(number for part in parts[1:] for kind, number in part if kind == "gpu")
        home = min(number for kind, number in parts[0] if kind == "gpu")
        given = f"GPUs {', '.join(map(str, cut_off[:3]))}{f' and {len(cut_off) - 3} more' if len(cut_off) > 3 else ''}"
        raise InvalidInputError(Fault(field="topology", given=given, required=f"a path to GPU {home}", fix="join their switches"))


def uplink_capacity(graph: Graph, inside: Iterable[int], num_gpus: int) -> float:
    """Bytes/s that the GPUs ``inside`` can send to all others together: the minimum cut between them."""
    networkx, within = _networkx(), set(inside)
    joined = graph.copy()
    for rank in range(num_gpus):
        joined.add_edge("source" if rank in within else "sink", ("gpu", rank), capacity=float("inf"))
    value: float = networkx.minimum_cut_value(joined, "source", "sink")
    return value


def ring_loads(graph: Graph, rings: Iterable[Sequence[int]]) -> dict[tuple[Vertex, Vertex], int]:
    """Messages over each link, by direction, of one turn of every ring: each rank sends one to the next, the last to the first.

    A message takes the path of fewest links, as routing in a tree does; inside a node by NVLink where that saves a switch.
    """
    loads: dict[tuple[Vertex, Vertex], int] = {}
    for ring in rings:
        for sender, receiver in zip(ring, [*ring[1:], ring[0]], strict=True):
            if sender != receiver:
                for link in pairwise(_networkx().shortest_path(graph, ("gpu", sender), ("gpu", receiver), "weight")):
                    loads[link] = loads.get(link, 0) + 1
    return loads


def _networkx() -> Any:
    if find_spec("networkx") is None:
        raise UnavailableError("the graph of a cluster needs networkx: pip install 'autopar[search]'")
    return import_module("networkx")
