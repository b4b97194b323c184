"""From a search to a plan."""

from __future__ import annotations

from dataclasses import replace

import pytest

import autopar
from autopar.costmodel.estimate import memory_probability, memory_warnings
from autopar.costmodel.problem import Problem
from autopar.costmodel.spec.strategy import RankOrder, Strategy
from autopar.planning import SURE, runners_up, sure_enough
from autopar.request import build_problem
from autopar.search import Ranked


def ranked(strategy: Strategy, seconds: float) -> Ranked:
    return Ranked(strategy=strategy, step_time_seconds=seconds, peak_memory_bytes=1.0, tie=False)


def test_another_order_of_ranks_is_no_runner_up() -> None:
    first, second = Strategy(pipeline_parallel_size=2, data_parallel_size=4), Strategy(pipeline_parallel_size=4, data_parallel_size=2)
    turned = [replace(each, rank_order=RankOrder.TP_CP_PP_DP) for each in (first, second)]
    order = [ranked(first, 1.0), ranked(turned[0], 1.1), ranked(turned[1], 1.2), ranked(second, 1.3)]
    assert [each.strategy for each in runners_up(order, first)] == [turned[1]]
    assert [each.strategy for each in runners_up(order[1:], turned[0])] == [turned[1]]


def test_a_plan_has_as_many_runners_up_as_asked_for() -> None:
    plan = autopar.plan("gpt-1.2b", gpus=32, global_batch_size=64, minimum={"pp": 2}, top=4)
    told = [replace(each, rank_order=RankOrder.TP_CP_DP_PP) for each in (plan.strategy, *(each.strategy for each in plan.alternatives))]
    assert len(set(told)) == len(told) == 4


def with_memory(shares: list[tuple[float, float]]) -> tuple[Problem, list[Ranked]]:
    """A question with residuals, and strategies of (step seconds, share of the memory)."""
    problem, _ = build_problem("gpt-1.2b", gpus=8)
    capacity = problem.cluster.device.memory_bytes
    strategies = [
        Ranked(
            strategy=Strategy(data_parallel_size=8, micro_batch_size=place + 1),
            step_time_seconds=seconds,
            peak_memory_bytes=share * capacity,
            tie=False,
        )
        for place, (seconds, share) in enumerate(shares)
    ]
    return problem, strategies


@pytest.mark.parametrize(
    ("shares", "chosen"),
    [
        ([(1.0, 0.999), (1.003, 0.7)], 1),
        ([(1.0, 0.999), (1.001, 0.998), (1.002, 0.6), (1.003, 0.5)], 2),
        ([(1.0, 0.999), (1.019, 0.5)], 1),
        ([(1.0, 0.999), (1.021, 0.5)], 0),  # too slow to be worth the certainty
        ([(1.0, 0.7), (1.001, 0.5)], 0),  # sure already
        ([(1.0, 0.999), (1.001, 0.998)], 0),  # no other is surer
    ],
)
def test_hardly_slower_and_sure_to_fit_is_preferred(shares: list[tuple[float, float]], chosen: int) -> None:
    problem, strategies = with_memory(shares)
    found, note = sure_enough(problem, strategies)
    assert found is strategies[chosen]
    if chosen:
        assert strategies[0].strategy.describe() in note
        assert "faster and fits with probability" in note


def test_the_fastest_that_fits_surely_is_named_where_it_is_too_slow() -> None:
    problem, strategies = with_memory([(1.0, 0.999), (1.004, 0.998), (1.03, 0.5), (1.04, 0.4)])
    found, note = sure_enough(problem, strategies)
    assert found is strategies[0]
    assert note.startswith(f"memory: {strategies[2].strategy.describe()} is 3.0% slower and fits with probability 100%, this one with ")


@pytest.mark.parametrize("shares", [[(1.0, 0.7), (1.001, 0.5)], [(1.0, 0.999), (1.001, 0.998)]])
def test_nothing_is_said_of_the_sure_or_where_none_is_surer(shares: list[tuple[float, float]]) -> None:
    assert sure_enough(*with_memory(shares))[1] == ""


@pytest.mark.parametrize(("share", "warned"), [(0.7, False), (0.999, True)])
def test_memory_is_warned_of_where_it_may_not_suffice(share: float, warned: bool) -> None:
    problem, (strategy,) = with_memory([(1.0, share)])
    capacity = float(problem.cluster.device.memory_bytes)
    probability = memory_probability(problem, strategy.peak_memory_bytes, capacity)
    assert probability is not None
    assert bool(memory_warnings(probability)) == warned == (probability < SURE)


def test_without_residuals_the_fastest_is_taken() -> None:
    problem, strategies = with_memory([(1.0, 0.999), (1.001, 0.5)])
    assert sure_enough(replace(problem, residuals=None), strategies) == (strategies[0], "")


def test_what_was_passed_over_is_a_runner_up_and_said() -> None:
    plan = autopar.plan("llama3-405b", gpus=1024)
    assert plan.estimate.fit_probability is not None
    assert plan.estimate.fit_probability >= SURE
    (note,) = (each for each in plan.inputs.assumptions if each.startswith("memory:"))
    faster = [each for each in plan.alternatives if each.step_time_seconds < plan.estimate.step_time_seconds]
    assert faster
    assert all(each.tie for each in faster)
    assert faster[0].strategy.describe() in note
    assert plan.estimate.step_time_seconds <= faster[0].step_time_seconds * 1.02
