"""Profiles from what people already have: nccl-tests output, torch profiler traces, ``nvidia-smi topo -m``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from autopar import __version__
from autopar.catalog.hardware import device
from autopar.costmodel.profiler.cluster import Rates, cluster_document, gpu_cluster
from autopar.costmodel.profiler.discovery import Gpu, Machine, Processor
from autopar.costmodel.profiler.ranks import Launch
from autopar.costmodel.profiler.topology_text import Topology, parse_topology
from autopar.costmodel.spec.errors import Fault, InvalidInputError, UnknownNameError
from autopar.costmodel.spec.measured import Machine as MeasuredMachine
from autopar.costmodel.spec.measured import MeasuredProfile, Series
from autopar.io.files import read_bytes
from autopar.io.nccl_tests import NcclTests, parse_nccl_tests
from autopar.io.torch_trace import parse_torch_trace
from autopar.profiling import Profiled, merged

if TYPE_CHECKING:
    from autopar.costmodel.spec.cluster import DeviceSpec


def import_profile(paths: Sequence[str | Path], gpu: str | None, start: MeasuredProfile | None = None) -> Profiled:
    """The profile that ``paths`` make together, each told by its content, with the points of ``start``.

    Args:
        paths: files of any of the three kinds; a later file's time replaces an earlier one's of the same shape.
        gpu: catalog name of the device; may be left out where nccl-tests or ``start`` names it.

    Raises:
        InvalidInputError: a file is of no known kind, or no device is known; all faults at once.
    """
    faults: list[Fault] = []
    series: tuple[Series, ...] = () if start is None else start.series
    notes: list[str] = []
    tests: list[NcclTests] = []
    topology: Topology | None = None
    for path in paths:
        try:
            text = read_bytes(path, field="import").decode("utf-8", errors="replace")
            read, found, said = _read(text, Path(path).name)
        except InvalidInputError as error:
            faults += error.faults
            continue
        series, topology = merged(series, read), found if isinstance(found, Topology) else topology
        tests += [found] if isinstance(found, NcclTests) else []
        notes += said
    spec = _device(gpu, tests, start, faults)
    if faults or spec is None:
        raise InvalidInputError(faults)
    return _profiled(spec, series, tests, topology, notes)


def _read(text: str, name: str) -> tuple[tuple[Series, ...], NcclTests | Topology | None, Sequence[str]]:
    topology = parse_topology(text)
    if topology is not None:
        return (), topology, ()
    tests = parse_nccl_tests(text, name)
    if tests is not None:
        return (tests.series,), tests, ()
    trace = parse_torch_trace(text, name)
    if trace is None:
        known = "nccl-tests output, a torch profiler's Chrome trace or `nvidia-smi topo -m`"
        raise InvalidInputError(Fault(field="import", given=repr(name), required=f"{known} is needed"))
    return trace[0], None, trace[1]


def _device(gpu: str | None, tests: Sequence[NcclTests], start: MeasuredProfile | None, faults: list[Fault]) -> DeviceSpec | None:
    named = gpu or (start.device if start is not None else "") or next((each.device_name for each in tests if each.device_name), "")
    if not named:
        faults.append(Fault(field="gpu", given="", required="no file names the device", fix="for example --gpu h100-sxm5-80gb"))
        return None
    try:
        return device(named)
    except UnknownNameError as error:
        faults += error.faults
        return None


def _profiled(
    spec: DeviceSpec, series: tuple[Series, ...], tests: Sequence[NcclTests], topology: Topology | None, notes: Sequence[str]
) -> Profiled:
    """Profile and cluster: nodes as large as the files show them."""
    ranks = max((each.ranks for each in tests), default=topology.num_gpus if topology is not None else 1)
    nodes = max((each.nodes for each in tests), default=1)
    launch = Launch(rank=0, world_size=ranks, local_rank=0, ranks_per_node=ranks // nodes)
    gpu = Gpu(
        name=spec.name, memory_bytes=spec.memory_bytes, power_watts=spec.power_watts, driver="", clocks="", pci_generation=0, pci_width=0
    )
    processor = Processor(name="not told", cores=1, cache_bytes=1, memory_bytes=1)
    found = Machine(host="", processor=processor, gpus=(gpu,) * launch.ranks_per_node, topology=topology, networks=(), notes=())
    cluster = gpu_cluster(spec, found, launch, Rates.of(series))
    machine = MeasuredMachine(
        device_name=spec.name,
        host="",
        date=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        driver="",
        clocks="",
        libraries={},
        world_size=ranks,
        ranks_per_node=launch.ranks_per_node,
        threads_per_rank=1,
    )
    profile = MeasuredProfile(device=spec.id, machine=machine, series=series, failures=(), autopar_version=__version__)
    if topology is None and ranks > 1:
        notes = [*notes, "the cluster file takes PCIe inside the node: import the text of `nvidia-smi topo -m` too"]
    return Profiled(
        profile=profile,
        cluster=cluster,
        cluster_document=cluster_document(cluster, catalog_device=True),
        notes=tuple(notes),
        rank=0,
        seconds=0.0,
    )
