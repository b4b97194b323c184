"""Which unmeasured shapes could change the ranking."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autopar.api import plan
from autopar.catalog.measured import measured_profile
from autopar.costmodel.measured import Coverage
from autopar.costmodel.measurements import Measurements
from autopar.costmodel.problem import Problem
from autopar.costmodel.spec.measured import Kind
from autopar.costmodel.spec.strategy import Strategy
from autopar.doubtful import MAX_SHAPES, doubtful_shapes
from autopar.explanation import explain_strategy
from autopar.request import problem_of


@pytest.fixture(scope="module")
def asked() -> tuple[Problem, tuple[Strategy, ...]]:
    found = plan("llama3-8b", gpus=8, gpu="h200", profile="h200", global_batch_size=64)
    return problem_of(found), (found.strategy, *(other.strategy for other in found.alternatives))


def test_doubts_are_unmeasured_and_ranked(asked: tuple[Problem, tuple[Strategy, ...]]) -> None:
    problem, (best, *others) = asked
    found = doubtful_shapes(problem, best, others)
    assert 0 < len(found) <= MAX_SHAPES
    assert all(doubt.coverage is not Coverage.MEASURED for doubt in found)
    assert [doubt.swing for doubt in found] == sorted((doubt.swing for doubt in found), reverse=True)
    assert {doubt.against for doubt in found} <= {other.describe() for other in others}


def test_calls_of_a_step_are_no_longer_than_the_step(asked: tuple[Problem, tuple[Strategy, ...]]) -> None:
    problem, (best, *others) = asked
    products = [doubt for doubt in doubtful_shapes(problem, best, others) if doubt.kernel.startswith("gemm")]
    estimate = explain_strategy(problem, best).estimate
    assert estimate is not None
    assert all(doubt.seconds_a_step < estimate.step_time_seconds for doubt in products)


def test_a_kernel_that_was_never_measured_is_the_greater_doubt(asked: tuple[Problem, tuple[Strategy, ...]]) -> None:
    problem, (best, *others) = asked
    profile = measured_profile("h200")
    without = replace(profile, series=tuple(one for one in profile.series if one.kind is not Kind.GEMM))
    plain = doubtful_shapes(replace(problem, measured=Measurements(without)), best, others)
    known = doubtful_shapes(problem, best, others)
    worst, least = (max((d.swing for d in found if d.kernel.startswith("gemm")), default=0.0) for found in (plain, known))
    assert worst > 2 * least
    assert {d.coverage for d in plain if d.kernel.startswith("gemm")} == {Coverage.ANALYTIC}


def test_a_strategy_is_not_weighed_against_itself(asked: tuple[Problem, tuple[Strategy, ...]]) -> None:
    problem, (best, *_) = asked
    assert doubtful_shapes(problem, best, [best]) == ()


def test_without_a_measured_profile_nothing_is_doubted(asked: tuple[Problem, tuple[Strategy, ...]]) -> None:
    problem, (best, *_) = asked
    assert explain_strategy(replace(problem, measured=None), best).unmeasured == ()
