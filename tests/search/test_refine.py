"""Uneven stages against every placement of every strategy of small problems."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from autopar.costmodel.estimate import estimate
from autopar.costmodel.problem import Problem
from autopar.costmodel.spec.errors import InvalidInputError, UnavailableError
from autopar.costmodel.spec.model import ModelSpec
from autopar.request import build_problem
from autopar.search import Constraints, Stages, feasibility, search
from autopar.search.progress import Progress, Stopped, Watch
from benchmarks.search.quality import EXPERTS as MIXED
from benchmarks.search.quality import WIDE, optimum, placements


def question(model: ModelSpec, *, memory: float, by_stage: bool, gpus: int = 4) -> Problem:
    found, _ = build_problem(model, gpus=gpus, gpu="h100-sxm5-80gb", global_batch_size=24, sequence_length=4096)
    cluster = replace(found.cluster, device=replace(found.cluster.device, memory_bytes=int(memory)))
    return replace(found, cluster=cluster, framework=replace(found.framework, recompute_by_stage=by_stage))


def fitting(model: ModelSpec, constraints: Constraints, *, by_stage: bool) -> Iterator[Problem]:
    """The question on devices of ever more memory, from the least (in GB) that holds an uneven placement."""
    for gigabytes in range(8, 200):
        asked = question(model, memory=gigabytes * 1e9, by_stage=by_stage)
        if search(asked, constraints, stages=Stages.UNEVEN).best is not None:
            yield asked


@pytest.mark.parametrize("by_stage", [True, False])
@pytest.mark.parametrize("tight", [True, False])
@pytest.mark.parametrize("model", [WIDE, MIXED], ids=["wide", "mixed"])
def test_against_every_placement(model: ModelSpec, tight: bool, by_stage: bool) -> None:
    constraints = Constraints(
        fixed={"tensor_parallel_size": 1, "context_parallel_size": 1, "zero_stage": 1},
        minimum={"pipeline_parallel_size": 2},
        maximum={"micro_batch_size": 2, "virtual_pipeline_stages": 1},
    )
    asked = next(fitting(model, constraints, by_stage=by_stage)) if tight else question(model, memory=200e9, by_stage=by_stage)
    result = search(asked, constraints, stages=Stages.UNEVEN)
    even = search(asked, constraints)
    least = optimum(asked, placements(asked, constraints))
    found, bound = result.ranked[0].step_time_seconds, result.summary.bound_seconds
    assert bound is not None
    assert bound <= least * (1 + 1e-9)
    assert least * (1 - 1e-9) <= found <= least * 1.01
    assert not even.ranked or found <= even.ranked[0].step_time_seconds
    assert found == pytest.approx(estimate(asked, result.ranked[0].strategy).step_time_seconds)
    assert not feasibility.faults(asked, result.ranked[0].strategy)


def test_a_heavy_head_gets_fewer_layers() -> None:
    asked = question(WIDE, memory=80e9, by_stage=False)
    only = Constraints(fixed={"pipeline_parallel_size": 4, "tensor_parallel_size": 1, "virtual_pipeline_stages": 1})
    best = search(asked, only, stages=Stages.UNEVEN).best
    assert best is not None
    assert best.pipeline_layers[-1] == min(best.pipeline_layers)


def test_where_nothing_fits_evenly_something_may_stage_by_stage() -> None:
    """Early stages hold more micro-batches, so that they fit with fewer layers than the last ones."""
    only = Constraints(fixed={"pipeline_parallel_size": 4, "micro_batch_size": 4, "virtual_pipeline_stages": 1, "recompute": "none"})
    model = replace(WIDE, num_layers=8, vocab_size=32_000)
    asked = next(fitting(model, only, by_stage=False))
    uneven = search(asked, only, stages=Stages.UNEVEN)
    assert uneven.best is not None
    assert search(asked, only).best is None
    assert uneven.best.pipeline_layers[0] < 2
    assert uneven.nearest_misses == ()
    assert estimate(asked, uneven.best).fits


def test_same_answer_every_time() -> None:
    asked = question(MIXED, memory=30e9, by_stage=True)
    first, second = (search(asked, stages=Stages.UNEVEN) for _ in range(2))
    assert replace(first, seconds=0.0) == replace(second, seconds=0.0)


def test_exact_placement_needs_or_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autopar.search.partition_cp_sat.find_spec", lambda _: None)
    with pytest.raises(UnavailableError, match=r"autopar\[search\]"):
        search(question(WIDE, memory=80e9, by_stage=False), stages=Stages.EXACT)


def test_exact_placement_is_never_worse_and_its_bound_never_lower() -> None:
    pytest.importorskip("ortools")
    asked = question(MIXED, memory=24e9, by_stage=False)
    only = Constraints(fixed={"pipeline_parallel_size": 2, "virtual_pipeline_stages": 2, "tensor_parallel_size": 1})
    uneven, exact = (search(asked, only, stages=stages) for stages in (Stages.UNEVEN, Stages.EXACT))
    assert exact.ranked[0].step_time_seconds <= uneven.ranked[0].step_time_seconds
    assert exact.summary.bound_seconds is not None
    assert uneven.summary.bound_seconds is not None
    assert exact.summary.bound_seconds >= uneven.summary.bound_seconds * (1 - 1e-9)


class TestWatch:
    def test_a_limit_of_no_time_is_refused(self) -> None:
        with pytest.raises(InvalidInputError, match="more than 0 seconds"):
            Watch(time_limit_seconds=0)

    def test_the_time_limit_ends_the_search_with_its_best(self) -> None:
        asked = question(WIDE, memory=80e9, by_stage=False)
        watch = Watch(time_limit_seconds=1e-9)
        result = search(asked, stages=Stages.UNEVEN, watch=watch)
        assert watch.stopped is Stopped.TIME_LIMIT
        assert result.summary.optimality.startswith("time limit")
        assert not result.summary.interrupted

    def test_progress_is_told_in_order(self) -> None:
        told: list[Progress] = []
        result = search(
            question(WIDE, memory=26e9, by_stage=True), stages=Stages.UNEVEN, watch=Watch(report=told.append, every_seconds=0.0)
        )
        assert result.best is not None
        bests = [each.best_seconds for each in told if each.best_seconds is not None]
        assert told
        assert bests == sorted(bests, reverse=True)
        bounded = [each for each in told if each.bound_seconds is not None]
        assert all(each.best_seconds is None or each.bound_seconds <= each.best_seconds * (1 + 1e-9) for each in bounded)
