"""The benchmark's page, its published figures, and the watch over drift."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from autopar.accuracy.runs import read_runs
from autopar.accuracy.score import Accuracy, score
from benchmarks.accuracy import drift, report, tables
from benchmarks.accuracy.published import QUOTED_SAMPLES_PER_SECOND, deployment_estimate, samples_per_second_bound
from benchmarks.accuracy.scenarios import Scenario, scenarios
from benchmarks.accuracy.targets import Target, verdict

from .conftest import TABLE


@pytest.fixture(scope="module")
def accuracy() -> Accuracy:
    return score(*read_runs(TABLE), by=("family", "device", "framework"))


def test_the_quoted_120_samples_a_second_are_impossible() -> None:
    bound = samples_per_second_bound()
    assert 37 < bound < 37.2
    found = 1536 / deployment_estimate().step_time_seconds
    assert 0.25 * bound < found < bound < QUOTED_SAMPLES_PER_SECOND


def test_the_shipped_tables_are_read_whole() -> None:
    runs, skipped = tables.shipped_runs()
    assert skipped == ()
    assert len(runs) > 1800
    assert len({run.run_id for run in runs}) == len(runs)
    readme = (tables.FOLDER / "README.md").read_text()
    assert [family for family in sorted({run.family for run in runs}) if f"`{family}`" not in readme] == []


def test_rows_recompute_what_their_recipes_do() -> None:
    with (tables.FOLDER / "bridge_recipes.csv").open(newline="", encoding="utf-8") as file:
        recipes = {row["recipe"]: row for row in csv.DictReader(file)}
    with (tables.FOLDER / "published_runs.csv").open(newline="", encoding="utf-8") as file:
        named = [
            (row, found[1]) for row in csv.DictReader(file) if (found := re.search(r"recomputation of the recipe (\w+)", row["notes"]))
        ]
    assert len(named) > 90
    sizes = ("tensor", "pipeline", "context", "expert")
    for row, name in named:
        recipe = recipes[name]
        assert (row["recompute"], row["precision"]) == (recipe["recompute"], recipe["precision"]), row["run_id"]
        for size in (f"{axis}_parallel_size" for axis in sizes):
            assert (row[size] or "1") == (recipe[size] or "1"), (row["run_id"], size)


def test_targets_count_their_rows_alone(accuracy: Accuracy) -> None:
    everything = Target(name="x", families=("vtrainN", "paper-kort"), limit=0.1)
    part = replace(everything, choose=lambda run: run.micro_batch_size == 4)
    assert (everything.of(accuracy).rows, part.of(accuracy).rows) == (9, 3)
    assert Target(name="x", families=("h200-step",), limit=0.1).of(accuracy, memory=True).rows == 3
    assert everything.of(accuracy, memory=True).mean_absolute_error is None
    assert [verdict(0.1, 0.2), verdict(0.3, 0.2), verdict(0.3, 0.2, at_least=True), verdict(None, 1)] == ["yes", "**no**", "yes", "-"]


def test_the_page_is_written_whole(accuracy: Accuracy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    left_out, causes = tmp_path / "left_out.json", tmp_path / "causes.toml"
    group = {"rows": 4, "mean_absolute_error": 0.987, "median_absolute_error": 0.9, "p90_absolute_error": 1.0, "bias": -0.5}
    constant = {"owner": "framework", "name": "megatron-2022", "field": "data_overlap", "value": 0.5, "low": 0, "high": 1, "rows": 9}
    targets = {"Korthikanti 2022, table 5": group}
    left_out.write_text(json.dumps({"by": {"family": {"paper-kort": group}}, "targets": targets, "constants": [constant]}))
    causes.write_text('paper-kort = "the moon was full"\n')
    for name, value in {"DOCS": tmp_path, "LEFT_OUT": left_out, "CAUSES": causes}.items():
        monkeypatch.setattr(report, name, value)
    monkeypatch.setattr(report, "shipped_accuracy", lambda: accuracy)
    report.main()
    text = (tmp_path / "accuracy.md").read_text()
    assert "| Korthikanti 2022, table 5 | 4 | 3.0 % |" in text
    assert "| 98.7 % | **no** |" in text  # the left-out error is what is judged
    assert "- **Korthikanti 2022, table 5**: the moon was full" in text
    assert "| framework megatron-2022 | data_overlap | 0.5 | 0 to 1 | 9 |" in text
    assert "impossible as quoted" in text
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    widths = {line.count("|") for line in rows}
    assert max(widths) < 14
    plots = {path.name for path in (tmp_path / "accuracy").iterdir()}
    assert plots == {"step_time_by_device.svg", "step_time_by_family.svg"}
    assert all(f"accuracy/{name}" in text for name in plots)


def test_a_table_cell_does_not_break_its_row() -> None:
    assert tables.markdown(("a", "b"), [("x|y", "1\n2")]) == ["| a | b |", "| --- | ---: |", "| x/y | 1 2 |", ""]


# -- drift --------------------------------------------------------------------------------------------------------------


def test_drift_tells_small_from_large_and_broken_from_changed() -> None:
    old = {"step_time_seconds": 1.0, "peak_memory_bytes": 1e9}
    before = {"same": old, "near": old, "far": old, "breaks": old, "mended": {"fails": "x"}, "still": {"fails": "x"}, "gone": old}
    now = {
        "same": old,
        "near": {**old, "step_time_seconds": 1.00009},
        "far": {**old, "peak_memory_bytes": 1.0002e9},
        "breaks": {"fails": "no longer"},
        "mended": old,
        "still": {"fails": "for another reason"},
        "new": old,
    }
    found = {change.scenario: change for change in drift.changes(before, now)}
    assert set(found) == {"far", "breaks", "mended", "new", "gone"}
    assert [name for name, change in found.items() if change.breaks] == ["breaks"]
    assert "peak" in found["far"].text
    assert "step" not in found["far"].text


def test_drift_blocks_only_on_what_worked_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    snapshot = tmp_path / "snapshot.json"
    good = next(iter(scenarios()))
    bad = replace(good, strategy="tp=3")
    monkeypatch.setattr(drift, "SNAPSHOT", snapshot)
    monkeypatch.setattr(drift, "scenarios", lambda: (good, bad))
    assert drift.main([]) == 0
    assert drift.main(["--update"]) == 0
    document = json.loads(snapshot.read_text())
    assert set(document["scenarios"]) == {good.name, bad.name}
    assert "fails" in document["scenarios"][bad.name]
    capsys.readouterr()
    assert drift.main([]) == 0
    assert capsys.readouterr().out.startswith("0 of 2 scenarios changed")
    document["scenarios"][good.name]["step_time_seconds"] *= 1.01
    snapshot.write_text(json.dumps(document))
    assert drift.main([]) == 0
    assert "(-1.0 %)" in capsys.readouterr().out
    document["scenarios"][bad.name] = document["scenarios"][good.name]
    snapshot.write_text(json.dumps(document))
    assert drift.main([]) == 1
    assert "worked before, fails now" in capsys.readouterr().out


def test_nothing_in_the_snapshot_that_worked_fails_now() -> None:
    before = json.loads(drift.SNAPSHOT.read_text())["scenarios"]
    questions: tuple[Scenario, ...] = tuple(scenarios())
    assert len({question.name for question in questions}) == len(questions) >= 60
    assert [change.text for change in drift.changes(before, drift.answers(questions)) if change.breaks] == []
    assert {question.name for question in questions} == set(before)
