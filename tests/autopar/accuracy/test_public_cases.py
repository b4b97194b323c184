"""What people met in public, asked of the planner: refusals, memory, step times (tests/data/public_cases.toml)."""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import autopar
from autopar.api import faults, resolve
from autopar.catalog.models import model as catalog_model
from autopar.costmodel.estimate import estimate as cost_model
from autopar.costmodel.problem import Problem
from autopar.costmodel.spec.errors import AutoparError, NoPlanError
from autopar.costmodel.spec.estimate import Estimate, StageMemory
from autopar.costmodel.spec.model import ModelSpec, Norm, PositionEmbedding
from autopar.costmodel.spec.strategy import Strategy
from benchmarks.accuracy.tables import FOLDER

TABLE = Path(__file__).parents[2] / "data" / "public_cases.toml"
CASES: dict[str, Any] = tomllib.loads(TABLE.read_text())

Case = Mapping[str, Any]


def parameters(kind: str) -> list[Any]:
    """The cases of one kind; what the model gets wrong is marked so, with the figures and the cause."""
    marked = []
    for case in CASES[kind]:
        wrong = [pytest.mark.xfail(strict=True, reason=case["wrong"])] if "wrong" in case else []
        marked.append(pytest.param(case, id=f"{case['id']}-{' '.join(f'{k}{v}' for k, v in case.get('strategy', {}).items())}", marks=wrong))
    return marked


def model(case: Case) -> ModelSpec:
    if (shape := CASES["models"].get(case["model"])) is not None:
        kinds = {"norm": Norm(shape["norm"]), "position_embedding": PositionEmbedding(shape["position_embedding"])}
        return ModelSpec(name=case["model"], **{**shape, **kinds})
    found = replace(catalog_model(case["model"]), **case.get("shape", {}))
    if "experts" in case:
        assert found.moe is not None
        found = replace(found, moe=replace(found.moe, num_experts=case["experts"]))
    return found


def inputs(case: Case) -> dict[str, Any]:
    names = {"batch": "global_batch_size", "sequence": "sequence_length"}
    given = {names.get(name, name): case[name] for name in ("gpus", "gpu", "cluster", "batch", "sequence", "precision", "framework") if name in case}
    return given if "gpu" in given or "cluster" in given else {**given, "gpu": "h100-sxm5-80gb"}


def question(case: Case) -> tuple[Problem, Strategy]:
    strategy = {name: tuple(value) if isinstance(value, list) else value for name, value in case["strategy"].items()}
    problem, chosen, _ = resolve(model(case), strategy, **inputs(case))
    return replace(problem, framework=replace(problem.framework, **case.get("profile", {}))), chosen


def estimate(case: Case) -> Estimate:
    """Through the rules, which refuse what does not run."""
    problem, strategy = question(case)
    return autopar.estimate(problem, strategy=strategy)


def estimate_of_run(case: Case) -> Estimate:
    """Of what was measured, and so did run, whatever a profile's framework would be asked for today."""
    return cost_model(*question(case))


def tensors(memory: StageMemory) -> float:
    return memory.total - memory.framework_reserve


@pytest.mark.parametrize("case", parameters("refused"))
def test_what_does_not_run_is_refused_with_the_fix(case: Case) -> None:
    with pytest.raises(AutoparError) as refusal:
        estimate(case)
    text = str(refusal.value)
    lines = [line.strip() for line in text.splitlines() if line.strip().startswith(case["field"])]
    assert lines, text
    assert any(case["fix"] in line for line in lines), text


@pytest.mark.parametrize("case", parameters("accepted"))
def test_what_runs_is_accepted(case: Case) -> None:
    assert faults(*question(case)) == ()


@pytest.mark.parametrize("case", parameters("memory"))
def test_memory_within_its_tolerance(case: Case) -> None:
    found, framework = estimate_of_run(case), question(case)[0].framework
    stage = found.stages[case["rank"]] if "rank" in case else max(found.stages, key=lambda stage: stage.peak_memory_bytes)
    held = {
        "tensors": tensors(stage.memory),
        "reserved": tensors(stage.memory) * (1 + framework.fragmentation),
        "driver": stage.peak_memory_bytes,
    }[case["counts"]]
    assert held == pytest.approx(case["measured"], rel=case["tolerance"])


@pytest.mark.parametrize("case", parameters("fits"))
def test_running_out_of_memory_is_foreseen(case: Case) -> None:
    assert estimate(case).fits is case["fits"]


@pytest.mark.parametrize("case", parameters("plan"))
def test_a_plan_where_there_is_one(case: Case) -> None:
    if case["fits"]:
        assert autopar.plan(model(case), **inputs(case)).estimate.fits
        return
    with pytest.raises(NoPlanError, match="GPUs"):
        autopar.plan(model(case), fix=case.get("fix", ()), **inputs(case))


@pytest.mark.parametrize("case", parameters("time"))
def test_step_time_within_its_tolerance(case: Case) -> None:
    found = estimate_of_run(case)
    if "model_flops" in case:
        assert found.model_flops_per_second_per_gpu == pytest.approx(case["model_flops"], rel=case["tolerance"])
    else:
        assert found.step_time_seconds == pytest.approx(case["measured"], rel=case["tolerance"])
