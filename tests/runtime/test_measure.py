"""Measured steps."""

from __future__ import annotations

import time

import pytest
import torch

from autopar.runtime.measure import MemoryKind, Recorder, measure, peak_memory_bytes

from .processes import run_ranks

CPU = torch.device("cpu")


def test_warm_up_is_left_out_and_the_median_counts() -> None:
    pauses = iter((0.05, 0.001, 0.001, 0.03))
    found = measure(lambda: time.sleep(next(pauses)), CPU, tokens_per_step=100, steps=3, warmup_steps=1)
    assert len(found.step_seconds) == 3
    assert found.step_time_seconds == sorted(found.step_seconds)[1]
    assert found.tokens_per_second == pytest.approx(100 / found.step_time_seconds)
    assert found.memory_kind is MemoryKind.PROCESS
    assert found.mfu(1e12 * found.step_time_seconds, 2e12) == pytest.approx(0.5)


def slow_rank(rank: int) -> tuple[float, ...]:
    recorder = Recorder(CPU, warmup_steps=0)
    with recorder.step():
        time.sleep(0.1 * rank)
    result = recorder.result(tokens_per_step=1)
    assert result.tokens_per_second_per_gpu == pytest.approx(result.tokens_per_second / 2)
    return result.step_seconds


def test_a_step_takes_as_long_as_its_slowest_rank() -> None:
    first, second = run_ranks(2, slow_rank)
    assert first == second
    assert first[0] >= 0.1


def test_where_all_steps_warm_up_the_last_counts() -> None:
    recorder = Recorder(CPU, warmup_steps=5)
    for _ in range(2):
        with recorder.step():
            pass
    assert recorder.result(tokens_per_step=1).step_seconds == (recorder.seconds[-1],)


def test_the_peak_counts_what_was_held_meanwhile() -> None:
    Recorder(CPU, warmup_steps=0)
    before = peak_memory_bytes(CPU)
    held = torch.ones(256 * 2**20, dtype=torch.uint8)  # above what the allocator may reuse of what others freed
    assert peak_memory_bytes(CPU) - before > 0.8 * held.nbytes
