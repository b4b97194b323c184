"""The backend of processors: torch's kernels, timed with the host's clock."""

from __future__ import annotations

import time
from collections.abc import Callable

from .request import CannotMeasureError, Request
from .torch_kernels import Call, TorchKernels

BEST_OF = 3
"""Rounds in a row whose quickest is one sample: another process can only add to a time."""


class CpuPrepared:
    """Calls on rotating operands, timed one after the other."""

    def __init__(self, calls: list[Call], library: str, clock: Callable[[], float]) -> None:
        self._calls = calls
        self._next = 0
        self._clock = clock
        self.library = library

    def seconds(self, calls: int) -> float:
        """Seconds of one call: the quickest of three rounds of ``calls``."""
        return min(self._round(calls) for _ in range(BEST_OF if calls > 1 else 1))

    def _round(self, calls: int) -> float:
        chosen = [self._calls[(self._next + offset) % len(self._calls)] for offset in range(calls)]
        self._next += calls
        started = self._clock()
        for call in chosen:
            call()
        return (self._clock() - started) / calls


class CpuBackend:
    """Torch on ``threads`` threads of this processor.

    One thread is timed by the processor time it takes, which other work on a busy machine hardly changes; several by the wall's.
    """

    def __init__(self, *, threads: int, cache_bytes: int, memory_bytes: int, clock: Callable[[], float] | None = None) -> None:
        import torch

        torch.set_num_threads(threads)
        self._kernels = TorchKernels("cpu", cache_bytes=cache_bytes, memory_bytes=memory_bytes)
        self._clock = clock or (time.thread_time if threads == 1 else time.perf_counter)
        self.version: str = torch.__version__

    def prepare(self, request: Request) -> CpuPrepared:
        """``request`` ready to run; raises CannotMeasureError where torch cannot run it on a processor."""
        try:
            return CpuPrepared(self._kernels.calls(request), self._kernels.library, self._clock)
        except (MemoryError, RuntimeError, NotImplementedError) as error:
            raise CannotMeasureError(first_line(error)) from None

    def release(self) -> None:
        """Nothing to do: operands are freed with the calls."""


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its kind where it has none."""
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
