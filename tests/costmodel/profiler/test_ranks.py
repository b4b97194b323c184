"""Ranks that agree, and ranks that die: real processes over gloo."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autopar.costmodel.profiler.collect import Budget, Results, Run
from autopar.costmodel.profiler.collectives import Collectives, TorchTransport, collective_requests, group_shapes, members
from autopar.costmodel.profiler.cpu import CpuBackend
from autopar.costmodel.profiler.ranks import Alone, Launch, TorchRanks, launched
from autopar.costmodel.profiler.request import CannotMeasureError, RankLostError, Request
from autopar.costmodel.spec.errors import InvalidInputError
from autopar.costmodel.spec.measured import Kind

GEMM = Request(kind=Kind.GEMM, variant="nt", dtype="fp32", shape=(64, 64, 64))


def test_a_process_without_a_launcher_is_alone() -> None:
    assert isinstance(launched({}), Alone)
    assert Launch.of({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}).num_nodes == 4


@pytest.mark.parametrize(
    "environment",
    [
        {"RANK": "x", "WORLD_SIZE": "2"},
        {"RANK": "2", "WORLD_SIZE": "2"},
        {"RANK": "0", "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "2"},
        {"RANK": "0", "WORLD_SIZE": "0"},
    ],
)
def test_a_launchers_variables_that_make_no_sense_are_refused(environment: dict[str, str]) -> None:
    with pytest.raises(InvalidInputError, match=r"RANK|WORLD_SIZE"):
        Launch.of(environment)


def test_groups_follow_the_nodes() -> None:
    launch = Launch(rank=0, world_size=8, local_rank=0, ranks_per_node=4)
    assert group_shapes(launch) == [(2, 2), (4, 4), (2, 1), (8, 4)]
    assert members(launch, 2, 2) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert members(launch, 2, 1) == [[0, 4], [1, 5], [2, 6], [3, 7]], "strided: one rank of each node"
    assert members(launch, 8, 4) == [list(range(8))]
    assert group_shapes(Launch(rank=0, world_size=1, local_rank=0, ranks_per_node=1)) == []
    wide = Launch(rank=0, world_size=32, local_rank=0, ranks_per_node=8)
    assert group_shapes(wide) == [(2, 2), (4, 4), (8, 8), (2, 1), (16, 8), (4, 1), (32, 8)]


def forked(world: int, work: Callable[[TorchRanks], Any], folder: Path, *, timeout: float = 20.0) -> list[Any]:
    """What ``work`` returns on each rank, or the name of what it raises."""
    pytest.importorskip("torch")
    context = multiprocessing.get_context("fork")
    answers: Any = context.Queue()

    def rank_of(rank: int) -> None:
        launch = Launch(rank=rank, world_size=world, local_rank=rank, ranks_per_node=world)
        try:
            ranks = TorchRanks(launch, timeout_seconds=timeout, init_method=f"file://{folder}/meet")
            answers.put((rank, work(ranks)))
        except Exception as error:
            answers.put((rank, f"{type(error).__name__}: {error}"))
        answers.close()
        answers.join_thread()
        os._exit(0)

    processes = [context.Process(target=rank_of, args=(rank,)) for rank in range(world)]
    for process in processes:
        process.start()
    found: dict[int, Any] = {}
    deadline = time.monotonic() + 90
    while len(found) < world and time.monotonic() < deadline and (any(p.is_alive() for p in processes) or not answers.empty()):
        try:
            rank, answer = answers.get(timeout=0.5)
        except Exception:
            continue
        found[rank] = answer
    for process in processes:
        process.join(timeout=5)
        if process.is_alive():
            process.kill()
    return [found.get(rank) for rank in range(world)]


def backend() -> CpuBackend:
    return CpuBackend(threads=1, cache_bytes=2**16, memory_bytes=2**30)


def measured(ranks: TorchRanks) -> tuple[list[str], float]:
    results = Results(source="a test")
    run = Run(ranks, Budget(60), results)
    run.passes(backend(), [GEMM], until=1.0, count=1)
    transport = TorchTransport(ranks.launch, backend="gloo", device="cpu", timeout_seconds=20)
    run.passes(Collectives(ranks.launch, transport), collective_requests(ranks.launch, largest=2**12), until=1.0, count=1)
    series = results.series()
    return [f"{one.name} {len(one.points)}" for one in series], series[0].points[0].seconds


def test_two_ranks_measure_kernels_and_collectives_and_hold_the_same(tmp_path: Path) -> None:
    first, second = forked(2, measured, tmp_path)
    assert first == second
    assert isinstance(first, tuple), first
    names, seconds = first
    assert seconds > 0
    assert names == [
        "collective all_gather fp32 2", "collective all_reduce fp32 2", "collective all_to_all fp32 2", "collective reduce_scatter fp32 2",
        "collective send_recv fp32 2", "gemm nt fp32 1",
    ]  # fmt: skip


def dying(ranks: TorchRanks) -> str:
    results = Results(source="a test")
    run = Run(ranks, Budget(60), results)
    run.passes(backend(), [GEMM], until=1.0, count=1)
    if ranks.launch.rank == 1:
        os._exit(9)
    try:
        run.passes(backend(), [GEMM], until=1.0, count=1)
    except RankLostError as error:
        return f"{len(results.samples)} kept, {error}"
    return "nothing happened"


def test_a_rank_that_dies_ends_the_others_with_the_reason(tmp_path: Path) -> None:
    survivor, dead = forked(2, dying, tmp_path, timeout=5.0)
    assert dead is None
    assert "1 kept, rank 0 waited for" in survivor
    assert "a rank died or hung" in survivor


def hanging(ranks: TorchRanks) -> str:
    if ranks.launch.rank == 1:
        time.sleep(4)
        return "woke up"
    try:
        ranks.together()
    except RankLostError as error:
        return str(error)
    return "nothing happened"


def test_a_rank_that_hangs_is_waited_for_no_longer_than_the_time_out(tmp_path: Path) -> None:
    survivor, _ = forked(2, hanging, tmp_path, timeout=1.0)
    assert "time-out 1 s" in survivor


def failing_on_one(ranks: TorchRanks) -> dict[str, str]:
    class OnOne:
        def prepare(self, request: Request) -> Any:
            if ranks.launch.rank == 1:
                raise CannotMeasureError("out of memory")
            return backend().prepare(request)

        def release(self) -> None: ...

    results = Results(source="a test")
    Run(ranks, Budget(60), results).passes(OnOne(), [GEMM], until=1.0)
    return results.failures


def test_a_request_that_fails_on_one_rank_is_left_out_on_all(tmp_path: Path) -> None:
    assert forked(2, failing_on_one, tmp_path) == [{"gemm nt fp32 64x64x64": "out of memory"}] * 2
