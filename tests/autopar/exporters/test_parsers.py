"""The frameworks' own parsers and validators take what is exported and understand it as the plan means it.

Each runs in a process of its own, and is left out where the framework is not installed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autopar.costmodel.spec.layout import RankLayout
from autopar.costmodel.spec.strategy import RankOrder, Strategy
from autopar.exporters import exporter
from autopar.exporters.folder import write_files
from autopar.exporters.question import Question
from autopar.exporters.torchtitan_models import TITAN_MODELS
from autopar.importers.launcher import read_launch

from .plans import INSTEAD, PLANS
from .questions import question
from .test_golden import asked_of

PARSERS = Path(__file__).with_name("parsers")
MODULES = {
    "megatron-lm": "megatron.training.arguments", "torchtitan": "torchtitan.config.manager", "deepspeed": "deepspeed.runtime.config",
    "accelerate": "accelerate.parallelism_config", "nanotron": "nanotron.config",
}  # fmt: skip
SMALL: dict[str, list[Question]] = {
    "megatron-lm": [
        question(Strategy(tensor_parallel_size=4, sequence_parallel=True, pipeline_parallel_size=2, data_parallel_size=8,
                          expert_parallel_size=4, pipeline_layers=(17, 15)), "mixtral-8x7b"),
        question(Strategy(tensor_parallel_size=2, sequence_parallel=True, data_parallel_size=8, zero_stage=3)),
        question(Strategy(data_parallel_size=16, shard_group_size=4)),
        question(Strategy(tensor_parallel_size=2, sequence_parallel=True, pipeline_parallel_size=2, data_parallel_size=4,
                          rank_order=RankOrder.TP_CP_PP_DP)),
        question(Strategy(tensor_parallel_size=2, sequence_parallel=True, pipeline_parallel_size=2, context_parallel_size=2,
                          data_parallel_size=2, rank_order=RankOrder.TP_CP_PP_DP)),
        question(Strategy(tensor_parallel_size=2, sequence_parallel=True, data_parallel_size=4, expert_parallel_size=8), "llama4-scout"),
    ],
    "torchtitan": [
        question(Strategy(tensor_parallel_size=4, sequence_parallel=True, pipeline_parallel_size=2, data_parallel_size=4,
                          expert_parallel_size=4), "qwen3-30b-a3b"),
        question(Strategy(data_parallel_size=16, zero_stage=3, shard_group_size=8)),
    ],
    "deepspeed": [question(Strategy(tensor_parallel_size=2, data_parallel_size=32, expert_parallel_size=4, zero_stage=2), "mixtral-8x7b")],
    "accelerate": [
        question(Strategy(data_parallel_size=16)),
        question(Strategy(tensor_parallel_size=2, data_parallel_size=16, zero_stage=2, shard_group_size=8)),
        question(Strategy(data_parallel_size=16, zero_stage=0)),
    ],
    "nanotron": [question(Strategy(tensor_parallel_size=2, sequence_parallel=True, pipeline_parallel_size=4, data_parallel_size=4))],
}  # fmt: skip
CASES = [(name, f"small-{place}", asked) for name, questions in SMALL.items() for place, asked in enumerate(questions)]
CASES += [(name, plan, asked_of(plan, name)) for name in SMALL for plan in PLANS if INSTEAD.get((plan, name), {}) is not None]


def _installed(name: str) -> bool:
    """Whether the module is there, told from its file: importing it in this process would take seconds and its warnings."""
    package, *inner = MODULES[name].split(".")
    spec = importlib.util.find_spec(package)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    relative = Path(*inner)
    return any((Path(folder) / relative).is_dir() or (Path(folder) / relative).with_suffix(".py").is_file() for folder in folders)


def _understood(name: str, arguments: list[str], environment: dict[str, str]) -> dict[str, Any]:
    command = [sys.executable, "-W", "ignore", str(PARSERS / f"ask_{name.replace('-', '_')}.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


DENSE_AXES = ("tp", "cp", "dp", "pp")
EXPERT_STAGES = "stages of experts"


def groups_of(strategy: Strategy) -> dict[str, list[list[int]]]:
    """Every group of every axis, in the order of the first rank, as the project's own arithmetic places them."""
    layout, found = RankLayout.of(strategy), {}
    for axes, expert in ((DENSE_AXES, False), (("etp", "ep", "edp"), True)):
        for axis in axes:
            each = dict.fromkeys(layout.group(rank, axis, expert=expert) for rank in range(layout.world_size))
            found[axis] = [list(group) for group in each]
    return found


def check_groups(groups: dict[str, list[list[int]]], asked: Question) -> None:
    """Megatron's groups are the project's; a dense model's experts' grid has no members, and must put each rank in its stage."""
    axes = {*groups} if asked.model.moe is not None else {*DENSE_AXES, EXPERT_STAGES}
    expected = groups_of(asked.strategy)
    expected[EXPERT_STAGES] = expected["pp"]
    assert {axis: groups[axis] for axis in axes} == {axis: expected[axis] for axis in axes}


def last_groups_of(strategy: Strategy) -> dict[str, list[int]]:
    """The groups of the last rank, under torchtitan's names of the axes."""
    layout = RankLayout.of(strategy)
    names = {"tp": "tp", "cp": "cp", "batch": "dp", "pp": "pp", "ep": "ep"}
    return {theirs: list(layout.group(layout.world_size - 1, ours, expert=ours == "ep")) for theirs, ours in names.items()}


@pytest.mark.slow
def test_the_numbers_of_torchtitans_flavors_are_its_own() -> None:
    if not _installed("torchtitan"):
        pytest.skip("torchtitan is not installed")
    wanted = {f"{known.module}/{known.flavor}": [*known.numbers.values(), known.rotary_scaling] for known in TITAN_MODELS.values()}
    assert _understood("torchtitan-flavors", list(wanted), {}) == wanted


@pytest.mark.slow
@pytest.mark.parametrize(("name", "plan", "asked"), CASES, ids=[f"{name}-{plan}" for name, plan, _ in CASES])
def test_the_framework_takes_its_files(name: str, plan: str, asked: Question, tmp_path: Path) -> None:  # noqa: ARG001 - names the case
    if not _installed(name):
        pytest.skip(f"{name} is not installed ({exporter(name).version} was tried)")
    target = exporter(name)
    write_files(target.files(asked, ["a header"]), tmp_path / "run")
    strategy, batch = asked.strategy, asked.training.global_batch_size
    run = tmp_path / "run"
    sizes = {"tp": strategy.tensor_parallel_size, "pp": strategy.pipeline_parallel_size}
    match name:
        case "megatron-lm":
            read = read_launch((run / "train.sh").read_text(encoding="utf-8"))
            found = _understood(name, [*read.words, str(strategy.world_size)], dict(read.environment))
            wanted = {
                **sizes, "cp": strategy.context_parallel_size, "ep": strategy.expert_parallel_size, "gbs": batch,
                "dp": strategy.data_parallel_size, "layers": asked.model.num_layers,
                "virtual": strategy.virtual_pipeline_stages, "mbs": strategy.micro_batch_size, "distributed": strategy.zero_stage > 0,
                "numbers": [asked.model.rotary_base or 10_000, asked.model.norm_epsilon or 1e-5],
            }  # fmt: skip
            ranks = strategy.pipeline_parallel_size
            split = [count for rank in range(ranks) for count in strategy.pipeline_layers[rank::ranks]]
            assert found.pop("split") == split
            check_groups(found.pop("groups"), asked)
        case "torchtitan":
            found = _understood(name, [str(run), str(strategy.world_size)], {})
            groups = found.pop("groups")
            expected = {axis: group for axis, group in last_groups_of(strategy).items() if len(group) > 1}
            assert {axis: groups.get(axis) for axis in expected} == expected
            split = list(asked.layers) if strategy.pipeline_parallel_size > 1 else []
            wanted = {
                **sizes, "cp": strategy.context_parallel_size, "ep": strategy.expert_parallel_size, "dp": strategy.data_parallel_size,
                "gbs": batch, "split": split, "layers": asked.model.num_layers,
                "numbers": list(TITAN_MODELS[asked.model.name].numbers.values()),
            }  # fmt: skip
        case "deepspeed":
            found = _understood(name, [str(run / "ds_config.json"), str(strategy.data_parallel_size)], {})
            tensor, pipeline = strategy.tensor_parallel_size, strategy.pipeline_parallel_size
            wanted = {
                "gbs": batch, "mbs": strategy.micro_batch_size, "steps": asked.num_microbatches, "zero": strategy.zero_stage,
                "tp": tensor if tensor > 1 else 0, "ep": strategy.expert_parallel_size, "pp": pipeline if pipeline > 1 else "auto",
            }  # fmt: skip
        case "accelerate":
            found = _understood(name, [str(run / "accelerate.yaml")], {})
            wanted = {"processes": strategy.world_size, "fsdp": 2 if strategy.zero_stage > 1 else 0}
            found = {key: found[key] for key in wanted}
        case _:
            # Release 0.4 turns every Llama at 10,000, and is meant to refuse a file that says otherwise; the rest it reads.
            lines = (run / "config.yaml").read_text(encoding="utf-8").splitlines(keepends=True)
            (run / "older.yaml").write_text("".join(line for line in lines if "rope_theta:" not in line), encoding="utf-8")
            found = _understood(name, [str(run / "older.yaml")], {})
            wanted = {
                **sizes, "dp": strategy.data_parallel_size, "gbs": batch, "zero": strategy.zero_stage, "layers": asked.model.num_layers,
                "engine": "OneForwardOneBackwardPipelineEngine", "mode": "REDUCE_SCATTER",
                "epsilon": asked.model.norm_epsilon,
            }  # fmt: skip
    assert found == wanted
