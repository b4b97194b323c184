"""The dated benchmark report: what it says of a report before, of one it cannot read, and of what was not measured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from autopar.accuracy.runs import read_runs
from autopar.accuracy.score import Accuracy, score
from autopar.io.codec import from_json_as, to_json
from benchmarks.report import __main__ as program
from benchmarks.report.measure import accuracy_lines, planned, runtime_tables
from benchmarks.report.parts import parts
from benchmarks.report.results import NAME, Planned, RankingQuality, Results, previous
from benchmarks.search.speed import Speed

QUESTION = ("gpt-1.2b", 8, "h100-sxm5-80gb", "megatron-core", "bf16")
RUNS = Path(__file__).parents[1] / "data" / "accuracy" / "runs.csv"


@pytest.fixture(scope="module")
def accuracy() -> Accuracy:
    runs, skipped = read_runs(RUNS)
    return score(runs, skipped, by=("device",))


@pytest.fixture(scope="module")
def plan() -> Planned:
    return planned(*QUESTION)


@pytest.fixture(scope="module")
def results(accuracy: Accuracy, plan: Planned) -> Results:
    return Results(
        date="2026-02-01",
        autopar_version="0.1.0",
        machine="a machine",
        accuracy=tuple(accuracy_lines(accuracy)),
        ranking=RankingQuality(sets=1, spearman=0.9, pairs_right=None, regret=0.01),
        search=(Speed(model="m", gpus=8, framework="f", evaluated=10, covered=20, first_seconds=0.5, best_seconds=0.25),),
        plans=(plan,),
        runtime=(),
    )


def text(now: Results, then: Results | None = None, why: str = "") -> str:
    return program.markdown_report(now, list(parts(now, then, why)))


def test_results_are_read_back_as_they_were(results: Results) -> None:
    assert from_json_as(Results, to_json(results)) == results


def test_a_first_report_says_that_it_is(results: Results) -> None:
    told = text(results)
    assert "There is no report before this one." in told
    assert "Not measured" in told
    assert "against then" not in told


def test_the_same_results_are_called_the_same(results: Results) -> None:
    told = text(results, replace(results, date="2026-01-01"))
    assert "Against the report of 2026-01-01" in told
    assert "All plans have the strategy they had." in told
    assert "| same |" in told


def test_what_moved_is_told_with_its_sign(results: Results, plan: Planned) -> None:
    assert plan.strategy is not None
    slower = replace(plan, step_time_seconds=plan.step_time_seconds * 2, strategy=replace(plan.strategy, micro_batch_size=1, zero_stage=0))
    errors = tuple(replace(each, mean=(each.mean or 0) + 0.01) for each in results.accuracy)
    then = replace(results, date="2026-01-01", machine="another machine", plans=(slower,), accuracy=errors)
    told = text(results, then)
    assert "Times of searches are not comparable" in told
    assert "-50.0%" in told
    assert "| -1.0 |" in told
    assert ("1 of 1 plans have another strategy" in told) is (slower.strategy != plan.strategy)
    assert "Plans that changed" in told


def test_a_question_without_a_plan_is_a_line_all_the_same(results: Results) -> None:
    none = planned("gpt-175b", 1, "h100-sxm5-80gb", "megatron-core", "bf16")
    assert none.strategy is None
    told = text(replace(results, plans=(none,)), replace(results, plans=(none,)))
    assert "nothing fits" in told


def test_every_table_is_whole(results: Results) -> None:
    for part in parts(results, replace(results, date="2026-01-01")):
        assert all(len(row) == len(part.columns) for row in part.rows)


def test_the_newest_older_report_is_the_one_before(tmp_path: Path) -> None:
    for day in ("2026-01-01", "2026-01-03", "2026-02-01", "notes"):
        (tmp_path / day).mkdir()
    assert previous(tmp_path, "2026-02-01") is None
    for day in ("2026-01-01", "2026-01-03", "2026-02-01", "notes"):
        (tmp_path / day / NAME).write_text("{}")
    assert previous(tmp_path, "2026-02-01") == tmp_path / "2026-01-03" / NAME
    assert previous(tmp_path, "2026-01-01") is None


def test_the_program_writes_all_three_and_compares_with_the_day_before(monkeypatch, capsys, tmp_path: Path, accuracy, results) -> None:
    monkeypatch.setattr(program, "shipped_accuracy", lambda: accuracy)
    monkeypatch.setattr(program, "all_results", lambda date, _accuracy, **_options: replace(results, date=date))
    for day in ("2026-01-01", "2026-01-02"):
        program.main(["--date", day, "--output", str(tmp_path)])
        assert sorted(path.name for path in (tmp_path / day).iterdir()) == ["report.html", "report.json", "report.md"]
    assert "Against the report of 2026-01-01" in capsys.readouterr().out
    page = (tmp_path / "2026-01-02" / "report.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "Plans" in page
    assert "<script" not in page
    (tmp_path / "2026-01-02" / NAME).write_text('{"schema_version": "9.0"}')
    program.main(["--date", "2026-01-03", "--output", str(tmp_path)])
    assert "cannot be compared with" in (tmp_path / "2026-01-03" / "report.md").read_text()


@pytest.mark.parametrize("arguments", [["--date", "yesterday"], ["--repeats", "few"]])
def test_bad_arguments_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        program.main(arguments)


def test_what_the_runtime_measured_is_taken_as_it_is(tmp_path: Path) -> None:
    tried = [{"rank": 1, "strategy": "TP2", "predicted_seconds": 0.1, "measured_seconds": 0.11, "spread": 0.02}]
    loop = {"schema_version": "1.0", "machine": {"name": "a laptop"}, "rounds": 10, "tried": tried, "mean_error": 0.05}
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "loop.json").write_text(json.dumps(loop))
    (tmp_path / "results" / "profile.json").write_text(json.dumps({"schema_version": "1.0", "constants": [{"a": 1}]}))
    (tmp_path / "overhead.csv").write_text("layout,overhead\ntensor,0.02\n")
    (tmp_path / "broken.json").write_text("{")
    tables = {table.title: table for table in runtime_tables(tmp_path)}
    assert set(tables) == {"loop: tried", "overhead", "broken"}
    assert tables["loop: tried"].columns == ("rank", "strategy", "predicted", "measured", "spread")
    assert tables["loop: tried"].rows == (("1", "TP2", "100.0 ms", "110.0 ms", "2.00%"),)
    assert "a laptop" in tables["loop: tried"].note
    assert "cannot be read" in tables["broken"].note
    assert list(runtime_tables(tmp_path / "absent")) == []
