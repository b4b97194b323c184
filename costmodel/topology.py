"""Where the groups of a rank layout sit on the interconnect, and the links they find there, as columns.

Two tiers are modelled: the fast one (innermost) and the network (outermost). A middle tier (PCIe between NVLink pairs)
is charged at the network's rate, which is pessimistic. Every column broadcasts, so that one table may mix clusters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from .columns import Bools, Floats
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
        network = cluster.network_tier
        node_bandwidth = network.bandwidth * cluster.gpus_per_node
        ports = network.ports_per_domain or cluster.gpus_per_node
        return cls(
            fast=TierColumns.of(cluster.fast_tier, links[0]),
            network=TierColumns.of(network, links[-1]),
            fast_domain_size=_column(cluster.fast_domain_size),
            gpus_per_node=_column(cluster.gpus_per_node),
            port_bandwidth=_column(max(network.bandwidth, node_bandwidth / ports)),
            ports_per_domain=_column(ports * cluster.fast_domain_size / cluster.gpus_per_node),
            oversubscription=_column(network.oversubscription),
            mesh_size=_column(_mesh_size(cluster)),
        )

    @classmethod
    def stack(cls, rows: Sequence[LinkColumns]) -> LinkColumns:
        """One row for each of ``rows``, in order."""
        return cls(
            fast=_stack_tiers([row.fast for row in rows]),
            network=_stack_tiers([row.network for row in rows]),
            curves=rows[0].curves,
            **{name: np.stack([getattr(row, name) for row in rows]) for name in _LINK_NAMES},
        )

    def take(self, rows: npt.NDArray[np.bool_] | npt.NDArray[np.int64] | slice) -> LinkColumns:
        """The rows chosen by a mask, an index array or a slice; a single cluster (0-d) stays as it is."""
        if self.fast_domain_size.ndim == 0:
            return self
        return LinkColumns(
            fast=TierColumns(**{f.name: getattr(self.fast, f.name)[rows] for f in fields(TierColumns)}),
            network=TierColumns(**{f.name: getattr(self.network, f.name)[rows] for f in fields(TierColumns)}),
            curves=self.curves,
            **{name: getattr(self, name)[rows] for name in _LINK_NAMES},
        )


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

    @property
    def crosses(self) -> Bools:
        """Whether the group needs the network."""
        return np.asarray(self.num_domains > 1)


def place(size: npt.ArrayLike, stride: npt.ArrayLike, links: LinkColumns) -> Group:
    """Place the groups of an axis of ``size`` ranks, ``stride`` ranks apart, on fast domains of D GPUs.

    members_per_domain = gcd(size, D / stride) where stride divides D, else 1; num_domains = size / members_per_domain.

    Exact where sizes and D are powers of two, and wherever ``size * stride`` divides D. Elsewhere groups of one axis
    differ (6 ranks on nodes of 8: some stay inside, some split 2 + 4), and the rule is no better than the worst of
    them: it never grants a group more members in a domain than each of its domains could hold evenly.
    """
    ranks, step, domain = np.broadcast_arrays(np.asarray(size), np.asarray(stride), links.fast_domain_size)
    ranks, step, domain = (np.maximum(np.rint(value).astype(np.int64), 1) for value in (ranks, step, domain))
    members = np.where(domain % step == 0, np.gcd(ranks, domain // step), 1)
    crosses = ranks > members
    return Group(
        size=ranks.astype(np.float64),
        members_per_domain=members.astype(np.float64),
        num_domains=(ranks // members).astype(np.float64),
        concurrent_groups=np.where(crosses, domain / members, 1.0),
    )


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


def _mesh_size(cluster: ClusterSpec) -> int:
    tier = cluster.fast_tier
    return (tier.domain_size or cluster.num_gpus) if tier.kind is LinkKind.NVLINK_MESH else 0


def _column(value: float) -> Floats:
    return np.asarray(value, dtype=np.float64)


def _stack_tiers(rows: Sequence[TierColumns]) -> TierColumns:
    return TierColumns(**{f.name: np.stack([getattr(row, f.name) for row in rows]) for f in fields(TierColumns)})


_LINK_NAMES = tuple(f.name for f in fields(LinkColumns) if f.name not in ("fast", "network", "curves"))


def place_product(axes: Sequence[tuple[npt.ArrayLike, npt.ArrayLike]], links: LinkColumns) -> Group:
    """Place groups that span several axes, each ``(size, stride)``, with ranks of other axes in between.

    members_per_domain is the product over the axes, num_domains the size over it. Axes may come in any order, as long as each stride is a
    multiple of the span (size x stride) of the axes inside it, as in a rank layout: an axis then has several members in a domain only
    where those inside it lie there whole. No better than the worst group, as :func:`place`.
    """
    size, members = np.ones(()), np.ones(())
    for axis_size, stride in axes:
        placed = place(axis_size, stride, links)
        size, members = size * placed.size, members * placed.members_per_domain
    domain = np.maximum(np.rint(links.fast_domain_size), 1)
    domains = size / members
    return Group(size=size, members_per_domain=members, num_domains=domains, concurrent_groups=np.where(domains > 1, domain / members, 1.0))


def choose(chosen: Bools, group: Group, other: Group) -> Group:
    """``group`` in the rows that ``chosen`` marks, ``other`` in the rest."""
    return Group(**{f.name: np.where(chosen, getattr(group, f.name), getattr(other, f.name)) for f in fields(Group)})
