"""Error bars: coverage by simulation, regimes that give way, and what pairs can be told apart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar.costmodel.estimate import estimate
from autopar.costmodel.intervals import Sample, bounds, fit_probability, regime_of, resolvable_gap, sample, step_time_interval
from autopar.costmodel.spec.residuals import FIELDS, Regime, ResidualGroup, ResidualTable, words
from autopar.costmodel.spec.strategy import Strategy
from autopar.request import build_problem
from autopar.search.solve import TIE, tie_gap

DENSE = Regime(device_measured=True, mixture_of_experts=False, low_precision=False, many_nodes=False)
residuals = st.lists(st.floats(-1, 1), min_size=20, max_size=80).map(lambda values: np.sort(values))


def group(count: int, *, seed: int = 0, scale: float = 0.1, family: str = "f", **regime: bool) -> ResidualGroup:
    values = np.random.default_rng(seed).normal(0, scale, count)
    return ResidualGroup(family=family, regime=replace(DENSE, **regime), values=tuple(values.tolist()))


@pytest.mark.parametrize("count", [20, 39, 100])
def test_a_new_row_is_inside_as_often_as_promised(count: int) -> None:
    """Whatever the distribution: a skewed one, many times over."""
    rng = np.random.default_rng(count)
    draws = rng.exponential(0.2, (4000, count + 1)) - 0.1
    inside = 0
    for row in draws:
        low, high = bounds(np.sort(row[:-1]))
        inside += low <= row[-1] <= high
    assert inside / len(draws) == pytest.approx(0.9, abs=0.02)


def test_the_finite_sample_correction() -> None:
    assert bounds(np.arange(1, 20.0)) == (1.0, 19.0)  # 19 rows leave one twentieth on either side of them all
    assert bounds(np.arange(1, 40.0)) == (2.0, 38.0)
    assert bounds(np.array([1.0, 2.0])) == (1.0, 2.0)


@given(residuals, st.floats(0.5, 0.98), st.floats(0.01, 0.4))
def test_more_coverage_is_never_narrower(values: np.ndarray, coverage: float, more: float) -> None:
    low, high = bounds(values, coverage)
    wider_low, wider_high = bounds(values, min(coverage + more, 0.999))
    assert wider_low <= low <= high <= wider_high


@given(residuals, st.floats(1e-3, 1e4))
def test_the_interval_holds_the_prediction(values: np.ndarray, seconds: float) -> None:
    found = step_time_interval(seconds, Sample(values=values, basis="b"))
    assert found.low <= seconds <= found.high


def test_a_regime_gives_up_its_last_properties_first() -> None:
    groups = [group(15), group(15, many_nodes=True), group(30, low_precision=True), group(200, device_measured=False)]
    found = sample(groups, DENSE)
    assert found is not None
    assert found.basis == "30 measured runs: device measured, dense, 16-bit"
    assert len(found.values) == 30
    moe = sample(groups, replace(DENSE, mixture_of_experts=True))
    assert moe is not None
    assert moe.basis == "60 measured runs: device measured"
    exact = sample([*groups, group(5)], DENSE)
    assert exact is not None
    assert exact.basis.endswith("one node")


def test_no_ground_no_interval() -> None:
    assert sample([group(19)], DENSE) is None
    assert sample([], DENSE) is None
    assert words(DENSE, ()) == "all runs"
    assert len(words(DENSE, FIELDS).split(", ")) == 4


@given(residuals, st.floats(1e9, 2e11), st.floats(1.0, 1.5))
def test_more_memory_never_fits_less(values: np.ndarray, predicted: float, factor: float) -> None:
    capacity = 80e9
    one, other = fit_probability(predicted, capacity, values), fit_probability(predicted, capacity * factor, values)
    assert 0 <= one <= other <= 1
    assert fit_probability(predicted * factor, capacity, values) <= one + 1e-12


def test_probability_of_fit_is_the_share_of_runs() -> None:
    values = np.sort(np.random.default_rng(0).normal(0, 0.1, 2000))
    assert fit_probability(80e9, 80e9, values) == pytest.approx(0.5, abs=0.03)
    assert fit_probability(80e9 / np.exp(0.1), 80e9, values) == pytest.approx(0.84, abs=0.03)
    assert fit_probability(20e9, 80e9, values) > 0.999
    assert fit_probability(160e9, 80e9, values) < 0.001
    assert fit_probability(70e9, 80e9, np.zeros(30)) == pytest.approx(1.0)
    assert fit_probability(0.0, 80e9, values) == 1.0


def test_the_gap_where_order_becomes_reliable() -> None:
    """Predictions wrong by a known noise: the gap is that at which its order is wrong one time in ten."""
    rng = np.random.default_rng(0)
    gaps = rng.uniform(0, 0.3, 40_000)
    noise = rng.normal(0, 0.05, len(gaps))
    found = resolvable_gap(gaps, (np.log1p(gaps) + noise < 0).astype(float), np.ones(len(gaps)))
    assert np.log1p(found) == pytest.approx(1.2816 * 0.05, rel=0.1)


def test_gaps_at_the_extremes() -> None:
    gaps, one = np.array([0.01, 0.1, 0.3]), np.ones(3)
    assert resolvable_gap(gaps, np.zeros(3), one) == 0.01
    assert resolvable_gap(gaps, np.ones(3), one) == 0.3
    assert resolvable_gap(gaps, np.array([1.0, 0.0, 0.0]), one) == 0.1
    assert resolvable_gap(gaps, np.array([1.0, 0.0, 0.0]), np.array([0.0001, 1, 1])) == 0.1


def test_an_estimate_carries_its_error_bar() -> None:
    problem, _ = build_problem("gpt-1.2b", gpus=8, gpu="a100-sxm4-80gb")
    strategy = Strategy(data_parallel_size=8)
    table = ResidualTable(step_time=(group(100, scale=0.05),), memory=(group(40, scale=0.1),), resolvable_gap=0.07, left_out="nothing")
    known = estimate(replace(problem, residuals=table), strategy)
    interval = known.step_time_interval
    assert interval is not None
    assert interval.low / known.step_time_seconds == pytest.approx(np.exp(-1.645 * 0.05), abs=0.03)
    assert interval.high / known.step_time_seconds == pytest.approx(np.exp(1.645 * 0.05), abs=0.03)
    assert interval.coverage == 0.9
    assert known.fit_probability == fit_probability(known.peak_memory_bytes, known.memory_capacity_bytes, np.sort(table.memory[0].values))
    bare = estimate(replace(problem, residuals=None), strategy)
    assert (bare.step_time_interval, bare.fit_probability) == (None, None)
    assert bare.step_time_seconds == known.step_time_seconds


def test_doubt_about_memory_is_said() -> None:
    problem, _ = build_problem("gpt-1.2b", gpus=8, gpu="a100-sxm4-80gb")
    strategy = Strategy(data_parallel_size=8)
    peak = estimate(problem, strategy).peak_memory_bytes
    table = ResidualTable(step_time=(), memory=(group(100, scale=0.1),), resolvable_gap=0.07, left_out="nothing")
    said = []
    for capacity in (peak / 2, peak * 1.05, peak * 2):
        device = replace(problem.cluster.device, memory_bytes=int(capacity))
        tight = replace(problem, residuals=table, cluster=replace(problem.cluster, device=device))
        found = estimate(tight, strategy)
        said.append(any("with probability" in warning for warning in found.warnings))
        assert found.step_time_interval is None
    assert said == [False, True, False]


def test_regimes_of_problems() -> None:
    one, _ = build_problem("llama3-8b", gpus=8, gpu="h100-sxm5-80gb")
    assert regime_of(one) == DENSE
    many, _ = build_problem("mixtral-8x7b", gpus=64, gpu="h100-sxm5-80gb", precision="fp8")
    assert regime_of(many) == Regime(device_measured=True, mixture_of_experts=True, low_precision=True, many_nodes=True)


def test_ties_follow_the_measured_pairs() -> None:
    problem, _ = build_problem("gpt-1.2b", gpus=8)
    assert problem.residuals is not None
    assert tie_gap(problem) == problem.residuals.resolvable_gap
    assert tie_gap(replace(problem, residuals=None)) == TIE
