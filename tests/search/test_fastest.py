"""The quick ranking of one kind of GPU against the search over everything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from autopar.costmodel.spec.model import ModelSpec
from autopar.costmodel.spec.strategy import PipelineSchedule
from autopar.search import Constraints, Watch, search
from autopar.search.exhaustive import Sweep
from autopar.search.fastest import fastest
from autopar.search.progress import Stopped

GIB = 2**30
FREE = Constraints()
ALL = {"schedules": tuple(PipelineSchedule)}
CASES: list[tuple[str, dict[str, Any], Constraints]] = [
    ("dense", {"gpus": 8, "batch": 32}, FREE),
    ("dense", {"gpus": 8, "batch": 32, "memory": 9 * GIB}, FREE),
    ("dense", {"gpus": 8, "batch": 24, "memory": 12 * GIB, "fused_attention": False, **ALL}, FREE),
    ("heavy_head", {"gpus": 8, "batch": 16, "memory": 16 * GIB, **ALL}, FREE),
    ("experts", {"gpus": 8, "batch": 32, "memory": 14 * GIB, **ALL}, FREE),
    ("dense", {"gpus": 16, "batch": 64, "node": 4}, Constraints(fixed={"recompute": "full"})),
    ("dense", {"gpus": 8, "batch": 32, "memory": 9 * GIB}, Constraints(minimum={"pipeline_parallel_size": 2}, fixed={"zero_stage": 1})),
    ("dense", {"gpus": 8, "batch": 32, "memory": 20 * GIB, "framework": "fsdp"}, FREE),
    ("dense", {"gpus": 8, "batch": 32, "memory": 1 * GIB}, FREE),
]


@pytest.mark.parametrize(("model", "asked", "constraints"), CASES, ids=range(len(CASES)))
def test_the_ranking_is_that_of_the_search_over_everything(
    model: str, asked: dict[str, Any], constraints: Constraints, make_problem: Callable[..., Any], request: pytest.FixtureRequest
) -> None:
    spec: ModelSpec = request.getfixturevalue(model)
    problem = make_problem(spec, **asked)
    whole = search(problem, constraints, top=5)
    found = fastest(problem, constraints, top=5, watch=Watch())
    assert found.ranked == whole.ranked
    assert found.rejected.keys() <= whole.summary.rejected.keys()


def test_the_bound_is_enough_for_nearly_all(make_problem: Callable[..., Any], dense: ModelSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, visited = make_problem(dense, gpus=16, batch=64), []
    visit = Sweep.visit
    monkeypatch.setattr(Sweep, "visit", lambda sweep, rows: (visited.append(len(rows)), visit(sweep, rows)))
    found = fastest(problem, FREE, top=5, watch=Watch())
    assert len(found.ranked) == 5
    assert sum(visited) < 0.2 * found.evaluated


def test_stopped_before_it_began_it_has_nothing(make_problem: Callable[..., Any], dense: ModelSpec) -> None:
    watch = Watch(interrupted=lambda: True)
    found = fastest(make_problem(dense, gpus=8), FREE, top=5, watch=watch)
    assert not found.ranked
    assert watch.stopped is Stopped.INTERRUPTED
