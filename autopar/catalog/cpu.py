"""The cores of one machine as a cluster, so that a plan can be made, run and scored where there is no GPU.

A "device" is what one rank has: one core and its share of the memory. Not in the catalog, which holds machines that one can buy;
the figures are judgement, and `autopar profile` measures better ones.
"""

from __future__ import annotations

import os

from autopar.costmodel.spec.cluster import ClusterSpec, DeviceSpec, LinkKind, LinkTier
from autopar.costmodel.spec.units import GB

CPU = "cpu"
"""Id of the device, its architecture and, in a table of runs, of the cluster."""
MAX_RANKS = 64
CORE_FLOPS = 64e9
"""2 GHz x 2 fused multiply-add units x 8 lanes of fp32 x 2 (AVX2)."""
MEMORY_BYTES_PER_RANK = 8 * 2**30
"""Where the machine does not say."""


def kind_of(device: DeviceSpec) -> str:
    """Its id; of every processor, measured or not, :data:`CPU`."""
    return CPU if device.architecture.lower() == CPU else device.id


def cpu_cluster(num_ranks: int, *, cores: int | None = None, memory_bytes: int | None = None) -> ClusterSpec:
    """``num_ranks`` ranks on the cores of one machine, over gloo's loopback.

    Args:
        num_ranks: processes; each computes on its share of the cores.
        cores: of the machine; this machine's if left out.
        memory_bytes: of the machine; this machine's if left out.

    Raises:
        InvalidInputError: fewer than 1 rank.
    """
    share = max((cores or os.cpu_count() or 1) / max(num_ranks, 1), 0.1)
    total = memory_bytes or _memory_bytes()
    device = DeviceSpec(
        id=CPU,
        name=f"{share:.3g} CPU core{'' if share == 1 else 's'}",
        architecture=CPU,
        memory_bytes=int(total / max(num_ranks, 1)) if total else MEMORY_BYTES_PER_RANK,
        memory_bandwidth=10e9 * share,
        peak_flops={"fp32": CORE_FLOPS * share, "bf16": CORE_FLOPS / 2 * share, "fp16": CORE_FLOPS / 2 * share},
        num_compute_units=max(1, round(share)),
        l2_cache_bytes=2**20,
        power_watts=10.0 * share,
        default_cluster=CPU,
        sources={"peak_flops": "analytic: 2 GHz, two AVX2 multiply-add units a core", "memory_bandwidth": "assumed: 10 GB/s a core"},
    )
    loopback = LinkTier(name="loopback", kind=LinkKind.PCIE, domain_size=0, bandwidth=2 * GB, latency_seconds=3e-4)
    source = "gloo over loopback, 2 shared cores: all-reduce of 16 MiB in 22 ms on 2 ranks and 59 ms on 4, of 1 KiB in 1.0 ms on 2"
    return ClusterSpec(
        id=CPU,
        device=device,
        gpus_per_node=max(num_ranks, 1),
        num_gpus=num_ranks,
        tiers=(loopback,),
        sources={"tiers.loopback.bandwidth": source, "tiers.loopback.latency_seconds": source},
    )


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 0
