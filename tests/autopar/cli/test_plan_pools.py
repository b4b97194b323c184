"""``autopar plan --pool``: a mixed cluster to a person, to a program and to Python; and what it says of questions that are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import autopar as package
from autopar.io.plan_file import dump_plan, read_plan

POOLS = ("--model", "llama3.2-1b", "--pool", "h100=4", "a100-40gb=4", "--between", "25GB/s", "--gbs", 32)
FEW = ("--fix", "mbs=1", "zero=1", "--max", "vpp=1")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    plan = package.plan(
        "llama3.2-1b",
        pools={"h100": 4, "a100-40gb": 4},
        between="25GB/s",
        global_batch_size=32,
        fix={"mbs": 1, "zero": 1},
        maximum={"vpp": 1},
    )
    package.write_plan(plan, path)
    return path


def test_python_and_the_command_line_agree(autopar, file: Path, tmp_path: Path) -> None:
    written = tmp_path / "plan.json"
    outcome = autopar("plan", *POOLS, *FEW, "-o", written, "--json", "--seed", 0)
    assert outcome.code == 0
    assert outcome.document == json.loads(file.read_text())
    assert written.read_text() == file.read_text()
    assert json.loads(dump_plan(read_plan(written))) == outcome.document
    assert autopar("estimate", written, "--json").document == outcome.document["estimate"]


def test_the_report_says_who_does_what_and_what_it_gains(autopar) -> None:
    outcome = autopar("plan", *POOLS, *FEW, "--search", "exact")
    assert outcome.code == 0
    words = " ".join(outcome.out.split())
    for expected in (
        "4 x NVIDIA H100 SXM5 80GB (dgx-h100) + 4 x NVIDIA A100 SXM4 40GB (dgx-a100-40gb)",
        "25 GB/s a GPU between the pools",
        "who does what",
        "what planning uniformly would take",
        "all 8 GPUs as a100-40gb:",
        "h100 alone:",
        "who runs it",
        "no measured run of a mixed cluster is known",
        "no placement is faster by more than",
    ):
        assert expected in words
    assert "\x1b" not in outcome.out
    assert max(map(len, outcome.out.splitlines())) <= 100


def test_the_genetic_search_says_that_it_is_one(autopar) -> None:
    outcomes = [autopar("plan", *POOLS, *FEW, "--search", "genetic", "--seed", seed, "--json") for seed in (3, 3)]
    assert outcomes[0].out == outcomes[1].out
    search, mixed = outcomes[0].document["search"], outcomes[0].document["mixed"]
    assert search["method"].startswith("genetic")
    assert search["optimality"].startswith("heuristic")
    assert mixed["seed"] == 3


def test_commands_that_take_the_file(autopar, file: Path, tmp_path: Path) -> None:
    assert "who does what" in autopar("estimate", file, "--report", tmp_path / "p.html", "--trace", tmp_path / "t.json").out
    assert "How evenly the pools are loaded" in (tmp_path / "p.html").read_text()
    assert json.loads((tmp_path / "t.json").read_text())["otherData"]["cluster"].startswith("4 x NVIDIA H100 SXM5 80GB (dgx-h100) + 4 x")
    explained = autopar("explain", file)
    assert explained.code == 0
    for expected in ("how evenly the pools are loaded", "why this one: single changes", "who runs it", "where the numbers come from"):
        assert expected in explained.out
    assert max(map(len, explained.out.splitlines())) <= 100
    document = autopar("explain", file, "--json").document
    assert (document["schema_version"], document["fits"]) == ("1.0", True)
    compared = autopar("compare", file, file, "--json")
    assert (compared.code, compared.document["plans"][1]["num_gpus"]) == (0, 8)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("whatif", "FILE"), "a plan for a mixed cluster (h100=4, a100-40gb=4): this takes plans for one kind of GPU"),
        (("plan", "--improve", "FILE"), "autopar estimate, explain and export take it"),
        (("estimate", "FILE", "--figures", "x"), "no --figures yet"),
        (("explain", "FILE", "--gpus", "8"), "a plan file brings its own inputs"),
        (("run", "FILE"), "autopar run measures one kind of GPU"),
        (("run", "FILE", "--dry-run"), "it runs stages by pool, not replicas"),
    ],
)
def test_commands_that_refuse_it(autopar, file: Path, command: tuple[str, ...], said: str) -> None:
    outcome = autopar(*(str(file) if word == "FILE" else word for word in command))
    assert outcome.code == 2
    assert said in " ".join(outcome.err.split())


def test_exports_and_imports(autopar, file: Path, tmp_path: Path) -> None:
    """The plan is one of replicas: its runner-up of stages is written where that is asked for."""
    refused = autopar("export", file, "--to", "megatron-lm", "--json")
    assert (refused.code, refused.document["broken"][0]["rule"]) == (1, "unequal_replicas")
    assert "plan with --pools-as stages" in refused.err
    done = autopar("export", file, "--to", "megatron-lm", "--nearest", "-o", tmp_path / "run")
    assert done.code == 0
    stages = next(each for each in package.read_plan(file).alternatives if len(each.lanes) == 1)
    first, second = dict.fromkeys(stages.lanes[0].pools)
    assert f"Hosts start in this order: node 0 is {first} (1 x dgx-{first}), node 1 {second} (1 x dgx-{second})." in done.err
    back = autopar(
        "import", tmp_path / "run" / "train.sh", "--from", "megatron-lm", "--pool", f"{first}=4", f"{second}=4", "--between", "25GB/s"
    )
    assert back.code == 0
    assert "who does what" in back.out
    assert "best strategy" not in back.out
    assert "searched" not in back.out
    wrong = autopar("import", tmp_path / "run" / "train.sh", "--from", "megatron-lm", "--between", "25GB/s")
    assert (wrong.code, "none are given" in wrong.err) == (2, True)


def test_a_cluster_file_in_place_of_the_words(autopar, tmp_path: Path) -> None:
    pools = tmp_path / "pools.toml"
    pools.write_text(
        'between = "25GB/s"\n[[pools]]\ndevice = "h100"\nnum_gpus = 4\n[[pools]]\ndevice = "a100-40gb"\nnum_gpus = 4\nhosts = "old1"\n'
    )
    quick = ("--fix", "mbs=1", "zero=1", "tp=1", "pp=1", "cp=1")
    outcome = autopar("plan", "--model", "llama3.2-1b", "--cluster", pools, "--gbs", 32, *quick, "--json")
    assert outcome.code == 0
    spelled = autopar("plan", *POOLS, *quick, "--json")
    assert outcome.document["estimate"] == spelled.document["estimate"]
    assert outcome.document["mixed"]["pools"][1]["cluster"]["hosts"]["names"] == ["old1"]
    for arguments, said in (
        (("plan", "--cluster", pools, "--pool", "h100=4", "a100=4"), "does not go together with pools"),
        (("plan", "--cluster", pools, "--gpus", 8), "gpus=8: does not go together with pools"),
        (("plan", "--cluster", pools, "--pareto", "time,memory"), "no --pareto yet"),
        (("estimate", "--cluster", pools, "--gpus", 8), "`autopar plan` takes it"),
    ):
        wrong = autopar(*arguments, "--model", "llama3.2-1b")
        assert (wrong.code, said in " ".join(wrong.err.split())) == (2, True)
    assert autopar("schema", "cluster").document["anyOf"]
    assert autopar("schema", "explain-mixed").document["properties"]["loads"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--pool", "h100=8"), "two pools or more are needed; one kind of GPU is planned for with --gpu h100 --gpus 8"),
        (("--pool", "h100=0", "a100=8"), "above zero"),
        (("--pool", "h100=8", "a100=8", "--gpus", 16), "gpus=16: does not go together with pools"),
        (("--pool", "h100=8", "a100=8", "--cluster", "dgx-h100"), "cluster=dgx-h100: does not go together with pools"),
        (("--pool", "h100=8", "a100=8", "--profile", "h200"), "profile=h200: does not go together with pools"),
        (("--pool", "h100=8", "a100=8", "--topology", "llama3-roce"), "topology=llama3-roce: does not go together with pools"),
        (("--pool", "h100=8", "a100=8", "--hosts", "n[1-2]"), "hosts=n[1-2]: does not go together with pools"),
        (("--pool", "h100=8", "a100=8", "--price", "2.5"), "price="),
        (("--pool", "h100=8", "a100=8", "--stages", "exact"), "stages=exact: layers are always placed"),
        (("--pool", "h100=8", "a100=8", "--objective", "memory"), "objective=memory: pools are planned for the shortest step"),
        (("--pool", "h100=8", "a100=8", "--pareto", "time,memory"), "no --pareto yet"),
        (("--pool", "h100=8", "a100=8", "--figures", "x"), "no --figures yet"),
        (("--pool", "h100=8", "a100=12"), "--pool a100: num_gpus=12"),
        (("--pool", "h100=8", "h9000=8"), "--pool h9000: device='h9000': not a known device"),
        (("--gpus", 8, "--between", "25GB/s"), "--between goes with pools"),
        (("--gpus", 8, "--search", "exact"), "--search goes with pools"),
    ],
)
def test_questions_that_are_none(autopar, arguments: tuple[object, ...], said: str) -> None:
    outcome = autopar("plan", "--model", "llama3.2-1b", *arguments)
    assert outcome.code == 2
    assert said in " ".join(outcome.err.split())


def test_nothing_fits_is_an_answer(autopar) -> None:
    outcome = autopar(
        "plan", "--model", "llama3-8b", "--pool", "h100=1", "a100-40gb=1", "--between", "1GB/s", "--forbid", "recompute", "--json"
    )
    assert outcome.code == 1
    assert outcome.document["fits"] is False
    assert "nothing fits" in outcome.err


def test_a_seed_without_effect_is_fine(autopar) -> None:
    assert autopar("plan", "--model", "llama3.2-1b", "--gpus", 1, "--gbs", 8, "--seed", 7).code == 0
