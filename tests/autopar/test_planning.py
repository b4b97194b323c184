"""From a search to a plan."""

from __future__ import annotations

from dataclasses import replace

import autopar
from autopar.costmodel.spec.strategy import RankOrder, Strategy
from autopar.planning import runners_up
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
