"""``autopar profile``, ``doctor``'s account of it, and profiles in ``plan``, ``estimate`` and ``explain``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autopar.capabilities import capabilities
from autopar.catalog.measured import measured_profile
from autopar.io.measured_file import read_measured, write_measured

Run = Callable[..., Any]
TRAIN = ("--gbs", "4", "--seq", "64", "--framework", "pytorch-eager", "--memory-reserve", "64MiB")


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the profile that two gloo ranks of this machine measured."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("profile")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "autopar", "profile"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [*command, "--device", "cpu", "--budget", "12s", "-o", str(folder / "cpu.json"), "--json"],
        capture_output=True, text=True, timeout=170, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout)["kind"] == "measured", "rank 0 alone prints"
    return folder


def test_two_gloo_ranks_make_a_profile_and_a_cluster(two_ranks: Path) -> None:
    found = read_measured(two_ranks / "cpu.json")
    assert found.machine.world_size == 2
    assert found.machine.libraries["collectives"].startswith("torch.distributed gloo")
    names = {one.name for one in found.series}
    assert {"gemm nt fp32", "operator copy fp32", "collective all_reduce fp32", "collective send_recv fp32"} <= names
    assert all(point.repeats >= 1 and point.seconds > 0 for one in found.series for point in one.points)


def test_a_plan_for_the_machine_rests_on_it(autopar: Run, two_ranks: Path) -> None:
    cluster, profile = two_ranks / "cpu.cluster.json", two_ranks / "cpu.json"
    done = autopar("plan", "--model", "gpt2", "--cluster", cluster, "--profile", profile, *TRAIN, "-o", two_ranks / "plan.json", "--json")
    assert done.code == 0, done.err
    assert done.document["inputs"]["measured"]["device"] == read_measured(profile).device
    assert done.document["estimate"]["provenance"]["kernels"].endswith(": measured")
    told = autopar("explain", two_ranks / "plan.json", "--json").document
    assert told["unmeasured"]
    assert all(doubt["swing"] > 0 for doubt in told["unmeasured"])
    assert "most likely to change the ranking" in autopar("explain", two_ranks / "plan.json").out


def test_for_plan_measures_what_the_plan_lacks_and_keeps_the_rest(autopar: Run, two_ranks: Path) -> None:
    profile = two_ranks / "cpu.json"
    plan = two_ranks / "small.json"
    autopar("plan", "--model", "gpt2", "--cluster", two_ranks / "cpu.cluster.json", "--profile", profile, *TRAIN, "-o", plan)
    done = autopar("profile", "--for-plan", plan, "--device", "cpu", "--threads", "1", "--budget", "6s", "-o", two_ranks / "more.json")
    assert done.code == 0, done.err
    before, after = read_measured(profile), read_measured(two_ranks / "more.json")
    shapes = {(one.name, point.shape) for one in after.series for point in one.points}
    assert {(one.name, point.shape) for one in before.series for point in one.points} <= shapes
    assert "shapes that the models and plans named need" in done.err


def test_without_a_gpu_cuda_is_answered(autopar: Run) -> None:
    done = autopar("profile", "--device", "cuda")
    if done.code == 0:
        pytest.skip("this machine has a GPU")
    assert done.code == 3
    assert "--device cpu" in done.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--dtypes", "int4"), "dtypes='int4': one of fp32, tf32, fp16, bf16, fp8"),
        (("--budget", "soon"), "not a duration such as 60s or 5m"),
        (("--budget", "0.1"), "from 1 second to a day"),
        (("--extend", "/nowhere.json"), "no such file"),
        (("--for-plan", "/nowhere.json"), "no such file"),
        (("--import", "/nowhere.log"), "no such file"),
    ],
)
def test_bad_input(autopar: Run, arguments: tuple[str, ...], message: str) -> None:
    done = autopar("profile", "--device", "cpu", *arguments)
    assert done.code == 2
    assert message in done.err


def test_importing_what_people_have(autopar: Run, tmp_path: Path) -> None:
    log = tmp_path / "all_reduce_perf.log"
    ranks = "\n".join(f"#  Rank {r} Group 0 Pid {r} on n{r // 8} device {r % 8} [0f] NVIDIA H100 80GB HBM3" for r in range(16))
    log.write_text(
        f"# nccl-tests\n{ranks}\n#  size count type redop root time algbw busbw\n 1048576 262144 float sum -1 55.5 18.9 35.4 0\n"
    )
    matrix = tmp_path / "topo.txt"
    rows = "\n".join(f"GPU{i}\t" + "\t".join("X" if i == j else "NV18" for j in range(8)) for i in range(8))
    matrix.write_text("\t" + "\t".join(f"GPU{i}" for i in range(8)) + f"\n{rows}\n")
    output = tmp_path / "p.json"
    done = autopar("profile", "--import", log, "--import", matrix, "-o", output)
    assert done.code == 0, done.err
    found = read_measured(output)
    assert found.device == "h100-sxm5-80gb"
    assert found.series[0].points[0].shape == (1048576, 16, 8)
    planned = autopar("plan", "--model", "llama3-8b", "--cluster", tmp_path / "p.cluster.json", "--profile", output, "--json")
    assert planned.code == 0, planned.err
    assert planned.document["inputs"]["cluster"]["tiers"][0]["kind"] == "nvlink"
    (tmp_path / "other.txt").write_text("hello")
    refused = autopar("profile", "--import", tmp_path / "other.txt")
    assert refused.code == 2
    assert "nccl-tests output, a torch profiler's Chrome trace" in refused.err
    assert "no file names the device" in refused.err


def test_importing_a_trace_that_torch_wrote(autopar: Run, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile

    left, right = torch.rand(64, 32), torch.rand(16, 32)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        for _ in range(3):
            torch.mm(left, right.t())
    path = tmp_path / "trace.json"
    recorded.export_chrome_trace(str(path))
    done = autopar("profile", "--import", path, "--gpu", "h100", "--json")
    assert done.code == 0, done.err
    (series,) = done.document["series"]
    assert [point["shape"] for point in series["points"]] == [[64.0, 16.0, 32.0]]
    assert series["points"][0]["repeats"] == 3


def test_profiles_in_estimate_and_explain(autopar: Run, tmp_path: Path) -> None:
    question = ("--model", "llama3-8b", "--gpu", "h200", "--gpus", "8", "--tp", "2", "--gbs", "64")
    plain, measured = autopar("estimate", *question, "--json"), autopar("estimate", *question, "--profile", "h200", "--json")
    assert plain.document["step_time_seconds"] != measured.document["step_time_seconds"]
    write_measured(measured_profile("h200"), tmp_path / "mine.json")
    mine = autopar("estimate", *question, "--profile", tmp_path / "mine.json", "--json")
    assert mine.document["step_time_seconds"] == measured.document["step_time_seconds"]
    refused = autopar("estimate", "--model", "llama3-8b", "--gpus", "8", "--profile", "h200")
    assert refused.code == 2
    assert "--allow-other-device" in refused.err
    assert autopar("estimate", "--model", "llama3-8b", "--gpus", "8", "--tp", "4", "--profile", "h200", "--allow-other-device").code == 0


def test_doctor_tells_what_can_be_profiled() -> None:
    nothing = capabilities([], lambda *_: None)
    assert nothing.profiles == nothing.runs == ()
    assert [each.name for each in nothing.missing] == ["torch", "a GPU"]
    versions = {"torch": "2.11", "cupy-cuda13x": "14.2"}

    def installed(*names: str) -> str | None:
        return next((versions[name] for name in names if name in versions), None)

    found = capabilities(["NVIDIA H200"], installed)
    assert any("cupy 14.2" in line for line in found.profiles)
    assert any("torch.distributed's NCCL" in line for line in found.profiles)
    assert {each.name for each in found.missing} == {"ml_dtypes", "NCCL for cupy"}
    assert all(each.command.startswith("pip install") for each in found.missing)


def test_doctor_prints_it(autopar: Run) -> None:
    done = autopar("doctor", "--json")
    assert {"profiles", "runs", "missing"} <= done.document.keys()
    assert "can profile" in autopar("doctor").out
