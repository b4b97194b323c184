"""Collectives between the ranks of a run, on groups as the topology has them.

A group of n ranks with k of them in each node stands for what a plan asks for: all of them inside a node (k = n), whole nodes
together, or one rank of each node (what the data-parallel groups of a tensor-parallel layout see). All groups of
one kind run at the same time, since they do so in training and share the network's ports.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from autopar.costmodel.spec.measured import Kind

from .cpu import BEST_OF, first_line
from .ranks import Launch
from .request import CannotMeasureError, RankLostError, Request

FLOAT_BYTES = 4
LARGEST = 2**28
SMALLEST = 2**10
LIBRARY_DTYPE = "fp32"


def group_shapes(launch: Launch) -> list[tuple[int, int]]:
    """The (ranks, ranks a node) of the groups to measure: powers of two inside a node; across nodes, one and all ranks of each."""
    per_node, nodes = launch.ranks_per_node, launch.num_nodes
    inside = [size for size in _powers(per_node) if size > 1]
    across = [count for count in dict.fromkeys((2, nodes)) if 1 < count <= nodes]
    return [(size, size) for size in inside] + [(count * k, k) for count in across for k in dict.fromkeys((1, per_node))]


def _powers(limit: int) -> list[int]:
    found = [1]
    while found[-1] * 2 <= limit:
        found.append(found[-1] * 2)
    return found if found[-1] == limit else [*found, limit]


def members(launch: Launch, size: int, per_domain: int) -> list[list[int]]:
    """The groups of one kind: disjoint lists of ranks, ``per_domain`` of each in a node. Ranks that fill no group are left out."""
    nodes, per_node = launch.num_nodes, launch.ranks_per_node
    wide = size // per_domain
    return [
        [node * per_node + local for node in range(first, first + wide) for local in range(start, start + per_domain)]
        for first in range(0, nodes - wide + 1, wide)
        for start in range(0, per_node - per_domain + 1, per_domain)
    ]


def collective_requests(launch: Launch, *, largest: int = LARGEST, dtype: str = LIBRARY_DTYPE) -> list[Request]:
    """Every collective on every kind of group, messages four times larger from one to the next; the smallest ones first."""
    found = []
    message = SMALLEST
    while message <= largest:
        for size, per_domain in group_shapes(launch):
            for variant in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"):
                if variant == "send_recv" and size != 2:
                    continue
                shape = (float(message), float(size), float(per_domain))
                found.append(Request(kind=Kind.COLLECTIVE, variant=variant, dtype=dtype, shape=shape))
        message *= 4
    return found


class Transport(Protocol):
    """What carries collectives: torch.distributed's gloo or NCCL, or CuPy's NCCL."""

    library: str

    def collective(self, variant: str, count: int, ranks: list[int]) -> Callable[[], object]:
        """One collective of ``count`` values among ``ranks``, this rank one of them; the call returns once it is done or queued."""
        ...

    def finish(self) -> None:
        """Wait for what was queued."""
        ...


class CollectivePrepared:
    """One collective between the ranks of this rank's group; where it is in none, it stands by."""

    def __init__(self, call: Callable[[], object] | None, transport: Transport, *, hops: int, clock: Callable[[], float]) -> None:
        self._call = call
        self._transport = transport
        self._hops = hops
        self._clock = clock
        self.library = transport.library

    def seconds(self, calls: int) -> float:
        """Seconds of one collective on this rank, the quickest of three rounds; the caller takes the slowest rank's.

        A rank that stands by answers a moment.
        """
        if self._call is None:
            return 1e-9
        try:
            return min(self._round(self._call, calls) for _ in range(BEST_OF)) / self._hops
        except RuntimeError as error:
            raise RankLostError(f"a collective failed, a rank died or hung: {first_line(error)}") from None

    def _round(self, call: Callable[[], object], calls: int) -> float:
        started = self._clock()
        for _ in range(calls):
            call()
        self._transport.finish()
        return (self._clock() - started) / calls


def wait_until(done: Callable[[], bool], timeout_seconds: float) -> None:
    """Ask ``done`` again and again.

    Raises:
        RankLostError: it did not come true in time.
    """
    deadline = time.monotonic() + timeout_seconds
    while not done():
        if time.monotonic() > deadline:
            raise RankLostError(f"a collective did not end in {timeout_seconds:g} s: a rank died or hung")


class Collectives:
    """The backend of collectives."""

    def __init__(self, launch: Launch, transport: Transport, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._launch = launch
        self._transport = transport
        self._clock = clock

    def prepare(self, request: Request) -> CollectivePrepared:
        """``request`` ready to run on this rank; every rank prepares every request, in the same order."""
        message, size, per_domain = (int(number) for number in request.shape)
        groups = members(self._launch, size, per_domain)
        mine = next((ranks for ranks in groups if self._launch.rank in ranks), None)
        if not groups:
            raise CannotMeasureError(f"no group of {size} ranks, {per_domain} a node, among {self._launch.world_size}")
        count = max(message // FLOAT_BYTES // size, 1) * size
        try:
            call = None if mine is None else self._transport.collective(request.variant, count, mine)
        except (RuntimeError, NotImplementedError, MemoryError) as error:
            raise CannotMeasureError(first_line(error)) from None
        hops = 2 if request.variant == "send_recv" else 1
        return CollectivePrepared(call, self._transport, hops=hops, clock=self._clock)

    def release(self) -> None:
        """Nothing is kept."""


class TorchTransport:
    """Collectives of torch.distributed, over gloo on a processor or NCCL on a GPU."""

    def __init__(self, launch: Launch, *, backend: str, device: str, timeout_seconds: float = 60.0) -> None:
        from datetime import timedelta

        import torch
        import torch.distributed as dist

        self._torch, self._dist, self._device = torch, dist, torch.device(device)
        self.library = f"torch.distributed {backend}, torch {torch.__version__}"
        timeout, self._timeout = timedelta(seconds=timeout_seconds), timeout_seconds
        self._groups: dict[tuple[int, ...], Any] = {}
        # every rank makes every group, in the same order
        for size, per_domain in group_shapes(launch):
            for ranks in members(launch, size, per_domain):
                if tuple(ranks) not in self._groups:
                    self._groups[tuple(ranks)] = dist.new_group(ranks, backend=backend, timeout=timeout)

    def collective(self, variant: str, count: int, ranks: list[int]) -> Callable[[], object]:
        """A call on values that are random and never zero; sums grow past what fp32 holds, at the same speed."""
        torch, dist, group = self._torch, self._dist, self._groups[tuple(ranks)]
        full = torch.rand(count, device=self._device) + 0.5
        part = torch.rand(count // len(ranks), device=self._device) + 0.5
        if variant == "send_recv":
            return self._there_and_back(full, ranks, group)
        # torch 2.13 renames the two; 2.11 has the old names alone
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        calls: dict[str, Callable[[], object]] = {
            "all_reduce": lambda: dist.all_reduce(full, op=dist.ReduceOp.SUM, group=group),
            "all_gather": lambda: gather(full, part, group=group),
            "reduce_scatter": lambda: scatter(part, full, op=dist.ReduceOp.SUM, group=group),
            "all_to_all": lambda: dist.all_to_all_single(torch.empty_like(full), full, group=group),
        }
        return calls[variant]

    def _there_and_back(self, values: Any, ranks: list[int], group: Any) -> Callable[[], object]:
        dist, first, second = self._dist, *ranks
        peer, begins = (second, True) if dist.get_rank() == first else (first, False)

        def call() -> None:
            if begins:
                dist.send(values, peer, group=group)
                dist.recv(values, peer, group=group)
            else:
                dist.recv(values, peer, group=group)
                dist.send(values, peer, group=group)

        return call

    def finish(self) -> None:
        """Wait for the GPU, no longer than the time-out; gloo's calls return when they are done."""
        if self._device.type == "cuda":
            cuda: Any = self._torch.cuda
            queued = cuda.Event()
            queued.record()
            wait_until(lambda: bool(queued.query()), self._timeout)
