"""The matrix game against its own optimality conditions, and against a linear programme solved by somebody else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.search.weighting import best_weights


@given(rows=st.integers(1, 30), columns=st.integers(1, 12), seed=st.integers(0, 2**32 - 1), diagonal=st.sampled_from([0.0, 1.0, 50.0]))
@settings(max_examples=150)
def test_weights_and_shares_answer_each_other(rows: int, columns: int, seed: int, diagonal: float) -> None:
    game = 0.1 + np.random.default_rng(seed).random((rows, columns))
    game += diagonal * (np.arange(rows)[:, None] % columns == np.arange(columns))
    weights, shares = best_weights(game)
    assert (weights >= 0).all()
    assert (shares >= 0).all()
    assert weights.sum() == pytest.approx(1.0)
    assert shares.sum() == pytest.approx(1.0)
    # no row does better against the shares, no column against the weights: neither has anything to gain
    assert float((weights @ game).min()) == pytest.approx(float((game @ shares).max()), rel=1e-7)


def test_against_a_linear_programme() -> None:
    optimize = pytest.importorskip("scipy.optimize")
    game = 1.0 + np.random.default_rng(7).random((40, 16))
    ones, limit = np.append(np.zeros(16), 1.0), np.append(np.ones(16), 0.0)[None]
    found = optimize.linprog(ones, A_ub=np.c_[game, -np.ones(40)], b_ub=np.zeros(40), A_eq=limit, b_eq=[1.0])
    weights, _ = best_weights(game)
    assert float((weights @ game).min()) == pytest.approx(found.fun, rel=1e-9)


def test_equal_rows_and_a_dominated_one() -> None:
    weights, shares = best_weights(np.array([[2.0, 1.0], [1.0, 2.0], [0.5, 0.5]]))
    np.testing.assert_allclose(weights, [0.5, 0.5, 0.0], atol=1e-9)
    np.testing.assert_allclose(shares, [0.5, 0.5], atol=1e-9)
