"""The landscape: its front, its limits, and that it keeps to the constraints."""

from __future__ import annotations

import pytest

from autopar.api import build_problem, estimate
from autopar.landscape import MEMORY_RANGE, SLOWEST, Landscape, landscape
from autopar.search import Constraints, search

PROBLEM, _ = build_problem("gpt-22b", gpus=16, global_batch_size=128)


@pytest.fixture(scope="module")
def found() -> Landscape:
    return landscape(PROBLEM)


def test_the_front_is_what_nothing_beats_in_both(found: Landscape) -> None:
    for spot in found.spots:
        beaten = any(
            other.peak_memory_bytes <= spot.peak_memory_bytes and other.step_time_seconds <= spot.step_time_seconds
            for other in found.spots
            if other is not spot
        )
        assert spot.efficient is not beaten


def test_the_fastest_that_fits_is_the_search_s(found: Landscape) -> None:
    best = search(PROBLEM, top=1).ranked[0]
    fastest = min((spot for spot in found.spots if spot.fits), key=lambda spot: spot.step_time_seconds)
    assert fastest.step_time_seconds == pytest.approx(best.step_time_seconds, rel=1e-9)


def test_spots_are_what_estimate_says_and_in_order_of_memory(found: Landscape) -> None:
    assert [spot.peak_memory_bytes for spot in found.spots] == sorted(spot.peak_memory_bytes for spot in found.spots)
    for spot in found.spots[::17]:
        told = estimate(PROBLEM, strategy=spot.strategy)
        assert (told.step_time_seconds, told.peak_memory_bytes) == pytest.approx((spot.step_time_seconds, spot.peak_memory_bytes))
        assert told.fits is spot.fits


def test_the_limits_are_kept(found: Landscape) -> None:
    capacity = PROBLEM.cluster.device.memory_bytes
    least = min(spot.step_time_seconds for spot in found.spots if spot.fits)
    assert all(spot.peak_memory_bytes <= MEMORY_RANGE * capacity for spot in found.spots)
    assert all(spot.step_time_seconds <= SLOWEST * least * 1.05 for spot in found.spots)
    assert found.evaluated >= len(found.spots)


def test_constraints_are_kept() -> None:
    fixed = landscape(PROBLEM, Constraints(fixed={"tensor_parallel_size": 4}))
    assert fixed.spots
    assert {spot.strategy.tensor_parallel_size for spot in fixed.spots} == {4}


def test_where_nothing_is_accepted_there_is_nothing() -> None:
    nothing = landscape(PROBLEM, Constraints(fixed={"pipeline_parallel_size": 7}))
    assert (nothing.spots, nothing.efficient) == ((), ())
