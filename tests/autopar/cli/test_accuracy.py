"""``autopar accuracy``: the JSON's fields, the report, and what it says of a table that cannot be scored."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

TABLE = Path(__file__).parents[2] / "data" / "accuracy" / "runs.csv"


def test_the_json_has_the_documented_fields(autopar) -> None:
    outcome = autopar("accuracy", TABLE, "--by", "device,framework", "--json")
    assert (outcome.code, outcome.err) == (0, "")
    document = outcome.document
    assert set(document) == {"schema_version", "rows", "scored", "skipped", "step_time", "memory", "ranking", "predictions"}
    errors = {"rows", "mean_absolute_error", "median_absolute_error", "p90_absolute_error", "bias"}
    assert set(document["step_time"]) == errors | {"groups"}
    assert set(document["memory"]) == errors | {"groups", "over_predicted", "under_predicted", "out_of_memory"}
    assert set(document["step_time"]["groups"]) == {"device", "framework"}
    assert set(document["step_time"]["groups"]["device"]) == {"a100-sxm4-80gb", "h200-sxm-141gb"}
    assert set(document["step_time"]["groups"]["device"]["h200-sxm-141gb"]) == errors
    assert [set(row) for row in document["ranking"]] == [{"group", "rows", "spearman", "kendall", "pairwise", "regret"}]
    fields = {"run_id", "measured_seconds", "predicted_seconds", "measured_bytes", "predicted_bytes"}
    assert all(set(row) == fields for row in document["predictions"])
    assert document["rows"] == document["scored"] == len(document["predictions"]) == 12
    assert document["skipped"] == []


def test_the_report_has_every_part_and_keeps_to_the_page(autopar, tmp_path: Path) -> None:
    page = tmp_path / "accuracy.html"
    outcome = autopar("accuracy", TABLE, "--html", page)
    assert outcome.code == 0
    assert outcome.err == f"wrote {page}\n"
    for part in ("12 of 12 rows scored", "step time by family", "peak memory by device", "ranking of strategies", "largest errors"):
        assert part in outcome.out
    assert max(map(len, outcome.out.splitlines())) <= 100
    assert "\x1b" not in outcome.out
    assert page.read_text().rstrip().endswith("</html>")


def test_several_tables_are_scored_together(autopar) -> None:
    assert autopar("accuracy", TABLE, TABLE, "--json").document["rows"] == 24


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("device,num_gpus,sequence_length,global_batch_size,tensor_parallel_size,pipeline_parallel_size,step_time_seconds\n", "0 rows"),
        ("a,b\n1,2\n", "nothing to score: all of 1 rows skipped"),
        ("device,num_gpus\nh100,8\nh100,8\n", "nothing to score: all of 2 rows skipped"),
    ],
)
def test_nothing_to_score_answers_no(autopar, tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(content)
    outcome = autopar("accuracy", path)
    assert outcome.code == 1
    assert message in outcome.err
    document = autopar("accuracy", path, "--json", "--html", tmp_path / "page.html").document
    assert (document["scored"], document["predictions"], document["step_time"]["bias"]) == (0, [], None)
    assert len(document["skipped"]) == document["rows"]
    assert not (tmp_path / "page.html").exists()


def test_rows_that_cannot_be_scored_are_counted_by_reason(autopar, tmp_path: Path) -> None:
    with TABLE.open(newline="") as file:
        rows = list(csv.DictReader(file))
    bad = [{**rows[0], "run_id": f"bad-{index}", "data_parallel_size": "63"} for index in range(3)]
    path = tmp_path / "runs.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows([*rows[:4], *bad])
    outcome = autopar("accuracy", path)
    assert outcome.code == 0
    assert "4 of 7 rows scored, 3 skipped" in outcome.out
    assert "- 3 x tp 1 x pp 1 x cp 1 x dp 63 is 63, not num_gpus=64 (bad-0, bad-1, …)" in outcome.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((TABLE, "--by", "colour"), "--by=colour: columns to group by, of family, device"),
        (("absent.csv", "gone.csv"), "gone.csv"),
        ((), "Missing argument"),
        ((TABLE, "--html", "no/such/folder/page.html"), "does not exist"),
    ],
)
def test_bad_input_is_code_2(autopar, arguments: tuple[object, ...], message: str) -> None:
    outcome = autopar("accuracy", *arguments)
    assert outcome.code == 2
    assert message in outcome.err


@pytest.mark.parametrize("text", ["", "{}", '{"a": 1,\n', "run_id,device"])
def test_what_is_no_table_of_runs_is_bad_input(autopar, tmp_path: Path, text: str) -> None:
    (tmp_path / "plan.json").write_text(text)
    outcome = autopar("accuracy", tmp_path / "plan.json")
    assert (outcome.code, outcome.out) == (2, "")
    assert "a table of runs is needed: the table has no column" in outcome.err
