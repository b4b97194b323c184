"""The estimator: synthetic rows made with known constants."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.costmodel.calibrate import Predict, Prior, cross_validated, enough, fit, sensitivity
from autopar.costmodel.columns import Floats

PRIOR = Prior(
    start=np.array([0.7, 0.8, 0.5]),
    deviation=np.array([0.12, 0.2, 0.25]),
    low=np.array([0.02, 0.02, 0.0]),
    high=np.array([1.0, 1.0, 1.0]),
    logarithmic=np.array([True, True, False]),
)
TRUTH = np.array([0.6, 0.95, 0.9])


def world(rows: int, seed: int = 0) -> Predict:
    """Steps of a compute part, a memory part and a transfer, of which a fraction is hidden."""
    parts = np.random.default_rng(seed).uniform(0.1, 1.0, size=(rows, 3))

    def predict(values: Floats) -> Floats:
        compute, memory, hidden = values[:, :1], values[:, 1:2], values[:, 2:]
        return np.log(parts[:, 0] / compute + parts[:, 1] / memory + parts[:, 2] * (1 - hidden))

    return predict


def distance(predict: Predict, measured: Floats, **options: float) -> float:
    found = fit(predict, measured, PRIOR, **options)
    return float(np.linalg.norm(PRIOR.shifts(found) - PRIOR.shifts(TRUTH)))


def test_known_constants_are_recovered() -> None:
    predict = world(300)
    found = fit(predict, predict(TRUTH[np.newaxis])[0], PRIOR)
    assert found == pytest.approx(TRUTH, rel=0.05)
    exact = fit(predict, predict(TRUTH[np.newaxis])[0], PRIOR, noise=1e-3)
    assert exact == pytest.approx(TRUTH, rel=1e-3)


def test_the_catalog_is_a_fixed_point() -> None:
    predict = world(30)
    assert fit(predict, predict(PRIOR.start[np.newaxis])[0], PRIOR) == pytest.approx(PRIOR.start, rel=1e-6)


@given(rows=st.integers(2, 40), seed=st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_more_rows_of_the_same_truth_come_closer(rows: int, seed: int) -> None:
    few, many = world(rows, seed), world(rows, seed)
    truth = few(TRUTH[np.newaxis])[0]

    def repeated(values: Floats) -> Floats:
        return np.tile(many(values), 4)

    assert distance(repeated, np.tile(truth, 4)) <= distance(few, truth) + 5e-3


@given(noise=st.floats(0.02, 1.0), seed=st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_a_stronger_prior_moves_less(noise: float, seed: int) -> None:
    predict = world(8, seed)
    truth = predict(TRUTH[np.newaxis])[0]
    shifts = [np.linalg.norm(PRIOR.shifts(fit(predict, truth, PRIOR, noise=level))) for level in (noise, 2 * noise)]
    assert shifts[1] <= shifts[0] + 5e-3


def test_one_odd_row_does_not_decide() -> None:
    predict = world(40)
    measured = predict(TRUTH[np.newaxis])[0]
    odd = measured.copy()
    odd[3] += np.log(5)
    moved = np.abs(PRIOR.shifts(fit(predict, odd, PRIOR)) - PRIOR.shifts(fit(predict, measured, PRIOR)))
    assert moved.max() < 0.25


def test_a_row_of_no_weight_is_not_there() -> None:
    predict = world(6)
    measured = predict(TRUTH[np.newaxis])[0]
    spoiled = measured.copy()
    spoiled[0] += 3
    weights = np.array([0.0, 1, 1, 1, 1, 1])
    assert fit(predict, spoiled, PRIOR, weights=weights) == pytest.approx(fit(predict, measured, PRIOR, weights=weights))


def test_constants_stay_in_their_range() -> None:
    predict = world(200)
    measured = predict(PRIOR.start[np.newaxis])[0] - 1.5  # faster than any constant allows
    found = fit(predict, measured, PRIOR)
    assert (found <= PRIOR.high + 1e-12).all()
    assert found[2] == pytest.approx(1.0)


def test_what_the_rows_do_not_hear_stays() -> None:
    predict = world(20)

    def deaf(values: Floats) -> Floats:
        return predict(np.concatenate([values[:, :2], np.full((len(values), 1), 0.5)], axis=1))

    heard = sensitivity(deaf, PRIOR)
    assert heard[2] == 0
    assert (heard[:2] > 0).all()
    found = fit(deaf, predict(TRUTH[np.newaxis])[0], PRIOR)
    assert found[2] == PRIOR.start[2]


@pytest.mark.parametrize(("rows", "scheme"), [(12, "leave one out"), (40, "5 folds")])
def test_cross_validation_sees_the_gain(rows: int, scheme: str) -> None:
    predict = world(rows)
    jitter = np.random.default_rng(1).normal(0, 0.02, rows)
    result = cross_validated(predict, predict(TRUTH[np.newaxis])[0] + jitter, PRIOR, np.arange(rows))
    assert result.scheme == scheme
    assert result.after < 0.6 * result.before
    assert result.after == pytest.approx(np.abs(result.errors_after).mean())


def test_cross_validation_sees_no_gain_in_noise() -> None:
    predict = world(16)
    noise = np.random.default_rng(2).normal(0, 0.05, 16)
    result = cross_validated(predict, predict(PRIOR.start[np.newaxis])[0] + noise, PRIOR, np.arange(16))
    assert result.after > 0.9 * result.before


def test_repeats_of_one_configuration_are_left_out_together() -> None:
    """Each configuration is off in its own way, which no constant describes: only a copy of a row would give it away."""
    groups = np.repeat(np.arange(4), 5)
    own = np.repeat(np.random.default_rng(3).normal(0, 0.3, 4), 5)
    base = world(4)

    def predict(values: Floats) -> Floats:
        return np.repeat(base(values), 5, axis=1)

    measured = predict(PRIOR.start[np.newaxis])[0] + own
    together = cross_validated(predict, measured, PRIOR, groups)
    assert together.scheme == "leave one configuration out"
    assert together.after > cross_validated(predict, measured, PRIOR, np.arange(20)).after


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ([0, 1, 2], "3 rows of 3 configurations cannot"),
        ([0], "1 row of 1 configuration cannot"),
        ([0] * 9, "9 rows of 1 configuration cannot"),
        ([0, 1, 0, 1], ""),
    ],
)
def test_too_few_rows_are_refused(groups: list[int], said: str) -> None:
    assert enough(groups).startswith(said)
    assert bool(enough(groups)) is bool(said)


@given(st.lists(st.floats(-2, 2), min_size=3, max_size=3))
def test_shifts_are_the_inverse_of_values(shift: list[float]) -> None:
    values = PRIOR.values(np.array(shift))
    assert PRIOR.values(PRIOR.shifts(values)) == pytest.approx(values)
