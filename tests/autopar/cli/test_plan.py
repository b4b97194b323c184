"""``autopar plan``: the same plan to a person, to a program and to Python; and what it says when there is none."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

import autopar as package
from autopar.costmodel.spec.plan import SearchSummary
from autopar.io.plan_file import dump_plan, parse_plan, read_plan
from autopar.search import SearchResult, search

SMALL = ("--model", "gpt-1.2b", "--gpus", 8)


def test_json_is_a_plan_file_that_stands_alone(autopar) -> None:
    outcome = autopar("plan", *SMALL, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    document = outcome.document
    assert set(document) >= {"schema_version", "autopar_version", "strategy", "estimate", "inputs", "search", "alternatives"}
    assert set(document["estimate"]) >= {
        "schema_version", "fits", "step_time_seconds", "tokens_per_second_per_gpu", "model_flops_per_second_per_gpu", "mfu", "hfu",
        "bubble_fraction", "peak_memory_bytes", "memory_capacity_bytes", "time", "stages", "warnings", "provenance",
    }  # fmt: skip
    assert sum(document["estimate"]["time"].values()) == pytest.approx(document["estimate"]["step_time_seconds"], rel=1e-9)
    assert document["search"]["evaluated"] > 0
    plan = parse_plan(outcome.out)
    assert json.loads(dump_plan(plan)) == document
    assert plan.strategy.world_size == 8
    assert plan.estimate.fits


def test_python_and_the_command_line_agree(autopar, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    outcome = autopar("plan", *SMALL, "--fix", "tp=2", "--forbid", "cp", "--gbs", 64, "-o", file, "--json")
    plan = package.plan("gpt-1.2b", gpus=8, fix={"tp": 2}, forbid=["cp"], global_batch_size=64)
    assert outcome.document == json.loads(dump_plan(plan))
    assert outcome.document == json.loads(file.read_text())
    assert plan.inputs.constraints == ("tp=2", "forbid cp")
    assert package.estimate(read_plan(file)) == plan.estimate
    assert autopar("estimate", file, "--json").document == outcome.document["estimate"]


def test_the_report_names_what_was_assumed(autopar) -> None:
    outcome = autopar("plan", *SMALL)
    assert outcome.code == 0
    words = " ".join(outcome.out.split())
    for expected in ("H100 SXM5", "dgx-h100", "bf16 with fp32 master weights", "sequence length:", "global batch:", "Megatron"):
        assert expected in words
    assert "\x1b" not in outcome.out
    assert max(map(len, outcome.out.splitlines())) <= 100
    assert not any(line != line.rstrip() for line in outcome.out.splitlines())


def test_what_was_said_is_not_an_assumption(autopar) -> None:
    outcome = autopar("plan", *SMALL, "--cluster", "dgx-a100", "--gbs", 64, "--seq", 1024, "--precision", "bf16", "--json")
    assumed = outcome.document["inputs"]["assumptions"]
    assert [line.split(":")[0] for line in assumed] == ["framework"]
    assert outcome.document["inputs"]["cluster"]["id"] == "dgx-a100"


@pytest.mark.parametrize(
    ("flags", "field", "value"),
    [
        (("--fix", "tp=4", "pp=2"), "tensor_parallel_size", 4),
        (("--fix", "tp=4,pp=2"), "pipeline_parallel_size", 2),
        (("--fix", "tp=4", "--fix", "recompute=full"), "recompute", "full"),
        (("--fix", "zero_stage=0"), "zero_stage", 0),
        (("--fix", "order=tp-cp-pp-dp"), "rank_order", "tp-cp-pp-dp"),
    ],
)
def test_fixed_values_hold(autopar, flags: tuple[str, ...], field: str, value: object) -> None:
    document = autopar("plan", *SMALL, *flags, "--json").document
    assert document["strategy"][field] == value
    assert all(other["strategy"][field] == value for other in document["alternatives"])


def test_bounds_hold(autopar) -> None:
    document = autopar("plan", *SMALL, "--max", "tp=2", "--min", "pp=2", "--forbid", "recompute", "--top", 50, "--json").document
    strategies = [document["strategy"], *(other["strategy"] for other in document["alternatives"])]
    assert len(strategies) > 1
    for strategy in strategies:
        assert strategy["tensor_parallel_size"] <= 2
        assert strategy["pipeline_parallel_size"] >= 2
        assert strategy["recompute"] == "none"


@pytest.mark.parametrize("top", [1, 3])
def test_top_counts_the_best(autopar, top: int) -> None:
    document = autopar("plan", *SMALL, "--top", top, "--json").document
    assert len(document["alternatives"]) == top - 1
    times = [document["estimate"]["step_time_seconds"], *(other["step_time_seconds"] for other in document["alternatives"])]
    assert times == sorted(times)
    strategies = [document["strategy"], *(other["strategy"] for other in document["alternatives"])]
    assert len({str(sorted(each.items())) for each in strategies}) == top


def test_a_model_that_fits_nowhere_is_told_how_many_gpus_would_hold_it(autopar, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    outcome = autopar("plan", "--model", "gpt-175b", "--gpus", 8, "-o", file)
    assert (outcome.code, outcome.out) == (1, "")
    assert "nothing fits: gpt-175b" in outcome.err
    assert "smallest number of GPUs that holds it" in outcome.err
    assert "optimizer states" in outcome.err
    assert not file.exists()


def test_every_fault_of_a_question_is_told_at_once(autopar) -> None:
    outcome = autopar(
        "plan", "--model", "gtp-175b", "--gpus", 8, "--gpu", "h1000", "--fix", "tpp=8", "--max", "pp=x", "--memory-reserve", "much",
        "--framework", "megatron-cor", "--precision", "bf17",
    )  # fmt: skip
    assert (outcome.code, outcome.out) == (2, "")
    for expected in ("gpt-175b", "h100", "tpp", "'x'", "4GiB", "megatron-core", "bf16"):
        assert expected in outcome.err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--model", "gpt-1.2b"), "the number of GPUs is needed"),
        ((*SMALL, "--gpu", "h100", "--cluster", "dgx-h100"), "not both"),
        ((*SMALL, "--gpu", "v100-sxm2-32gb", "--precision", "fp8"), "does not compute in it"),
        ((*SMALL, "--cluster", "./absent.toml"), "absent.toml"),
        (("--model", "./absent", "--gpus", 8), "absent"),
        (("--model", "gpt-1.2b", "--gpus", 12), "nearest valid: 8, 16"),
    ],
)
def test_bad_input_is_code_2(autopar, flags: tuple[object, ...], message: str) -> None:
    outcome = autopar("plan", *flags)
    assert (outcome.code, outcome.out) == (2, "")
    assert message in outcome.err


def test_a_device_without_bf16_takes_fp16_and_says_so(autopar) -> None:
    document = autopar("plan", *SMALL, "--gpu", "v100-sxm2-32gb", "--json").document
    assert document["inputs"]["training"]["precision"]["name"] == "fp16"
    assert any("has no bf16" in line for line in document["inputs"]["assumptions"])


@pytest.mark.parametrize("target", ["absent/plan.json", "."])
def test_a_plan_that_cannot_be_written_is_bad_input(autopar, tmp_path: Path, target: str) -> None:
    outcome = autopar("plan", *SMALL, "-o", tmp_path / target)
    assert (outcome.code, outcome.out) == (2, "")
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_search_prints_its_best_so_far(autopar, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut_short(*arguments, **options):
        result = search(*arguments, **options)
        return replace(result, summary=replace(result.summary, optimality="interrupted: the best of what was seen", interrupted=True))

    monkeypatch.setattr("autopar.search.search", cut_short)
    outcome = autopar("plan", *SMALL, "--json")
    assert outcome.code == 130
    assert "interrupted" in outcome.err
    assert parse_plan(outcome.out).estimate.fits


def test_an_interrupt_before_anything_fits_has_no_plan(autopar, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = SearchSummary(evaluated=0, rejected={}, method="exhaustive", optimality="interrupted: nothing was seen", interrupted=True)
    monkeypatch.setattr("autopar.search.search", lambda *_, **__: SearchResult(best=None, ranked=(), summary=summary))
    outcome = autopar("plan", *SMALL, "--json")
    assert (outcome.code, outcome.out, outcome.err) == (130, "", "error: interrupted\n")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--model", "gpt-1.2b", "--gpus", 7, "--gbs", 64, "--forbid", "pp"), "must divide global_batch_size=64"),
        (("--model", "gpt-1.2b", "--gpus", 7, "--gbs", 64, "--forbid", "pp"), "memory is not the obstacle"),
        (("--model", "gpt-1.2b", "--gpus", 8, "--fix", "dp=3"), "within these constraints; loosen one"),
    ],
)
def test_sizes_that_never_divide_are_told(autopar, flags: tuple[object, ...], message: str) -> None:
    outcome = autopar("plan", *flags)
    assert (outcome.code, outcome.out) == (1, "")
    assert message in outcome.err


def test_the_answer_no_is_a_document_too(autopar) -> None:
    flags = ("--model", "gpt-175b", "--gpus", 8)
    outcome = autopar("plan", *flags, "--json")
    assert outcome.code == 1
    document = outcome.document
    assert (document["schema_version"], document["fits"], document["strategy"]) == ("1.1", False, None)
    assert "\n".join(document["reasons"]).split() == autopar("plan", *flags).err.removeprefix("error: ").split()
    needed = [near["peak_memory_bytes"] for near in document["nearest"]]
    assert needed == sorted(needed)
    assert needed[0] > 80e9
    smallest = document["smallest_cluster"]
    sizes = ("tensor", "pipeline", "context", "data")
    assert math.prod(smallest["strategy"][f"{name}_parallel_size"] for name in sizes) == smallest["num_gpus"] > 8


def test_what_no_cluster_holds_has_null_for_the_smallest(autopar) -> None:
    document = autopar("plan", *SMALL, "--fix", "dp=3", "--json").document
    assert document["smallest_cluster"] is None
    assert document["fits"] is False


@pytest.mark.parametrize(("model", "gpus"), [("llama3-8b", 8), ("llama3-8b", 64)])
def test_figures_of_the_runners_up_stay_on_one_line(autopar, model: str, gpus: int) -> None:
    lines = autopar("plan", "--model", model, "--gpus", gpus, "--gpu", "gb200-nvl72" if gpus > 8 else "h100").out.splitlines()
    assert max(map(len, lines)) <= 100
    start = lines.index("runners-up")
    end = next(place for place in range(start, len(lines)) if not lines[place])
    rows = [line for line in lines[start:end] if re.search(r"[0-9] (ms|s) ", line)]
    assert len(rows) == 4
    assert all(re.search(r"\S (m?s) +[+-][0-9.]+%( tie)? +[0-9.]+ GiB$", line) for line in rows)
    words = " ".join(lines[start:end]).split()
    assert sum(word.startswith("recompute=") for word in words) == 4
    if gpus > 8:
        assert "(16 nodes of 4, nvl72-gb200)" in lines[0]


def test_a_huge_batch_is_answered(autopar) -> None:
    document = autopar("plan", "--model", "llama3-8b", "--gpus", 8, "--gbs", 10**8, "--json").document
    small = autopar("plan", "--model", "llama3-8b", "--gpus", 8, "--gbs", 10**5, "--json").document
    rates = [each["estimate"]["tokens_per_second_per_gpu"] for each in (document, small)]
    assert rates[0] == pytest.approx(rates[1], rel=0.01)
