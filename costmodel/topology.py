"""Where the groups of a rank layout sit on the interconnect, and the links they find there, as columns.

The fast tier (innermost), the tier around its domains (``network``: a network, or PCIe between bridged pairs), and any
number of tiers ``beyond`` it: a network above PCIe, spine and core switches, links between regions. Every column broadcasts,
so that one table may mix clusters. See docs/design/topology.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from .columns import Bools, Floats, Ints, gather, stack
from .domains import Axes, DomainMap, domain_maps
from .measured import LinkCurves
from .spec.cluster import ClusterSpec, LinkKind, LinkTier
from .spec.errors import Fault, InvalidInputError
from .spec.hardware import LinkProfile

_CUBE_MESH_GPUS = 8
_CUBE_MESH_RINGS = np.array([0, 0, 1, 2, 4, 2, 2, 4, 6]) / 6
"""Share of a GPU's six NVLinks that rings of 0..8 consecutive GPUs can use on the hybrid cube mesh of DGX-1 V100."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierColumns:
    """One link tier with its profile. ``bandwidth`` is rated bytes/s per GPU in one direction; see :class:`LinkProfile`."""

    bandwidth: Floats
    efficiency: Floats
    p2p_efficiency: Floats
    all_to_all_efficiency: Floats
    half_bytes: Floats
    latency_seconds: Floats
    base_seconds: Floats
    in_network_efficiency: Floats
    shared_ring_efficiency: Floats
    two_domain_tree: Floats

    @classmethod
    def of(cls, tier: LinkTier, profile: LinkProfile) -> TierColumns:
        names = [f.name for f in fields(cls) if f.name != "bandwidth"]
        return cls(bandwidth=_column(tier.bandwidth), **{name: _column(getattr(profile, name)) for name in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class FarTier:
    """A tier beyond the two innermost ones, and the domains that it joins."""

    link: TierColumns
    domain_size: Floats
    """GPUs of one domain that the tier joins; infinite where a row's cluster has no such tier."""
    oversubscription: Floats
    port_bandwidth: Floats
    """Rated bytes/s of what one message may use; infinite where tiers below already say so."""
    cut_through: Floats
    """1 where the tier below is a network too: a message then passes both at once and the slower sets the pace. 0 where it is
    another hop of its own (PCIe below a network), and the two work as a pipeline."""
    map: DomainMap | None = None
    """Where domains are unequal or hosts lie unevenly: the domain of every rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkColumns:
    """The interconnect of one cluster (0-d columns) or of one cluster a row.

    ``port_bandwidth`` is the rated bytes/s of one network adapter: what one GPU may use while its neighbours are silent.
    """

    fast: TierColumns
    network: TierColumns
    fast_domain_size: Floats
    gpus_per_node: Floats
    port_bandwidth: Floats
    ports_per_domain: Floats
    """Network adapters of one fast domain (a node's, over the node's GPUs, times the GPUs of the domain)."""
    oversubscription: Floats
    mesh_size: Floats
    """GPUs that the fast tier wires directly to each other, where a small group cannot use all its links; 0 behind a switch."""
    beyond: tuple[FarTier, ...] = ()
    """The tiers that join the domains of ``network``, from the inside out."""
    fast_map: DomainMap | None = None
    """Where fast domains are uneven: that of every rank."""
    curves: LinkCurves | None = None
    """Corrections by measured times; the same for all rows."""

    @classmethod
    def of(cls, cluster: ClusterSpec, links: Sequence[LinkProfile]) -> LinkColumns:
        """Columns of ``cluster``, with one profile a tier in the same order.

        Raises:
            InvalidInputError: the profiles are not one a tier.
        """
        if len(links) != len(cluster.tiers):
            tiers = ", ".join(tier.name for tier in cluster.tiers)
            raise InvalidInputError(
                Fault(field="links", given=f"{len(links)} profiles", required=f"one for each of the {len(cluster.tiers)} tiers ({tiers})")
            )
        network = cluster.tiers[1] if len(cluster.tiers) > 1 else cluster.fast_tier
        node_bandwidth = network.bandwidth * cluster.gpus_per_node
        ports = network.ports_per_domain or cluster.gpus_per_node
        return cls(
            fast=TierColumns.of(cluster.fast_tier, links[0]),
            network=TierColumns.of(network, links[min(1, len(links) - 1)]),
            fast_domain_size=_column(cluster.fast_domain_size),
            gpus_per_node=_column(cluster.gpus_per_node),
            port_bandwidth=_column(max(network.bandwidth, node_bandwidth / ports)),
            ports_per_domain=_column(ports * cluster.fast_domain_size / cluster.gpus_per_node),
            oversubscription=_column(network.oversubscription),
            mesh_size=_column(_mesh_size(cluster)),
            beyond=_far_tiers(cluster, links),
            fast_map=domain_maps(cluster)[0] if cluster.hosts is not None else None,
        )

    @classmethod
    def stack(cls, rows: Sequence[LinkColumns]) -> LinkColumns:
        """One row for each of ``rows``, in order."""
        return stack(aligned(rows))

    def take(self, rows: npt.NDArray[np.bool_] | npt.NDArray[np.int64] | slice) -> LinkColumns:
        """The rows chosen by a mask, an index array or a slice; a single cluster (0-d) stays as it is."""
        return gather(self, rows)


def aligned(rows: Sequence[LinkColumns]) -> list[LinkColumns]:
    """``rows`` with as many tiers each, so that they can be stacked: a tier that a cluster lacks joins nothing."""
    most = max(rows, key=lambda row: len(row.beyond)).beyond
    none = [replace(far, domain_size=_column(np.inf), map=None) for far in most]
    return [replace(row, beyond=(*row.beyond, *none[len(row.beyond) :])) for row in rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How the groups of an axis lie over the domains that one tier beyond the network joins: the worst group.

    ``load`` is the messages that a domain sends out in one turn of all groups' rings, a GPU of the domain: 1 / members
    where domains are alike.
    """

    members: Floats
    """Fewest members of a group in one domain."""
    domains: Floats
    """Times a ring passes from one domain to another in a turn; 1 where the group stays in one."""
    load: Floats
    messages: Floats
    """The same in all: what shares the way out of that domain."""

    @property
    def crosses(self) -> Bools:
        """Whether the group needs the tier."""
        return np.asarray(self.domains > 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """How the groups of one axis sit on the fast domains: ``size`` = ``members_per_domain`` x ``num_domains``.

    ``concurrent_groups`` groups of the axis sit in one domain and cross its network ports at the same time
    (1 where the group stays inside a domain and uses no port).
    """

    size: Floats
    members_per_domain: Floats
    num_domains: Floats
    concurrent_groups: Floats
    beyond: tuple[Spread, ...] = ()
    """How it lies over the domains of each tier of ``LinkColumns.beyond``; tiers left out are not crossed."""

    @property
    def crosses(self) -> Bools:
        """Whether the group needs the network."""
        return np.asarray(self.num_domains > 1)


def place(size: npt.ArrayLike, stride: npt.ArrayLike, links: LinkColumns) -> Group:
    """Place the groups of an axis of ``size`` ranks, ``stride`` ranks apart, on fast domains of D GPUs.

    members_per_domain = gcd(size, D / stride) where stride divides D, else 1; num_domains = size / members_per_domain.

    Exact where sizes and D are powers of two, and wherever ``size * stride`` divides D. Elsewhere groups of one axis
    differ (6 ranks on nodes of 8: some stay inside, some split 2 + 4), and the rule is no better than the worst of
    them: it never grants a group more members in a domain than each of its domains could hold evenly. Domains that hosts fill
    unevenly are looked at group by group (:class:`~autopar.costmodel.domains.DomainMap`).
    """
    return place_product(((size, stride),), links)


def place_product(axes: Axes, links: LinkColumns) -> Group:
    """Place groups that span several axes, each ``(size, stride)``, with ranks of other axes in between.

    members_per_domain is the product over the axes, num_domains the size over it. Axes may come in any order, as long as each stride is a
    multiple of the span (size x stride) of the axes inside it, as in a rank layout: an axis then has several members in a domain only
    where those inside it lie there whole. No better than the worst group, as :func:`place`.
    """
    whole = [(_at_least_one(size), _at_least_one(stride)) for size, stride in axes]
    ranks = _product(size for size, _ in whole)
    domain = _at_least_one(links.fast_domain_size)
    members = _product(_even_members(size, stride, domain) for size, stride in whole)
    if links.fast_map is not None:
        members = _fewest_members(ranks, whole, links.fast_map)
    ranks, members, domain = np.broadcast_arrays(ranks, members, domain)
    return Group(
        size=ranks.astype(np.float64),
        members_per_domain=members.astype(np.float64),
        num_domains=(ranks // members).astype(np.float64),
        concurrent_groups=np.where(ranks > members, domain / members, 1.0),
        beyond=tuple(_spread(ranks, whole, far) for far in links.beyond),
    )


_Whole = Sequence[tuple[Ints, Ints]]


def _at_least_one(value: npt.ArrayLike) -> Ints:
    return np.maximum(np.rint(np.asarray(value, dtype=np.float64)).astype(np.int64), 1)


def _product(values: Iterable[Ints]) -> Ints:
    return np.asarray(reduce(np.multiply, values))


def _even_members(size: Ints, stride: Ints, domain: Ints) -> Ints:
    """Members of a group of one axis in each of its domains of ``domain`` GPUs; all of them where that is 0 (no such tier)."""
    return np.where(domain % stride == 0, np.gcd(size, domain // stride), 1)


def _fewest_members(size: Ints, axes: _Whole, fast: DomainMap) -> Ints:
    """Of uneven fast domains: members with which each domain's ports carry what the worst domain sends, and no more than any has."""
    fewest, turns, load, _ = fast.spread(axes)
    within = np.maximum(np.minimum(fewest, np.floor(1 / load + 1e-9)), 1)
    return np.where(turns > 1, within, size).astype(np.int64)


def _spread(size: Ints, axes: _Whole, far: FarTier) -> Spread:
    """:func:`place_product` on the domains of a tier beyond the network: by the same rule, or by enumeration where they are uneven."""
    if far.map is not None:
        fewest, turns, load, messages = far.map.spread(axes)
        return Spread(members=fewest, domains=turns, load=load, messages=messages)
    whole = np.where(np.isfinite(far.domain_size), far.domain_size, 0).astype(np.int64)
    members = _product(_even_members(each, stride, whole) for each, stride in axes).astype(np.float64)
    return Spread(members=members, domains=size / members, load=1 / members, messages=far.domain_size / members)


Chosen = TypeVar("Chosen", Group, Spread)


def choose(chosen: Bools, one: Chosen, other: Chosen) -> Chosen:
    """``one`` in the rows that ``chosen`` marks, ``other`` in the rest."""
    values: dict[str, Any] = {}
    for field in fields(one):
        mine, theirs = getattr(one, field.name), getattr(other, field.name)
        if isinstance(mine, tuple):
            values[field.name] = tuple(choose(chosen, *pair) for pair in zip(mine, theirs, strict=True))
        else:
            values[field.name] = np.where(chosen, mine, theirs)
    return type(one)(**values)


def apart(links: LinkColumns) -> Floats:
    """A factor for strides that leaves each rank of an axis in a domain of its own on every tier."""
    sizes = [links.fast_domain_size, *(np.where(np.isfinite(far.domain_size), far.domain_size, 1) for far in links.beyond)]
    return np.asarray(2 * reduce(np.maximum, sizes))


def far_hops(distance: npt.ArrayLike, links: LinkColumns, size: npt.ArrayLike = 2) -> tuple[Spread, ...]:
    """Which tiers beyond the network the neighbours of a line of ``size`` ranks, ``distance`` apart, reach each other through.

    One entry a tier of ``links.beyond``; ``load`` is the senders of a domain whose receiver sits in another one, a GPU of the
    domain: min(distance, D) / D of them send at the same time, fewer than there are GPUs where several stages share a domain.
    """
    ranks, step = (np.maximum(np.rint(np.asarray(value, dtype=np.float64)).astype(np.int64), 1) for value in (size, distance))
    return tuple(_hops(ranks, step, far) for far in links.beyond)


def _hops(size: npt.NDArray[np.int64], distance: npt.NDArray[np.int64], far: FarTier) -> Spread:
    if far.map is not None:
        crossed, load, messages = far.map.hops(size, distance)
        return Spread(members=np.ones_like(load), domains=np.where(crossed, 2.0, 1.0), load=load, messages=messages)
    senders = np.minimum(distance, far.domain_size)
    share = np.where(np.isfinite(far.domain_size), senders / far.domain_size, 1.0)
    return replace(_spread(size, ((size, distance),), far), load=share, messages=senders)


def far_rate(load: Floats, far: FarTier, members: Floats | float = 1.0) -> Floats:
    """Rated bytes/s, one direction, that one message gets out of a domain of a tier beyond the network.

    rate = min(max(k b, port), b / (o load)): the D GPUs of a domain have D b / o bytes/s out of it, and ``load`` D messages share
    them; k ``members`` send the message in parts. b is the tier's rated bytes/s per GPU and o its oversubscription. Every group of the
    axis sends at once.
    """
    alone = np.maximum(members * far.link.bandwidth, far.port_bandwidth)
    return np.asarray(np.minimum(alone, far.link.bandwidth / (far.oversubscription * load)))


def crosses_domain(distance: npt.ArrayLike, links: LinkColumns, size: npt.ArrayLike = 2) -> Bools:
    """Whether some hop between neighbours of a line of ``size`` ranks, ``distance`` apart, leaves the fast domain.

    Exact for aligned powers of two, else pessimistic as :func:`place`. With the default ``size`` it speaks of pairs that start
    at a multiple of twice the distance; pass the pipeline's size to ask about all its boundaries (4 stages 4 ranks apart on
    nodes of 8 cross at the second).
    """
    return place(size, distance, links).crosses


def mesh_share(members: npt.ArrayLike, links: LinkColumns) -> Floats:
    """Share of a GPU's rated fast bandwidth that rings over ``members`` GPUs of one domain can use.

    1 behind a switch. On wired NVLink: the rings that fit the hybrid cube mesh (8 GPUs, DGX-1 V100), else
    (members - 1) / (wired - 1), every pair having the same links. Consecutive GPUs are assumed. Source: DGX-1 V100
    topology; agrees with the all-reduce tables of vTrain (V100, 2 to 8 GPUs) within 10 %.
    """
    if not np.any(links.mesh_size):
        return np.ones(np.broadcast_shapes(np.shape(members), np.shape(links.mesh_size)))
    ranks, wired = np.broadcast_arrays(np.asarray(members, dtype=np.float64), links.mesh_size)
    cube = _CUBE_MESH_RINGS[np.clip(ranks, 0, _CUBE_MESH_GPUS).astype(np.int64)]
    uniform = np.clip((ranks - 1) / np.maximum(wired - 1, 1), 0, 1)
    share = np.where(wired == _CUBE_MESH_GPUS, cube, np.where(wired > 0, uniform, 1.0))
    return np.where(ranks > 1, share, 1.0)


def network_rate(members: npt.ArrayLike, links: LinkColumns, sharing: npt.ArrayLike | None = None) -> Floats:
    """Rated bytes/s, one direction, that one group with ``members`` ranks in a domain gets from the domain's network ports.

    rate = min(max(k b, port), b D / (o sharing)), with k members, b rated network bytes/s per GPU, D GPUs of a domain,
    ``port`` the bandwidth of one adapter, o the oversubscription and ``sharing`` the groups that send through the
    domain's ports at the same time (default D / k: every group of the axis). A tier without oversubscription thus gives
    k b under full load: a group of k members drives k of the node's D shares.
    """
    k = np.asarray(members, dtype=np.float64)
    total = links.network.bandwidth * links.fast_domain_size / links.oversubscription
    competing = links.fast_domain_size / k if sharing is None else np.asarray(sharing, dtype=np.float64)
    alone = np.maximum(k * links.network.bandwidth, links.port_bandwidth)
    return np.asarray(np.minimum(alone, total / np.maximum(competing, 1.0)))


def _far_tiers(cluster: ClusterSpec, links: Sequence[LinkProfile]) -> tuple[FarTier, ...]:
    """The tiers above the second that the cluster's GPUs need, in order."""
    sizes = cluster.domain_sizes
    needed = [place for place in range(2, len(cluster.tiers)) if sizes[place - 1] < cluster.num_gpus]
    maps = domain_maps(cluster)
    return tuple(
        FarTier(
            link=TierColumns.of(cluster.tiers[place], links[place]),
            domain_size=_column(sizes[place - 1]),
            oversubscription=_column(cluster.tiers[place].oversubscription),
            port_bandwidth=_column(_port_bandwidth(cluster, place)),
            cut_through=_column(cluster.tiers[place - 1].kind is LinkKind.NETWORK),
            map=maps[place - 1],
        )
        for place in needed
    )


def _port_bandwidth(cluster: ClusterSpec, place: int) -> float:
    """Of one adapter of the tier around the nodes; further out a message is bound by that one."""
    tier = cluster.tiers[place]
    if cluster.tiers[place - 1].kind is LinkKind.NETWORK:
        return float("inf")
    return max(tier.bandwidth, tier.bandwidth * cluster.gpus_per_node / (tier.ports_per_domain or cluster.gpus_per_node))


def _mesh_size(cluster: ClusterSpec) -> int:
    tier = cluster.fast_tier
    return (tier.domain_size or cluster.num_gpus) if tier.kind is LinkKind.NVLINK_MESH else 0


def _column(value: float) -> Floats:
    return np.asarray(value, dtype=np.float64)
