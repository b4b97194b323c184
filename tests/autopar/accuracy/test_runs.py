"""Reading a table of runs: what is refused, and what is skipped with which reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from autopar.accuracy.runs import REQUIRED_COLUMNS, Run, read_runs
from autopar.costmodel.spec.errors import InvalidInputError

GOOD = {
    "run_id": "a", "device": "a100-sxm4-80gb", "num_gpus": "8", "sequence_length": "2048", "global_batch_size": "8",
    "tensor_parallel_size": "8", "pipeline_parallel_size": "1", "step_time_seconds": "1.5", "notes": "",
}  # fmt: skip


def test_blanks_are_unknown_and_numbers_are_numbers(write) -> None:
    (run,), skipped = read_runs(write([{**GOOD, "num_experts": "", "gpus_per_node": "8.0", "out_of_memory": "Yes"}]))
    assert skipped == ()
    assert (run.num_gpus, run.gpus_per_node, run.num_experts, run.step_time_seconds) == (8, 8, None, 1.5)
    assert (run.out_of_memory, run.sequence_parallel) == (True, None)


@pytest.mark.parametrize(
    ("field", "text", "reason"),
    [
        ("num_gpus", "eight", "num_gpus='eight' is not a number"),
        ("num_gpus", "0", "is not from 1 to 1e+09"),
        ("num_gpus", "-8", "is not from 1 to 1e+09"),
        ("num_gpus", "1e300", "is not from 1 to 1e+09"),
        ("num_gpus", "nan", "is not from 1 to 1e+09"),
        ("num_gpus", "8.5", "is not a whole number"),
        ("step_time_seconds", "inf", "is not from 1e-09 to 1e+09"),
        ("step_time_seconds", "0", "is not from 1e-09 to 1e+09"),
        ("step_time_seconds", "1,5", "is not a number"),
        ("gated_mlp", "maybe", "gated_mlp='maybe' is not yes or no"),
        ("pipeline_schedule", "1F2B", "pipeline_schedule='1F2B' is not one of"),
        ("num_gpus", "x" * 500, "num_gpus='xxx"),
    ],
)
def test_a_bad_cell_skips_its_row_and_says_why(write, field: str, text: str, reason: str) -> None:
    runs, skipped = read_runs(write([{"gated_mlp": "", "pipeline_schedule": "", **GOOD, field: text}, {**GOOD, "run_id": "b"}]))
    assert [run.run_id for run in runs] == ["b"]
    assert skipped[0].run_id == "a"
    assert reason in skipped[0].reason
    assert len(skipped[0].reason) < 200


def test_all_bad_cells_of_a_row_are_named_at_once(write) -> None:
    _, (row,) = read_runs(write([{**GOOD, "num_gpus": "x", "step_time_seconds": "y"}]))
    assert "num_gpus" in row.reason
    assert "step_time_seconds" in row.reason


@pytest.mark.parametrize("column", [*REQUIRED_COLUMNS, "step_time_seconds"])
def test_a_table_without_a_column_has_every_row_skipped(write, column: str) -> None:
    row = {name: value for name, value in GOOD.items() if name != column}
    runs, skipped = read_runs(write([row, row]))
    assert runs == ()
    assert len(skipped) == 2
    assert f"{column}" in skipped[0].reason


def test_rows_without_a_name_are_called_by_their_line(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    header, row = ",".join(GOOD), ",".join(["", *list(GOOD.values())[1:]])
    path.write_text(f"{header}\n{row}\n{row},surplus\n")
    (run,), (skipped,) = read_runs(path)
    assert (run.run_id, skipped.run_id) == ("line 2", "line 3")
    assert "more fields" in skipped.reason


def test_a_column_given_twice_is_not_guessed(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(f"{','.join(GOOD)},device\n{','.join(GOOD.values())},h100\n")
    assert "two columns device" in read_runs(path)[1][0].reason


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"a\x00b,c\n\x80\n"])
def test_what_is_no_text_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "runs.csv"
    path.write_bytes(content)
    with pytest.raises(InvalidInputError, match="UTF-8"):
        read_runs(path)


@pytest.mark.parametrize("name", ["absent.csv", ".", "a\x00b"])
def test_what_is_no_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInputError, match="readable CSV file"):
        read_runs(tmp_path / name)


def test_a_huge_cell_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(f"{','.join(GOOD)}\n{'x' * 200_000}\n")
    with pytest.raises(InvalidInputError, match="field larger than"):
        read_runs(path)


def test_an_empty_file_is_no_table(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("")
    with pytest.raises(InvalidInputError, match="a table of runs is needed: the table has no column device"):
        read_runs(path)
    path.write_text("run_id,device,num_gpus\n")
    with pytest.raises(InvalidInputError, match="none of the columns step_time_seconds, tokens_per_second_per_gpu"):
        read_runs(path)
    assert Run(run_id="x").step_time_seconds is None
