"""Corrections between measured points: they meet the points, never fall where times cannot, and stay outside."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar.costmodel.shape_fit import ShapeFit, SizeFit, never_falling

SIZES = st.lists(st.integers(1, 10**9), min_size=1, max_size=12, unique=True)
TIMES = st.floats(1e-7, 10.0)
ROUNDING = 1e-12


def curve(sizes: np.ndarray) -> np.ndarray:
    """With the kink that a change of protocol makes."""
    return np.minimum(1e-6 + sizes / 1e9, 9e-6 + sizes / 4e9)


@given(st.data())
def test_a_size_fit_never_falls_and_stays_within_what_was_measured(data: st.DataObject) -> None:
    sizes = sorted(data.draw(SIZES))
    seconds = data.draw(st.lists(TIMES, min_size=len(sizes), max_size=len(sizes)))
    fit = SizeFit.of(sizes, seconds, curve)
    asked = np.geomspace(sizes[0], sizes[-1], 200)
    times = curve(asked) * fit.ratio(asked)
    assert np.all(np.diff(times) >= -ROUNDING * times[1:])
    assert times.min() >= min(seconds) * (1 - ROUNDING)
    assert times.max() <= max(seconds) * (1 + ROUNDING)


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=30))
def test_pooling_gives_the_nearest_sequence_that_never_falls(values: list[float]) -> None:
    found = never_falling(values)
    assert np.all(np.diff(found) >= -1e-12)
    assert found.mean() == pytest.approx(np.mean(values), abs=1e-9)
    assert np.array_equal(never_falling(sorted(values)), sorted(values)) or np.allclose(never_falling(sorted(values)), sorted(values))


def test_a_size_fit_meets_points_in_order_and_scales_the_curve_outside() -> None:
    fit = SizeFit.of([1e3, 1e6, 1e9], [3e-6, 2e-3, 4.0], curve)
    assert np.allclose(curve(np.array([1e3, 1e6, 1e9])) * fit.ratio([1e3, 1e6, 1e9]), [3e-6, 2e-3, 4.0])
    assert fit.ratio(1e12) == pytest.approx(float(fit.ratio(1e9)))
    assert fit.ratio(1.0) == pytest.approx(float(fit.ratio(1e3)))
    assert fit.is_inside(5e6)
    assert not fit.is_inside(2e9)
    assert fit.is_measured(1e6)
    assert not fit.is_measured(1.1e6)
    assert fit.deviation(1e6) < fit.deviation(3e7) < fit.deviation(1e12)


def test_repeated_sizes_count_with_their_median() -> None:
    fit = SizeFit.of([1e6, 1e6, 1e6], [1e-3, 1.1e-3, 9.0], curve)
    assert float(curve(np.array(1e6)) * fit.ratio(1e6)) == pytest.approx(1.1e-3)


def smooth(shapes: np.ndarray) -> np.ndarray:
    return 0.1 * np.log2(shapes[:, 0]) - 0.05 * np.log2(shapes[:, 2])


def grid() -> np.ndarray:
    sizes = 2.0 ** np.arange(6, 14, 2)
    return np.array([(m, n, k) for m in sizes for n in sizes for k in sizes])


def test_a_shape_fit_of_a_smooth_correction_is_met_between_points() -> None:
    shapes = grid()
    fit = ShapeFit.of(shapes, smooth(shapes))
    between = shapes[:-1] * np.sqrt(2)
    inside = fit.is_inside(between)
    assert np.max(np.abs(fit.log_ratio(between)[inside] - smooth(between)[inside])) < 0.08
    assert np.max(np.abs(fit.log_ratio(shapes) - smooth(shapes))) < 0.05
    assert fit.left_out_error < 0.08


def test_outside_the_box_the_correction_of_its_edge_stays() -> None:
    shapes = grid()
    fit = ShapeFit.of(shapes, smooth(shapes))
    edge, beyond = np.array([[4096.0, 256.0, 256.0]]), np.array([[2.0**20, 256.0, 256.0]])
    assert fit.log_ratio(beyond)[0] == pytest.approx(fit.log_ratio(edge)[0])
    assert not fit.is_inside(beyond)[0]


def test_the_deviation_is_small_at_points_and_grows_away_from_them() -> None:
    shapes = grid()
    noisy = smooth(shapes) + np.random.default_rng(0).normal(0, 0.05, len(shapes))
    fit = ShapeFit.of(shapes, noisy)
    at, far = fit.deviation(shapes[:1])[0], fit.deviation(np.array([[2.0**25, 2.0**25, 2.0**25]]))[0]
    assert at < far
    assert far == pytest.approx(max(np.sqrt(fit.variance), fit.left_out_error), rel=0.05)


def test_the_closed_form_of_left_out_errors_is_that_of_refitting() -> None:
    shapes = grid()[::3]
    values = smooth(shapes) + np.random.default_rng(1).normal(0, 0.1, len(shapes))
    fit = ShapeFit.of(shapes, values)
    nugget = next(
        ratio
        for ratio in (0.02, 0.1, 0.3)
        if np.allclose(
            np.linalg.inv(fit.inverse),
            np.exp(-np.linalg.norm(fit.points[:, None] - fit.points[None], axis=2) / fit.length) + ratio * np.eye(len(shapes)),
        )
    )
    others = np.arange(len(shapes)) != 5
    distance = np.linalg.norm(fit.points[others][:, None] - fit.points[others][None], axis=2)
    weights = np.linalg.solve(np.exp(-distance / fit.length) + nugget * np.eye(others.sum()), values[others] - fit.mean)
    near = np.exp(-np.linalg.norm(fit.points[others] - fit.points[5], axis=1) / fit.length)
    assert near @ weights + fit.mean - values[5] == pytest.approx(fit.left_out[5], abs=1e-9)


def test_one_point_is_a_fit() -> None:
    fit = ShapeFit.of([(64, 64, 64)], [0.3])
    assert fit.log_ratio(np.array([[1.0, 1e6, 3.0]]))[0] == pytest.approx(0.3)
