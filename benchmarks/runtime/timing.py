"""Things that are to be compared, timed in turns, so that what else the machine does meets all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist

WARMUP_STEPS = 2


def in_turns(steps: Mapping[str, Callable[[], object]], *, rounds: int, steps_per_turn: int) -> dict[str, list[float]]:
    """Seconds of one step of each, a number a round: as long as the slowest rank took. A collective call.

    The order turns from round to round.
    """
    for step in steps.values():
        for _ in range(WARMUP_STEPS):
            step()
    names = list(steps)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for each in range(rounds):
        shift = each % len(names)
        for name in names[shift:] + names[:shift]:
            seconds[name].append(_turn(steps[name], steps_per_turn))
    return seconds


def _turn(step: Callable[[], object], count: int) -> float:
    dist.barrier()
    start = time.perf_counter()
    for _ in range(count):
        step()
    slowest = torch.tensor((time.perf_counter() - start) / count, dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return slowest.item()
