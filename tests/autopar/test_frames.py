"""Answers as DataFrames: a row for each of what was found, with the figures of the answer."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import autopar
from autopar.accuracy.runs import read_runs
from autopar.accuracy.score import score
from autopar.costmodel.spec.errors import InvalidInputError, UnavailableError

QUESTION = {"model": "gpt-1.2b", "gpus": 8}
RUNS = Path(__file__).parents[1] / "data" / "accuracy" / "runs.csv"


def test_a_plan_is_its_strategies_best_first() -> None:
    plan = autopar.plan(**QUESTION, top=4)  # type: ignore[arg-type]
    table = autopar.frame(plan)
    assert table["rank"].tolist() == [1, 2, 3, 4]
    assert table["strategy"].tolist() == [plan.strategy.describe(), *(each.strategy.describe() for each in plan.alternatives)]
    assert table["step_time_seconds"][0] == plan.estimate.step_time_seconds
    assert table["data_parallel_size"].tolist() == [
        plan.strategy.data_parallel_size,
        *(e.strategy.data_parallel_size for e in plan.alternatives),
    ]
    assert table.notna().to_numpy().all()


def test_a_front_is_its_points() -> None:
    front = autopar.pareto(axes=("time", "memory"), **QUESTION)  # type: ignore[arg-type]
    table = autopar.frame(front)
    assert table["peak_memory_bytes"].tolist() == [point.peak_memory_bytes for point in front.points]
    assert table["step_time_seconds"].is_monotonic_increasing


def test_a_comparison_has_every_term_of_the_time() -> None:
    plans = [autopar.plan(**QUESTION, fix={"dp": size}) for size in (8, 4)]  # type: ignore[arg-type]
    table = autopar.frame(autopar.compare(plans))
    assert table["step_time_seconds"].tolist() == [each.estimate.step_time_seconds for each in plans]
    assert table["attention"].tolist() == [each.estimate.time.attention for each in plans]
    assert table["slower_than_first"][0] == 0


def test_changes_and_sizes() -> None:
    effects = autopar.whatif(**QUESTION, changes=["nodes=+1", "sequence=x2"])  # type: ignore[arg-type]
    table = autopar.frame(effects)
    assert table["verdict"].tolist() == [each.verdict.value for each in effects.effects]
    assert {"same_step_time_seconds", "replanned_step_time_seconds"} <= {*table.columns}
    sizing = autopar.size("gpt-1.2b", tokens=1e11, deadline="3d", max_gpus=64, price=2.5)
    sized = autopar.frame(sizing)
    assert sized["choice"].tolist() == ["fewest", "cheapest"]
    assert sized["cost"].tolist() == [sizing.clusters[0].fewest.cost, sizing.clusters[0].cheapest.cost]


def test_measured_runs_stand_beside_their_predictions() -> None:
    accuracy = score(*read_runs(RUNS))
    table = autopar.frame(accuracy)
    assert table["run_id"].tolist() == [each.run_id for each in accuracy.predictions]
    assert np.allclose(table["time_error"], table["predicted_seconds"] / table["measured_seconds"] - 1, equal_nan=True)
    assert table["device"].tolist() == [each.run.device for each in accuracy.cases]


def test_what_is_no_table_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="answer=str"):
        autopar.frame("plan.json")


def test_without_pandas_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UnavailableError, match=r"autopar\[report\]"):
        autopar.frame(None)
