"""``autopar profile`` without the command line: one run on this machine's ranks, its profile and its cluster file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from autopar import __version__
from autopar.costmodel.profiler import choice, cluster
from autopar.costmodel.profiler.collect import Budget, Results, Run
from autopar.costmodel.profiler.collectives import Collectives, TorchTransport, Transport, collective_requests
from autopar.costmodel.profiler.discovery import Machine as Found
from autopar.costmodel.profiler.discovery import discover
from autopar.costmodel.profiler.nccl import nccl_transport
from autopar.costmodel.profiler.ranks import Ranks, launched
from autopar.costmodel.profiler.request import Backend, DeviceLostError, RankLostError, Request
from autopar.costmodel.spec.errors import AutoparError, Fault, InvalidInputError, UnavailableError
from autopar.costmodel.spec.measured import DTYPES, Kind, Machine, MeasuredProfile, Series

if TYPE_CHECKING:
    from autopar.costmodel.measured import Use
    from autopar.costmodel.spec.cluster import ClusterSpec, DeviceSpec

BASE_UNTIL, COLLECTIVES_UNTIL, NEEDED_UNTIL, REFINED_UNTIL = 0.45, 0.6, 0.9, 0.97
"""Shares of the budget at which the grid, the collectives, what models need and the refinement end."""
SHAPE_SECONDS = 0.15
"""What a shape of the grid takes over all its passes, roughly."""
LARGEST_GLOO, LARGEST_NCCL = 2**24, 2**30
"""Bytes of the largest message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a run is asked for."""

    budget_seconds: float = 60.0
    device: str = "auto"
    """``auto``, ``cuda`` or ``cpu``."""
    dtypes: tuple[str, ...] = ()
    """Of GEMMs; empty for the device's own."""
    threads: int = 0
    """Host threads of a rank; 0 for the cores over the ranks."""
    timeout_seconds: float = 60.0
    needs: Callable[[ClusterSpec, MeasuredProfile], Iterable[Use]] | None = None
    """The shapes that models and plans need, given the machine as measured so far."""
    only_needs: bool = False
    """Leave the coarse grid out where ``start`` has points already."""
    start: MeasuredProfile | None = None
    """Points to keep and add to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """What came of it. ``ended_by`` is the error that ended the run early, its points kept."""

    profile: MeasuredProfile
    cluster: ClusterSpec
    cluster_document: dict[str, object]
    notes: tuple[str, ...]
    rank: int
    seconds: float
    ended_by: AutoparError | None = None


@dataclass(slots=True)
class _Session:
    """One run: where it is, and what it has."""

    wanted: Wanted
    ranks: Ranks
    found: Found
    device: str
    backend: Backend
    threads: int
    libraries: dict[str, str]
    results: Results
    keep: Callable[[Profiled], None]
    budget: Budget
    notes: list[str] = field(default_factory=list)
    ended_by: AutoparError | None = None

    def so_far(self) -> Profiled:
        """Profile and cluster of what is measured by now."""
        series = merged(self.wanted.start.series if self.wanted.start is not None else (), self.results.series())
        rates = cluster.Rates.of(series)
        spec, known = self._device(rates)
        launch = self.ranks.launch
        on_cpu = self.device == "cpu"
        described = cluster.processor_cluster(spec, launch, rates) if on_cpu else cluster.gpu_cluster(spec, self.found, launch, rates)
        gpu = self.found.gpus[0] if self.found.gpus and not on_cpu else None
        machine = Machine(
            device_name=gpu.name if gpu is not None else self.found.processor.name,
            host=self.found.host,
            date=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            driver=gpu.driver if gpu is not None else "",
            clocks=gpu.clocks if gpu is not None else _timed_by(self.threads),
            libraries=self.libraries,
            world_size=launch.world_size,
            ranks_per_node=launch.ranks_per_node,
            threads_per_rank=self.threads,
        )
        profile = MeasuredProfile(
            device=spec.id,
            machine=machine,
            series=series,
            failures=self.results.failure_lines(),
            autopar_version=__version__,
        )
        return Profiled(
            profile=profile,
            cluster=described,
            cluster_document=cluster.cluster_document(described, catalog_device=known),
            notes=(*self.found.notes, *self.notes),
            rank=launch.rank,
            seconds=self.budget.spent,
            ended_by=self.ended_by,
        )

    def _device(self, rates: cluster.Rates) -> tuple[DeviceSpec, bool]:
        """The device, and whether the catalog holds it."""
        from autopar.catalog.hardware import device
        from autopar.costmodel.spec.errors import UnknownNameError

        if self.device == "cpu":
            return cluster.processor_device(self.found, self.ranks.launch, rates, threads=self.threads), False
        gpu = self.found.gpus[0]
        try:
            return device(gpu.name), True
        except UnknownNameError:
            return cluster.unknown_gpu(gpu, rates, compute_units=1, cache_bytes=2**25), False

    def run(self, watch: Callable[[Request, float], None]) -> None:
        """All phases; what ends them early is kept in ``ended_by``."""
        run = Run(self.ranks, self.budget, self.results, watch=watch)
        try:
            self._phases(run)
        except (DeviceLostError, RankLostError) as error:
            self.ended_by = error
        except KeyboardInterrupt:
            self.ended_by = UnavailableError("interrupted")
            raise
        finally:
            if self.results.samples:
                self.keep(self.so_far())

    def _phases(self, run: Run) -> None:
        wide = "fp32" if self.device == "cpu" else "bf16"
        dtypes = self.wanted.dtypes or (("fp32",) if self.device == "cpu" else ("bf16", "fp16", "tf32", "fp8"))
        if not (self.wanted.only_needs and self.wanted.start is not None):
            self._grid(run, dtypes, wide)
            self._collectives(run)
        if self.wanted.needs is not None:
            self._needed(run)
        self._refined(run)

    def _reach(self, run: Run) -> choice.Reach:
        """What this device does in a second, by the points so far; the longest call is a small share of the budget."""
        rates = cluster.Rates.of(self.results.series())
        flops = max(rates.flops.values(), default=0.0)
        longest = max(self.budget.seconds / 1500, 0.01)
        memory = self.found.processor.memory_bytes // run.ranks.launch.ranks_per_node
        largest = min(memory / 64, 2.0**27) if self.device == "cpu" else self.found.gpus[0].memory_bytes / 16
        reach = choice.Reach(flops_per_second=flops or 2e10, bytes_per_second=rates.memory or 3e9, seconds=longest, bytes=largest)
        return run.ranks.decide(reach)

    def _grid(self, run: Run, dtypes: tuple[str, ...], wide: str) -> None:
        probe = [
            Request(kind=Kind.GEMM, variant="nt", dtype=dtypes[0], shape=(512.0, 512.0, 512.0)),
            Request(kind=Kind.OPERATOR, variant="copy", dtype=wide, shape=(1024.0, 1024.0)),
        ]
        run.passes(self.backend, probe, until=1.0, count=1)
        requests = choice.base_requests(dtypes, wide, self._reach(run), gpu=self.device == "cuda")
        few = int(max(self.budget.seconds * BASE_UNTIL / SHAPE_SECONDS, 40))
        run.passes(self.backend, choice.spread_out(requests)[:few], until=BASE_UNTIL)
        self.keep(self.so_far())

    def _collectives(self, run: Run) -> None:
        launch = run.ranks.launch
        if launch.world_size == 1:
            self.notes.append("collectives: one rank ran; `torchrun --nproc-per-node N -m autopar profile` measures them")
            return
        transport = self._transport(run.ranks)
        self.libraries["collectives"] = transport.library
        largest = LARGEST_GLOO if self.device == "cpu" else LARGEST_NCCL
        run.passes(Collectives(launch, transport), collective_requests(launch, largest=largest), until=COLLECTIVES_UNTIL)
        self.keep(self.so_far())

    def _transport(self, ranks: Ranks) -> Transport:
        if self.device == "cpu":
            return TorchTransport(ranks.launch, backend="gloo", device="cpu", timeout_seconds=self.wanted.timeout_seconds)
        transport, note = nccl_transport(ranks, timeout_seconds=self.wanted.timeout_seconds)
        self.notes += [note] if note else []
        return transport

    def _needed(self, run: Run) -> None:
        assert self.wanted.needs is not None, "callers look"
        asked: list[Request] = []
        if run.ranks.launch.rank == 0:
            now = self.so_far()
            asked = choice.requests_of(self.wanted.needs(now.cluster, now.profile))
        asked = run.ranks.decide(asked)
        self.notes.append(f"shapes that the models and plans named need: {len(asked)} unmeasured")
        run.passes(self.backend, asked, until=NEEDED_UNTIL)
        left = [each for each in asked if each not in self.results.samples and str(each) not in self.results.failures]
        if left:
            self.notes.append(f"{len(left)} of them are left for want of time: give a longer --budget")
        self.keep(self.so_far())

    def _refined(self, run: Run) -> None:
        reach, ranks = self._reach(run), run.ranks
        while not ranks.decide(self.budget.reached(REFINED_UNTIL)):
            mine = choice.least_sure(self.results.series(), reach, _tried(self.results)) if ranks.launch.rank == 0 else None
            request = ranks.decide(mine)
            if request is None:
                return
            run.passes(self.backend, [request], until=REFINED_UNTIL)


def _timed_by(threads: int) -> str:
    return "timed by the thread's processor time" if threads == 1 else "timed by the wall clock"


def _tried(results: Results) -> set[Request]:
    failed = set(results.failures)
    return set(results.samples) | {each for each in results.samples if str(each) in failed}


def merged(old: Iterable[Series], new: Iterable[Series]) -> tuple[Series, ...]:
    """Both, kernel by kernel; where both have a shape, the new time."""
    found = {(one.kind, one.variant, one.dtype): one for one in old}
    for one in new:
        key = (one.kind, one.variant, one.dtype)
        before = found.get(key)
        if before is not None:
            shapes = {point.shape: point for point in before.points} | {point.shape: point for point in one.points}
            one = replace(one, points=tuple(shapes[shape] for shape in sorted(shapes)))
        found[key] = one
    return tuple(found[key] for key in sorted(found))


def profile_machine(
    wanted: Wanted,
    *,
    keep: Callable[[Profiled], None] = lambda _: None,
    watch: Callable[[Request, float], None] = lambda *_: None,
    ranks: Ranks | None = None,
    found: Found | None = None,
    backend: Backend | None = None,
) -> Profiled:
    """Measure this machine until the budget ends.

    Args:
        wanted: what to measure, and for how long.
        keep: called with what is measured so far after each phase, and at an early end.
        watch: called before each shape with the seconds spent.
        ranks, found, backend: stand-ins for this process's ranks, this machine and its kernels.

    Raises:
        UnavailableError: nothing here can measure (no torch, no GPU where one is asked for).
        InvalidInputError: a type or a device that there is none of.
    """
    _check(wanted)
    ranks = ranks or launched(timeout_seconds=wanted.timeout_seconds)
    found = found or discover()
    device = _chosen_device(wanted.device, found)
    launch = ranks.launch
    threads = wanted.threads or (max(1, found.processor.cores // launch.ranks_per_node) if device == "cpu" else 1)
    libraries: dict[str, str] = {}
    notes: list[str] = []
    backend = backend or _backend(device, found, ranks, threads, libraries, notes)
    session = _Session(
        wanted=wanted,
        ranks=ranks,
        found=found,
        device=device,
        backend=backend,
        threads=threads,
        libraries=libraries,
        results=Results(source=f"measured by autopar {__version__} on {found.host}"),
        keep=keep if launch.rank == 0 else lambda _: None,
        budget=Budget(wanted.budget_seconds),
        notes=notes,
    )
    session.run(watch)
    ranks.close()
    if not session.results.samples and session.ended_by is not None:
        raise session.ended_by
    return session.so_far()


def _check(wanted: Wanted) -> None:
    faults = [
        Fault(field="dtypes", given=repr(dtype), required=f"one of {', '.join(DTYPES)}") for dtype in wanted.dtypes if dtype not in DTYPES
    ]
    if not 1 <= wanted.budget_seconds <= 86_400:
        faults.append(Fault(field="budget", given=f"{wanted.budget_seconds:g} s", required="from 1 second to a day"))
    if wanted.device not in ("auto", "cuda", "cpu"):
        faults.append(Fault(field="device", given=repr(wanted.device), required="auto, cuda or cpu"))
    if faults:
        raise InvalidInputError(faults)


def _chosen_device(asked: str, found: Found) -> str:
    if asked == "cuda" and not found.gpus:
        reason = "; ".join(note for note in found.notes if "GPU" in note) or "no GPU was found"
        raise UnavailableError(f"--device cuda: {reason}; `autopar profile --device cpu` measures the processor")
    if asked == "auto":
        return "cuda" if found.gpus else "cpu"
    return asked


def _backend(device: str, found: Found, ranks: Ranks, threads: int, libraries: dict[str, str], notes: list[str]) -> Backend:
    from importlib.util import find_spec

    if device == "cpu":
        if find_spec("torch") is None:
            raise UnavailableError("profiling a processor needs torch: pip install 'autopar[runtime]'")
        from autopar.costmodel.profiler.cpu import CpuBackend

        memory = found.processor.memory_bytes // ranks.launch.ranks_per_node
        backend = CpuBackend(threads=threads, cache_bytes=found.processor.cache_bytes, memory_bytes=memory)
        libraries["torch"] = backend.version
        return backend
    from autopar.costmodel.profiler.cuda import cuda_backend

    cuda, missing = cuda_backend(ranks.launch.local_rank)
    libraries |= cuda.libraries
    notes += missing
    return cuda


def environment_threads() -> int:
    """OMP_NUM_THREADS where it is set to a number, else 0."""
    text = os.environ.get("OMP_NUM_THREADS", "")
    return int(text) if text.isdigit() else 0


def default_cluster_path(output: str | Path) -> Path:
    """Where the cluster file goes when nobody says: ``profile.json`` -> ``profile.cluster.json``."""
    path = Path(output)
    return path.with_name(f"{path.stem}.cluster.json")
