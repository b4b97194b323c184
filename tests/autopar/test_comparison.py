"""Comparing plans: the sums, the signs, what a token costs, and what is said not to be comparable."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import autopar
from autopar.api import build_problem, problem_of
from autopar.comparison import Comparison, Prices
from autopar.costmodel.problem import Problem
from autopar.costmodel.spec.errors import InvalidInputError, NoPlanError
from autopar.costmodel.spec.strategy import Recompute, Strategy

PROBLEM, _ = build_problem("gpt-1.2b", gpus=8, global_batch_size=64, sequence_length=2048)
LARGER, _ = build_problem("gpt-22b", gpus=16, gpu="a100-sxm4-80gb", global_batch_size=128, sequence_length=2048)
STRATEGIES = (
    Strategy(data_parallel_size=8),
    Strategy(tensor_parallel_size=2, sequence_parallel=True, data_parallel_size=4),
    Strategy(pipeline_parallel_size=4, data_parallel_size=2, micro_batch_size=2),
    Strategy(tensor_parallel_size=8, sequence_parallel=True, recompute=Recompute.FULL),
)


def side_by_side(*strategies: Strategy, problem: Problem = PROBLEM, **prices: object) -> Comparison:
    return autopar.compare([(problem, strategy) for strategy in strategies], **prices)


@given(chosen=st.lists(st.sampled_from(STRATEGIES), min_size=2, max_size=5))
def test_changes_of_the_terms_add_up_to_the_change_of_the_whole(chosen: list[Strategy]) -> None:
    found = side_by_side(*chosen)
    first = found.plans[0].estimate
    for index, plan in enumerate(found.plans):
        assert math.fsum(one.values[index] for one in found.time) == pytest.approx(plan.estimate.step_time_seconds, rel=1e-9)
        moved = math.fsum(one.changes[index] for one in found.time)
        assert moved == pytest.approx(plan.estimate.step_time_seconds - first.step_time_seconds, abs=1e-9)
        grown = math.fsum(one.changes[index] for one in found.memory)
        assert grown == pytest.approx(plan.estimate.peak_memory_bytes - first.peak_memory_bytes, abs=64)


@given(one=st.sampled_from(STRATEGIES), other=st.sampled_from(STRATEGIES))
def test_swapping_two_plans_swaps_the_signs(one: Strategy, other: Strategy) -> None:
    there, back = side_by_side(one, other), side_by_side(other, one)
    forth = {movement.term: movement.changes[1] for movement in there.time}
    assert {movement.term: -movement.changes[1] for movement in back.time} == pytest.approx(forth)
    assert (1 + there.plans[1].slower_than_first) * (1 + back.plans[1].slower_than_first) == pytest.approx(1)


def test_a_plan_beside_itself_differs_in_nothing() -> None:
    found = side_by_side(STRATEGIES[0], STRATEGIES[0])
    assert found.differences == ()
    assert all(set(one.changes) == {0.0} for one in (*found.time, *found.memory))
    assert found.plans[1].slower_than_first == 0


def test_fields_that_differ_are_told_by_their_short_names() -> None:
    found = side_by_side(STRATEGIES[0], STRATEGIES[2])
    assert {each.field: each.values for each in found.differences} == {"pp": ("1", "4"), "dp": ("8", "2"), "mbs": ("1", "2")}


def test_costs_follow_from_price_and_tokens() -> None:
    found = side_by_side(*STRATEGIES[:2], price_per_gpu_hour=[2.0, 4.0], tokens=1e12)
    for plan, price in zip(found.plans, (2.0, 4.0), strict=True):
        per_second = 64 * 2048 / plan.estimate.step_time_seconds
        assert plan.tokens_per_second == pytest.approx(per_second)
        assert plan.gpu_hours_per_million_tokens == pytest.approx(8 * 1e6 / per_second / 3600)
        assert plan.cost_per_million_tokens == pytest.approx(price * plan.gpu_hours_per_million_tokens)
        assert plan.budget is not None
        assert plan.budget.days == pytest.approx(1e12 / per_second / 86400)
        assert plan.budget.gpu_hours == pytest.approx(plan.budget.days * 24 * 8)
        assert plan.budget.cost == pytest.approx(plan.budget.gpu_hours * price)


def test_no_price_no_cost() -> None:
    plain = side_by_side(*STRATEGIES[:2])
    assert [(plan.price_per_gpu_hour, plan.cost_per_million_tokens, plan.budget) for plan in plain.plans] == [(None, None, None)] * 2
    budget = side_by_side(*STRATEGIES[:2], tokens=1e9).plans[0].budget
    assert budget is not None
    assert budget.cost is None


def test_other_models_and_clusters_are_compared_by_the_token_and_said_to_differ() -> None:
    large = Strategy(tensor_parallel_size=8, sequence_parallel=True, data_parallel_size=2)
    found = autopar.compare([(PROBLEM, STRATEGIES[0]), (LARGER, large)])
    assert found.time_per == "million tokens"
    for index, plan in enumerate(found.plans):
        seconds = math.fsum(one.values[index] for one in found.time)
        assert seconds == pytest.approx(1e6 / plan.tokens_per_second, rel=1e-9)
    notes = "\n".join(found.notes)
    for part in ("different models (gpt-1.2b, gpt-22b)", "different GPUs", "numbers of GPUs (8, 16)", "different batches"):
        assert part in notes
    assert "sequence lengths" not in notes


def test_a_close_call_is_said_to_be_one() -> None:
    gap = PROBLEM.residuals.resolvable_gap if PROBLEM.residuals else 0
    found = side_by_side(*STRATEGIES)
    close = [plan.label for plan in found.plans[1:] if 0 < abs(plan.slower_than_first) < gap]
    assert any(note.startswith(", ".join(close)) for note in found.notes) is bool(close)


def test_what_does_not_fit_is_never_the_fastest() -> None:
    small, _ = build_problem("gpt-22b", gpus=8, global_batch_size=64, sequence_length=2048)
    fits = Strategy(tensor_parallel_size=8, sequence_parallel=True, recompute=Recompute.FULL)
    too_large = Strategy(data_parallel_size=8)
    found = side_by_side(too_large, fits, problem=small)
    assert [plan.estimate.fits for plan in found.plans] == [False, True]
    assert found.fastest == 1
    assert any(note.startswith("A does not fit") for note in found.notes)
    assert side_by_side(fits, too_large, problem=small).slower_than(10.0)[0].label == "B"


def test_slower_is_strictly_more_than_the_share() -> None:
    found = side_by_side(STRATEGIES[0], STRATEGIES[2])
    share = found.plans[1].slower_than_first
    assert share > 0
    assert found.slower_than(share) == ()
    assert [plan.label for plan in found.slower_than(share * 0.99)] == ["B"]


def test_a_file_is_estimated_anew_and_a_change_is_told() -> None:
    plan = autopar.plan("gpt-1.2b", gpus=8, top=1)
    stale = replace(plan, estimate=replace(plan.estimate, step_time_seconds=plan.estimate.step_time_seconds * 1.1), autopar_version="0.0.9")
    found = autopar.compare([plan, stale])
    assert found.plans[1].slower_than_first == 0
    assert any(note.startswith("B: the file says") and "0.0.9" in note for note in found.notes)


def test_one_plan_is_too_few_and_prices_have_to_match() -> None:
    with pytest.raises(InvalidInputError, match="2 to 26 plans"):
        side_by_side(STRATEGIES[0])
    with pytest.raises(InvalidInputError, match="3 prices"):
        side_by_side(*STRATEGIES[:2], price_per_gpu_hour=[1, 2, 3])


def test_refused_strategies_are_all_told() -> None:
    bad = [Strategy(tensor_parallel_size=8, sequence_parallel=True, data_parallel_size=2), Strategy(data_parallel_size=4)]
    with pytest.raises(NoPlanError) as caught:
        side_by_side(STRATEGIES[0], *bad)
    assert str(caught.value).count("this strategy is refused") == 2


def test_the_question_of_a_plan_is_its_own() -> None:
    plan = autopar.plan("gpt-1.2b", gpus=8, top=1)
    assert autopar.compare([plan, (problem_of(plan), plan.strategy)]).differences == ()
    assert Prices().per_gpu_hour == ()
