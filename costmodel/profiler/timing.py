"""How one shape is timed: warm-up, samples, their median and spread."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from autopar.costmodel.spec.measured import Point

from .request import CannotMeasureError, Prepared

SHORTEST_SAMPLE = 2e-4
"""A sample lasts at least so long, by repeating the call, so that the clock's own resolution does not show."""
MAX_CALLS = 256
TIMED_LAUNCHES = 200
SAMPLES = 5
"""Samples of one pass over the shapes."""
PASS_SECONDS = 0.12
"""And no more once they took so long, the first two apart."""


def launch_seconds(call: Callable[[], object], synchronize: Callable[[], None]) -> float:
    """Host seconds of one launch of ``call`` by the host's clock, the device left to catch up afterwards."""
    synchronize()
    started = time.perf_counter()
    for _ in range(TIMED_LAUNCHES):
        call()
    spent = time.perf_counter() - started
    synchronize()
    return spent / TIMED_LAUNCHES


@dataclass(slots=True)
class Samples:
    """Timings of one shape, gathered over several passes so that a busy minute does not fall on one shape alone."""

    seconds: list[float] = field(default_factory=list)
    library: str = ""

    def point(self, shape: tuple[float, ...]) -> Point:
        """Their median, and half their interquartile range over it."""
        low, middle, high = np.quantile(self.seconds, (0.25, 0.5, 0.75))
        return Point(
            shape=shape,
            seconds=float(middle),
            repeats=len(self.seconds),
            spread=round(float((high - low) / 2 / middle), 4),
        )


def sample(prepared: Prepared, agree: Callable[[float], float] = lambda seconds: seconds) -> list[float]:
    """Timings of one pass, after a warm-up; of a call so long that a pass holds no two, the first alone.

    How many there are depends on ``agree`` of the first call's seconds: where ranks time the same collective it returns the slowest's,
    so that all of them take as many.

    Raises:
        CannotMeasureError: a time that is no time (zero, negative, NaN).
    """
    first = _checked(prepared.seconds(1))
    slowest = max(agree(first), 1e-9)
    if slowest > PASS_SECONDS:
        return [first]
    calls = int(np.clip(math.ceil(SHORTEST_SAMPLE / slowest), 1, MAX_CALLS))
    if calls > 1:
        _checked(prepared.seconds(calls))  # warm: the clock of a GPU, the caches of an allocator
    count = int(np.clip(PASS_SECONDS / (slowest * calls), 2, SAMPLES))
    return [_checked(prepared.seconds(calls)) for _ in range(count)]


def _checked(seconds: float) -> float:
    if not (math.isfinite(seconds) and seconds > 0):
        raise CannotMeasureError(f"the clock gave {seconds!r} seconds")
    return seconds
