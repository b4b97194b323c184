"""Golden files: what each exporter writes for three plans.

``python -c "from tests.autopar.exporters.test_golden import write_all; write_all()"`` writes them anew.
"""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from autopar.exporters import exporter, exporter_names
from autopar.exporters.export import header_lines, under_profile, unsound
from autopar.exporters.exporter import Exporter
from autopar.exporters.question import Question
from autopar.importers import importer, importer_names, source_of
from autopar.importers.launcher import read_launch

from .plans import INSTEAD, PLANS, plan_question

FOLDER = Path(__file__).with_name("golden")
CASES = [(plan, framework) for plan in PLANS for framework in exporter_names()]
TAKEN = [case for case in CASES if INSTEAD.get(case, {}) is not None]
FROM = {"megatron-bridge": "autopar_bridge.py", "deepspeed": "ds_config.json", "nanotron": "config.yaml"}


def asked_of(plan: str, framework: str) -> Question:
    """The plan, or what of it the framework takes."""
    asked = plan_question(plan)
    changes = INSTEAD.get((plan, framework)) or {}
    return Question.of(asked.problem, replace(asked.strategy, **changes))


def golden_files(plan: str, framework: str) -> dict[str, str]:
    """The files by path, without the line of figures, which a better cost model changes."""
    target: Exporter = exporter(framework)
    asked = asked_of(plan, framework)
    from autopar.costmodel.estimate import estimate

    result = estimate(under_profile(target, asked), asked.strategy)
    header = [line for line in header_lines(target, asked, result, target.notes(asked)) if not line.startswith("estimated:")]
    return {file.path: file.text for file in target.files(asked, header)}


@pytest.mark.parametrize(("plan", "framework"), TAKEN)
def test_files_are_the_golden_ones(plan: str, framework: str) -> None:
    kept = FOLDER / plan / framework
    files = golden_files(plan, framework)
    assert {path.name for path in kept.iterdir()} == set(files)
    for name, text in files.items():
        assert text == (kept / name).read_text(encoding="utf-8"), f"{plan}/{framework}/{name} differs: write_all() writes it anew"
    assert any(exporter(framework).version in text for text in files.values())


@pytest.mark.parametrize(("plan", "framework"), CASES)
def test_a_framework_takes_the_plan_or_says_what_is_in_the_way(plan: str, framework: str) -> None:
    target, asked = exporter(framework), plan_question(plan)
    refused = target.broken_rules(asked)
    assert bool(refused) == ((plan, framework) in INSTEAD)
    if INSTEAD.get((plan, framework), {}) is None:
        assert any(rule.fault.field.startswith(("model", "expert")) for rule in refused)
    else:
        instead = asked_of(plan, framework)
        assert target.broken_rules(instead) == ()
        assert unsound(instead) == ()


@pytest.mark.parametrize("script", sorted(FOLDER.glob("*/*/*.s*")), ids=lambda path: f"{path.parent.parent.name}-{path.parent.name}")
def test_a_shell_sees_in_a_script_what_the_importer_reads(script: Path, tmp_path: Path) -> None:
    """The script is run with a launcher that writes down its words; these are compared with what is read without running it."""
    for name in ("torchrun", "accelerate", "srun", "scontrol"):
        recorder = tmp_path / name
        recorder.write_text(f'#!/bin/bash\nprintf "%s\\0" "$@" > {tmp_path}/words-{name}\n')
        recorder.chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "NODE_RANK": "0",
        "MASTER_ADDR": "host",
        "SLURM_JOB_NODELIST": "n",
        "SLURM_JOB_ID": "1",
    }
    subprocess.run(["bash", str(script), "train.py", "--mine", "a b"], check=True, env=environment, timeout=20)
    launcher = next(name for name in ("srun", "torchrun", "accelerate") if (tmp_path / f"words-{name}").exists())
    seen = (tmp_path / f"words-{launcher}").read_bytes().decode().split("\0")[:-1]
    program = next(index for index, word in enumerate(seen) if word.endswith(".py") or word == "torchtitan.train")
    assert seen[-3:] == ["train.py", "--mine", "a b"]
    read = read_launch(script.read_text(encoding="utf-8"))
    assert bool(read.program) == (program < len(seen) - 3), "torchrun's and Slurm's scripts start what they are given"
    if read.program:
        assert list(read.words) == [word.replace(str(script.parent), "") for word in seen[program + 1 : -3]]


@pytest.mark.parametrize(("plan", "framework"), [case for case in TAKEN if case[1] in importer_names()])
def test_golden_files_are_read_back(plan: str, framework: str) -> None:
    from autopar.importers.complete import Given, complete

    asked = asked_of(plan, framework)
    source = source_of(str(FOLDER / plan / framework / FROM.get(framework, "train.sh")))
    found = complete(
        importer(framework).read(source),
        Given(
            model=asked.model.name,
            gpus=asked.strategy.world_size,
            gpu=asked.cluster.device.id,
            sequence_length=asked.training.sequence_length,
        ),
    )
    assert found.strategy == asked.strategy
    assert found.inputs.model == asked.model


def write_all() -> None:
    """Write every golden file anew."""
    for plan, framework in TAKEN:
        folder = FOLDER / plan / framework
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in golden_files(plan, framework).items():
            (folder / name).write_text(text, encoding="utf-8", newline="\n")
