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
        marked.append(
            pytest.param(case, id=f"{case['id']}-{' '.join(f'{k}{v}' for k, v in case.get('strategy', {}).items())}", marks=wrong)
        )
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
    stated = ("gpus", "gpu", "cluster", "batch", "sequence", "precision", "framework")
    given = {names.get(name, name): case[name] for name in stated if name in case}
    return given if "gpu" in given or "cluster" in given else {**given, "gpu": "h100-sxm5-80gb"}


def question(case: Case) -> tuple[Problem, Strategy]:
    strategy = {name: tuple(value) if isinstance(value, list) else value for name, value in case["strategy"].items()}
    problem, chosen, _ = resolve(model(case), strategy, **inputs(case))
    if "optimizer_state_bytes" in case:
        precision = replace(problem.training.precision, optimizer_state_bytes=case["optimizer_state_bytes"])
        problem = replace(problem, training=replace(problem.training, precision=precision))
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


# -- truths that compare several strategies -----------------------------------------------------------------------------


def small(**fields: Any) -> ModelSpec:
    return replace(catalog_model("llama2-7b"), **fields)


def stages(spec: ModelSpec, **strategy: Any) -> Estimate:
    gpus = strategy.pop("gpus", 8)
    options = {name: strategy.pop(name) for name in ("framework", "sequence_length") if name in strategy}
    return autopar.estimate(spec, gpu="h100-sxm5-80gb", gpus=gpus, global_batch_size=64, strategy=strategy, **options)


@pytest.mark.parametrize(("name", "size"), [("deepseek-v2-lite", 4), ("deepseek-v3", 16)])
def test_c004_uneven_stages_hold_every_layer_once(name: str, size: int) -> None:
    spec = catalog_model(name)
    found = stages(spec, gpus=size, pp=size)
    held = sorted(layer for stage in found.stages for first, end in stage.layers for layer in range(first, end))
    assert held == list(range(spec.num_layers))
    assert all(stage.num_layers for stage in found.stages)


@pytest.mark.parametrize(("framework", "sizes"), [("deepspeed", {1, 2, 4, 8, 40}), ("megatron-core", {1, 2, 4, 8})])
def test_c015_ulysses_takes_sizes_that_suit_both_kinds_of_heads(framework: str, sizes: set[int]) -> None:
    accepted = set()
    for size in (1, 2, 4, 5, 8, 10, 20, 40):
        case = {"model": "qwen2.5-14b", "framework": framework, "gpus": 40, "batch": 40, "sequence": 40960}
        if not faults(*question({**case, "strategy": {"cp": size, "cp_kind": "ulysses"}})):
            accepted.add(size)
    assert accepted == sizes


def test_c020_tensor_parallel_sizes_of_28_heads() -> None:
    sizes = (1, 2, 4, 8)
    accepted = {size for size in sizes if not faults(*question({"model": "qwen2.5-7b", "gpus": 8, "strategy": {"tp": size}}))}
    assert accepted == {1, 2, 4}


def test_c036_the_smallest_pipeline_that_holds_70b_under_full_recomputation() -> None:
    fitting = [
        size
        for size in (1, 2, 4, 8)
        if estimate({**fits_case("C036"), "strategy": {"tp": 8, "pp": size, "mbs": 1, "zero": 0, "recompute": "full"}}).fits
    ]
    assert fitting == [4, 8]


def fits_case(name: str) -> Case:
    return next(case for case in CASES["fits"] if case["id"] == name)


def test_c039_activations_follow_the_tokens_of_a_rank() -> None:
    def held(gpus: int, **strategy: Any) -> float:
        memory = stages(small(num_layers=4), gpus=gpus, zero=0, **strategy).stages[0].memory
        return memory.activations + memory.logits_and_loss

    whole, over_context, fewer = held(1, mbs=4), held(2, cp=2, mbs=4), held(1, mbs=2)
    assert over_context == pytest.approx(fewer, rel=0.01)
    assert whole == pytest.approx(2 * fewer, rel=0.01)


def test_c041_the_heaviest_stage_is_counted_not_the_average() -> None:
    spec = small(num_layers=8)
    found = stages(spec, gpus=4, pp=4, pipeline_layers=(1, 2, 2, 3)).stages
    assert [stage.num_layers for stage in found] == [1, 2, 2, 3]
    layer = spec.layer_parameters(moe=False)
    assert found[2].num_parameters == 2 * layer
    assert found[3].num_parameters == 3 * layer + found[0].num_parameters - layer + spec.norm_parameters
    assert max(found, key=lambda stage: stage.num_parameters) is found[3]


def test_c042_routed_experts_are_cut_by_the_expert_grid() -> None:
    spec = catalog_model("mixtral-8x7b")
    whole, cut = (stages(spec, tp=2, ep=4, etp=size).stages[0].num_parameters for size in (1, 2))
    assert whole - cut == spec.num_layers * 2 * spec.expert_parameters // 2


def test_c046_norms_are_whole_on_every_tensor_parallel_rank() -> None:
    spec = small(vocab_size=32_768)
    one, eight = (stages(spec, tp=size).stages[0].num_parameters for size in (1, 8))
    norms = (spec.num_layers * spec.norms_per_layer + 1) * spec.norm_parameters
    assert 8 * eight - one == 7 * norms


def test_c052_and_c053_rank_behind_the_balanced_layout() -> None:
    base = next(case for case in CASES["time"] if case["id"] == "C052")
    layouts = ({"tp": 4, "pp": 4}, {"tp": 4, "pp": 8}, {"tp": 8, "pp": 4})
    seconds = [estimate_of_run({**base, "strategy": {**layout, "vpp": 5, "mbs": 1}}).step_time_seconds for layout in layouts]
    assert seconds == sorted(seconds)
    assert seconds[0] / seconds[1] == pytest.approx(1 - 0.059, abs=0.03)


def repeating(case: Case, *modules: str) -> Estimate:
    """A case with modules recomputed."""
    repeated = {"recompute": "selective", "recompute_modules": list(modules)} if modules else {}
    return estimate({**case, "strategy": {**case["strategy"], **repeated}})


def test_c054_recomputing_the_mlp_costs_a_sixth_of_the_speed() -> None:
    case = {**next(case for case in CASES["time"] if case["id"] == "C052"), "strategy": {"tp": 4, "pp": 4, "vpp": 5, "mbs": 1}}
    plain, again = (repeating({**case, "gpu": "h200-sxm-141gb"}, *modules) for modules in (["core_attn"], ["mlp"]))
    speed = again.model_flops_per_second_per_gpu / plain.model_flops_per_second_per_gpu
    assert speed == pytest.approx(593.6 / 704, abs=0.03)
    assert again.peak_memory_bytes < plain.peak_memory_bytes - 3.2e9


def test_c057_recomputing_the_experts_activation_saves_little_and_costs_little() -> None:
    case = next(case for case in CASES["memory"] if case["id"] == "C056")
    plain, again = repeating(case), repeating(case, "moe_act")
    assert 0.5e9 < tensors(plain.stages[0].memory) - tensors(again.stages[0].memory) < 1e9
    assert again.step_time_seconds / plain.step_time_seconds == pytest.approx(466.26 / 457.18, abs=0.02)


def test_c059_core_attention_recompute_saves_nothing_under_fused_attention() -> None:
    spec = catalog_model("moonlight-16b-a3b")
    kept, again = (stages(spec, tp=2, ep=8, recompute=kind) for kind in ("none", "selective"))
    assert again.peak_memory_bytes == pytest.approx(kept.peak_memory_bytes, rel=0.01)
    assert kept.step_time_seconds < again.step_time_seconds < 1.15 * kept.step_time_seconds


def test_c093_four_gpus_a_node_mean_tensor_parallel_at_most_4_and_a_pipeline() -> None:
    problem, _ = autopar.api.build_problem("opt-175b", cluster="dgx-a100-40gb", gpus=192, global_batch_size=1024, sequence_length=2048)
    inner = replace(problem.cluster.tiers[0], domain_size=4)
    halved = replace(problem.cluster, gpus_per_node=4, tiers=(inner, *problem.cluster.tiers[1:]))
    strategy = autopar.plan("opt-175b", cluster=halved, global_batch_size=1152, sequence_length=2048).strategy
    assert strategy.tensor_parallel_size <= 4
    assert strategy.pipeline_parallel_size > 1


def test_c101_zero_1_does_not_help_a_single_replica() -> None:
    case = fits_case("C101")
    peaks = {estimate({**case, "strategy": {**case["strategy"], "zero": stage}}).peak_memory_bytes for stage in (0, 1)}
    assert len(peaks) == 1


def test_c102_the_first_stage_holds_the_most_activations() -> None:
    found = stages(small(), pp=4, gpus=4).stages
    held = [stage.memory.activations for stage in found]
    assert held == sorted(held, reverse=True)
    assert held[0] > 3 * held[-1]


def test_c103_whole_fp32_logits_of_a_long_micro_batch() -> None:
    tokens, vocabulary = 65_536, 128_256
    spec = small(vocab_size=vocabulary)
    memory = stages(spec, gpus=1, zero=0, sequence_length=tokens, recompute="full").stages[-1].memory
    assert tokens * vocabulary * 4 < memory.logits_and_loss
    assert memory.logits_and_loss > 42e9, "what cutting the loss into chunks was measured to save"


def test_c105_tensor_parallel_divides_the_logits() -> None:
    spec = small(vocab_size=262_144, hidden_size=2048, head_dim=64)
    one, two = (stages(spec, tp=size).stages[-1].memory.logits_and_loss for size in (1, 2))
    assert one == pytest.approx(2 * two, rel=0.02)


@pytest.mark.parametrize("gpu", ["h100-sxm5-80gb", "h200-sxm-141gb"])
def test_c122_mfu_is_of_the_dense_peak(gpu: str) -> None:
    found = autopar.estimate("qwen2.5-32b", gpu=gpu, gpus=8, strategy={"tp": 4, "pp": 2})
    assert found.model_flops_per_second_per_gpu / found.mfu == pytest.approx(420e12 / 0.4245, rel=0.002)


# -- every case is accounted for ----------------------------------------------------------------------------------------


def test_every_case_is_tested_or_says_why_not() -> None:
    with (FOLDER / "public_cases.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len({row["id"] for row in rows}) == len(rows)
    tabled = {case["id"] for kind, cases in CASES.items() if kind != "models" for case in cases}
    written = {name.upper() for test in globals() if test.startswith("test_c") for name in _case_names(test)}
    unknown = (tabled | written) - {row["id"] for row in rows}
    assert unknown == set()
    for row in rows:
        assert bool(row["not_tested"]) != (row["id"] in tabled | written), row["id"]
        assert row["source"]


def _case_names(test: str) -> Iterable[str]:
    return (word for word in test.split("_") if len(word) == 4 and word[0] == "c" and word[1:].isdigit())
