"""Runs a function on several gloo ranks of this machine, for tests.

Ranks are forked, so that torch is imported once, and meet over a file, so that no port is taken. A rank that
fails ends the run at once with its own error; a run that hangs ends after ``timeout`` seconds.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

# OpenMP's threads do not survive a fork, so the parent must not start any.
torch.set_num_threads(1)


def run_ranks(world_size: int, function: Callable[..., Any], *args: Any, timeout: float = 60) -> list[Any]:
    """What ``function(rank, *args)`` returns on each of ``world_size`` ranks, in rank order.

    The default process group exists when ``function`` runs, and RANK, WORLD_SIZE, LOCAL_RANK and OMP_NUM_THREADS are set.
    Functions and arguments need not be picklable, results do.

    Raises:
        The first rank's error, of its own type where that can be sent, with the rank's traceback as a note.
        TimeoutError: ranks that have not answered in time, by number.
    """
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)
        waiting: dict[Connection, int] = {}
        processes: list[BaseProcess] = []
        try:
            for rank in range(world_size):
                receiver, sender = context.Pipe(duplex=False)
                process = context.Process(
                    target=_rank_main, args=(rank, world_size, Path(folder) / "rendezvous", timeout, sender, function, args)
                )
                process.start()
                sender.close()
                waiting[receiver] = rank
                processes.append(process)
            return _gather(waiting, world_size, time.monotonic() + timeout)
        finally:
            for process in processes:
                process.kill()
                process.join()


def _gather(waiting: dict[Connection, int], world_size: int, deadline: float) -> list[Any]:
    results: list[Any] = [None] * world_size
    while waiting:
        ready = wait(list(waiting), timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            raise TimeoutError(f"ranks {sorted(waiting.values())} of {world_size} did not finish in time")
        for receiver in ready:
            assert isinstance(receiver, Connection)
            rank = waiting.pop(receiver)
            try:
                error, text, result = torch.load(io.BytesIO(receiver.recv_bytes()), weights_only=False)
            except EOFError:
                raise RuntimeError(f"rank {rank} of {world_size} ended without an answer") from None
            if text:
                failure = error if error is not None else RuntimeError(f"rank {rank} failed")
                failure.add_note(f"on rank {rank} of {world_size}:\n{text}")
                raise failure
            results[rank] = result
    return results


def _rank_main(
    rank: int, world_size: int, rendezvous: Path, timeout: float, sender: Connection, function: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"}
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    answer: tuple[BaseException | None, str, Any]
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world_size, timeout=timedelta(seconds=timeout)
        )
        answer = (None, "", function(rank, *args))
    except BaseException as error:
        answer = (_sendable(error), traceback.format_exc(), None)
    buffer = io.BytesIO()
    torch.save(answer, buffer)
    sender.send_bytes(buffer.getvalue())
    sender.close()
    # Others may still read what this rank sent them; the parent ends all of them together.
    time.sleep(timeout)
    os._exit(0)


def _sendable(error: BaseException) -> BaseException | None:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return None
    return error
