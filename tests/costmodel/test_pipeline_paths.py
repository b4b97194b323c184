"""Paths through schedules against the simulated makespan, for stages of any seconds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from autopar.costmodel.columns import Floats
from autopar.costmodel.makespan import PAIR_SHARE, SPLIT_BACKWARD
from autopar.costmodel.pipeline import makespan
from autopar.costmodel.pipeline_paths import longest_paths, ramps, window_of
from autopar.costmodel.spec.schedule import schedule_faults
from autopar.costmodel.spec.strategy import PipelineSchedule

SHAPES = [
    (PipelineSchedule.GPIPE, 1),
    (PipelineSchedule.ONE_F_ONE_B, 1),
    (PipelineSchedule.ZERO_BUBBLE, 1),
    (PipelineSchedule.ZERO_BUBBLE, 2),
    (PipelineSchedule.INTERLEAVED, 2),
    (PipelineSchedule.INTERLEAVED, 3),
    (PipelineSchedule.DUALPIPE, 1),
]
Shape = tuple[PipelineSchedule, int, int, int]


def simulated(kind: PipelineSchedule, p: int, v: int, m: int, seconds: Floats) -> float:
    forward, backward, weight = seconds
    split = kind in SPLIT_BACKWARD
    share = PAIR_SHARE if kind is PipelineSchedule.DUALPIPE else None
    return makespan(kind, p, v, m, forward, backward if split else backward + weight, weight if split else None, overlapped_share=share)


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    kind, v = draw(st.sampled_from(SHAPES))
    p = draw(st.integers(2, 6))
    p += p % 2 * (kind is PipelineSchedule.DUALPIPE)
    m = draw(st.integers(1, 40))
    if kind is PipelineSchedule.INTERLEAVED:
        m = p * (1 + m % 8)
    if kind is PipelineSchedule.DUALPIPE:
        m = 2 * p + 2 * (m % 16)
    assert not schedule_faults(kind, p, v, m)
    return kind, p, v, m


def seconds_of(seed: int, stages: int, spread: float) -> Floats:
    return 1.0 + spread * np.random.default_rng(seed).random((3, stages))


@given(shape=shapes(), seed=st.integers(0, 2**32 - 1), spread=st.sampled_from([0.0, 0.3, 5.0]))
@settings(max_examples=150)
def test_no_path_is_longer_than_the_makespan_of_any_stages(shape: Shape, seed: int, spread: float) -> None:
    kind, p, v, m = shape
    found = longest_paths(kind, p, v, window_of(kind, p, m), seconds_of(seed, p * v, spread)).with_microbatches(m)
    other = seconds_of(seed + 1, p * v, 5.0)
    every = [found] if (known := ramps(kind, p, m) if v == 1 else None) is None else [found, known.passes(p)]
    for passes in every:
        assert np.tensordot(passes, other, axes=2).max() <= simulated(kind, p, v, m, other) * (1 + 1e-9)


@given(shape=shapes(), seed=st.integers(0, 2**32 - 1), spread=st.sampled_from([0.0, 0.1]))
@example(shape=(PipelineSchedule.GPIPE, 2, 1, 8), seed=25871, spread=0.1)
@settings(max_examples=100)
def test_one_of_them_is_the_makespan_where_stages_are_nearly_alike(shape: Shape, seed: int, spread: float) -> None:
    kind, p, v, m = shape
    seconds = seconds_of(seed, p * v, spread)
    found = longest_paths(kind, p, v, window_of(kind, p, m), seconds).with_microbatches(m)
    closeness = 0.01
    if kind is PipelineSchedule.GPIPE and m > 1:
        found = np.concatenate([found, ramps(kind, p, m).passes(p)])  # type: ignore[union-attr]
        # Its longest path waits on two stages, each longest in its own direction; these wait on one, which is at most the
        # spread of the forwards faster, and forwards are a third of the work.
        closeness += spread / 3
    assert np.tensordot(found, seconds, axes=2).max() == pytest.approx(simulated(kind, p, v, m, seconds), rel=closeness)


@pytest.mark.parametrize("kind", [PipelineSchedule.GPIPE, PipelineSchedule.ONE_F_ONE_B, PipelineSchedule.ZERO_BUBBLE])
@pytest.mark.parametrize("m", [1, 3, 4, 9, 40])
def test_ramps_are_the_makespan_of_equal_stages(kind: PipelineSchedule, m: int) -> None:
    seconds, found = np.ones((3, 4)), ramps(kind, 4, m)
    assert found is not None
    whole = np.tensordot(found.passes(4), seconds, axes=2).max()
    exact = kind is not PipelineSchedule.ZERO_BUBBLE or m >= 4
    assert whole == pytest.approx(simulated(kind, 4, 1, m, seconds), rel=1e-9 if exact else 0.2)


def test_the_even_split_of_1f1b_is_the_mean_of_its_round_paths() -> None:
    """(m + p - 1) / p of the work, whatever the split: the bound of :func:`~autopar.costmodel.partition_bound.balanced_bound`."""
    p, m = 6, 20
    found = ramps(PipelineSchedule.ONE_F_ONE_B, p, m)
    assert found is not None
    round_trip = found.passes(p)[p : 2 * p]
    weights = np.linalg.solve(round_trip[:, 0].T, np.full(p, (m + p - 1) / p))
    assert (weights > 0).all()
    assert weights.sum() == pytest.approx(1.0)


def test_several_stages_a_rank_have_no_ramps_of_their_own() -> None:
    assert ramps(PipelineSchedule.INTERLEAVED, 4, 8) is None
    assert ramps(PipelineSchedule.DUALPIPE, 4, 8) is None


def test_a_window_lacks_whole_periods() -> None:
    assert window_of(PipelineSchedule.INTERLEAVED, 4, 8) == 8
    assert window_of(PipelineSchedule.INTERLEAVED, 4, 400) == 12
    assert window_of(PipelineSchedule.ONE_F_ONE_B, 4, 401) == 12
    assert window_of(PipelineSchedule.DUALPIPE, 4, 100) % 2 == 0
