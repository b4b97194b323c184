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
SAMPLES = 5
"""Samples of one pass over the shapes."""
PASS_SECONDS = 0.12
"""And no more once they took so long, the first two apart."""


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


def sample(prepared: Prepared, *, clock: Callable[[], float] = time.perf_counter) -> list[float]:
    """Timings of one pass, after a warm-up.

    Raises:
        CannotMeasureError: a time that is no time (zero, negative, NaN).
    """
    first = _checked(prepared.seconds(1))
    calls = int(np.clip(math.ceil(SHORTEST_SAMPLE / first), 1, MAX_CALLS))
    if calls > 1:
        _checked(prepared.seconds(calls))  # warm: the clock of a GPU, the caches of an allocator
    started = clock()
    found: list[float] = []
    while len(found) < SAMPLES:
        found.append(_checked(prepared.seconds(calls)))
        if len(found) >= 2 and clock() - started > PASS_SECONDS:
            break
    return found


def sample_in_step(prepared: Prepared, calls: int) -> list[float]:
    """As :func:`sample`, with a number of calls and samples that does not depend on this rank's own times."""
    _checked(prepared.seconds(1))
    return [_checked(prepared.seconds(calls)) for _ in range(SAMPLES)]


def _checked(seconds: float) -> float:
    if not (math.isfinite(seconds) and seconds > 0):
        raise CannotMeasureError(f"the clock gave {seconds!r} seconds")
    return seconds
