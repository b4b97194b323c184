"""What was discovered and measured, as the cluster that ``plan --cluster`` takes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from autopar.costmodel.device_rates import CPU_ARCHITECTURE
from autopar.costmodel.spec.cluster import ClusterSpec, DeviceSpec, LinkKind, LinkTier
from autopar.costmodel.spec.measured import Kind, Series

from .discovery import Gpu, Machine
from .ranks import Launch
from .request import WIDTH

TENSORS = {"copy": 2, "add": 3}
"""Tensors of the output's size that an operator reads and writes."""
ASSUMED_LINK_SHARE = 0.1
"""Of the memory bandwidth: what a link is taken for where a single rank ran and none was measured."""
UNKNOWN_WATTS = 100.0
ARCHITECTURES = (("B300", "blackwell-ultra"), ("B200", "blackwell"), ("H100", "hopper"), ("H200", "hopper"), ("A100", "ampere"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The best rates that the points show."""

    flops: Mapping[str, float]
    """FLOP/s by type."""
    memory: float
    """Bytes/s."""
    links: Mapping[tuple[int, int], float]
    """Bytes/s of one rank, by (ranks, ranks a node) of the group."""

    @classmethod
    def of(cls, series: Iterable[Series]) -> Rates:
        """From every series; empty where nothing was measured."""
        flops: dict[str, float] = {}
        links: dict[tuple[int, int], float] = {}
        memory = 0.0
        for one in series:
            for point in one.points:
                if one.kind is Kind.GEMM:
                    flops[one.dtype] = max(flops.get(one.dtype, 0.0), 2 * math.prod(point.shape) / point.seconds)
                elif one.kind is Kind.OPERATOR and one.variant in TENSORS:
                    memory = max(memory, TENSORS[one.variant] * WIDTH[one.dtype] * math.prod(point.shape) / point.seconds)
                elif one.kind is Kind.COLLECTIVE and one.variant in ("all_reduce", "send_recv"):
                    message, size, members = point.shape
                    volume = message if one.variant == "send_recv" else 2 * message * (size - 1) / size
                    key = int(size), int(members)
                    links[key] = max(links.get(key, 0.0), volume / point.seconds)
        return cls(flops=flops, memory=memory, links=links)


def processor_device(machine: Machine, launch: Launch, rates: Rates, *, threads: int) -> DeviceSpec:
    """The processor as one rank has it: ``threads`` cores and its share of the memory, with the rates it was measured at."""
    found = machine.processor
    source = f"measured on {machine.host}"
    words = re.findall(r"[a-z0-9]+", re.sub(r"\((r|tm)\)|@.*", " ", found.name.lower()))
    identity = "-".join(["cpu", *words, f"{threads}t"])[:64].strip("-")
    return DeviceSpec(
        id=identity,
        name=f"{found.name}, {threads} thread{'s' if threads > 1 else ''} a rank",
        architecture=CPU_ARCHITECTURE,
        memory_bytes=found.memory_bytes // launch.ranks_per_node,
        memory_bandwidth=max(rates.memory, 1e9),
        peak_flops={dtype: max(rate, 1e9) for dtype, rate in sorted(rates.flops.items())} or {"fp32": 1e9},
        num_compute_units=threads,
        l2_cache_bytes=max(found.cache_bytes, 2**10),
        power_watts=UNKNOWN_WATTS,
        default_cluster="this-machine",
        sources={
            "memory_bytes": f"the operating system's total over {launch.ranks_per_node} ranks",
            "memory_bandwidth": f"{source}: best copy or add",
            "peak_flops": f"{source}: best product, no rated figure",
            "l2_cache_bytes": "the operating system",
            "power_watts": "not known; enters no estimate of a device that was measured",
        },
    )


def unknown_gpu(gpu: Gpu, rates: Rates, *, compute_units: int, cache_bytes: int) -> DeviceSpec:
    """A GPU that the catalog does not hold, with the rates it was measured at in place of rated ones."""
    words = re.findall(r"[a-z0-9]+", gpu.name.lower())
    architecture = next((name for part, name in ARCHITECTURES if part in gpu.name.upper()), "unknown")
    return DeviceSpec(
        id="-".join(words)[:64] or "gpu",
        name=gpu.name,
        architecture=architecture,
        memory_bytes=gpu.memory_bytes,
        memory_bandwidth=max(rates.memory, 1e9),
        peak_flops={dtype: max(rate, 1e9) for dtype, rate in sorted(rates.flops.items())} or {"fp32": 1e9},
        num_compute_units=max(compute_units, 1),
        l2_cache_bytes=max(cache_bytes, 2**10),
        power_watts=gpu.power_watts or UNKNOWN_WATTS,
        default_cluster="this-machine",
        sources={"*": "measured: the best rates seen, no rated figures"},
    )


def processor_cluster(device: DeviceSpec, launch: Launch, rates: Rates) -> ClusterSpec:
    """Ranks on processors, which talk over gloo: inside a node, and between nodes where there are several."""
    per_node, nodes = launch.ranks_per_node, launch.num_nodes
    inside = [rate for (size, members), rate in rates.links.items() if size == members]
    across = [rate for (size, members), rate in rates.links.items() if size > members]
    assumed = ASSUMED_LINK_SHARE * device.memory_bandwidth
    sources = {
        "*": "found by `autopar profile`",
        "tiers.gloo.bandwidth": "measured: best bus bandwidth" if inside else "assumed: a tenth of the memory bandwidth; one rank ran",
    }
    host = _gloo("gloo", per_node if nodes > 1 else 0, max(inside, default=assumed))
    tiers = (host, _gloo("gloo-network", 0, max(across, default=assumed))) if nodes > 1 else (host,)
    return ClusterSpec(id="this-machine", device=device, gpus_per_node=per_node, num_gpus=launch.world_size, tiers=tiers, sources=sources)


def _gloo(name: str, domain: int, bandwidth: float) -> LinkTier:
    bounded = min(max(bandwidth, 1e6), 1e15)
    return LinkTier(name=name, kind=LinkKind.NETWORK, domain_size=domain, bandwidth=bounded, latency_seconds=5e-5, ports_per_domain=1)


PCIE_BYTES_PER_LANE = {3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""Bytes/s one way, by generation (PCI-SIG: 8, 16, 32 and 64 GT/s less the encoding)."""
NVLINK_BYTES = {"volta": 25e9, "ampere": 25e9, "hopper": 25e9, "blackwell": 50e9, "blackwell-ultra": 50e9}
"""Bytes/s of one link, one way, by architecture (NVIDIA NVLink 2 to 5)."""


def gpu_cluster(device: DeviceSpec, machine: Machine, launch: Launch, rates: Rates) -> ClusterSpec:
    """GPUs as the driver's matrix links them, and the network between nodes.

    ``launch`` says how many ran; a single process stands for all GPUs of this machine.
    """
    per_node = launch.ranks_per_node if launch.world_size > 1 else max(len(machine.gpus), 1)
    nodes = launch.num_nodes
    sources = {"*": "found by `autopar profile` from the driver and the operating system"}
    tiers = [_inside(device, machine, per_node, sources)]
    if 1 < tiers[0].domain_size < per_node:
        tiers.append(_pcie(machine, per_node, nodes))
    if nodes > 1:
        tiers.append(_network(machine, per_node, rates, sources))
    return ClusterSpec(
        id="this-machine", device=device, gpus_per_node=per_node, num_gpus=per_node * nodes, tiers=tuple(tiers), sources=sources
    )


def _inside(device: DeviceSpec, machine: Machine, per_node: int, sources: dict[str, str]) -> LinkTier:
    topology = machine.topology
    if topology is None or topology.domain_size == 1:
        return _pcie(machine, per_node, 1)
    links = topology.links[0][1]
    each = NVLINK_BYTES.get(device.architecture.lower(), 25e9)
    kind = LinkKind.NVLINK if topology.is_switched else LinkKind.NVLINK_MESH
    total = links * each if topology.is_switched else sum(topology.links[0]) * each
    sources["tiers.nvlink.bandwidth"] = f"nvidia-smi topo -m: {links} links of {each / 1e9:g} GB/s one way"
    return LinkTier(name="nvlink", kind=kind, domain_size=min(topology.domain_size, per_node), bandwidth=total, latency_seconds=1e-6)


def _pcie(machine: Machine, per_node: int, nodes: int) -> LinkTier:
    gpu = machine.gpus[0] if machine.gpus else None
    lanes = gpu.pci_width if gpu is not None and gpu.pci_width else 16
    rate = PCIE_BYTES_PER_LANE.get(gpu.pci_generation if gpu is not None else 4, PCIE_BYTES_PER_LANE[4])
    domain = per_node if per_node > 1 or nodes > 1 else 0
    return LinkTier(name="pcie", kind=LinkKind.PCIE, domain_size=domain, bandwidth=lanes * rate, latency_seconds=4e-6)


def _network(machine: Machine, per_node: int, rates: Rates, sources: dict[str, str]) -> LinkTier:
    fast = [each for each in machine.networks if each.kind != "ethernet" and each.bytes_per_second > 0]
    chosen = fast or [each for each in machine.networks if each.bytes_per_second > 0]
    measured = max((rate for (size, members), rate in rates.links.items() if size > members), default=0.0)
    total = sum(each.bytes_per_second for each in chosen) or measured * per_node or 1.25e9
    names = ", ".join(each.name for each in chosen)
    sources["tiers.network.bandwidth"] = (
        f"rates of {names}" if chosen else "measured" if measured else "assumed: 10 Gb/s, no interface tells its rate"
    )
    kind = chosen[0].kind if chosen else "ethernet"
    sources["tiers.network.latency_seconds"] = f"analytic: {kind}"
    return LinkTier(
        name="network",
        kind=LinkKind.NETWORK,
        domain_size=0,
        bandwidth=total / per_node,
        latency_seconds=5e-6 if fast else 3e-5,
        ports_per_domain=max(len(chosen), 1),
    )


def cluster_document(cluster: ClusterSpec, *, catalog_device: bool) -> dict[str, object]:
    """``cluster`` with the fields of a cluster file; the device by its name where the catalog holds it."""
    device = cluster.device
    table: dict[str, object] = {name: getattr(device, name) for name in device.__slots__}
    table["peak_flops"], table["sources"] = dict(device.peak_flops), dict(device.sources)
    return {
        "id": cluster.id,
        "device": device.id if catalog_device else table,
        "gpus_per_node": cluster.gpus_per_node,
        "num_gpus": cluster.num_gpus,
        "tiers": [
            {name: getattr(tier, name).value if name == "kind" else getattr(tier, name) for name in tier.__slots__}
            for tier in cluster.tiers
        ],
        "sources": dict(cluster.sources),
    }
