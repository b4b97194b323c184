"""Rows of measured runs, written as they are read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autopar.accuracy.cases import Case, case_of
from autopar.accuracy.peaks import MemoryCount
from autopar.accuracy.record import Measured, append_runs, run_of
from autopar.accuracy.runs import read_runs
from autopar.catalog.models import model
from autopar.costmodel.spec.errors import InvalidInputError
from autopar.costmodel.spec.strategy import PipelineSchedule, RankOrder, Recompute, Strategy
from autopar.costmodel.spec.training import PRECISIONS, TrainingSpec

STRATEGY = Strategy(
    tensor_parallel_size=2,
    sequence_parallel=True,
    pipeline_parallel_size=2,
    virtual_pipeline_stages=2,
    pipeline_schedule=PipelineSchedule.ZERO_BUBBLE,
    data_parallel_size=2,
    zero_stage=1,
    micro_batch_size=2,
    recompute=Recompute.FULL,
    num_recompute_layers=3,
)
MEASURED = Measured(
    model=model("gpt2"),
    training=TrainingSpec(global_batch_size=32, sequence_length=1024, precision=PRECISIONS["bf16"]),
    strategy=STRATEGY,
    framework="autopar",
    device="h100-sxm5-80gb",
    gpus_per_node=8,
    step_time_seconds=0.25,
    peak_memory_bytes=30e9,
    notes='a, comma and "quotes"',
)


@pytest.mark.parametrize("zero_stage", [0, 1, 3])
def test_a_row_means_the_run_it_was_made_of(tmp_path: Path, zero_stage: int) -> None:
    measured = replace(MEASURED, strategy=replace(STRATEGY, zero_stage=zero_stage))
    run = run_of(measured, "first")
    append_runs(tmp_path / "runs.csv", [run])
    (read,), skipped = read_runs(tmp_path / "runs.csv")
    assert not skipped
    assert read == run
    case = case_of(read)
    assert isinstance(case, Case), case
    assert case.strategy == measured.strategy
    assert case.problem.model.num_parameters == measured.model.num_parameters
    assert case.problem.training == measured.training
    assert (case.measured_seconds, case.measured_bytes) == (0.25, 30e9)
    assert case.memory_counts is MemoryCount.TENSORS


def test_a_row_keeps_the_order_of_ranks() -> None:
    strategy = replace(STRATEGY, rank_order=RankOrder.TP_CP_PP_DP)
    case = case_of(run_of(replace(MEASURED, strategy=strategy, notes="at night"), "first"))
    assert isinstance(case, Case), case
    assert case.strategy.rank_order is RankOrder.TP_CP_PP_DP


def test_rows_are_added_and_none_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    for name in ("a", "b", "c"):
        append_runs(path, [run_of(MEASURED, name)])
    assert [run.run_id for run in read_runs(path)[0]] == ["a", "b", "c"]


def test_another_table_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("name,value\nx,1\n")
    with pytest.raises(InvalidInputError, match="name another file"):
        append_runs(path, [run_of(MEASURED, "a")])
    assert path.read_text() == "name,value\nx,1\n"


def test_cores_of_a_machine_are_a_cluster() -> None:
    case = case_of(run_of(replace(MEASURED, device="cpu", strategy=Strategy(data_parallel_size=4)), "cores"))
    assert isinstance(case, Case), case
    assert (case.problem.cluster.device.id, case.problem.cluster.num_gpus) == ("cpu", 4)
