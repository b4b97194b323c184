"""``autopar export``, ``autopar import`` and ``plan --improve`` as a person uses them, wrong inputs included."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from autopar.io.plan_file import read_plan

from .conftest import Run

MEGATRON = (
    "torchrun --nproc-per-node 8 --nnodes 4 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336"
    " --num-attention-heads 32 --group-query-attention --num-query-groups 8 --seq-length 8192 --max-position-embeddings 8192"
    " --swiglu --normalization RMSNorm --position-embedding-type rope --untie-embeddings-and-output-weights --disable-bias-linear"
    " --vocab-size 128256 --bf16 --micro-batch-size 1 --global-batch-size 128 --tensor-model-parallel-size 8 --sequence-parallel"
    " --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 --lr 3e-4 --my-own-flag 7 x"
)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan file of a Megatron run that recomputes everything."""
    from autopar.cli.app import run

    path = tmp_path_factory.mktemp("plans") / "plan.json"
    assert run(["import", MEGATRON, "--from", "megatron-lm", "--gpu", "h100", "-o", str(path)]) == 0
    return path


def test_an_imported_run_is_a_plan_like_any_other(autopar: Run, plan: Path) -> None:
    found = read_plan(plan)
    assert found.inputs.model.name == "llama3-8b"
    assert found.search.method == "imported"
    assert (found.inputs.imported_from, found.inputs.kept_settings) == ("megatron-lm", ("--my-own-flag 7 x", "--lr 3e-4"))
    assert any("not known to megatron-lm, kept as they are: --my-own-flag" in line for line in found.inputs.assumptions)
    for command in ("estimate", "explain"):
        assert autopar(command, plan).code == 0


def test_unknown_flags_are_written_again(autopar: Run, plan: Path, tmp_path: Path) -> None:
    assert autopar("export", plan, "--to", "megatron-lm", "-o", tmp_path / "run").code == 0
    text = (tmp_path / "run" / "train.sh").read_text()
    assert "KEPT=(\n  --my-own-flag 7 x\n  --lr 3e-4\n)" in text
    assert "--mock-data" not in text
    again = autopar("import", tmp_path / "run" / "train.sh", "--from", "megatron-lm", "--json")
    assert again.document["strategy"] == json.loads(plan.read_text())["strategy"]
    assert again.document["inputs"]["kept_settings"] == ["--my-own-flag 7 x", "--lr 3e-4"]


def test_improve_names_the_best_change_of_one_knob_and_of_two(autopar: Run, plan: Path, tmp_path: Path) -> None:
    better = tmp_path / "better.json"
    found = autopar("plan", "--improve", plan, "--measured", "9s", "--json", "-o", better)
    assert found.code == 0
    document = found.document
    today = document["estimate"]["step_time_seconds"]
    one, two = document["one_change"], document["two_changes"]
    assert document["measured_step_time_seconds"] == 9.0
    assert one[0]["saved_share"] > 0.1
    assert one[0]["expected_seconds"] == pytest.approx(9 * one[0]["change"]["step_time_seconds"] / today)
    assert [gain["expected_seconds"] for gain in one] == sorted(gain["expected_seconds"] for gain in one)
    assert two[0]["expected_seconds"] <= one[0]["expected_seconds"]
    assert all(", then " in gain["change"]["change"] for gain in two)
    assert document["causes"]
    assert document["terms"]
    assert read_plan(better).estimate.step_time_seconds < today
    text = autopar("plan", "--improve", plan, "--measured", "9s")
    assert "measured against estimated" in text.out
    assert "one change, the best first" in text.out


@pytest.mark.parametrize(
    ("measured", "message"),
    [("soon", "not a time that is understood"), ("-3s", "a time above zero is needed"), ("0", "a time above zero is needed")],
)
def test_a_measurement_is_a_time(autopar: Run, plan: Path, measured: str, message: str) -> None:
    found = autopar("plan", "--improve", plan, f"--measured={measured}")
    assert found.code == 2
    assert message in found.err


def test_improve_takes_no_other_inputs(autopar: Run, plan: Path) -> None:
    found = autopar("plan", "--improve", plan, "--gpus", 8)
    assert found.code == 2
    assert "leave out --gpus" in found.err
    assert autopar("plan", "--measured", "1s").code == 2


@pytest.mark.parametrize("framework", ["torchtitan", "deepspeed", "accelerate", "nanotron", "megatron-bridge", "torchrun", "slurm"])
def test_the_nearest_plan_of_every_framework_is_written_whole(autopar: Run, plan: Path, tmp_path: Path, framework: str) -> None:
    found = autopar("export", plan, "--to", framework, "--nearest", "-o", tmp_path / "run")
    assert found.code == 0, found.err
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == sorted(
        line.rsplit("/", 1)[1] for line in found.err.splitlines() if line.startswith("wrote ")
    )
    document = autopar("export", plan, "--to", framework, "--nearest", "--json").document
    assert document["framework"] == framework
    assert document["version"]
    assert document["schema_version"] == "1.0"


def test_a_refusal_names_the_rule_and_the_nearest_plan_and_writes_nothing(autopar: Run, plan: Path, tmp_path: Path) -> None:
    found = autopar("export", plan, "--to", "deepspeed", "-o", tmp_path / "run", "--json")
    assert found.code == 1
    assert "sequence_parallel=true" in found.err
    assert "nearest that it takes: TP" in found.err
    assert "--nearest writes it" in found.err
    assert not (tmp_path / "run").exists()
    document = found.document
    assert document["fits"] is False
    assert document["broken"][0]["rule"] == "inexpressible"
    assert document["nearest"]["strategy"]["sequence_parallel"] is False
    assert document["nearest"]["step_time_seconds"] > 0
    assert document["planned_step_time_seconds"] > 0


def test_a_model_that_the_framework_does_not_have(autopar: Run, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    assert autopar("plan", "--model", "gpt3-125m", "--gpus", 8, "-o", path).code == 0
    found = autopar("export", path, "--to", "torchtitan", "--nearest", "-o", tmp_path / "run")
    assert found.code == 1
    assert "model=gpt3-125m: torchtitan has llama3.2-1b" in found.err
    assert not (tmp_path / "run").exists()


def test_files_are_written_all_or_none(autopar: Run, plan: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "train.sh").mkdir(parents=True)
    found = autopar("export", plan, "--to", "megatron-bridge", "-o", run)
    assert found.code == 2
    assert "is a folder, a file goes there" in found.err
    assert [path.name for path in run.iterdir()] == ["train.sh"]
    assert autopar("export", plan, "--to", "torchrun", "-o", tmp_path / "no" / "such").code == 2
    (tmp_path / "file").write_text("x")
    assert autopar("export", plan, "--to", "torchrun", "-o", tmp_path / "file").code == 2


def test_a_failure_half_way_puts_everything_back(plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from autopar.costmodel.spec.errors import InvalidInputError
    from autopar.exporters.exporter import ExportedFile
    from autopar.exporters.folder import write_files

    (tmp_path / "a").write_text("old")
    replace, calls = os.replace, []

    def failing(source: Path, target: Path) -> None:
        calls.append(target)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", failing)
    files = [ExportedFile(path="a", text="new"), ExportedFile(path="b", text="new")]
    with pytest.raises(InvalidInputError, match="No space left"):
        write_files(files, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a"]
    assert (tmp_path / "a").read_text() == "old"
    assert plan.exists()


BAD = {
    "contradicting flags": (
        MEGATRON + " --num-virtual-stages-per-pipeline-rank 2 --pipeline-model-parallel-layout 'Et|tL'", "megatron-lm",
        ["does not go with --num-virtual-stages-per-pipeline-rank (rule ML-P1)", "(rule ML-P3)"],
    ),
    "a flag given twice": (MEGATRON + " --micro-batch-size 2", "megatron-lm", ["--micro-batch-size=2: was already given as 1"]),
    "a removed flag": (MEGATRON + " --model-parallel-size 2", "megatron-lm", ["use --tensor-model-parallel-size"]),
    "no number": (MEGATRON.replace("layers 32", "layers many"), "megatron-lm", ["--num-layers='many': a whole number is needed"]),
    "an unset variable": (MEGATRON.replace("layers 32", "layers $LAYERS"), "megatron-lm", ["--num-layers: its value is missing"]),
    "an open quotation": (MEGATRON + " 'x", "megatron-lm", ["a quotation that ends in '"]),
    "no command": ("echo hello there", "megatron-lm", ["no command with flags"]),
    "no such file": ("train.sh", "megatron-lm", ["no such file"]),
    "a hybrid model": (MEGATRON + " --hybrid-layer-pattern M*M*", "megatron-lm", ["which autopar does not model"]),
    "a bad layout": (MEGATRON + " --pipeline-model-parallel-layout 'Ex|tL'", "megatron-lm", ["a layout is made of E, t, m, L"]),
    "an unknown framework": (MEGATRON, "megatron-ml", ["did you mean megatron-lm"]),
    "no JSON": ("{not json", "deepspeed", ["not valid JSON"]),
    "not accelerate": ("python train.py --x 1", "accelerate", ["a command with `accelerate launch`"]),
    "nothing of torchtitan's": ("python -c 1", "torchtitan", ["has no --module"]),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_configurations_are_one_clear_message(autopar: Run, name: str, tmp_path: Path) -> None:
    configuration, framework, messages = BAD[name]
    found = autopar("import", configuration, "--from", framework, "-o", tmp_path / "plan.json")
    assert found.code == 2, found.err
    for message in messages:
        assert message in found.err
    assert not (tmp_path / "plan.json").exists()


FILES = {
    "old TOML": ("job.toml", "[parallelism]\ntensor_parallel_degree = 8\n", "torchtitan", "is a TOML file; torchtitan takes Python"),
    "automatic values": ("ds.json", '{"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "bf16": {"enabled": true}}',
                         "deepspeed", '"auto", which the Trainer fills in; give --mbs'),
    "removed keys": ("ds.json", '{"train_batch_size": 8, "amp": {"enabled": true}}', "deepspeed", "use bf16, fp16 or torch_autocast"),
    "a list": ("ds.json", "[1]", "deepspeed", "is one JSON object"),
    "broken JSON": ("ds.json", '{"a": ', "deepspeed", "not valid JSON"),
    "broken YAML": ("c.yaml", "a: [1", "nanotron", "is not YAML"),
    "a wrong type": ("c.yaml", "parallelism: {dp: x, tp: 2}", "nanotron", "parallelism.dp='x': a whole number is needed"),
    "no Python": ("c.py", "def f(:", "torchtitan", "is not Python"),
    "a log": ("train.sh", "echo 1\n" * 20_000, "megatron-lm", "holds 140,000 bytes, more than any configuration"),
    "not text": ("c.py", b"\xff\xfe\x00", "torchtitan", "text in UTF-8 is needed"),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_bad_files_are_one_clear_message(autopar: Run, name: str, tmp_path: Path) -> None:
    file, content, framework, message = FILES[name]
    path = tmp_path / file
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    found = autopar("import", path, "--from", framework, "-o", tmp_path / "plan.json", "--gpus", 8, "--model", "llama3-8b")
    assert found.code == 2, found.err
    assert message in found.err
    assert not (tmp_path / "plan.json").exists()


def test_automatic_values_are_given_by_the_person(autopar: Run, tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text('{"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 3}, "x": 1}')
    found = autopar("import", path, "--from", "deepspeed", "--model", "llama3-8b", "--gpus", 8, "--mbs", 1, "--gbs", 64, "--json")
    assert found.code == 0, found.err
    assert found.document["strategy"]["zero_stage"] == 3
    assert any("filled in by the Trainer" in line for line in found.document["inputs"]["assumptions"])
    assert any("kept as they are: x" in line for line in found.document["inputs"]["assumptions"])


def test_help_of_both(autopar: Run) -> None:
    for command in ("export", "import"):
        assert f"autopar {command}" in autopar(command, "--help").out
