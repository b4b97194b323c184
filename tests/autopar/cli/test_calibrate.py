"""``autopar calibrate`` and ``--profile``: a world made with known constants, and the command that finds them."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import autopar as package
from autopar.api import resolve
from autopar.costmodel.estimate import estimate
from autopar.io.logs import parse_log
from autopar.request import build_problem

TRUE_GEMM = 0.80
"""GEMM rate of the made-up cluster over the catalog's."""
COLUMNS = (
    "run_id", "device", "num_gpus", "framework", "model_name", "num_layers", "hidden_size", "num_attention_heads", "sequence_length",
    "global_batch_size", "micro_batch_size", "tensor_parallel_size", "pipeline_parallel_size", "recompute", "precision",
    "step_time_seconds",
)  # fmt: skip
SIZES = [(tp, pp, mbs, recompute) for tp in (2, 4, 8) for pp in (1, 2, 4) for mbs in (1, 2) for recompute in ("none", "full")]


def truth(tp: int, pp: int, mbs: int, recompute: str) -> float:
    """Seconds on a cluster whose GEMMs run at 0.8 of the catalog's rate."""
    problem, _ = build_problem("gpt-22b", gpus=64, gpu="a100-sxm4-80gb", global_batch_size=128, sequence_length=2048, precision="bf16")
    hardware = problem.hardware
    slower = replace(
        hardware,
        gemm_efficiency=hardware.gemm_efficiency * TRUE_GEMM,
        gemm_small_efficiency=hardware.gemm_small_efficiency * TRUE_GEMM,
    )
    strategy = {"tp": tp, "pp": pp, "mbs": mbs, "recompute": recompute, "zero": 1}
    _, chosen, _ = resolve(problem, strategy)
    return estimate(replace(problem, hardware=slower), chosen).step_time_seconds


def table(path: Path, sizes: list[tuple[int, int, int, str]], **changes: str) -> Path:
    jitter = np.random.default_rng(0).normal(0, 0.01, len(sizes))
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS)
        writer.writeheader()
        for number, (tp, pp, mbs, recompute) in enumerate(sizes):
            row = {
                "run_id": f"r{number}", "device": "a100-sxm4-80gb", "num_gpus": 64, "framework": "megatron-core", "model_name": "gpt-22b",
                "num_layers": 48, "hidden_size": 6144, "num_attention_heads": 64, "sequence_length": 2048, "global_batch_size": 128,
                "micro_batch_size": mbs, "tensor_parallel_size": tp, "pipeline_parallel_size": pp, "recompute": recompute,
                "precision": "bf16", "step_time_seconds": truth(tp, pp, mbs, recompute) * float(np.exp(jitter[number])),
            }  # fmt: skip
            writer.writerow(row | changes)
    return path


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from autopar.cli.app import run

    folder = tmp_path_factory.mktemp("profile")
    runs = table(folder / "runs.csv", SIZES)
    assert run(["calibrate", str(runs), "-o", str(folder / "profile.json")]) == 0
    return folder / "profile.json"


def test_it_finds_the_constant_that_differs(profile: Path) -> None:
    found = json.loads(profile.read_text())
    values = {
        constant["field"]: constant["value"] / constant["catalog_value"] for constant in found["constants"] if constant["catalog_value"]
    }
    assert values["gemm_efficiency"] == pytest.approx(TRUE_GEMM, abs=0.04)
    assert found["rows"] == len(SIZES)
    assert found["error_after"] < 0.3 * found["error_before"]
    assert (found["devices"], found["frameworks"], found["sources"]) == (["a100-sxm4-80gb"], ["megatron-core"], ["runs.csv"])


def test_a_plan_of_the_profile_is_of_that_cluster(autopar, profile: Path, tmp_path: Path) -> None:
    flags = ("--model", "gpt-22b", "--gpus", 64, "--gpu", "a100-sxm4-80gb", "--gbs", 128, "--seq", 2048)
    sizes = ("--tp", 8, "--pp", 2, "--mbs", 1)
    expected = truth(8, 2, 1, "none")
    assert autopar("estimate", *flags, *sizes, "--json").document["step_time_seconds"] < 0.93 * expected
    with_profile = autopar("estimate", *flags, *sizes, "--profile", profile, "--json")
    assert with_profile.document["step_time_seconds"] == pytest.approx(expected, rel=0.03)
    assert with_profile.document["provenance"]["calibration"].startswith(f"calibrated on {len(SIZES)} rows: ")
    interval = with_profile.document["step_time_interval"]
    assert interval["basis"] == f"{len(SIZES)} rows of the profile, left out of its fit"
    assert interval["low"] <= expected <= interval["high"] < 1.2 * interval["low"]
    file = tmp_path / "plan.json"
    plan = autopar("plan", *flags, "--profile", profile, "--top", 1, "-o", file, "--json")
    assert plan.code == 0
    assert any("calibrated on" in line for line in plan.document["inputs"]["assumptions"])
    again = autopar("estimate", file, "--json")
    assert again.document["step_time_seconds"] == plan.document["estimate"]["step_time_seconds"]


def test_the_report_shows_both_errors(autopar, tmp_path: Path) -> None:
    outcome = autopar("calibrate", table(tmp_path / "runs.csv", SIZES[:12]))
    assert outcome.code == 0
    assert "gemm_efficiency" in outcome.out
    assert "12 rows (leave one out)" in outcome.out
    assert "before" in outcome.out


def test_rows_that_the_catalog_explains_change_nothing(autopar, tmp_path: Path) -> None:
    runs = table(tmp_path / "runs.csv", SIZES[:8])
    rows = list(csv.DictReader(runs.read_text().splitlines()))
    spread = np.random.default_rng(1).normal(0, 0.05, len(rows))
    for row, odd, (tp, pp, mbs, recompute) in zip(rows, spread, SIZES, strict=False):
        strategy = {"tp": tp, "pp": pp, "mbs": mbs, "recompute": recompute, "zero": 1}
        catalog = package.estimate(
            "gpt-22b", gpus=64, gpu="a100-sxm4-80gb", global_batch_size=128, sequence_length=2048, precision="bf16", strategy=strategy
        )
        row["step_time_seconds"] = str(catalog.step_time_seconds * np.exp(odd))
    with runs.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    outcome = autopar("calibrate", runs, "-o", tmp_path / "p.json")
    assert outcome.code == 0
    assert "the catalog, whose constants are kept" in outcome.out
    assert json.loads((tmp_path / "p.json").read_text())["constants"] == []
    used = autopar("estimate", "--model", "gpt-1.2b", "--gpus", 8, "--profile", tmp_path / "p.json")
    assert used.code == 0
    assert "did not improve" in used.out


@pytest.mark.parametrize(("sizes", "said"), [(SIZES[:3], "3 rows of 3 configurations"), (SIZES[:1] * 6, "6 rows of 1 configuration")])
def test_it_refuses_to_pretend(autopar, tmp_path: Path, sizes: list[tuple[int, int, int, str]], said: str) -> None:
    outcome = autopar("calibrate", table(tmp_path / "runs.csv", sizes), "-o", tmp_path / "p.json")
    assert (outcome.code, outcome.out) == (1, "")
    assert f"{said} cannot be cross-validated" in outcome.err
    assert not (tmp_path / "p.json").exists()


def megatron_log(path: Path, tp: int, pp: int, mbs: int, recompute: str) -> Path:
    dp = 64 // tp // pp
    arguments = {
        "bf16": True, "data_parallel_size": dp, "ffn_hidden_size": 24576, "global_batch_size": 128, "hidden_size": 6144,
        "micro_batch_size": mbs, "num_attention_heads": 64, "num_layers": 48, "pipeline_model_parallel_size": pp, "seq_length": 2048,
        "sequence_parallel": True, "tensor_model_parallel_size": tp, "transformer_impl": "transformer_engine",
        "use_distributed_optimizer": True, "world_size": 64, "recompute_granularity": "full" if recompute == "full" else None,
    }  # fmt: skip
    lines = [f"  {name} {'.' * (48 - len(name))} {value}" for name, value in arguments.items()]
    seconds = truth(tp, pp, mbs, recompute)
    for number in range(1, 9):
        slow = 5 if number < 3 else 1
        lines.append(
            f" iteration {number:8d}/ 100 | elapsed time per iteration (ms): {seconds * slow * 1000:.1f} | global batch size:   128 |"
        )
    path.write_text("\n".join(lines))
    return path


def test_logs_are_rows(autopar, tmp_path: Path) -> None:
    logs = [megatron_log(tmp_path / f"{number}.log", *sizes) for number, sizes in enumerate(SIZES[:6])]
    assert parse_log(logs[0].read_text()).facts["tensor_parallel_size"] == 2
    (tmp_path / "notes.log").write_text("nothing of interest")
    flags = ("--gpu", "a100-sxm4-80gb", "--model", "gpt-22b")
    outcome = autopar("calibrate", *logs, tmp_path / "notes.log", *flags, "--json")
    assert outcome.code == 0
    assert outcome.document["rows"] == 6
    assert outcome.document["error_after"] < outcome.document["error_before"]
    assert "notes.log: no steps in the form" in outcome.err


def test_what_logs_leave_unsaid_is_assumed_aloud(autopar, tmp_path: Path) -> None:
    """DeepSpeed says neither the model nor the device nor the sequence: flags do; that it recomputes is assumed."""
    logs = []
    for number, (batch, rate) in enumerate(((64, 9.0), (128, 9.5), (256, 9.9), (512, 10.0))):
        config = f"train_batch_size ... {batch}\n train_micro_batch_size_per_gpu ... 2\n gradient_accumulation_steps ... {batch // 16}"
        steps = [f"epoch=0/micro_step={n}/global_step={n}, RunningAvgSamplesPerSec=9.0, CurrSamplesPerSec={rate}" for n in range(1, 8)]
        logs.append(tmp_path / f"{number}.log")
        logs[-1].write_text("\n".join([f" {config}", " zero_optimization_stage ... 3", *steps]))
    flags = ("--model", "llama3-8b", "--gpu", "a100-sxm4-80gb", "--seq", 2048)
    outcome = autopar("calibrate", *logs, *flags)
    assert outcome.code == 0
    assert "recompute taken as full" in outcome.out
    assert "(4 rows)" in outcome.out
    told = autopar("calibrate", *logs, *flags, "--recompute", "none")
    assert "recompute" not in told.out


def test_a_model_named_in_the_log_is_the_catalogs(tmp_path: Path) -> None:
    from autopar.accuracy.calibration import Stated, read_measured

    lines = ["Building 1-D device mesh with ['dp_shard'], [8]", "CUDA capacity: NVIDIA H100 80GB HBM3 with 79.10GiB memory"]
    lines += [
        "Building llama3 8B with X()",
        "Training starts at step 1, with local batch size 1, global batch size 8, sequence length 8192, x",
    ]
    lines += [f"step: {n}  loss: 8.1  memory: 40.50GiB(51.20%)  tps: 6,000  tflops: 300.12  mfu: 30.35%" for n in range(1, 8)]
    file = tmp_path / "titan.log"
    file.write_text("\n".join(lines))
    (case,) = read_measured([file], Stated()).cases
    assert (case.problem.model.name, case.problem.cluster.device.id) == ("llama3-8b", "h100-sxm5-80gb")
    assert case.problem.framework.id == "torchtitan"
    assert (case.strategy.zero_stage, case.strategy.micro_batch_size) == (3, 1)
    assert case.measured_seconds == pytest.approx(8192 / 6000)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), "say it with --gpu or --cluster"),
        (("--gpu", "a100-sxm4-80gb", "--model", "llama3-8b"), "num_layers=48: llama3-8b has 32"),
        (("--gpu", "warp-drive"), "not a known device"),
    ],
)
def test_what_no_row_says_is_told(autopar, tmp_path: Path, flags: tuple[str, ...], said: str) -> None:
    outcome = autopar("calibrate", megatron_log(tmp_path / "a.log", *SIZES[0]), *flags)
    assert (outcome.code, outcome.out) == (2, "")
    assert said in outcome.err


def test_no_usable_file_is_code_2_with_a_reason_each(autopar, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("nothing")
    (tmp_path / "b.csv").write_text("x,y\n1,2\n")
    outcome = autopar("calibrate", tmp_path / "a.log", tmp_path / "b.csv", tmp_path / "absent.log")
    assert (outcome.code, outcome.out) == (2, "")
    for reason in ("a.log: no steps", "no column", "absent.log: no such file"):
        assert reason in outcome.err


def test_a_profile_of_another_cluster_is_refused(autopar, profile: Path) -> None:
    outcome = autopar(
        "estimate", "--model", "gpt-1.2b", "--gpus", 8, "--gpu", "h100-sxm5-80gb", "--framework", "fsdp", "--profile", profile
    )
    assert (outcome.code, outcome.out) == (2, "")
    assert "calibrated on other machines than h100-sxm5-80gb" in outcome.err
    absent = autopar("plan", "--model", "gpt-1.2b", "--gpus", 8, "--profile", "absent.json")
    assert absent.code == 2
    assert "no such file" in absent.err
