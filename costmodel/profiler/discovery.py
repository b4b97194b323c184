"""What this machine is: its processor, memory, GPUs, links and network, and what could not be found out."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .topology_text import Topology, parse_topology

PRIVATE_CACHE_DEFAULT = 2**20
RunTool = Callable[[Sequence[str]], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor:
    """The host's processor, as the operating system tells it."""

    name: str
    cores: int
    """That this process may use."""
    cache_bytes: int
    memory_bytes: int
    """Of the whole machine, or of the container where that is less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU, as the driver tells it."""

    name: str
    memory_bytes: int
    power_watts: float
    driver: str
    clocks: str
    pci_generation: int
    pci_width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """One interface; ``bytes_per_second`` is 0 where it does not tell its speed."""

    name: str
    kind: str
    bytes_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Everything found, and a line for everything that was looked for in vain."""

    host: str
    processor: Processor
    gpus: tuple[Gpu, ...]
    topology: Topology | None
    networks: tuple[Network, ...]
    notes: tuple[str, ...]


def discover(root: Path = Path("/"), run_tool: RunTool | None = None) -> Machine:
    """Look at this machine. Never raises: what cannot be read is a note."""
    run = run_tool or _run
    notes: list[str] = []
    gpus = _nvidia_gpus(run, notes)
    topology = None
    if len(gpus) > 1:
        text = run(("nvidia-smi", "topo", "-m"))
        topology = parse_topology(text) if text else None
        if topology is None:
            notes.append("the links between the GPUs: `nvidia-smi topo -m` said nothing")
    networks = _networks(root)
    if not networks:
        notes.append("network interfaces: none found besides the loopback")
    return Machine(
        host=platform.node() or "unknown",
        processor=processor(root),
        gpus=gpus,
        topology=topology,
        networks=networks,
        notes=tuple(notes),
    )


def processor(root: Path = Path("/")) -> Processor:
    """The processor and memory of this machine."""
    text = _read(root / "proc/cpuinfo")
    name = re.search(r"^(?:model name|Processor|Model)\s*:\s*(.+)$", text, re.MULTILINE)
    memory = re.search(r"^MemTotal:\s*(\d+) kB", _read(root / "proc/meminfo"), re.MULTILINE)
    limits = [int(memory[1]) * 1024] if memory else []
    container = _read(root / "sys/fs/cgroup/memory.max").strip()
    limits += [int(container)] if container.isdigit() else []
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Processor(
        name=name[1].strip() if name else platform.processor() or platform.machine() or "unknown processor",
        cores=cores,
        cache_bytes=_cache_bytes(root),
        memory_bytes=min(limits) if limits else 2**33,
    )


def _cache_bytes(root: Path) -> int:
    """The first core's own cache: its second level. What lies between kernels stays in the levels behind it, in training as here."""
    for path in sorted((root / "sys/devices/system/cpu/cpu0/cache").glob("index*")):
        match = re.fullmatch(r"(\d+)([KM]?)", _read(path / "size").strip())
        if match and _read(path / "level").strip() == "2":
            return int(match[1]) * {"": 1, "K": 2**10, "M": 2**20}[match[2]]
    return PRIVATE_CACHE_DEFAULT


GPU_FIELDS = (
    "name",
    "memory.total",
    "power.limit",
    "driver_version",
    "clocks.max.sm",
    "clocks.max.mem",
    "pcie.link.gen.max",
    "pcie.link.width.max",
)


def _nvidia_gpus(run: RunTool, notes: list[str]) -> tuple[Gpu, ...]:
    text = run(("nvidia-smi", f"--query-gpu={','.join(GPU_FIELDS)}", "--format=csv,noheader,nounits"))
    if text is None:
        amd = run(("rocm-smi", "--showproductname", "--csv"))
        if amd is not None:
            notes.append("AMD GPUs: rocm-smi is there, but its topology and rates are not read; torch built for ROCm measures them as cuda")
        else:
            notes.append("GPUs: neither nvidia-smi nor rocm-smi answers")
        return ()
    found = []
    for line in text.splitlines():
        values = [value.strip() for value in line.split(",")]
        if len(values) != len(GPU_FIELDS):
            continue
        name, memory, power, driver, sm_clock, memory_clock, generation, width = values
        found.append(
            Gpu(
                name=name,
                memory_bytes=int(_number(memory) * 2**20),
                power_watts=_number(power),
                driver=driver,
                clocks=f"SM {sm_clock} MHz, memory {memory_clock} MHz",
                pci_generation=int(_number(generation)),
                pci_width=int(_number(width)),
            )
        )
    if not found:
        notes.append("GPUs: nvidia-smi lists none")
    return tuple(found)


def _number(text: str) -> float:
    """The number in a cell of nvidia-smi, 0 for ``[N/A]``."""
    match = re.search(r"[0-9]+(?:\.[0-9]+)?", text)
    return float(match[0]) if match else 0.0


def _networks(root: Path) -> tuple[Network, ...]:
    """InfiniBand and RoCE adapters with their rate, then the Ethernet interfaces."""
    found = []
    for path in sorted((root / "sys/class/infiniband").glob("*/ports/*/rate")):
        rate = _number(_read(path)) * 1e9 / 8
        layer = _read(path.parent / "link_layer").strip().lower()
        found.append(Network(name=path.parents[2].name, kind="roce" if layer == "ethernet" else "infiniband", bytes_per_second=rate))
    for path in sorted((root / "sys/class/net").glob("*")):
        if path.name == "lo" or not (path / "device").exists():
            continue
        speed = _number(_read(path / "speed")) if not _read(path / "speed").startswith("-") else 0.0
        found.append(Network(name=path.name, kind="ethernet", bytes_per_second=speed * 1e6 / 8))
    return tuple(found)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _run(command: Sequence[str]) -> str | None:
    """What a tool prints, or None where it is absent, fails or takes over ten seconds."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(list(command), capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
