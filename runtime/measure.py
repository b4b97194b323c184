"""What a run does: step times, tokens a second and peak memory, as every rank saw them."""

from __future__ import annotations

import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import torch

from .agreement import gather


class MemoryKind(StrEnum):
    ALLOCATED = "allocated"
    """Tensors at their peak, by the CUDA allocator."""
    PROCESS = "process"
    """Resident memory of the rank's process at its peak, Python and torch included: a CPU has no allocator to ask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Some training steps, timed. A step takes as long as its slowest rank."""

    step_seconds: tuple[float, ...]
    """Without the steps that warm up."""
    tokens_per_step: int
    world_size: int
    peak_memory_bytes: tuple[int, ...]
    """One entry a rank."""
    memory_kind: MemoryKind

    @property
    def step_time_seconds(self) -> float:
        """The median."""
        return statistics.median(self.step_seconds)

    @property
    def tokens_per_second(self) -> float:
        return self.tokens_per_step / self.step_time_seconds

    @property
    def tokens_per_second_per_gpu(self) -> float:
        return self.tokens_per_second / self.world_size

    def mfu(self, model_flops_per_step: float, peak_flops_per_device: float) -> float:
        """Model FLOPs a second over the peak of all devices."""
        return model_flops_per_step / self.step_time_seconds / (self.world_size * peak_flops_per_device)


class Recorder:
    """Times steps on this rank; ranks compare at the end."""

    def __init__(self, device: torch.device, *, warmup_steps: int) -> None:
        self.device = device
        self.warmup_steps = warmup_steps
        self.seconds: list[float] = []
        _reset_peak(device)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Times what runs inside, until the device is done with it."""
        _synchronise(self.device)
        start = time.perf_counter()
        yield
        _synchronise(self.device)
        self.seconds.append(time.perf_counter() - start)

    def result(self, *, tokens_per_step: int) -> Measurement:
        """What all ranks saw; collective. Where every step was a warm-up, the last one counts."""
        kept = self.seconds[self.warmup_steps :] or self.seconds[-1:]
        everywhere = gather((kept, peak_memory_bytes(self.device)))
        return Measurement(
            step_seconds=tuple(max(times) for times in zip(*(times for times, _ in everywhere), strict=True)),
            tokens_per_step=tokens_per_step,
            world_size=len(everywhere),
            peak_memory_bytes=tuple(peak for _, peak in everywhere),
            memory_kind=MemoryKind.ALLOCATED if self.device.type == "cuda" else MemoryKind.PROCESS,
        )


def measure(step: Callable[[], object], device: torch.device, *, tokens_per_step: int, steps: int, warmup_steps: int) -> Measurement:
    """Run ``step`` ``warmup_steps`` and then ``steps`` times on every rank, and time the latter."""
    recorder = Recorder(device, warmup_steps=warmup_steps)
    for _ in range(warmup_steps + steps):
        with recorder.step():
            step()
    return recorder.result(tokens_per_step=tokens_per_step)


def peak_memory_bytes(device: torch.device) -> int:
    """This rank's peak since the recorder began: allocated tensors on a GPU, resident memory of the process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    except (OSError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def _reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    except OSError:
        return


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
