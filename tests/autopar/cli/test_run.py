"""``autopar run`` as its user has it: real processes on the cores of this machine."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import autopar as api
from autopar.accuracy.runs import read_runs
from autopar.api import read_plan, write_plan
from autopar.catalog.cpu import cpu_cluster
from autopar.cli.run import be_a_rank, command
from autopar.costmodel.spec.errors import UnavailableError
from autopar.costmodel.spec.model import ModelSpec, Norm, PositionEmbedding
from autopar.costmodel.spec.plan import Plan
from autopar.run_worker import join_job
from tests.runtime.processes import run_ranks

from .conftest import Run

ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")} | {"OMP_NUM_THREADS": "1"}
SPEC = ModelSpec(
    name="small", num_layers=2, hidden_size=32, num_attention_heads=2, num_key_value_heads=2, head_dim=16, ffn_hidden_size=128,
    vocab_size=128, max_position_embeddings=32, gated_mlp=False, norm=Norm.LAYER_NORM, position_embedding=PositionEmbedding.LEARNED,
    qkv_bias=True, attention_output_bias=True, mlp_bias=True,
)  # fmt: skip


def plan_of(ranks: int, **fix: int | str) -> Plan:
    return api.plan(
        SPEC,
        cluster=cpu_cluster(ranks, cores=2, memory_bytes=2**35),
        framework="autopar",
        precision="fp32",
        global_batch_size=4,
        sequence_length=32,
        fix=fix,
    )


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    write_plan(plan_of(2, dp=2), path)
    return path


def start(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "autopar", "run", *map(str, arguments)]
    return subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def finish(process: subprocess.Popen[str], seconds: float = 120) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=seconds)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert "Traceback" not in out + err
    return process.returncode, out, err


def ranks_of(launcher: int, count: int, seconds: float = 60) -> list[int]:
    """The processes a launcher started, once there are ``count``."""
    deadline = time.monotonic() + seconds
    children = Path(f"/proc/{launcher}/task/{launcher}/children")
    while len(found := children.read_text().split()) < count:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return [int(pid) for pid in found]


def assert_gone(pids: list[int], seconds: float = 15) -> None:
    deadline = time.monotonic() + seconds
    while any(Path(f"/proc/{pid}").exists() and "\nState:\tZ" not in status(pid) for pid in pids):
        assert time.monotonic() < deadline, "a rank is left behind"
        time.sleep(0.05)


def status(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/status").read_text()
    return "\nState:\tZ"


# -- what it does ------------------------------------------------------------------------------------


def test_a_run_is_measured_and_the_loop_closes(plan: Path, tmp_path: Path, autopar: Run) -> None:
    table, checkpoints = tmp_path / "runs.csv", tmp_path / "checkpoints"
    code, out, err = finish(start(plan, "--steps", 4, "--warmup", 1, "-o", table, "--save", checkpoints, "--json"))
    assert (code, err) == (0, f"wrote {table}\n")
    result: dict[str, Any] = json.loads(out)
    assert result["schema_version"] == "1.0"
    assert (result["world_size"], result["first_step"], result["steps"], len(result["step_seconds"])) == (2, 1, 4, 3)
    assert result["last_loss"] < result["first_loss"]
    assert result["tokens_per_second"] == pytest.approx(4 * 32 / result["step_time_seconds"])
    assert len(result["peak_memory_bytes"]) == 2
    assert (checkpoints / "latest").read_text() == "step-00000004\n"

    (run,), skipped = read_runs(table)
    assert not skipped
    assert run.step_time_seconds == result["step_time_seconds"]
    assert (run.device, run.framework, run.num_gpus, run.data_parallel_size) == ("cpu", "autopar", 2, 2)
    scored = autopar("accuracy", table, "--json")
    assert scored.code == 0
    assert scored.document["scored"] == 1 if "scored" in scored.document else scored.document["rows"] == 1

    rows = [replace(run, run_id=str(index), micro_batch_size=1 + index % 2, step_time_seconds=0.5 + 0.01 * index) for index in range(4)]
    from autopar.accuracy.record import append_runs

    append_runs(table, rows)
    calibrated = autopar("calibrate", table, "-o", tmp_path / "profile.json", "--json")
    assert calibrated.code == 0
    assert calibrated.document["rows"] == 5


def test_the_first_strategies_are_run_and_the_fastest_is_kept(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    write_plan(plan_of(1), plan)
    best = tmp_path / "best.json"
    code, out, err = finish(start(plan, "--steps", 2, "--warmup", 1, "--top", 2, "--write-plan", best, "--json"))
    assert code == 0, err
    compared = json.loads(out)
    times = [each["result"]["step_time_seconds"] for each in compared["contenders"]]
    assert len(times) == 2
    assert compared["best"] == times.index(min(times))
    assert read_plan(best).strategy.describe() == compared["contenders"][compared["best"]]["strategy"]


def test_a_dry_run_needs_no_ranks(tmp_path: Path, autopar: Run) -> None:
    big = tmp_path / "big.json"
    write_plan(api.plan(SPEC, gpus=512, framework="autopar", global_batch_size=512, sequence_length=32, fix={"dp": 256, "tp": 2}), big)
    found = autopar("run", big, "--dry-run", "--rank", 511, "--json").document
    assert (found["rank"], found["world_size"], found["coordinates"]["tp"]) == (511, 512, 1)
    assert found["num_parameters"] == found["planned_num_parameters"]
    report = autopar("run", big, "--dry-run")
    assert report.code == 0
    assert "activations and loss" in report.out


# -- what it refuses, and how it ends ----------------------------------------------------------------


def told(rank: int, *arguments: object) -> tuple[int, str]:
    """Exit code and standard error of one rank of a job that another launcher started."""
    del rank
    with command.make_context("run", [str(argument) for argument in arguments]) as context:
        options = context.params
    with contextlib.redirect_stderr(io.StringIO()) as err:
        code = be_a_rank(options.pop("plan"), options, as_json=options.pop("as_json"))
    return code, err.getvalue()


def test_data_that_is_no_data_is_one_error(plan: Path, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.npy"
    np.save(tokens, np.full(1000, 500))
    ends = run_ranks(2, told, plan, "--data", tokens)
    assert [code for code, _ in ends] == [2, 2], ends
    errors = "".join(err for _, err in ends)
    assert errors.count("error:") == 1
    assert "500" in errors
    assert "0 to 127" in errors


def test_a_job_of_another_size_is_one_error_on_one_rank(tmp_path: Path) -> None:
    other = tmp_path / "four.json"
    write_plan(plan_of(4, dp=4), other)
    ends = run_ranks(2, told, other)
    assert [code for code, _ in ends] == [2, 2], ends
    errors = "".join(err for _, err in ends)
    assert errors.count("error:") == 1
    assert "world_size=2: the plan is for 4 ranks" in errors


def test_a_rank_that_is_killed_ends_the_run_with_its_name(plan: Path) -> None:
    process = start(plan, "--steps", 100000)
    ranks = ranks_of(process.pid, 2)
    time.sleep(1)
    os.kill(ranks[1], signal.SIGKILL)
    code, _, err = finish(process)
    assert code == 4
    assert err.startswith("error: rank 1: killed by SIGKILL")
    assert err.count("error:") == 1
    assert_gone(ranks)


def test_an_interrupt_ends_all_ranks(plan: Path) -> None:
    process = start(plan, "--steps", 100000)
    ranks = ranks_of(process.pid, 2)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    code, _, err = finish(process)
    assert (code, err) == (130, "error: interrupted\n")
    assert_gone(ranks)


def test_a_port_in_use_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        job = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(taken.getsockname()[1])}
        for name, value in job.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(UnavailableError, match="the port is in use"):
            join_job(torch.device("cpu"), 10)
    assert not torch.distributed.is_initialized()


def test_a_plan_for_gpus_needs_them(tmp_path: Path, autopar: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autopar.cli.doctor.visible_gpus", list)
    path = tmp_path / "gpus.json"
    write_plan(api.plan(SPEC, gpus=8, framework="autopar", global_batch_size=8, sequence_length=32), path)
    outcome = autopar("run", path)
    assert outcome.code == 3
    assert "8 GPUs (h100-sxm5-80gb), this machine has none" in outcome.err


def test_options_that_do_not_go_together_are_told_at_once(plan: Path, autopar: Run) -> None:
    outcome = autopar("run", plan, "--rank", 1, "--write-plan", "x.json", "--save-every", 2)
    assert outcome.code == 2
    assert all(flag in outcome.err for flag in ("--rank", "--write-plan", "--save-every"))
    outcome = autopar("run", plan, "--top", 2, "--dry-run", "--save", "x")
    assert outcome.code == 2
    assert "--dry-run" in outcome.err
    assert "--save" in outcome.err


def test_a_plan_that_is_no_plan_starts_nothing(tmp_path: Path, autopar: Run) -> None:
    (tmp_path / "plan.json").write_text("{}")
    assert autopar("run", tmp_path / "plan.json").code == 2
    assert autopar("run", tmp_path / "absent.json").code == 2


def test_ranks_far_beyond_the_cores_are_refused(tmp_path: Path, autopar: Run) -> None:
    path = tmp_path / "many.json"
    write_plan(api.plan(SPEC, gpus=1024, framework="autopar", global_batch_size=1024, sequence_length=32), path)
    outcome = autopar("run", path, "--device", "cpu")
    assert outcome.code == 3
    assert "--dry-run" in outcome.err
