"""A diagnosis: causes come nearest to the measured step, gains are what the cost model says, nothing is told without a measurement."""

from __future__ import annotations

from functools import cache

import pytest

from autopar.costmodel.estimate import estimate
from autopar.costmodel.problem import Problem
from autopar.costmodel.spec.strategy import Recompute, Strategy
from autopar.diagnosis import diagnose
from autopar.request import build_problem
from autopar.search.feasibility import faults

SLOW = Strategy(tensor_parallel_size=8, sequence_parallel=True, data_parallel_size=8, recompute=Recompute.FULL)


@cache
def problem() -> Problem:
    """Llama 3 8B on 64 H100."""
    return build_problem("llama3-8b", gpus=64, global_batch_size=256)[0]


def test_without_a_measurement_there_are_changes_and_no_causes() -> None:
    found = diagnose(problem(), SLOW)
    assert (found.causes, found.terms, found.within_interval) == ((), (), None)
    now = estimate(problem(), SLOW).step_time_seconds
    for gain in (*found.one_change, *found.two_changes):
        again = estimate(problem(), gain.change.strategy)
        assert again.fits
        assert not faults(problem(), gain.change.strategy)
        assert gain.expected_seconds == pytest.approx(again.step_time_seconds, rel=1e-6)
        assert gain.saved_share == pytest.approx(1 - again.step_time_seconds / now, rel=1e-6)
        assert gain.saved_share > 0
    assert found.best == found.two_changes[0].change.strategy


@pytest.mark.parametrize("factor", [0.8, 1.05, 1.4, 3.0])
def test_causes_point_the_way_of_the_difference_and_come_nearest_first(factor: float) -> None:
    now = estimate(problem(), SLOW).step_time_seconds
    found = diagnose(problem(), SLOW, measured_seconds=now * factor)
    assert found.causes
    distances = [abs(cause.step_time_seconds - now * factor) for cause in found.causes]
    assert distances == sorted(distances)
    assert all((cause.step_time_seconds > now) == (factor > 1) for cause in found.causes)
    for term in found.terms:
        assert now - term.estimated_seconds + term.factor * term.estimated_seconds == pytest.approx(now * factor)
    for gain in found.one_change:
        assert gain.expected_seconds == pytest.approx(gain.change.step_time_seconds * factor)


def test_a_measurement_inside_the_interval_is_said_to_be_usual() -> None:
    now = estimate(problem(), SLOW)
    assert diagnose(problem(), SLOW, measured_seconds=now.step_time_seconds).within_interval is True
    assert diagnose(problem(), SLOW, measured_seconds=now.step_time_seconds * 10).within_interval is False


def test_a_run_that_forgot_to_overlap_is_found_out() -> None:
    """A step that takes as long as the estimate without overlap is explained by that cause, and wholly."""
    from dataclasses import replace

    plain = Strategy(data_parallel_size=64, recompute=Recompute.FULL)
    off = replace(problem(), framework=replace(problem().framework, data_overlap=0.0, param_gather_overlap=0.0, sharded_overlap=0.0))
    measured = estimate(off, plain).step_time_seconds
    cause = diagnose(problem(), plain, measured_seconds=measured).causes[0]
    assert "without overlap" in cause.cause
    assert cause.share_of_difference == pytest.approx(1)


def test_a_refused_strategy_is_told_what_would_run() -> None:
    found = diagnose(problem(), Strategy(sequence_parallel=True, data_parallel_size=64, recompute=Recompute.FULL))
    assert found.refused_by
    assert found.estimate is None
    assert found.one_change
