"""Another of a plan's strategies taken for its first."""

from __future__ import annotations

import pytest

import autopar
from autopar.costmodel.spec.errors import InvalidInputError
from autopar.costmodel.spec.plan import Plan
from autopar.costmodel.spec.strategy import Strategy
from autopar.io.plan_file import dump_plan, parse_plan
from autopar.plan_choice import choose, strategies


@pytest.fixture(scope="module")
def plan() -> Plan:
    return autopar.plan("gpt2", gpus=8, top=4)


def test_the_chosen_comes_first_and_nothing_is_lost(plan: Plan) -> None:
    second = strategies(plan, 2)[1]
    chosen = choose(plan, second)
    assert chosen.strategy == second
    assert chosen.estimate.step_time_seconds == pytest.approx(plan.alternatives[0].step_time_seconds)
    assert set(strategies(chosen, 9)) == set(strategies(plan, 9))
    assert chosen.alternatives[0].strategy == plan.strategy
    assert parse_plan(dump_plan(chosen)) == chosen


def test_the_first_stays_itself(plan: Plan) -> None:
    assert choose(plan, plan.strategy) is plan
    assert len(strategies(plan, 3)) == 3


def test_a_stranger_is_refused(plan: Plan) -> None:
    with pytest.raises(InvalidInputError, match="neither the plan's strategy"):
        choose(plan, Strategy(data_parallel_size=8, micro_batch_size=7))
