"""The link classes that are fitted and the published systems whose rows tell about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkClass:
    """``start``: the fitted constants and where their search begins (and a weak prior); ``defaults``: the others."""

    id: str
    start: dict[str, float]
    defaults: dict[str, float]
    is_network: bool = False


@dataclass(frozen=True, slots=True)
class System:
    """A published machine. Bandwidths are rated bytes/s per GPU and direction; an empty pattern matches anything."""

    name: str
    source: str = field(compare=False)
    hardware: str
    interconnect: str
    fast: str
    fast_bandwidth: float
    domain_size: int
    network: str = ""
    network_bandwidth: float = 0.0
    ports: int = 0
    num_gpus: int = 0
    ring: bool = False
    """The published bus bandwidth is that of a ring: no tree was chosen."""
    only_reported: str = ""
    """Why the rows are scored but not fitted."""

    def matches(self, record: Mapping[str, str]) -> bool:
        return (
            self.source in record["source"]
            and self.hardware in record["hardware"]
            and self.interconnect in record["interconnect"]
            and (not self.num_gpus or record["n_gpus"] in ("", str(self.num_gpus)))
        )


def _fast(name: str, *, in_network: float = 0.0, half_bytes: float = 1e6) -> LinkClass:
    start = {"efficiency": 0.8, "half_bytes": half_bytes, "latency_seconds": 1e-6, "base_seconds": 15e-6}
    if in_network:
        start["in_network_efficiency"] = in_network
    defaults = {"efficiency": 0.8, "p2p_efficiency": 0.65, "all_to_all_efficiency": 0.65, "half_bytes": half_bytes,
                "latency_seconds": 1e-6, "base_seconds": 15e-6}  # fmt: skip
    return LinkClass(id=name, start=start, defaults=defaults)


def _network(name: str, latency: float, *, base: float = 0.0) -> LinkClass:
    """Two nodes cannot tell a step from the start, so the step's latency is given; so is the start where no row is small."""
    start = {"efficiency": 0.9, "half_bytes": 1e6} | ({} if base else {"base_seconds": 30e-6})
    defaults = {"p2p_efficiency": 0.8, "all_to_all_efficiency": 0.8, "latency_seconds": latency} | ({"base_seconds": base} if base else {})
    return LinkClass(id=name, start=start, defaults=defaults, is_network=True)


CLASSES: dict[str, LinkClass] = {
    link.id: link
    for link in (
        _fast("nvlink2_mesh"),
        _fast("nvlink3"),
        _fast("nvlink4", in_network=0.6),
        _fast("nvlink5", in_network=0.52),
        _fast("xgmi"),
        _network("efa_ampere", 15e-6),
        _network("efa_hopper", 15e-6),
        _network("efa_blackwell", 15e-6),
        _network("tcpxo", 20e-6),
        _network("infiniband", 5e-6, base=25e-6),
        _network("roce", 8e-6, base=25e-6),
    )
}
"""A class without rows of its own (xgmi: only seen under a network) keeps its start, and its catalog file says analytic."""

_GB = 1e9
SYSTEMS: tuple[System, ...] = (
    System("V100 vTrain", "vTrain:trace/v100", "V100", "", "nvlink2_mesh", 150 * _GB, 8),
    System("A100 vTrain", "vTrain:trace/a100", "A100", "", "nvlink3", 300 * _GB, 8),
    System("A100 Azure", "ND_A100_v4", "A100", "", "nvlink3", 300 * _GB, 8),
    System("A100 ml-engineering", "stas00", "A100", "NVLink3", "nvlink3", 300 * _GB, 8),
    System("H100 dgxc", "dgxc-benchmarking", "H100", "", "nvlink4", 450 * _GB, 8),
    System("H100 Azure", "ND_H100_v5", "H100", "", "nvlink4", 450 * _GB, 8),
    System("H200 Azure", "ND_H200_v5", "H200", "", "nvlink4", 450 * _GB, 8),
    System("H200 ml-engineering", "stas00", "H200", "NVLink4", "nvlink4", 450 * _GB, 8),
    System("B200 32 GPUs", "stas00", "B200", "EFA v4", "nvlink5", 900 * _GB, 8, "efa_blackwell", 50 * _GB, 8),
    System("B200 ml-engineering", "stas00", "B200", "NVLink5", "nvlink5", 900 * _GB, 8),
    System("GB200 NVL72", "coreweave", "GB200", "one rack", "nvlink5", 900 * _GB, 72),
    System("GB200 2 racks", "coreweave", "GB200", "2 racks", "nvlink5", 900 * _GB, 72, "infiniband", 50 * _GB, 72),
    System(
        "GB200 20 racks",
        "coreweave",
        "GB200",
        "20 racks",
        "nvlink5",
        900 * _GB,
        72,
        "infiniband",
        50 * _GB,
        72,
        only_reported="half the bandwidth of the same racks two at a time: a limit of that fabric or of its software",
    ),
    System("H100 SHARP 64", "coreweave", "H100", "NDR", "nvlink4", 450 * _GB, 8, "infiniband", 50 * _GB, 8),
    System("H100 1 per node", "nccl-tests/issues/232", "H100", "", "nvlink4", 450 * _GB, 1, "infiniband", 50 * _GB, 1),
    System("A100 p4de", "aws-samples", "p4de", "", "nvlink3", 300 * _GB, 8, "efa_ampere", 6.25 * _GB, 4),
    System(
        "H100 p5 2023 stack",
        "EKS",
        "p5.48xlarge",
        "",
        "nvlink4",
        450 * _GB,
        8,
        "efa_hopper",
        50 * _GB,
        32,
        only_reported="NCCL 2.18, superseded: the same machine is 2 to 4 times faster below 1 GiB with later software",
    ),
    System("H100 p5", "aws-samples", "p5.48xlarge", "", "nvlink4", 450 * _GB, 8, "efa_hopper", 50 * _GB, 32),
    System("H200 p5en", "aws-samples", "p5en.48xlarge", "", "nvlink4", 450 * _GB, 8, "efa_hopper", 50 * _GB, 16, 128),
    System("H100 A3 Mega", "a3mega", "H100", "TCPXO", "nvlink4", 450 * _GB, 8, "tcpxo", 25 * _GB, 8),
    System("A100 OCI", "oracle", "A100", "", "nvlink3", 300 * _GB, 8, "roce", 25 * _GB, 16, ring=True),
    System("MI300X OCI", "oracle", "MI300X", "", "xgmi", 448 * _GB, 8, "roce", 50 * _GB, 8, ring=True),
)
