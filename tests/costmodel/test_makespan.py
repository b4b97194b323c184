"""Makespans of rows of strategies: simulated, closed, bounded."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar.costmodel.makespan import makespan_seconds
from autopar.costmodel.pipeline import simulate
from autopar.costmodel.spec.schedule import build_schedule
from autopar.costmodel.spec.strategy import PipelineSchedule

DUALPIPE = PipelineSchedule.DUALPIPE
SECONDS = st.floats(0.5, 2.0)


def uniform(p: int, m: int, seconds: tuple[float, float, float], *, exact: bool = True) -> float:
    forward, backward, weight = (np.full((1, p), value) for value in seconds)
    times, _ = makespan_seconds(DUALPIPE, p, 1, np.array([m]), forward, backward, weight, simulate=exact)
    return float(times[0])


@given(half=st.integers(1, 4), more=st.integers(0, 6), forward=SECONDS, backward=SECONDS, part=st.floats(0.0, 1.0))
def test_pairs_of_dualpipe_take_the_sum_of_their_work(half: int, more: int, forward: float, backward: float, part: float) -> None:
    """Within two passes of the bubble of DeepSeek-V3, table 2, (p/2 - 1)(F&B + B - 3W), with F&B = F + B."""
    p, m, weight = 2 * half, 4 * half + 2 * more, part * backward
    got = uniform(p, m, (forward, backward, weight))
    line = simulate(build_schedule(DUALPIPE, p, 1, m), [forward] * p, [backward] * p, [weight] * p, overlapped_share=1.0)
    assert got == pytest.approx(line.makespan_seconds, rel=1e-9)
    whole = backward + weight
    bubble = (half - 1) * (forward + whole + whole - 3 * weight)
    # A micro-batch enters at either end: m/2 of them pass each of a rank's two stages.
    assert got == pytest.approx(m * (forward + whole) + bubble, abs=2 * (forward + whole) + 1e-9)


@given(half=st.integers(1, 4), more=st.integers(0, 6), forward=SECONDS, backward=SECONDS, part=st.floats(0.0, 1.0))
def test_the_bound_of_dualpipe_is_below_its_simulation(half: int, more: int, forward: float, backward: float, part: float) -> None:
    sizes = 2 * half, 4 * half + 2 * more
    seconds = forward, backward, part * backward
    assert uniform(*sizes, seconds, exact=False) <= uniform(*sizes, seconds) * (1 + 1e-12)
