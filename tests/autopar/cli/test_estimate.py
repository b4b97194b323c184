"""``autopar estimate`` and ``autopar explain``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import autopar as package
from autopar.cli.estimate import EPILOG
from autopar.costmodel.spec.errors import NoPlanError
from autopar.costmodel.spec.strategy import Strategy

FITS = ("--model", "gpt-1.2b", "--gpus", 8, "--tp", 2)
TOO_LARGE = ("--model", "gpt-175b", "--gpus", 8, "--tp", 8, "--mbs", 1)
REFUSED = ("--model", "gpt-1.2b", "--gpus", 5, "--tp", 5)


def test_flags_are_the_strategy(autopar) -> None:
    outcome = autopar(
        "estimate", "--model", "gpt-22b", "--gpus", 64, "--gpu", "a100-sxm4-80gb", "--tp", 4, "--pp", 4, "--vpp", 2, "--mbs", 2,
        "--zero-stage", 1, "--no-sequence-parallel", "--recompute", "full", "--num-recompute-layers", 4, "--gbs", 128, "--json",
    )  # fmt: skip
    strategy = Strategy(
        tensor_parallel_size=4, pipeline_parallel_size=4, virtual_pipeline_stages=2, pipeline_schedule="interleaved_1f1b",
        data_parallel_size=4, micro_batch_size=2, recompute="full", num_recompute_layers=4,
    )  # fmt: skip
    expected = package.estimate("gpt-22b", gpus=64, gpu="a100-sxm4-80gb", global_batch_size=128, strategy=strategy)
    assert outcome.code == 0
    assert outcome.document["step_time_seconds"] == expected.step_time_seconds
    assert outcome.document["peak_memory_bytes"] == expected.peak_memory_bytes
    assert len(outcome.document["stages"]) == 4


def test_the_examples_of_the_help_run(autopar) -> None:
    examples = [line.split() for line in EPILOG.splitlines() if "autopar estimate --model" in line]
    assert len(examples) == 2
    for _, *words in examples:
        assert autopar(*words).code == 0, words


def test_the_order_of_ranks_is_a_flag_and_shown_where_it_is_not_the_usual_one(autopar) -> None:
    asked = ("--model", "gpt-1.2b", "--gpus", 16, "--tp", 2, "--pp", 2, "--gbs", 64)
    usual, other = (autopar("estimate", *asked, "--order", order, "--json").document for order in ("tp-cp-dp-pp", "tp-cp-pp-dp"))
    assert usual == autopar("estimate", *asked, "--json").document
    assert usual["time"]["exposed_pipeline_communication"] > other["time"]["exposed_pipeline_communication"]
    assert usual["peak_memory_bytes"] == other["peak_memory_bytes"]
    shown = autopar("explain", *asked, "--order", "tp-cp-pp-dp").out
    assert "order of ranks       tp-cp-pp-dp" in shown
    assert "order of ranks" not in autopar("explain", *asked).out
    refused = autopar("estimate", *asked, "--framework", "nanotron", "--order", "tp-cp-pp-dp")
    assert refused.code == 1
    assert "rank_order=tp-cp-pp-dp: nanotron" in refused.err
    assert autopar("estimate", *asked, "--order", "pp-tp-dp").code == 2


def test_the_world_size_follows_from_all_sizes(autopar) -> None:
    by_sizes = autopar("estimate", "--model", "gpt-1.2b", "--tp", 2, "--pp", 2, "--dp", 2, "--json")
    by_gpus = autopar("estimate", "--model", "gpt-1.2b", "--tp", 2, "--pp", 2, "--gpus", 8, "--json")
    assert by_sizes.code == 0
    assert by_sizes.document == by_gpus.document


def test_what_does_not_fit_is_estimated_and_answers_no(autopar) -> None:
    outcome = autopar("estimate", *TOO_LARGE, "--json")
    assert outcome.code == 1
    assert outcome.document["fits"] is False
    assert outcome.document["peak_memory_bytes"] > outcome.document["memory_capacity_bytes"]
    report = autopar("estimate", *TOO_LARGE)
    assert report.code == 1
    assert "DOES NOT FIT" in report.out


def test_a_refused_strategy_names_the_rule(autopar) -> None:
    outcome = autopar("estimate", *REFUSED)
    assert (outcome.code, outcome.out) == (1, "")
    assert "this strategy is refused: TP5" in outcome.err
    assert "num_attention_heads" in outcome.err
    with pytest.raises(NoPlanError, match="num_attention_heads"):
        package.estimate("gpt-1.2b", gpus=5, strategy={"tp": 5})


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--model", "gpt-1.2b", "--gpus", 8, "--tp", 3), "nearest valid: tp=2 or 4, or gpus=6 or 9"),
        (("--model", "gpt-1.2b", "--tp", 2), "the number of GPUs is needed"),
        ((*FITS, "--dp", 8), "gpus=16 or dp=4"),
        ((*FITS, "--pipeline-layers", "8,x"), "number of layers"),
        (("absent.json",), "no such file"),
    ],
)
def test_bad_input_is_code_2(autopar, flags: tuple[object, ...], message: str) -> None:
    for command in ("estimate", "explain"):
        outcome = autopar(command, *flags)
        assert (outcome.code, outcome.out) == (2, "")
        assert message in outcome.err


def test_a_plan_file_brings_its_question(autopar, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    plan = package.plan("gpt-1.2b", gpus=8, memory_reserve="8GiB")
    package.write_plan(plan, file)
    assert autopar("estimate", file, "--json").document["step_time_seconds"] == plan.estimate.step_time_seconds
    assert "memory" in autopar("explain", file).out
    document = json.loads(file.read_text())
    file.write_text(json.dumps({**document, "schema_version": "9.0"}))
    outcome = autopar("explain", file)
    assert (outcome.code, outcome.out) == (2, "")
    assert "reads plan files of version" in outcome.err


def test_explain_shows_changes_that_hold(autopar) -> None:
    outcome = autopar("explain", "--model", "gpt-22b", "--gpus", 64, "--tp", 8, "--pp", 8, "--gbs", 64, "--recompute", "full", "--json")
    assert outcome.code == 0
    now = outcome.document["estimate"]["step_time_seconds"]
    changes = outcome.document["changes"]
    assert changes
    times = [change["step_time_seconds"] for change in changes]
    assert times == sorted(times)
    assert times[-1] < now
    assert any(change["change"] == "recompute full -> none" for change in changes)


def test_explain_tells_what_would_make_it_fit(autopar) -> None:
    outcome = autopar("explain", "--model", "gpt-22b", "--gpus", 64, "--tp", 2, "--gbs", 64, "--json")
    assert outcome.code == 1
    assert outcome.document["estimate"]["fits"] is False
    assert any(change["change"].startswith("tp 2 -> 4") for change in outcome.document["changes"])
    assert all(change["fits"] for change in outcome.document["changes"])


def test_explain_shows_every_rule_that_refuses(autopar) -> None:
    outcome = autopar("explain", *REFUSED)
    assert outcome.code == 1
    assert "refused by" in outcome.out
    assert "num_attention_heads" in outcome.out
    assert autopar("explain", *REFUSED, "--json").document["estimate"] is None


def test_a_refused_strategy_is_a_document_too(autopar) -> None:
    outcome = autopar("estimate", *REFUSED, "--json")
    assert outcome.code == 1
    document = outcome.document
    assert (document["schema_version"], document["fits"], document["smallest_cluster"]) == ("1.1", False, None)
    assert document["strategy"]["tensor_parallel_size"] == 5
    assert any("num_attention_heads" in fault["required"] for fault in document["faults"])
    assert any("num_attention_heads" in line for line in document["reasons"])
    explained = autopar("explain", *REFUSED, "--json").document
    assert explained["fits"] is False
    assert explained["refused_by"] == document["faults"]
    assert explained["rules"][0] == "heads_divide_tp"
    assert autopar("explain", *FITS, "--json").document["fits"] is True


def test_a_plan_file_of_the_wrong_size_is_told_no_flags(autopar, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    document = json.loads(autopar("plan", "--model", "gpt-1.2b", "--gpus", 8, "--json").out)
    document["strategy"]["data_parallel_size"] = 3
    file.write_text(json.dumps(document))
    outcome = autopar("estimate", file)
    assert (outcome.code, outcome.out) == (2, "")
    assert "gpus=8" in outcome.err
    assert "--" not in outcome.err


def test_explain_names_the_nearest_valid_batch_and_what_to_run_instead(autopar) -> None:
    outcome = autopar("explain", "--model", "llama3-8b", "--gpus", 8, "--gbs", 7, "--dp", 8)
    assert outcome.code == 1
    assert "0 micro-batches" not in outcome.out
    assert "does not divide over 8 data-parallel ranks x 1: nearest valid 8" in outcome.out
    assert "global_batch_divides: data_parallel_size=8: must divide global_batch_size=7" in outcome.out
    assert "`autopar plan` finds for these GPUs: " in outcome.out


def test_explain_says_how_many_gpus_hold_what_never_fits(autopar) -> None:
    flags = ("--model", "gpt-175b", "--gpus", 8)
    explained = autopar("explain", *flags, "--tp", 8, "--json").document
    smallest = autopar("plan", *flags, "--json").document["smallest_cluster"]
    assert explained["changes"] == []
    assert f"the fewest of their kind that hold the model: {smallest['num_gpus']} (" in explained["instead"]


def test_explain_prints_two_changes_at_once_where_one_does_not_do(autopar) -> None:
    outcome = autopar("explain", "--model", "gpt-22b", "--gpus", 64, "--gpu", "a100-sxm4-80gb", "--tp", 1)
    assert outcome.code == 1
    assert "no single change makes it run; two at once that do" in outcome.out
    assert ", then " in outcome.out
