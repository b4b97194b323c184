"""The search against a loop over every strategy with ``estimate``."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autopar.costmodel.columns import RECOMPUTES, StrategyColumns
from autopar.costmodel.estimate import estimate
from autopar.costmodel.inputs import Inputs
from autopar.costmodel.memory import least_state_bytes
from autopar.costmodel.pipeline_shape import lighter_split
from autopar.costmodel.problem import Problem
from autopar.costmodel.spec.strategy import PipelineSchedule, RankOrder, Recompute, Strategy, split_text
from autopar.costmodel.step import evaluate, peak_memory_bytes
from autopar.request import resized
from autopar.search import Constraints, enumerate_space, feasibility, search, smallest_cluster
from autopar.search.progress import Watch
from autopar.search.result import simplicity
from autopar.search.solve import tie_gap

CLOSE = pytest.approx


def _sizes(limit: int) -> list[int]:
    return [size for size in range(1, limit + 1) if limit % size == 0]


def _loop(problem: Problem) -> list[Strategy]:
    """Every strategy of a small problem that the rules and the preferences accept, recomputation included."""
    gpus, model = problem.cluster.num_gpus, problem.model
    experts = _sizes(model.moe.num_experts) if model.moe else [1]
    chunks = range(1, model.num_layers + 1)
    micro = _sizes(problem.training.global_batch_size)
    grid = itertools.product(_sizes(gpus), (False, True), _sizes(gpus), _sizes(gpus), experts, (1, 2, 4, 8), chunks, PipelineSchedule)
    rows = [
        Strategy(
            tensor_parallel_size=tp, sequence_parallel=sp, pipeline_parallel_size=pp, context_parallel_size=cp, expert_parallel_size=ep,
            expert_tensor_parallel_size=etp, virtual_pipeline_stages=v, pipeline_schedule=kind, data_parallel_size=gpus // (tp * pp * cp),
        )
        for tp, sp, pp, cp, ep, etp, v, kind in grid if gpus % (tp * pp * cp) == 0
    ]  # fmt: skip
    # Of the axes below, only the batch and the sharding rules speak, which are asked again of the finished rows.
    rows = _accepted(problem, rows, without=("zero_stage", "schedule_microbatches"))
    zero, orders = problem.framework.zero_stages, RankOrder
    rows = [replace(r, zero_stage=z, micro_batch_size=m, rank_order=o) for r, z, m, o in itertools.product(rows, zero, micro, orders)]
    rows = _accepted(problem, rows)
    tastes = [preference.mask(problem, StrategyColumns.of(rows)) for preference in feasibility.PREFERENCES]
    liked = [row for row, ok in zip(rows, np.all(tastes, axis=0), strict=True) if ok]
    return [choice for row in liked for choice in _split_choices(problem, row)]


def _split_choices(problem: Problem, row: Strategy) -> list[Strategy]:
    """The even split where there is one, and the explicit one where its heaviest rank is lighter."""
    even = [] if problem.model.num_layers % row.num_virtual_stages else [row]
    if row.pipeline_parallel_size == 1:
        return even
    sizes = row.pipeline_parallel_size, row.virtual_pipeline_stages
    lighter = lighter_split(Inputs.of(problem), row.pipeline_schedule, *sizes)
    return [*even, *([replace(row, pipeline_layers=lighter)] if lighter else [])]


def _accepted(problem: Problem, rows: list[Strategy], *, without: tuple[str, ...] = ()) -> list[Strategy]:
    columns = StrategyColumns.of(rows)
    good = np.all([rule.mask(problem, columns) for rule in feasibility.RULES if rule.name not in without], axis=0)
    return [row for row, ok in zip(rows, good, strict=True) if ok]


def _recomputations(problem: Problem, row: Strategy) -> list[Strategy]:
    layers = -(-problem.model.num_layers // row.pipeline_parallel_size)
    full = [replace(row, recompute=Recompute.FULL, num_recompute_layers=k % layers) for k in range(1, layers + 1)]
    selective = [] if problem.framework.fused_attention else [replace(row, recompute=Recompute.SELECTIVE)]
    return [row, *selective, *full]


def _brute_force(problem: Problem) -> tuple[list[tuple[float, float, Strategy]], int]:
    """Every strategy that fits, but for those that recompute more layers than they need, and how many there are in all."""
    found, seen = [], 0
    for row in _loop(problem):
        covered = False
        choices = _recomputations(problem, row)
        seen += len(choices)
        for choice in _accepted(problem, choices):
            if covered and choice.recompute is not Recompute.NONE:
                continue
            answer = estimate(problem, choice)
            if answer.fits:
                found.append((answer.step_time_seconds, answer.peak_memory_bytes, choice))
                covered = choice.recompute is not Recompute.SELECTIVE
    return found, seen


CASES = {
    "roomy": ("dense", {"gpus": 4, "batch": 8}),
    "tight": ("dense", {"memory": 9.5e9, "batch": 8}),
    "unfused": ("dense", {"memory": 20e9, "gpus": 4, "batch": 4, "fused_attention": False}),
    "experts": ("experts", {"memory": 14e9, "batch": 4}),
    "heavy head": ("heavy_head", {"memory": 12e9, "batch": 8}),
    "heavy head, every schedule": ("heavy_head", {"gpus": 4, "batch": 8, "memory": 18e9, "schedules": tuple(PipelineSchedule)}),
    "two nodes": ("dense", {"memory": 20e9, "batch": 8, "node": 4}),
    "nodes of two, experts": ("experts", {"memory": 14e9, "batch": 4, "node": 2}),
    "schedules": ("dense", {"memory": 11e9, "gpus": 4, "schedules": tuple(PipelineSchedule), "batch": 8}),
}


@pytest.mark.parametrize("case", CASES)
def test_result_is_that_of_the_loop(case: str, request: Any, make_problem: Any) -> None:
    model, options = CASES[case]
    problem = make_problem(request.getfixturevalue(model), **{"batch": 16, "length": 2048, **options})
    loop, seen = _brute_force(problem)
    assert len(loop) > 20
    result = search(problem, top=8)
    fastest = sorted(loop, key=lambda item: (round(item[0], 12), simplicity(item[2])))[:8]
    assert [row.strategy.describe() for row in result.ranked] == [row.describe() for _, _, row in fastest]
    assert [row.strategy for row in result.ranked] == [row for _, _, row in fastest]
    assert [row.step_time_seconds for row in result.ranked] == CLOSE([seconds for seconds, _, _ in fastest], rel=1e-9)
    assert [row.peak_memory_bytes for row in result.ranked] == CLOSE([memory for _, memory, _ in fastest], rel=1e-9)
    assert result.best == fastest[0][2]
    of_recomputation = ("memory", "recompute_no_more_than_needed", "recomputed_layers")
    assert sum(result.summary.rejected.get(name, 0) for name in of_recomputation) + len(loop) == seen


def test_a_heavy_head_takes_layers_off_the_last_stage(make_problem: Any, heavy_head: Any) -> None:
    problem = make_problem(heavy_head, gpus=8, batch=64)
    best = search(problem, Constraints(fixed={"pipeline_parallel_size": 2})).ranked[0]
    assert best.strategy.pipeline_layers
    assert sum(best.strategy.pipeline_layers) == heavy_head.num_layers
    assert best.strategy.pipeline_layers[-1] < heavy_head.num_layers // best.strategy.num_virtual_stages
    assert estimate(problem, best.strategy).step_time_seconds == CLOSE(best.step_time_seconds, rel=1e-12)
    assert best.step_time_seconds < estimate(problem, replace(best.strategy, pipeline_layers=())).step_time_seconds
    assert f"layers={split_text(best.strategy.pipeline_layers)}" in best.strategy.describe()


def test_layers_that_do_not_divide_are_split_explicitly(make_problem: Any, dense: Any) -> None:
    problem = make_problem(replace(dense, num_layers=30))
    best = search(problem, Constraints(fixed={"pipeline_parallel_size": 4, "virtual_pipeline_stages": 1})).best
    assert best is not None
    assert sum(best.pipeline_layers) == 30
    assert len(best.pipeline_layers) == 4
    plain = replace(best, pipeline_layers=())
    assert estimate(problem, plain).step_time_seconds == estimate(problem, best).step_time_seconds


def test_tight_memory_takes_the_fewest_layers(make_problem: Any, dense: Any) -> None:
    best = search(make_problem(dense, memory=9.5e9), top=40).ranked
    partial = [row.strategy for row in best if row.strategy.num_recompute_layers]
    assert partial
    problem = make_problem(dense, memory=9.5e9)
    for strategy in partial:
        assert estimate(problem, strategy).fits
        fewer = strategy.num_recompute_layers - strategy.virtual_pipeline_stages  # Megatron counts on each of them
        less = (
            replace(strategy, num_recompute_layers=fewer) if fewer else replace(strategy, recompute=Recompute.NONE, num_recompute_layers=0)
        )
        assert not estimate(problem, less).fits


@pytest.mark.parametrize("kind", ["dense", "experts"])
def test_recomputing_more_is_slower_and_smaller(kind: str, request: Any, make_problem: Any) -> None:
    """What lets the search look for the fewest layers that fit."""
    problem = make_problem(request.getfixturevalue(kind), gpus=16, batch=32, schedules=tuple(PipelineSchedule), length=8192)
    inputs = Inputs.of(problem)
    rows = [part.strategy(i) for part in enumerate_space(problem, Constraints()) for i in range(len(part))][::41]
    for row in rows:
        choices = StrategyColumns.of(_recomputations(problem, row))
        answer = evaluate(inputs, choices, simulate=True)
        assert (np.diff(answer.step_time_seconds) >= -1e-12).all(), row
        assert (np.diff(answer.peak_memory_bytes[1:]) <= 1).all(), row


def test_bounds_are_below_the_simulated_step(make_problem: Any, dense: Any) -> None:
    problem = make_problem(dense, gpus=16, batch=32, schedules=tuple(PipelineSchedule))
    inputs = Inputs.of(problem)
    for rows in enumerate_space(problem, Constraints(minimum={"pipeline_parallel_size": 2})):
        some = rows.take(np.arange(0, len(rows), 5))
        bound, exact = evaluate(inputs, some), evaluate(inputs, some, simulate=True)
        assert exact.exact.all()
        assert not bound.exact.all()
        assert (bound.step_time_seconds <= exact.step_time_seconds * (1 + 1e-12)).all()
        assert bound.step_time_seconds[bound.exact] == CLOSE(exact.step_time_seconds[bound.exact], rel=1e-9)
        assert (bound.peak_memory_bytes == exact.peak_memory_bytes).all()


@pytest.mark.parametrize("kind", ["dense", "experts", "heavy_head"])
def test_memory_alone_is_that_of_the_evaluation(kind: str, request: Any, make_problem: Any) -> None:
    problem = make_problem(request.getfixturevalue(kind), gpus=16, batch=32, schedules=tuple(PipelineSchedule))
    inputs = Inputs.of(problem)
    for rows in enumerate_space(problem, Constraints()):
        some = rows.take(np.arange(0, len(rows), 7))
        for choice in (Recompute.NONE, Recompute.FULL):
            each = some.with_columns(recompute=np.full(len(some), RECOMPUTES.index(choice)))
            np.testing.assert_array_equal(peak_memory_bytes(inputs, each), evaluate(inputs, each).peak_memory_bytes)
        on_gpus = some.tensor_parallel_size * some.pipeline_parallel_size * some.context_parallel_size * some.data_parallel_size
        assert (peak_memory_bytes(inputs, some) * on_gpus >= float(least_state_bytes(inputs))).all()


def test_twice_the_same(make_problem: Any, experts: Any) -> None:
    problem = make_problem(experts, memory=14e9)
    one, other = search(problem), search(problem)
    assert (one.ranked, one.summary) == (other.ranked, other.summary)
    assert repr(one.ranked) == repr(other.ranked)


def test_ties_are_marked(make_problem: Any, dense: Any) -> None:
    problem = make_problem(dense)
    ranked = search(problem, top=30).ranked
    assert not ranked[0].tie
    limit = ranked[0].step_time_seconds * (1 + tie_gap(problem))
    assert [row.tie for row in ranked[1:]] == [row.step_time_seconds <= limit for row in ranked[1:]]
    assert [row.step_time_seconds for row in ranked] == sorted(row.step_time_seconds for row in ranked)


def test_nothing_fits(make_problem: Any, dense: Any) -> None:
    problem = make_problem(dense, memory=2e9)
    result = search(problem)
    assert result.best is None
    assert result.ranked == ()
    least = [row.peak_memory_bytes for row in result.nearest_misses]
    assert least == sorted(least)
    assert least[0] > 2e9
    assert result.summary.rejected["memory"] > 0


def test_no_strategy_left_says_why(make_problem: Any, dense: Any) -> None:
    result = search(make_problem(dense), Constraints(fixed={"tensor_parallel_size": 3}))
    assert result.best is None
    assert result.summary.evaluated == 0
    assert "num_gpus=8" in str(result.refused_by[0])


def test_a_preference_is_lifted_when_nothing_fits_otherwise(make_problem: Any, dense: Any) -> None:
    problem = make_problem(dense, gpus=16, batch=1)
    alone = Constraints(fixed={"pipeline_parallel_size": 1, "data_parallel_size": 1, "context_parallel_size": 1})
    result = search(problem, alone)
    assert result.best is not None
    assert result.best.tensor_parallel_size == 16
    assert "tensor_parallel_inside_domain" in result.summary.optimality


@pytest.mark.parametrize("error", [True, False])
def test_interrupted_search_keeps_its_best(error: bool, make_problem: Any, dense: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autopar.search.space.ROWS_PER_SLICE", 16)
    problem = make_problem(dense)
    asked = itertools.count()

    def stop() -> bool:
        if next(asked) < 3:
            return False
        if error:
            raise KeyboardInterrupt
        return True

    result = search(problem, watch=Watch(interrupted=stop))
    assert result.best is not None
    assert result.summary.interrupted
    assert not search(problem).summary.interrupted
    assert result.summary.evaluated < search(problem).summary.evaluated


def test_smallest_cluster(make_problem: Any, dense: Any) -> None:
    problem = make_problem(dense, gpus=64, batch=64, memory=5e9)
    found = smallest_cluster(problem)
    assert found is not None
    on_smallest, ranked = found
    count = on_smallest.cluster.num_gpus

    def on(gpus: int) -> Problem:
        return replace(problem, cluster=replace(problem.cluster, num_gpus=gpus))

    assert ranked.strategy.world_size == count
    assert estimate(on(count), ranked.strategy).fits
    smaller = [size for size in (1, 2, 4, *range(8, count, 8)) if size < count]
    assert smaller
    assert all(search(on(size)).best is None for size in smaller)
    assert smallest_cluster(make_problem(dense, memory=1e6)) is None


def test_smallest_cluster_has_the_links_of_its_size(make_problem: Any, dense: Any) -> None:
    """From one node up: several nodes meet over the network, which one node does not have."""
    problem = make_problem(dense, gpus=8, batch=64, memory=5e9)
    assert len(problem.cluster.tiers) == 1
    found = smallest_cluster(problem, resize=lambda gpus: resized(problem, gpus))
    assert found is not None
    on, ranked = found
    assert on.cluster.num_gpus > 8
    assert [tier.name for tier in on.cluster.tiers] == [link.tier for link in on.links]
    asked = make_problem(dense, gpus=on.cluster.num_gpus, batch=64, memory=5e9)
    assert on.links == asked.links
    assert ranked.step_time_seconds == estimate(asked, ranked.strategy).step_time_seconds
    assert smallest_cluster(problem, resize=lambda _: None) is None


def test_a_full_pool_is_thinned_without_loss(make_problem: Any, experts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = make_problem(experts, schedules=tuple(PipelineSchedule))
    whole = search(problem, top=6)
    monkeypatch.setattr("autopar.search.exhaustive._POOL_ROWS", 10)
    monkeypatch.setattr("autopar.search.space.ROWS_PER_SLICE", 64)
    thinned = search(problem, top=6)
    assert [row.strategy for row in thinned.ranked] == [row.strategy for row in whole.ranked]
    assert thinned.summary == whole.summary
