"""From the hosts that a user has, and the switches above them, to a cluster with hosts in rank order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autopar.costmodel.spec.cluster import ClusterSpec, Hosts, LinkKind, LinkTier
from autopar.costmodel.spec.errors import Fault, InvalidInputError, UnknownNameError, raise_if
from autopar.costmodel.spec.layout import RankLayout
from autopar.costmodel.spec.plan import Placement
from autopar.io.hostlist import read_hosts, several
from autopar.io.switch_tree import SwitchTree

if TYPE_CHECKING:
    from autopar.costmodel.problem import Problem
    from autopar.costmodel.spec.strategy import Strategy

SAME_TIME = 1e-6
"""Orders closer than this share of the step are as good as each other."""
_NAMES = ("leaf", "spine", "core")


class Topology:
    """What ``topology`` and ``hosts`` of a question mean: a tree of switches or a fabric, and names of hosts."""

    def __init__(self, topology: str | Path | SwitchTree | None, hosts: str | Path | Sequence[str] | None) -> None:
        """Read both.

        Raises:
            InvalidInputError: a file that cannot be read or is wrong, a name that is no fabric, hosts twice or unknown; all at once.
        """
        from autopar.request import gather

        faults: list[Fault] = []
        self.names = () if hosts is None else gather(faults, lambda: read_hosts(hosts)) or ()
        read = None if topology is None else gather(faults, lambda: _read(topology))
        raise_if(faults)
        self.tree = read if isinstance(read, SwitchTree) else None
        self.fabric = None if isinstance(read, SwitchTree) else read
        if self.tree is not None:
            self.tree = self.tree.of_hosts(self.names or self.tree.hosts)
            self.names = self.tree.hosts

    def on(self, cluster: ClusterSpec, notes: list[str]) -> ClusterSpec:
        """``cluster`` with the hosts and the levels of its network; a note says how hosts were chosen and ordered.

        Raises:
            InvalidInputError: fewer hosts than the job needs, or a cluster whose network is divided already.
        """
        if self.fabric is not None:
            from autopar.catalog.fabric import with_fabric

            cluster = with_fabric(cluster, self.fabric)
        if not self.names:
            return cluster
        needed = cluster.num_nodes
        if len(self.names) < needed:
            required = f"{cluster.num_gpus} GPUs are on {needed} hosts of {cluster.gpus_per_node}"
            fix = f"--gpus {len(self.names) * cluster.gpus_per_node}, or more hosts"
            raise InvalidInputError(Fault(field="hosts", given=f"{len(self.names)} ({several(self.names)})", required=required, fix=fix))
        if self.tree is None:
            if len(self.names) > needed:
                notes.append(f"hosts: the first {needed} of {len(self.names)}")
            return replace(cluster, hosts=Hosts(names=self.names[:needed], switches=cluster.hosts.switches if cluster.hosts else ()))
        return _placed(cluster, _compact(self.tree, needed, notes), notes)


def ordered(cluster: ClusterSpec, order: Sequence[int]) -> ClusterSpec:
    """``cluster`` with its hosts in another order: ``order[i]`` is the place that the i-th host has now."""
    hosts = cluster.hosts
    assert hosts is not None, "only named hosts have an order to choose"
    listed = hosts.listed or tuple(range(len(hosts.names)))
    places = tuple(listed[place] for place in order)
    return replace(
        cluster,
        hosts=Hosts(
            names=tuple(hosts.names[place] for place in order),
            switches=tuple(tuple(row[place] for place in order) for row in hosts.switches),
            fast_domains=tuple(hosts.fast_domains[place] for place in order) if hosts.fast_domains else (),
            listed=() if places == tuple(range(len(places))) else places,
        ),
    )


def as_listed(cluster: ClusterSpec) -> ClusterSpec:
    """``cluster`` with its hosts in the order in which the user listed them."""
    listed = cluster.hosts.listed if cluster.hosts is not None else ()
    return ordered(cluster, sorted(range(len(listed)), key=listed.__getitem__)) if listed else cluster


def placement_of(problem: Problem, strategy: Strategy) -> Placement | None:
    """Where the axes of ``strategy`` sit, and what the order of hosts is worth; None where two tiers and no names leave nothing to say."""
    cluster = problem.cluster
    if cluster.hosts is None and len(cluster.tiers) <= 2:
        return None
    from autopar.costmodel.axis_placement import axis_placements
    from autopar.costmodel.estimate import estimate

    listed = as_listed(cluster)
    before = None if listed is cluster else estimate(replace(problem, cluster=listed), strategy).step_time_seconds
    return Placement(axes=axis_placements(problem, strategy), listed_step_time_seconds=before)


def better_order(problem: Problem, strategy: Strategy) -> Problem | None:
    """``problem`` with its hosts in an order that makes ``strategy`` faster; None where none of those tried does.

    Tried, and timed by the cost model: as listed, switch by switch, and the order for this strategy's own blocks of ranks.
    """
    hosts = problem.cluster.hosts
    rows = _rows(problem.cluster)
    if hosts is None or not hosts.names or not rows:
        return None
    from autopar.costmodel.estimate import estimate
    from autopar.search.placement import order_hosts, tree_order, units_of

    ranks = RankLayout.of(strategy)
    grids = (False, True) if ranks.expert_grid_has_strides else (False,)
    strides = [size * stride for expert in grids for size, stride in ranks.axes(expert=expert).values()]
    orders = (order_hosts(rows, units_of(strides, problem.cluster.gpus_per_node)), tree_order(rows))
    tried = [ordered(problem.cluster, order) for order in orders]
    problems = [replace(problem, cluster=cluster) for cluster in (as_listed(problem.cluster), *tried)]
    times = [estimate(each, strategy).step_time_seconds for each in problems]
    fastest = min(range(len(problems)), key=times.__getitem__)
    now = estimate(problem, strategy).step_time_seconds
    return problems[fastest] if times[fastest] < now * (1 - SAME_TIME) else None


def _rows(cluster: ClusterSpec) -> tuple[tuple[str, ...], ...]:
    """What hosts are under, level by level: NVLink domains that span nodes, leaves, and so on."""
    hosts = cluster.hosts
    return () if hosts is None else (*([hosts.fast_domains] if hosts.fast_domains else []), *hosts.switches)


def _read(topology: str | Path | SwitchTree) -> Any:
    """A tree of switches or a fabric."""
    from autopar.catalog.fabric import fabric_named, fabric_names
    from autopar.io.topology_file import parse_listed, parse_slurm, read_text

    if isinstance(topology, SwitchTree):
        return topology
    if str(topology) in fabric_names():
        return fabric_named(str(topology))
    path = Path(topology)
    if isinstance(topology, str) and not path.exists() and not path.suffix and path.name == topology:
        raise UnknownNameError("fabric", topology, fabric_names())
    document = read_text(path)
    if isinstance(document, str):
        return parse_slurm(document, path.name)
    if isinstance(document, Mapping) and "fabric" in document:
        from autopar.catalog.cluster_file import read_fabric

        return read_fabric(document, path.name)
    return parse_listed(document, path.name)


def _compact(tree: SwitchTree, needed: int, notes: list[str]) -> SwitchTree:
    """``needed`` of the hosts, under few switches."""
    from autopar.search.placement import fewest_switches

    if len(tree.hosts) == needed:
        return tree
    rows = (*([tree.fast_domains] if tree.fast_domains else []), *tree.switches())
    chosen = fewest_switches(rows, needed, len(tree.hosts))
    notes.append(f"hosts: {needed} of {len(tree.hosts)}, under as few switches as were found; --hosts says which to take")
    return tree.of_hosts([tree.hosts[place] for place in chosen])


def _placed(cluster: ClusterSpec, tree: SwitchTree, notes: list[str]) -> ClusterSpec:
    """``cluster`` with a tier for each level of switches that the hosts are spread over, and the hosts in a good order."""
    from autopar.search.placement import nested_units, order_hosts

    networks = [tier for tier in cluster.tiers if tier.kind is LinkKind.NETWORK]
    if len(networks) > 1 or cluster.tiers[0].kind is LinkKind.NETWORK:
        given = ", ".join(tier.name for tier in networks)
        required = f"{cluster.id} has one network above a tier inside its nodes, which the switches divide"
        raise InvalidInputError(Fault(field="topology", given=given, required=required))
    domains = _fast_domains(cluster, tree)
    if not networks:  # one host, or one NVLink domain
        return replace(cluster, hosts=Hosts(names=tree.hosts))
    rows = tree.switches()
    sources = dict(cluster.sources)
    for level in range(1, len(rows) + 1):
        sources |= cluster.sources_for(_level_name(tree, level), tree.source)
    spread = replace(
        cluster,
        tiers=(*cluster.tiers[:-1], *_tiers(cluster, tree, rows)),
        sources=sources,
        hosts=Hosts(names=tree.hosts, switches=rows, fast_domains=domains),
    )
    if not domains and cluster.fast_domain_size > cluster.gpus_per_node:
        name = cluster.fast_tier.name
        notes.append(f"hosts: the topology does not tell their {name} domains; they are taken to fill them in order")
    under = _rows(spread)
    return ordered(spread, order_hosts(under, nested_units(len(tree.hosts)))) if under else spread


def _fast_domains(cluster: ClusterSpec, tree: SwitchTree) -> tuple[str, ...]:
    """The NVLink domain of each host, where one may span nodes.

    Raises:
        InvalidInputError: a domain with more GPUs than the cluster's NVLink joins.
    """
    size, each = cluster.fast_tier.domain_size, cluster.gpus_per_node
    if not tree.fast_domains or 0 < size <= each:
        return ()
    fullest = max(dict.fromkeys(tree.fast_domains), key=tree.fast_domains.count)
    gpus = tree.fast_domains.count(fullest) * each
    if 0 < size < gpus:
        required = f"{cluster.fast_tier.name} of {cluster.id} joins at most {size}"
        raise InvalidInputError(Fault(field=fullest, given=f"{gpus} GPUs", required=required, fix=f"{size // each} hosts of {each}"))
    return tree.fast_domains


def _tiers(cluster: ClusterSpec, tree: SwitchTree, rows: tuple[tuple[str, ...], ...]) -> list[LinkTier]:
    """The network under one leaf, and a tier for the uplinks of each level in ``rows``: of the file's rates, else the network's."""
    network = cluster.network_tier
    fullest = [max(map(row.count, dict.fromkeys(row))) * cluster.gpus_per_node for row in rows]
    tiers = []
    for level, size in enumerate([*fullest, 0]):
        told = tree.levels[level] if level < len(tree.levels) else None
        own = 1.0 if level == 0 and rows else network.oversubscription  # a network that blocks does so above its leaves
        oversubscription = told.oversubscription if told and told.oversubscription is not None else own
        tiers.append(
            replace(
                network,
                name=network.name if level == 0 else _level_name(tree, level),
                domain_size=size,
                bandwidth=told.bandwidth if told and told.bandwidth is not None else network.bandwidth,
                latency_seconds=told.latency_seconds if told and told.latency_seconds is not None else network.latency_seconds,
                oversubscription=oversubscription,
            )
        )
    return tiers


def _level_name(tree: SwitchTree, level: int) -> str:
    told = tree.levels[level].name if level < len(tree.levels) else ""
    return told or (_NAMES[level] if level < len(_NAMES) else f"level{level}")
