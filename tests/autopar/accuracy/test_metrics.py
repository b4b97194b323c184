"""Error, rank and regret figures against hand-computed values and against scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau, rankdata, spearmanr

from autopar.accuracy.metrics import ErrorSummary, average_ranks, kendall, pairs_ordered, ranking, spearman

COLUMN = st.lists(st.integers(1, 6), min_size=2, max_size=14)


def columns(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)


def test_errors_by_hand() -> None:
    found = ErrorSummary.of([0.1, -0.2, 0.3, -0.4])
    assert (found.rows, found.mean_absolute_error, found.median_absolute_error) == (4, pytest.approx(0.25), pytest.approx(0.25))
    assert found.p90_absolute_error == pytest.approx(0.37)  # 0.3 + 0.7 x (0.4 - 0.3)
    assert found.bias == pytest.approx(-0.05)


def test_no_rows_have_no_figures() -> None:
    found = ErrorSummary.of([])
    assert found.rows == 0
    assert {found.mean_absolute_error, found.median_absolute_error, found.p90_absolute_error, found.bias} == {None}


@given(COLUMN)
def test_ranks_are_scipys(values: list[int]) -> None:
    assert average_ranks(columns(*values)) == pytest.approx(rankdata(values))


@given(st.data())
def test_correlations_are_scipys_ties_and_all(data: st.DataObject) -> None:
    one = data.draw(COLUMN)
    other = data.draw(st.lists(st.integers(1, 6), min_size=len(one), max_size=len(one)))
    found = spearman(columns(*one), columns(*other)), kendall(columns(*one), columns(*other))
    if len(set(one)) == 1 or len(set(other)) == 1:
        assert found == (None, None)
    else:
        assert found == (pytest.approx(spearmanr(one, other).statistic), pytest.approx(kendalltau(one, other).statistic))


def test_only_pairs_that_differ_by_more_than_5_percent_are_asked() -> None:
    measured = columns(1.00, 1.04, 2.00, 2.08)  # 1.04 and 2.08 lie within 5 % of their neighbours
    assert pairs_ordered(measured, columns(1, 0, 3, 2)) == 1.0
    assert pairs_ordered(measured, columns(1, 2, 1.5, 3)) == pytest.approx(3 / 4)
    assert pairs_ordered(measured, columns(1, 1, 1, 1)) == 0.0
    assert pairs_ordered(columns(1, 1.01, 1.02), columns(3, 2, 1)) is None


def test_regret_is_the_time_lost_by_trusting_the_prediction() -> None:
    found = ranking("set", columns(10, 11, 12), columns(2, 1, 3))
    assert found.regret == pytest.approx(0.1)
    assert found.spearman == pytest.approx(0.5)
    assert found.kendall == pytest.approx(1 / 3)
    assert ranking("set", columns(10, 11, 12), columns(1, 2, 3)).regret == 0


def test_a_tie_for_the_first_place_costs_the_mean_whatever_the_order() -> None:
    one = ranking("set", columns(10, 12, 20), columns(1, 1, 2))
    other = ranking("set", columns(12, 10, 20), columns(1, 1, 2))
    assert one.regret == other.regret == pytest.approx(0.1)


@given(st.lists(st.tuples(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6)), min_size=2, max_size=12))
def test_figures_stay_in_range_and_order_does_not_matter(pairs: list[tuple[float, float]]) -> None:
    measured, predicted = np.array(pairs).T
    found = ranking("set", measured, predicted)
    back = ranking("set", measured[::-1], predicted[::-1])
    assert found.regret >= -1e-12
    assert math.isfinite(found.regret)
    assert all(value is None or -1 <= value <= 1 for value in (found.spearman, found.kendall))
    assert found.pairwise is None or 0 <= found.pairwise <= 1
    assert (back.kendall, back.pairwise) == (found.kendall, found.pairwise)
    assert back.regret == pytest.approx(found.regret)
