"""The machines: devices, the links between them by tier, and the cluster they make."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from .errors import Fault, raise_if

_HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class LinkKind(StrEnum):
    NVLINK = "nvlink"
    """NVLink through NVSwitch: every pair at full rate."""
    NVLINK_MESH = "nvlink_mesh"
    """NVLink wired GPU to GPU (V100 hybrid mesh, NVLink bridges)."""
    XGMI = "xgmi"
    PCIE = "pcie"
    NETWORK = "network"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """One GPU.

    ``peak_flops`` is dense FLOP/s by type (``bf16``, ``fp16``, ``tf32``, ``fp32``, ``fp8``, ``mxfp8``, ``nvfp4``), never
    the sparse figure; a type that is absent is not supported. Bandwidths are bytes/s in one direction.
    """

    id: str
    name: str
    architecture: str
    memory_bytes: int
    memory_bandwidth: float
    peak_flops: Mapping[str, float]
    num_compute_units: int
    """Streaming multiprocessors or compute units."""
    l2_cache_bytes: int
    power_watts: float
    default_cluster: str
    """Catalog id of the node this device usually comes in."""
    sources: Mapping[str, str]
    """Field name -> where its number is published."""


_BEFORE_FLASH_ATTENTION = ("pascal", "volta", "turing")
"""Compute capability below 8: the CUDA kernels of FlashAttention-2 and cuDNN's start at Ampere (FlashAttention README)."""


def has_flash_attention(device: DeviceSpec) -> bool:
    """Whether fused attention kernels exist for training on ``device``."""
    return device.architecture.lower() not in _BEFORE_FLASH_ATTENTION


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTier:
    """One level of the interconnect.

    ``domain_size`` GPUs reach each other through it (the outermost tier's is the whole cluster: 0).
    ``bandwidth`` is per GPU, one direction, bytes/s, as the vendor rates it; for a network it is the
    node's total over its GPUs. ``ports_per_domain`` counts the network adapters of one node, which all
    groups that cross at the same time share.
    """

    name: str
    kind: LinkKind
    domain_size: int
    bandwidth: float
    latency_seconds: float
    ports_per_domain: int = 0
    oversubscription: float = 1.0
    """1: non-blocking; 2: half the rated bandwidth is there when everybody sends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """The nodes of a cluster in rank order: with g GPUs a node, the i-th runs ranks i g to (i + 1) g - 1."""

    names: tuple[str, ...] = ()
    """Empty where hosts are not named."""
    switches: tuple[tuple[str, ...], ...] = ()
    """For each network tier but the outermost, from the inside out: the switch (leaf, pod, region) that each node is under."""
    fast_domains: tuple[str, ...] = ()
    """The domain of the innermost tier that each node is in, where one spans nodes (an NVL72 rack) and somebody said which."""
    listed: tuple[int, ...] = ()
    """The place that each had in the user's list; empty where that is this order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """``num_gpus`` devices in nodes of ``gpus_per_node``, with link tiers from the inside out."""

    id: str
    device: DeviceSpec
    gpus_per_node: int
    num_gpus: int
    tiers: tuple[LinkTier, ...]
    sources: Mapping[str, str]
    hosts: Hosts | None = None
    """Where the user named hosts, or they lie unevenly under the switches. Since 1.2."""

    def __post_init__(self) -> None:
        faults = list(self._faults_of_hosts())
        if self.num_gpus < 1 or self.num_gpus > 10_000_000:
            faults.append(Fault(field="num_gpus", given=str(self.num_gpus), required="an integer from 1 to 10,000,000"))
        if self.gpus_per_node < 1:
            faults.append(Fault(field="gpus_per_node", given=str(self.gpus_per_node), required="at least 1"))
        if not self.tiers:
            faults.append(Fault(field="tiers", given="none", required="at least one link tier"))
        faults += [
            Fault(
                field=f"tiers.{tier.name}",
                given=f"{tier.bandwidth:g} bytes/s, {tier.latency_seconds:g} s, oversubscription {tier.oversubscription:g}",
                required="bandwidth > 0, latency_seconds >= 0 and oversubscription >= 1",
            )
            for tier in self.tiers
            if not tier.bandwidth > 0 or not tier.latency_seconds >= 0 or not tier.oversubscription >= 1
        ]
        raise_if(faults)

    def _faults_of_hosts(self) -> Iterator[Fault]:
        if self.hosts is None or self.gpus_per_node < 1:
            return
        tiers = len(self.tiers) - 1 - self._first_network
        if len(self.hosts.switches) > max(tiers, 0):
            given, required = f"{len(self.hosts.switches)} levels of switches", f"at most {max(tiers, 0)}, those inside the outermost tier"
            yield Fault(field="hosts.switches", given=given, required=required)
        if odd := [name for name in self.hosts.names if not _HOST_NAME.fullmatch(name)]:
            yield Fault(field="hosts.names", given=repr(odd[0][:60]), required="letters, digits and . _ - only: names go into scripts")
        if len(set(self.hosts.names)) < len(self.hosts.names):
            yield Fault(field="hosts.names", given=f"{len(self.hosts.names)} names", required="each host once")
        if self.hosts.listed and sorted(self.hosts.listed) != list(range(len(self.hosts.listed))):
            yield Fault(field="hosts.listed", given=f"{len(self.hosts.listed)} places", required="each place once, from 0")
        counts = {"names": len(self.hosts.names) or self.num_nodes}
        counts["listed"] = len(self.hosts.listed) or self.num_nodes
        counts["fast_domains"] = len(self.hosts.fast_domains) or self.num_nodes
        counts |= {f"switches[{level}]": len(row) for level, row in enumerate(self.hosts.switches)}
        for name, count in counts.items():
            if count != self.num_nodes:
                yield Fault(field=f"hosts.{name}", given=f"{count} nodes", required=f"one for each of the {self.num_nodes} nodes")

    @property
    def _first_network(self) -> int:
        """Place of the innermost tier that joins nodes."""
        return next((place for place, tier in enumerate(self.tiers) if tier.kind is LinkKind.NETWORK), len(self.tiers))

    @property
    def domain_sizes(self) -> tuple[int, ...]:
        """GPUs of one domain of each tier, as jobs are placed (:attr:`fast_domain_size`); the outermost one's are all.

        Of hosts under named switches, those of the fullest.
        """
        placed = self.fast_domain_size
        rated = placed if self.hosts is not None and self.hosts.switches else self.tiers[0].domain_size or placed
        outer = (tier.domain_size * placed // rated or self.num_gpus for tier in self.tiers[1:])
        return tuple(min(size, self.num_gpus) for size in (placed, *outer))

    def switches_of(self, tier: int) -> tuple[str, ...]:
        """The domain of tier ``tier`` that each node is in, by name; empty where :attr:`hosts` does not say."""
        if tier == 0:
            return self.hosts.fast_domains if self.hosts is not None else ()
        level = tier - self._first_network
        return self.hosts.switches[level] if self.hosts is not None and 0 <= level < len(self.hosts.switches) else ()

    @property
    def num_nodes(self) -> int:
        return -(-self.num_gpus // self.gpus_per_node)

    @property
    def fast_tier(self) -> LinkTier:
        """The innermost tier."""
        return self.tiers[0]

    @property
    def network_tier(self) -> LinkTier:
        """The outermost tier; the innermost one again where the cluster is a single domain."""
        return self.tiers[-1]

    def sources_for(self, tier: str, told: str) -> dict[str, str]:
        """Sources of a tier that is another level of the network: the network's, by which its technology is known, and ``told``."""
        names = ("bandwidth", "latency_seconds")
        return {f"tiers.{tier}.{name}": f"{self.sources.get(f'tiers.{self.network_tier.name}.{name}', '')} ({told})" for name in names}

    def with_network_scaled(self, factor: float) -> ClusterSpec:
        """``factor`` times the bandwidth of the network, all its levels; of the outermost tier where no network is needed."""
        networks = [tier.name for tier in self.tiers if tier.kind is LinkKind.NETWORK] or [self.network_tier.name]
        scaled = (replace(tier, bandwidth=tier.bandwidth * factor) if tier.name in networks else tier for tier in self.tiers)
        return replace(self, tiers=tuple(scaled))

    @property
    def fast_domain_size(self) -> int:
        """GPUs of one innermost domain, as jobs are placed: the largest size that divides ``num_gpus``.

        An NVL72 rack gives 64 to a job of 256 GPUs, since groups are powers of two. Where hosts say which domain they are in, it is no
        larger than the smallest of these.
        """
        domains = self.hosts.fast_domains if self.hosts is not None else ()
        smallest = min(Counter(domains).values()) * self.gpus_per_node if domains else self.num_gpus
        limit = min(self.tiers[0].domain_size or self.num_gpus, self.num_gpus, smallest)
        return next(size for size in range(limit, 0, -1) if self.num_gpus % size == 0)
