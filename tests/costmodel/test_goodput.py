"""Checkpoint intervals and useful time against Daly's figures, the exact optimum and simulated failures."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar.costmodel.goodput import (
    daly_interval_seconds,
    expected_segment_seconds,
    expected_step_seconds,
    job_mtbf_seconds,
    spare_nodes,
    steps_between_checkpoints,
    useful_fraction,
)

MINUTE, HOUR = 60.0, 3600.0
times = st.floats(1e-2, 1e5)


@pytest.mark.parametrize(("mtbf", "published_minutes"), [(24 * HOUR, 117), (6 * HOUR, 57), (15 * MINUTE, 9.1)])
def test_the_intervals_that_daly_published(mtbf: float, published_minutes: float) -> None:
    """Figures 3, 4 and 5 of Daly 2006: a checkpoint of 5 minutes, a restart of 10."""
    assert daly_interval_seconds(5 * MINUTE, mtbf) / MINUTE == pytest.approx(published_minutes, rel=0.01)


def exact_interval(checkpoint: float, mtbf: float) -> float:
    """Where the derivative of E(tau) / tau vanishes: exp(-(tau + delta) / M) = 1 - tau / M, by bisection."""
    low, high = 0.0, mtbf
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if math.exp(-(middle + checkpoint) / mtbf) < 1 - middle / mtbf else (low, middle)
    return low


@pytest.mark.parametrize(
    ("ratio", "worst"), [(1e-4, 1e-12), (1e-2, 1e-10), (0.1, 1e-7), (0.5, 2e-5), (1, 2e-4), (1.99, 2e-3), (2, 2e-3), (5, 1e-5)]
)
def test_little_is_lost_by_not_taking_the_exact_interval(ratio: float, worst: float) -> None:
    mtbf = 10_000.0
    checkpoint = ratio * mtbf
    best = useful_fraction(exact_interval(checkpoint, mtbf), checkpoint, 0, mtbf)
    found = useful_fraction(daly_interval_seconds(checkpoint, mtbf), checkpoint, 0, mtbf)
    assert 1 - worst <= found / best <= 1 + 1e-12


def simulated_fraction(work: float, checkpoint: float, restart: float, mtbf: float, segments: int, seed: int) -> float:
    """Useful share of the wall time of a job that fails at random moments, event by event."""
    rng = np.random.default_rng(seed)
    wall = 0.0
    for _ in range(segments):
        while (failure := rng.exponential(mtbf)) < work + checkpoint:
            wall += failure
            while (again := rng.exponential(mtbf)) < restart:
                wall += again
            wall += restart
        wall += work + checkpoint
    return segments * work / wall


@pytest.mark.parametrize(
    ("work", "checkpoint", "restart", "mtbf"),
    [(3600, 60, 300, 20_000), (600, 60, 120, 1_000), (1_000, 300, 900, 900), (10_000, 10, 0, 50_000)],
)
def test_the_useful_fraction_is_that_of_simulated_failures(work: float, checkpoint: float, restart: float, mtbf: float) -> None:
    found = simulated_fraction(work, checkpoint, restart, mtbf, segments=20_000, seed=1)
    assert useful_fraction(work, checkpoint, restart, mtbf) == pytest.approx(found, rel=0.02)


def test_dalys_interval_is_best_of_those_simulated() -> None:
    checkpoint, restart, mtbf = 60.0, 120.0, 4_000.0
    best = daly_interval_seconds(checkpoint, mtbf)
    here, shorter, longer = (simulated_fraction(best * by, checkpoint, restart, mtbf, 20_000, 2) for by in (1, 0.4, 2.5))
    assert here > max(shorter, longer)


@given(times, times, times, st.floats(0, 1e5))
def test_whole_steps_are_at_least_as_good_as_their_neighbours(step: float, checkpoint: float, mtbf: float, restart: float) -> None:
    steps = steps_between_checkpoints(step, checkpoint, restart, mtbf)
    own = useful_fraction(steps * step, checkpoint, restart, mtbf)
    assert steps >= 1
    assert 0 <= own <= 1
    exact = daly_interval_seconds(checkpoint, mtbf) / step
    assert steps <= max(1, math.floor(exact) + 1)


@given(times, st.floats(1.0001, 10), st.floats(1, 1e3), st.floats(1e4, 1e6))
def test_a_faster_step_is_a_faster_kept_step(step: float, by: float, checkpoint: float, mtbf: float) -> None:
    slow, fast = (expected_step_seconds(each, checkpoint, checkpoint, mtbf) for each in (step * by, step))
    assert fast <= slow * (1 + 1e-3)  # the whole number of steps is the better of two, not of all


@given(times, times, times)
def test_more_failures_leave_less(work: float, checkpoint: float, mtbf: float) -> None:
    assert useful_fraction(work, checkpoint, 0, mtbf) <= useful_fraction(work, checkpoint, 0, mtbf * 2) * (1 + 1e-12)


def test_what_never_ends_is_infinite() -> None:
    assert expected_segment_seconds(1e9, 1, 1, 1) == math.inf
    assert useful_fraction(1e9, 1, 1, 1) == 0
    assert useful_fraction(1, 1, 1e9, 1) == 0


@pytest.mark.parametrize(
    ("nodes", "mtbf", "repair"), [(32, 4000 * HOUR, 24 * HOUR), (2048, 6000 * HOUR, 48 * HOUR), (16384, 1000 * HOUR, 100 * HOUR)]
)
def test_spares_cover_what_is_in_repair(nodes: int, mtbf: float, repair: float) -> None:
    mean, rng = nodes * repair / mtbf, np.random.default_rng(3)
    spares = spare_nodes(nodes, mtbf, repair)
    draws = rng.poisson(mean, 200_000)
    assert (draws <= spares).mean() >= 0.988
    assert (draws <= spares - 1).mean() < 0.992


def test_nodes_in_repair_are_poisson() -> None:
    """Failures at random moments, repairs of a fixed length: the number in repair, seen at random, has the mean assumed."""
    rng = np.random.default_rng(4)
    mtbf, nodes, repair = 1_000.0, 64, 24.0
    failures = np.cumsum(rng.exponential(job_mtbf_seconds(mtbf, nodes), 200_000))
    moments = rng.uniform(failures[100], failures[-100], 20_000)
    in_repair = np.searchsorted(failures, moments) - np.searchsorted(failures, moments - repair)
    assert in_repair.mean() == pytest.approx(nodes * repair / mtbf, rel=0.02)
    assert (in_repair <= spare_nodes(nodes, mtbf, repair)).mean() >= 0.988
