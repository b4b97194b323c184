"""Collectives through CuPy's NCCL, and the choice between it and torch.distributed's."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from .collectives import TorchTransport, Transport, group_shapes, members, wait_until
from .cuda import Import, load_cupy, load_nccl
from .ranks import Ranks
from .request import RankLostError


class CupyNcclTransport:
    """One communicator a group; identifiers are handed out over the control ranks, every rank taking part in the same order."""

    def __init__(self, cupy: Any, nccl: Any, ranks: Ranks, *, timeout_seconds: float) -> None:
        self._cupy, self._nccl, self._rank = cupy, nccl, ranks.launch.rank
        self._timeout = timeout_seconds
        self.library = f"cupy {cupy.__version__} NCCL {nccl_version(nccl)}"
        self._communicators: dict[tuple[int, ...], Any] = {}
        self._kept: tuple[Any, ...] = ()
        for size, per_domain in group_shapes(ranks.launch):
            for group in members(ranks.launch, size, per_domain):
                key = tuple(group)
                if key in self._communicators:
                    continue
                identifier = ranks.gathered(nccl.get_unique_id() if self._rank == group[0] else None)[group[0]]
                mine = nccl.NcclCommunicator(len(group), identifier, group.index(self._rank)) if self._rank in group else None
                self._communicators[key] = mine

    def collective(self, variant: str, count: int, ranks: list[int]) -> Callable[[], object]:
        """A call on values that are random and never zero; it returns once it is queued."""
        cupy, nccl, comm = self._cupy, self._nccl, self._communicators[tuple(ranks)]
        full = cupy.random.uniform(0.5, 1.5, count, dtype=cupy.float32)
        part = cupy.random.uniform(0.5, 1.5, count // len(ranks), dtype=cupy.float32)
        float32, total = nccl.NCCL_FLOAT32, nccl.NCCL_SUM  # the switch sums fp32 (NVLS), and does nothing else with it
        stream = cupy.cuda.get_current_stream().ptr
        whole, piece = full.data.ptr, part.data.ptr
        self._kept = (full, part)  # NCCL is given addresses, which hold nothing
        calls: dict[str, Callable[[], object]] = {
            "all_reduce": lambda: comm.allReduce(whole, whole, count, float32, total, stream),
            "all_gather": lambda: comm.allGather(piece, whole, count // len(ranks), float32, stream),
            "reduce_scatter": lambda: comm.reduceScatter(whole, piece, count // len(ranks), float32, total, stream),
            "all_to_all": self._all_to_all(comm, full, len(ranks), stream),
            "send_recv": self._there_and_back(comm, full, ranks.index(self._rank), stream),
        }
        return calls[variant]

    def _all_to_all(self, comm: Any, full: Any, size: int, stream: int) -> Callable[[], object]:
        """One part to and from each rank of the group, as one group call."""
        nccl, part = self._nccl, full.size // size
        received = self._cupy.empty_like(full)

        def call() -> None:
            nccl.groupStart()
            for peer in range(size):
                offset = peer * part * 4
                comm.send(full.data.ptr + offset, part, nccl.NCCL_FLOAT32, peer, stream)
                comm.recv(received.data.ptr + offset, part, nccl.NCCL_FLOAT32, peer, stream)
            nccl.groupEnd()

        return call

    def _there_and_back(self, comm: Any, values: Any, place: int, stream: int) -> Callable[[], object]:
        arguments = (values.data.ptr, values.size, self._nccl.NCCL_FLOAT32, 1 - place, stream)
        steps = (comm.send, comm.recv) if place == 0 else (comm.recv, comm.send)

        def call() -> None:
            for step in steps:
                step(*arguments)

        return call

    def finish(self) -> None:
        """Wait for what was queued, and no longer than the time-out: NCCL itself waits for a dead rank for ever.

        Raises:
            RankLostError: a rank did not take part in time; the communicators are given up.
        """
        stream = self._cupy.cuda.get_current_stream()
        try:
            wait_until(lambda: bool(stream.done), self._timeout)
        except RankLostError:
            for comm in self._communicators.values():
                if comm is not None:
                    comm.abort()
            raise


def nccl_version(nccl: Any) -> str:
    """``22809`` -> ``2.28.9``."""
    number = int(nccl.get_version())
    return f"{number // 10_000}.{number % 10_000 // 100}.{number % 100}"


def nccl_transport(ranks: Ranks, *, timeout_seconds: float, load: Import = import_module) -> tuple[Transport, str]:
    """CuPy's NCCL where every rank can load it, else torch.distributed's, and a note of why not CuPy's."""
    cupy, no_cupy = load_cupy(load)
    nccl, no_nccl = load_nccl(load) if cupy is not None else (None, no_cupy)
    reasons = [each for each in ranks.gathered(no_nccl) if each]
    if not reasons:
        return CupyNcclTransport(cupy, nccl, ranks, timeout_seconds=timeout_seconds), ""
    device = f"cuda:{ranks.launch.local_rank}"
    transport = TorchTransport(ranks.launch, backend="nccl", device=device, timeout_seconds=timeout_seconds)
    return transport, f"collectives ran over torch.distributed's NCCL ({reasons[0]})"
