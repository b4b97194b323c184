"""The search over strategies that somebody names, against the estimate of each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autopar.costmodel.estimate import estimate
from autopar.costmodel.spec.strategy import Strategy
from autopar.search import Constraints, enumerate_space, feasibility, search, search_among
from autopar.search.solve import PROVEN


def test_ranks_as_the_search_over_everything(make_problem):
    problem = make_problem(gpus=4)
    slices = [*enumerate_space(problem, Constraints())]
    everything = [rows.strategy(row) for rows in slices for row in range(len(rows))]
    found, whole = search_among(problem, everything), search(problem)
    assert found.ranked == whole.ranked
    assert found.summary.evaluated == len(everything) > 50
    assert found.summary.optimality == "proven over the strategies named" != PROVEN


def test_times_are_those_of_the_estimate(make_problem):
    problem = make_problem(gpus=8, batch=32)
    named = [Strategy(data_parallel_size=8), Strategy(pipeline_parallel_size=2, data_parallel_size=4, micro_batch_size=2)]
    ranked = search_among(problem, named).ranked
    times = sorted((estimate(problem, each).step_time_seconds, each.describe()) for each in named)
    assert [(each.step_time_seconds, each.strategy.describe()) for each in ranked] == [(pytest.approx(t), name) for t, name in times]


def test_what_is_refused_is_counted_by_rule_and_each_strategy_is_looked_at_once(make_problem):
    problem = make_problem(gpus=8)
    good = Strategy(data_parallel_size=8)
    named = [good, good, Strategy(data_parallel_size=4), Strategy(tensor_parallel_size=8, zero_stage=3), Strategy(data_parallel_size=2)]
    summary = search_among(problem, named).summary
    assert summary.rejected == {"world_size": 2, "zero_stage": 1}
    assert summary.evaluated == 1


def test_says_why_nothing_is_left(make_problem):
    problem = make_problem(gpus=8)
    refused = search_among(problem, [Strategy(data_parallel_size=4)])
    assert refused.best is None
    assert refused.refused_by == feasibility.faults(problem, Strategy(data_parallel_size=4)) != ()
    small = replace(problem, cluster=replace(problem.cluster, device=replace(problem.cluster.device, memory_bytes=2**32)))
    too_large = search_among(small, [Strategy(data_parallel_size=8), Strategy(data_parallel_size=8, zero_stage=0)])
    assert too_large.best is None
    assert too_large.refused_by == ()
    assert too_large.summary.rejected == {feasibility.MEMORY: 2}
    assert [each.strategy.zero_stage for each in too_large.nearest_misses] == [1, 0]


def test_nothing_named_is_an_empty_answer(make_problem):
    found = search_among(make_problem(gpus=8), [])
    assert (found.best, found.ranked, found.summary.evaluated, found.refused_by) == (None, (), 0, ())
