"""The runtime's benchmarks: what they choose and how they sum up; the figures are for a quiet machine."""

from __future__ import annotations

import pytest

from autopar.costmodel.spec.estimate import Estimate
from benchmarks.runtime import loop, overhead
from benchmarks.runtime.timing import Turn


def test_the_loop_runs_the_best_and_some_bad_strategies_of_its_plan() -> None:
    plan = loop.make_plan(None, None)
    tried = loop.chosen(plan)
    places = [place for place, _, _ in tried]
    seconds = [predicted for _, _, predicted in tried]
    assert len(tried) == loop.BEST + loop.BAD
    assert places == sorted(set(places))
    assert seconds == sorted(seconds)
    assert seconds[-1] > 1.2 * seconds[0]
    assert isinstance(plan.estimate, Estimate)
    assert all(strategy.world_size == 2 for _, strategy, _ in tried)


def test_the_loop_is_judged_by_error_and_regret() -> None:
    def tried(predicted: float, measured: float) -> loop.Tried:
        return loop.Tried(rank=1, strategy="", predicted_seconds=predicted, measured_seconds=measured, spread=0.0)

    result = loop.Loop(profile="", candidates=3, tried=(tried(1.1, 1.0), tried(1.2, 1.5), tried(2.0, 0.8)))
    assert result.mean_error == pytest.approx((0.1 + 0.2 + 1.5) / 3)
    assert result.regret == pytest.approx(0.25)


def test_overhead_is_the_median_of_ratios_within_rounds() -> None:
    def turns(*seconds: float) -> list[Turn]:
        return [Turn(seconds=each, cpu_seconds=2 * each) for each in seconds]

    result = overhead._compare("pipeline", "torch", turns(1.0, 2.2, 3.0), turns(1.0, 2.0, 4.0), 0.0)
    assert result.overhead == pytest.approx(0.0)
    assert result.cpu_overhead == pytest.approx(0.0)
    assert result.engine_seconds == 2.2
