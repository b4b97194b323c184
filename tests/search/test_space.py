"""The space against the whole product, built row by row and thinned by the rules in their order."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from autopar.costmodel.columns import CONTEXT_KINDS, RANK_ORDERS, SCHEDULES, StrategyColumns
from autopar.costmodel.spec.errors import InvalidInputError
from autopar.costmodel.spec.strategy import PipelineSchedule, Recompute, Strategy
from autopar.search import Constraints, enumerate_space, feasibility
from autopar.search import space as space_module
from autopar.search.space import Space


def _product(space: Space) -> list[Strategy]:
    """Every combination of the axes; sizes that do not make the world get a data-parallel size that says so."""
    rows = []
    for values in itertools.product(*(axis.values.tolist() for axis in space.axes)):
        fields = {name: v for axis, row in zip(space.axes, values, strict=True) for name, v in zip(axis.names, row, strict=True)}
        fields["pipeline_schedule"] = SCHEDULES[fields["pipeline_schedule"]]
        fields["context_parallel_kind"] = CONTEXT_KINDS[fields["context_parallel_kind"]]
        fields["rank_order"] = RANK_ORDERS[fields["rank_order"]]
        fields["sequence_parallel"] = bool(fields["sequence_parallel"])
        ranks = fields["tensor_parallel_size"] * fields["pipeline_parallel_size"] * fields["context_parallel_size"]
        rows.append(Strategy(**fields, data_parallel_size=max(1, space.problem.cluster.num_gpus // ranks)))
    return rows


def _strategies(space: Space) -> list[Strategy]:
    return [rows.strategy(row) for rows in space.slices() for row in range(len(rows))]


@pytest.mark.parametrize("rows_per_slice", [7, 16_384])
@pytest.mark.parametrize(("kind", "node"), [("dense", 0), ("experts", 0), ("dense", 2), ("experts", 2)])
def test_space_is_the_thinned_product(
    kind: str, node: int, rows_per_slice: int, request: Any, make_problem: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(space_module, "ROWS_PER_SLICE", rows_per_slice)
    problem = make_problem(
        request.getfixturevalue(kind), gpus=6, batch=6, schedules=tuple(PipelineSchedule), zero_stages=(0, 1, 3), node=node
    )
    limits = Constraints(maximum={"micro_batch_size": 3, "expert_parallel_size": 2, "pipeline_parallel_size": 3})
    space = Space.of(problem, limits)
    found = _strategies(space)
    whole = _product(space)
    columns = StrategyColumns.of(whole)
    alive = [True] * len(whole)
    accepted_by_all = []
    for _, _, mask in space.rules:
        accepted_by_all.append(mask(problem, columns).tolist())
    for index in range(len(whole)):
        alive[index] = all(mask[index] for mask in accepted_by_all)
    plain = {replace(row, pipeline_layers=()) for row in found}
    assert sorted(map(repr, plain)) == sorted(repr(row) for row, ok in zip(whole, alive, strict=True) if ok)
    assert len(found) == len(set(found)) > 20
    assert len({row.rank_order for row in found}) == (2 if node else 1)
    choices = [int(space.recompute.count(problem, columns.pipeline_parallel_size[i : i + 1])[0]) for i in range(len(whole))]
    assert space.size == sum(choices)
    assert sum(space.rejected.values()) == sum(c for c, ok in zip(choices, alive, strict=True) if not ok)


def test_the_first_rule_that_rejects_counts(make_problem: Any, dense: Any) -> None:
    space = Space.of(make_problem(dense, gpus=6, batch=12, schedules=tuple(PipelineSchedule)), Constraints())
    list(space.slices())
    stage = {name: depth for depth, axis in enumerate(space.axes) for name in axis.names}
    stage |= {"data_parallel_size": 2, "shard_group_size": 2}
    order = sorted(space.rules, key=lambda rule: max(stage[name] for name in rule[1]))
    counts: Counter[str] = Counter()
    for row in _product(space):
        columns = StrategyColumns.of([row])
        name = next((name for name, _, mask in order if not mask(space.problem, columns)[0]), None)
        if name is not None:
            counts[name] += int(space.recompute.count(space.problem, columns.pipeline_parallel_size)[0])
    assert dict(counts) == {name: count for name, count in space.rejected.items() if count}


def test_everything_enumerated_runs(make_problem: Any, experts: Any) -> None:
    problem = make_problem(experts, gpus=16, batch=32, schedules=tuple(PipelineSchedule), length=8192)
    rows = [part.strategy(i) for part in enumerate_space(problem, Constraints()) for i in range(len(part))]
    assert len(rows) > 100
    assert all(feasibility.faults(problem, row) == () for row in rows[::17])
    assert {row.pipeline_schedule for row in rows} == set(PipelineSchedule)
    assert any(row.context_parallel_size > 1 for row in rows)
    assert {row.expert_tensor_parallel_size == row.tensor_parallel_size for row in rows if row.tensor_parallel_size > 1} == {True, False}


@pytest.mark.parametrize(
    ("limits", "holds"),
    [
        (Constraints(fixed={"tensor_parallel_size": 4}), lambda s: s.tensor_parallel_size == 4),
        (Constraints(fixed={"data_parallel_size": 2}), lambda s: s.data_parallel_size == 2),
        (Constraints(fixed={"pipeline_schedule": "interleaved_1f1b"}), lambda s: s.virtual_pipeline_stages > 1),
        (Constraints(fixed={"sequence_parallel": True}), lambda s: s.sequence_parallel),
        (Constraints(fixed={"context_parallel_size": 2}), lambda s: s.context_parallel_size == 2),
        (Constraints(maximum={"pipeline_parallel_size": 2}), lambda s: s.pipeline_parallel_size <= 2),
        (Constraints(minimum={"data_parallel_size": 2}), lambda s: s.data_parallel_size >= 2),
        (Constraints(forbidden=frozenset({"pipeline_parallel_size"})), lambda s: s.pipeline_parallel_size == 1),
        (Constraints(forbidden=frozenset({"sequence_parallel"})), lambda s: not s.sequence_parallel),
        (Constraints(forbidden=frozenset({"zero_stage"})), lambda s: s.zero_stage == 0),
        (Constraints(forbidden=frozenset({"virtual_pipeline_stages"})), lambda s: s.virtual_pipeline_stages == 1),
    ],
)
def test_constraints_hold(limits: Constraints, holds: Any, make_problem: Any, dense: Any) -> None:
    problem = make_problem(dense)
    rows = _strategies(Space.of(problem, limits))
    assert rows
    assert all(holds(row) for row in rows)
    free = [row for row in _strategies(Space.of(problem, Constraints())) if holds(row)]
    assert set(free) <= set(rows)


@pytest.mark.parametrize(
    "given",
    [
        {"fixed": {"tensor_parallel": 8}},
        {"fixed": {"recompute": "sometimes"}},
        {"fixed": {"tensor_parallel_size": 8}, "maximum": {"tensor_parallel_size": 4}},
        {"minimum": {"tensor_parallel_size": 8}, "maximum": {"tensor_parallel_size": 4}},
        {"fixed": {"context_parallel_size": 2}, "forbidden": frozenset({"context_parallel_size"})},
        {"maximum": {"recompute": 3}},
    ],
)
def test_constraints_that_mean_nothing_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        Constraints(**given)


def test_recompute_choices(make_problem: Any, dense: Any) -> None:
    problem = make_problem(replace(dense, num_layers=6))
    one_stage = StrategyColumns.of([Strategy()]).pipeline_parallel_size

    def count(**given: Any) -> int:
        return int(Space.of(problem, Constraints(**given)).recompute.count(problem, one_stage)[0])

    assert count() == 8  # none, selective, full on 1 to 6 layers
    assert count(fixed={"recompute": Recompute.FULL}) == 6
    assert count(fixed={"recompute": "none"}) == 1
    assert count(forbidden=frozenset({"recompute"})) == 1
    assert count(fixed={"num_recompute_layers": 2}) == 1
    assert count(fixed={"num_recompute_layers": 0}) == 3
    assert count(maximum={"num_recompute_layers": 2}) == 4
    assert count(minimum={"num_recompute_layers": 5}) == 2
