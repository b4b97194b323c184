"""Things that are to be compared, timed in turns, so that what else the machine does meets all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist

WARMUP_STEPS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One step, on average over the steps of a turn."""

    seconds: float
    """As long as the slowest rank took."""
    cpu_seconds: float
    """Of all ranks' processes together: what other work on the machine does not change."""


def in_turns(steps: Mapping[str, Callable[[], object]], *, rounds: int, steps_per_turn: int) -> dict[str, list[Turn]]:
    """One turn a round of each. A collective call.

    The order turns from round to round.
    """
    for step in steps.values():
        for _ in range(WARMUP_STEPS):
            step()
    names = list(steps)
    turns: dict[str, list[Turn]] = {name: [] for name in names}
    for each in range(rounds):
        shift = each % len(names)
        for name in names[shift:] + names[:shift]:
            turns[name].append(_turn(steps[name], steps_per_turn))
    return turns


def _turn(step: Callable[[], object], count: int) -> Turn:
    dist.barrier()
    start, cpu_start = time.perf_counter(), time.process_time()
    for _ in range(count):
        step()
    slowest = torch.tensor((time.perf_counter() - start) / count, dtype=torch.float64)
    cpu = torch.tensor((time.process_time() - cpu_start) / count, dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    dist.all_reduce(cpu)
    return Turn(seconds=slowest.item(), cpu_seconds=cpu.item())
