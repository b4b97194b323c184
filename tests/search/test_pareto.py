"""Fronts and rankings by memory against a loop over the whole space, every number of recomputed layers included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.costmodel.columns import RECOMPUTES, StrategyColumns
from autopar.costmodel.estimate import estimate
from autopar.costmodel.inputs import Inputs
from autopar.costmodel.problem import Problem
from autopar.costmodel.spec.strategy import PipelineSchedule, Recompute
from autopar.costmodel.step import evaluate
from autopar.search import Constraints, enumerate_space, search
from autopar.search.feasibility import RULES
from autopar.search.pareto import dominated_in_time_and_memory, front, least_memory, non_dominated

CASES = {
    "roomy": ("dense", {"gpus": 4, "batch": 8}),
    "tight": ("dense", {"memory": 9.5e9, "batch": 8}),
    "unfused": ("dense", {"memory": 20e9, "gpus": 4, "batch": 4, "fused_attention": False}),
    "experts": ("experts", {"memory": 14e9, "batch": 4}),
    "heavy head, every schedule": ("heavy_head", {"gpus": 4, "batch": 8, "memory": 18e9, "schedules": tuple(PipelineSchedule)}),
}


def every_strategy(problem: Problem, constraints: Constraints | None = None) -> tuple[StrategyColumns, np.ndarray, np.ndarray]:
    """All strategies of the space with all their recomputation choices that fit, with exact times and peaks."""
    layers, parts = problem.model.num_layers, []
    for rows in enumerate_space(problem, constraints or Constraints()):
        held = -(-layers // rows.pipeline_parallel_size)
        kinds = [(Recompute.NONE, 0)] + ([] if problem.framework.fused_attention else [(Recompute.SELECTIVE, 0)])
        for kind, count in [*kinds, *((Recompute.FULL, count) for count in range(1, layers + 1))]:
            some = rows.take(held >= max(count, 1))
            code = np.full(len(some), RECOMPUTES.index(kind))
            covered = np.where(count >= held[held >= max(count, 1)], 0, count)
            parts.append(some.with_columns(recompute=code, num_recompute_layers=covered))
    whole = StrategyColumns.concatenate(parts)
    whole = whole.take(next(rule for rule in RULES if rule.name == "recomputed_layers").mask(problem, whole))
    found = evaluate(Inputs.of(problem), whole, simulate=True)
    fits = found.fits
    return whole.take(fits), found.step_time_seconds[fits], found.peak_memory_bytes[fits]


@pytest.mark.parametrize("case", CASES)
def test_the_front_is_that_of_the_loop(case: str, request: Any, make_problem: Any) -> None:
    model, options = CASES[case]
    problem = make_problem(request.getfixturevalue(model), **options)
    _, seconds, memory = every_strategy(problem)
    expected = non_dominated(np.stack([np.round(seconds, 9), memory], axis=1))
    pairs = sorted({(round(float(t), 9), float(m)) for t, m in zip(seconds[expected], memory[expected], strict=True)})
    found = front(problem)
    assert [(pytest.approx(t, abs=2e-9), pytest.approx(m, rel=1e-9)) for t, m in pairs] == [
        (point.step_time_seconds, point.peak_memory_bytes) for point in found.ranked
    ]
    assert len(pairs) > 3
    for point in found.ranked:
        answer = estimate(problem, point.strategy)
        assert (answer.step_time_seconds, answer.peak_memory_bytes) == (
            pytest.approx(point.step_time_seconds, rel=1e-9),
            pytest.approx(point.peak_memory_bytes, rel=1e-9),
        )


@pytest.mark.parametrize("case", CASES)
def test_the_ends_of_the_front_are_the_fastest_and_the_smallest(case: str, request: Any, make_problem: Any) -> None:
    model, options = CASES[case]
    problem = make_problem(request.getfixturevalue(model), **options)
    ranked = front(problem).ranked
    fastest, smallest = search(problem, top=1).ranked[0], least_memory(problem, top=1).ranked[0]
    assert ranked[0].step_time_seconds == pytest.approx(fastest.step_time_seconds, rel=1e-9)
    assert (ranked[-1].strategy, ranked[-1].peak_memory_bytes) == (smallest.strategy, smallest.peak_memory_bytes)


@pytest.mark.parametrize("case", CASES)
def test_the_least_memory_is_that_of_the_loop(case: str, request: Any, make_problem: Any) -> None:
    model, options = CASES[case]
    problem = make_problem(request.getfixturevalue(model), **options)
    columns, seconds, memory = every_strategy(problem)
    best: dict[tuple[object, ...], tuple[float, float]] = {}
    for row in range(len(columns)):  # one strategy for each of all its recomputation choices, as the ranking has it
        strategy = columns.strategy(row)
        key = tuple(getattr(strategy, name) for name in strategy.__slots__ if "recompute" not in name)
        best[key] = min(best.get(key, (np.inf, np.inf)), (float(memory[row]), float(seconds[row])))
    expected = sorted(best.values())[:5]
    found = [(each.peak_memory_bytes, each.step_time_seconds) for each in least_memory(problem, top=5).ranked]
    assert [m for m, _ in found] == pytest.approx([m for m, _ in expected], rel=1e-9)
    assert found[0][1] == pytest.approx(expected[0][1], rel=1e-9)


def test_constraints_hold_on_the_front(make_problem: Any, dense: Any) -> None:
    problem = make_problem(dense, gpus=4, batch=8)
    asked = Constraints(fixed={"tensor_parallel_size": 2}, forbidden=frozenset({"recompute"}))
    found = front(problem, asked).ranked
    assert found
    assert all(point.strategy.tensor_parallel_size == 2 and point.strategy.recompute is Recompute.NONE for point in found)


def test_where_nothing_fits_the_nearest_miss_is_told(make_problem: Any, dense: Any) -> None:
    problem = make_problem(dense, gpus=1, batch=8, memory=6e9)
    found = front(problem)
    assert (found.best, found.ranked) == (None, ())
    assert found.nearest_misses[0].peak_memory_bytes > 6e9
    assert least_memory(problem).nearest_misses[0].peak_memory_bytes == found.nearest_misses[0].peak_memory_bytes


def test_what_was_not_evaluated_is_counted(make_problem: Any, dense: Any) -> None:
    problem = make_problem(dense, gpus=4, batch=8)
    found = front(problem)
    columns, _, _ = every_strategy(problem)
    refused = found.summary.rejected
    assert found.summary.evaluated + refused["dominated"] >= len(columns)


points = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=40)


@given(points)
def test_non_dominated_is_the_definition(rows: list[tuple[int, ...]]) -> None:
    values = np.array(rows, dtype=np.float64)
    expected = [not any(all(o <= v for o, v in zip(other, row, strict=True)) and other != row for other in rows) for row in rows]
    assert non_dominated(values).tolist() == expected


@given(points, points, st.booleans())
@settings(max_examples=60)
def test_dominance_in_the_plane_is_the_definition(rows: list[tuple[int, ...]], by: list[tuple[int, ...]], weakly: bool) -> None:
    one, other = np.array(rows, dtype=np.float64), np.array(by, dtype=np.float64)
    expected = [any(q[0] <= p[0] and q[1] <= p[1] and (weakly or (q[0], q[1]) != (p[0], p[1])) for q in by) for p in rows]
    found = dominated_in_time_and_memory(one[:, 0], one[:, 1], other[:, 0], other[:, 1], weakly=weakly)
    assert found.tolist() == expected
