"""Placements near one, and the exact answer where all placements are asked about."""

from __future__ import annotations

from dataclasses import replace
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar.costmodel.columns import StrategyColumns
from autopar.costmodel.inputs import Inputs
from autopar.costmodel.stage_budget import stage_budgets
from autopar.search import Stages, search
from autopar.search.neighbours import count_splits, nearby, splits
from benchmarks.search.quality import INTERLEAVED, WIDE, Instance, instances, optimum, placements, question


@given(layers=st.integers(1, 9), stages=st.integers(1, 9))
def test_every_split_comes_once(layers: int, stages: int) -> None:
    found = list(splits(layers, stages))
    assert len(set(found)) == len(found) == count_splits(layers, stages) == comb(layers - 1, stages - 1)
    assert all(sum(split) == layers and len(split) == stages and min(split) >= 1 for split in found)


@pytest.mark.parametrize("most", [3, 100])
def test_neighbours_are_single_moves_the_least_busy_first(most: int) -> None:
    asked = question(WIDE, 80e9, by_stage=False)
    shell = next(iter(placements(asked, INTERLEAVED)))
    (budget,) = stage_budgets(Inputs.of(asked), StrategyColumns.of([replace(shell, pipeline_layers=())]))
    layers = (3, 1, 2, 1)
    found = nearby(budget, layers, 0, most=most)
    moved = {each.layers for each in found}
    assert len(moved) == len(found) == min(most, 6)  # from two stages with more than one layer to three others each
    assert all(sum(each) == 7 and min(each) >= 1 and np.abs(np.subtract(each, layers)).sum() == 2 for each in moved)
    slowest = [each.slowest_seconds for each in found]
    assert slowest == sorted(slowest)
    whole = [each.slowest_seconds for each in nearby(budget, layers, 0, most=100)]
    assert slowest == whole[: len(slowest)]


@pytest.mark.parametrize("instance", [*instances()], ids=lambda each: f"{each.name}, {each.problem.framework.recompute_by_stage}")
def test_exact_is_the_optimum_of_all_placements(instance: Instance) -> None:
    pytest.importorskip("ortools")
    least = optimum(instance.problem, placements(instance.problem, instance.constraints))
    uneven, exact = (search(instance.problem, instance.constraints, stages=stages) for stages in (Stages.UNEVEN, Stages.EXACT))
    assert exact.ranked[0].step_time_seconds <= least * (1 + 1e-3)
    assert exact.ranked[0].step_time_seconds <= uneven.ranked[0].step_time_seconds <= least * 1.01
    for result in (uneven, exact):
        assert result.summary.bound_seconds is not None
        assert result.summary.bound_seconds <= least * (1 + 1e-9)
    assert exact.summary.bound_seconds is not None
    assert exact.summary.bound_seconds >= least * (1 - 1e-3)
