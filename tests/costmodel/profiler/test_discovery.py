"""What a machine tells of itself, and the cluster that comes of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from autopar.catalog.hardware import device
from autopar.costmodel.profiler.cluster import Rates, gpu_cluster, processor_cluster, processor_device, unknown_gpu
from autopar.costmodel.profiler.discovery import GPU_FIELDS, discover
from autopar.costmodel.profiler.ranks import Launch
from autopar.costmodel.profiler.topology_text import parse_topology
from autopar.costmodel.spec.cluster import LinkKind
from autopar.costmodel.spec.measured import Kind, Point, Series

ALONE = Launch(rank=0, world_size=1, local_rank=0, ranks_per_node=1)


def topology(gpus: int, links: int = 18) -> str:
    """The matrix of a node whose GPUs hang on NVSwitches, as the tool prints it, header underlined."""
    names = [f"GPU{place}" for place in range(gpus)]
    header = "\t" + "\t".join(f"\x1b[4m{name}\x1b[0m" for name in [*names, "NIC0", "NIC1", "CPU Affinity", "NUMA Affinity"])
    rows = [
        f"GPU{row}\t" + "\t".join("X" if row == column else f"NV{links}" for column in range(gpus)) + "\tPIX\tSYS\t0-55\t0"
        for row in range(gpus)
    ]
    nics = ["NIC0\tPIX\t" + "\t".join(["SYS"] * (gpus - 1)) + "\tX\tSYS"]
    return "\n".join([header, *rows, *nics, "", "Legend:", "  X    = Self", "  NV#  = Connection traversing a bonded set of # NVLinks"])


def tools(gpus: int, name: str = "NVIDIA H100 80GB HBM3"):
    def run(command: Sequence[str]) -> str | None:
        if command[0] != "nvidia-smi" or not gpus:
            return None
        if command[1] == "topo":
            return topology(gpus)
        assert all(field in command[1] for field in GPU_FIELDS)
        return f"{name}, 81559, 700.00, 580.159.04, 1980, 2619, 5, 16\n" * gpus

    return run


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine's /proc and /sys."""
    files = {
        "proc/cpuinfo": "processor : 0\nmodel name\t: AMD EPYC 7742 64-Core Processor\nprocessor : 1\n",
        "proc/meminfo": "MemTotal:       16777216 kB\nMemFree: 1 kB\n",
        "sys/devices/system/cpu/cpu0/cache/index2/size": "512K\n",
        "sys/devices/system/cpu/cpu0/cache/index2/level": "2\n",
        "sys/devices/system/cpu/cpu0/cache/index3/size": "16384K\n",
        "sys/devices/system/cpu/cpu0/cache/index3/level": "3\n",
        "sys/class/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)\n",
        "sys/class/infiniband/mlx5_0/ports/1/link_layer": "InfiniBand\n",
        "sys/class/net/eth0/speed": "100000\n",
        "sys/class/net/eth0/device/vendor": "0x15b3\n",
        "sys/class/net/lo/speed": "",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_a_processor_and_its_network_are_read(root: Path) -> None:
    found = discover(root, tools(0))
    assert found.processor.name == "AMD EPYC 7742 64-Core Processor"
    assert found.processor.memory_bytes == 2**34
    assert found.processor.cache_bytes == 2**19
    assert [(each.name, each.kind, each.bytes_per_second) for each in found.networks] == [
        ("mlx5_0", "infiniband", 50e9),
        ("eth0", "ethernet", 12.5e9),
    ]
    assert found.gpus == ()
    assert any("neither nvidia-smi nor rocm-smi" in note for note in found.notes)


def test_a_container_limits_the_memory(root: Path) -> None:
    (root / "sys/fs/cgroup").mkdir(parents=True)
    (root / "sys/fs/cgroup/memory.max").write_text("4294967296\n")
    assert discover(root, tools(0)).processor.memory_bytes == 2**32


def test_a_machine_that_tells_nothing_is_no_error(tmp_path: Path) -> None:
    found = discover(tmp_path, tools(0))
    assert found.processor.memory_bytes > 0
    assert any("network interfaces: none" in note for note in found.notes)


def test_amd_gpus_are_answered_honestly(root: Path) -> None:
    found = discover(root, lambda command: "card,product\ncard0,MI300X\n" if command[0] == "rocm-smi" else None)
    assert found.gpus == ()
    assert any("rocm-smi is there, but" in note for note in found.notes)


def test_a_node_of_eight_becomes_a_cluster(root: Path) -> None:
    found = discover(root, tools(8))
    assert len(found.gpus) == 8
    assert found.gpus[0].driver == "580.159.04"
    h100 = device(found.gpus[0].name)
    launch = Launch(rank=0, world_size=16, local_rank=0, ranks_per_node=8)
    cluster = gpu_cluster(h100, found, launch, Rates.of([]))
    inside, network = cluster.tiers
    assert (inside.kind, inside.domain_size, inside.bandwidth) == (LinkKind.NVLINK, 8, 450e9)
    assert (network.kind, network.bandwidth, network.ports_per_domain) == (LinkKind.NETWORK, 50e9 / 8, 1)
    assert (cluster.num_gpus, cluster.gpus_per_node) == (16, 8)


def test_one_gpu_has_pcie_alone(root: Path) -> None:
    found = discover(root, tools(1))
    (only,) = gpu_cluster(device("h100"), found, ALONE, Rates.of([])).tiers
    assert (only.kind, only.bandwidth) == (LinkKind.PCIE, pytest.approx(16 * 3.938e9))


def test_pairs_with_bridges_are_told_from_a_switch() -> None:
    text = "\tGPU0\tGPU1\tGPU2\tGPU3\n" + "\n".join(
        f"GPU{i}\t" + "\t".join("X" if i == j else "NV4" if i // 2 == j // 2 else "SYS" for j in range(4)) for i in range(4)
    )
    found = parse_topology(text)
    assert found is not None
    assert (found.domain_size, found.is_switched, found.num_gpus) == (2, True, 4)
    assert found.ways[0] == ("X", "NV4", "SYS", "SYS")


@pytest.mark.parametrize("text", ["", "no matrix here", "\tGPU0\tGPU1\nGPU0\tX", "\tGPU0\tGPU1\nGPU0\tX\tWHAT\nGPU1\tWHAT\tX"])
def test_what_is_no_matrix_is_none(text: str) -> None:
    assert parse_topology(text) is None


def test_a_gpu_that_the_catalog_lacks_takes_its_measured_rates(root: Path) -> None:
    found = discover(root, tools(1, "NVIDIA Imaginary 9000"))
    spec = unknown_gpu(found.gpus[0], RATES, compute_units=100, cache_bytes=2**25)
    assert spec.id == "nvidia-imaginary-9000"
    assert spec.peak_flops == {"fp32": pytest.approx(2 * 64**3 / 1e-5)}


RATES = Rates.of(
    [
        Series(kind=Kind.GEMM, variant="nt", dtype="fp32", library="", source="",
               points=(Point(shape=(64, 64, 64), seconds=1e-5, repeats=1, spread=0),)),
        Series(kind=Kind.OPERATOR, variant="copy", dtype="fp32", library="", source="",
               points=(Point(shape=(1024, 1024), seconds=1e-3, repeats=1, spread=0),)),
        Series(kind=Kind.COLLECTIVE, variant="all_reduce", dtype="fp32", library="", source="", points=(
            Point(shape=(1e6, 2, 2), seconds=1e-3, repeats=1, spread=0), Point(shape=(1e6, 4, 2), seconds=5e-3, repeats=1, spread=0),
        )),
    ]
)  # fmt: skip


def test_a_processor_is_a_device_with_its_share_of_the_memory(root: Path) -> None:
    found = discover(root, tools(0))
    launch = Launch(rank=0, world_size=4, local_rank=0, ranks_per_node=2)
    spec = processor_device(found, launch, RATES, threads=3)
    assert spec.id == "cpu-amd-epyc-7742-64-core-processor-3t"
    assert spec.memory_bytes == 2**33
    assert spec.memory_bandwidth == pytest.approx(8 * 2**20 / 1e-3)
    cluster = processor_cluster(spec, launch, RATES)
    assert [(tier.name, tier.domain_size, round(tier.bandwidth)) for tier in cluster.tiers] == [
        ("gloo", 2, 10**9),
        ("gloo-network", 0, 3 * 10**8),
    ]
    single = processor_cluster(spec, ALONE, Rates.of([]))
    assert "assumed" in single.sources["tiers.gloo.bandwidth"]
