"""What a row says decides; what it does not say is filled by one rule, and nonsense is not scored."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autopar.accuracy.cases import Case, case_of
from autopar.accuracy.runs import Run, Skipped
from autopar.costmodel.spec.strategy import Recompute, RecomputeModule

ROW = Run(
    run_id="r", device="a100-sxm4-80gb", framework="Megatron-LM", model_name="llama2-7b", num_gpus=8, sequence_length=4096,
    global_batch_size=64, micro_batch_size=1, tensor_parallel_size=4, pipeline_parallel_size=1, step_time_seconds=10.0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("full", Recompute.FULL),
        ("Full (uniform)", Recompute.FULL),
        ("selective (attention core)", Recompute.SELECTIVE),
        ("none", Recompute.NONE),
    ],
)
def test_stated_recomputation_is_taken(text: str, expected: Recompute) -> None:
    case = case_of(replace(ROW, recompute=text))
    assert isinstance(case, Case)
    assert case.strategy.recompute is expected


@pytest.mark.parametrize(("field", "given"), [("recompute", "banana"), ("precision", "banana"), ("framework", "banana")])
def test_text_nobody_knows_is_a_reason_not_a_guess(field: str, given: str) -> None:
    skipped = case_of(replace(ROW, **{field: given}))
    assert isinstance(skipped, Skipped)
    assert given in skipped.reason


def test_a_model_named_without_its_shape_is_the_catalogs_and_says_so() -> None:
    case = case_of(ROW)
    assert isinstance(case, Case)
    assert case.problem.model.num_layers == 32
    assert any("shape taken" in note for note in case.notes)


def test_a_shape_that_contradicts_the_catalog_wins() -> None:
    case = case_of(replace(ROW, num_layers=4, hidden_size=4096, gated_mlp=True, ffn_hidden_size=11008, vocab_size=32000))
    assert isinstance(case, Case)
    assert case.problem.model.num_layers == 4


def test_sizes_that_do_not_make_the_world_are_a_reason() -> None:
    skipped = case_of(replace(ROW, data_parallel_size=3))
    assert isinstance(skipped, Skipped)
    assert "not num_gpus=8" in skipped.reason


MOE = replace(
    ROW, device="h100-sxm5-80gb", framework="NeMo/Megatron-Core", model_name="mixtral-8x7b", expert_parallel_size=2, precision="bf16"
)  # fmt: skip


@pytest.mark.parametrize(
    ("notes", "framework", "expected"),
    [
        ("", "NeMo/Megatron-Core", 4),
        ("proxy; ETP=1", "NeMo/Megatron-Core", 1),
        ("ETP = 2; proxy", "NeMo/Megatron-Core", 2),
        ("", "Megatron-Bridge (Megatron-Core), NeMo container 25.11", 1),
    ],
)
def test_experts_are_split_as_the_row_says_else_as_the_framework_does(notes: str, framework: str, expected: int) -> None:
    case = case_of(replace(MOE, notes=notes, framework=framework))
    assert isinstance(case, Case)
    assert case.strategy.expert_tensor_parallel_size == expected


def scored(run: Run, **changes: object) -> Case:
    case = case_of(replace(run, **changes))  # type: ignore[arg-type]
    assert isinstance(case, Case)
    return case


def profile_of(**changes: object) -> str:
    return scored(MOE, **changes).problem.framework.id


def test_a_release_has_its_own_profile_and_hopper_keeps_the_earlier_kernels() -> None:
    release = "Megatron-Bridge (Megatron-Core), NeMo container {}"
    blackwell = {"device": "gb200-nvl72"}
    assert profile_of(framework=release.format("26.04.01"), **blackwell) == "megatron-bridge-25"
    assert profile_of(framework=release.format("26.06"), **blackwell) == "megatron-bridge-26"
    assert profile_of(framework=release.format("26.06")) == "megatron-bridge-25"
    assert profile_of(framework="NeMo-Megatron 23.08", expert_parallel_size=None, model_name="llama2-7b") == "megatron-2022"
    assert profile_of(framework="NeMo 24.07 (Megatron-Core)") == "megatron-core"


TITAN = replace(
    ROW, device="h100-sxm5-80gb", framework="torchtitan 2024-12", model_name="llama3.1-8b", sequence_length=8192, precision="fp8",
    recompute="selective", sharding_as_stated="fsdp8", tensor_parallel_size=1,
)  # fmt: skip


def test_what_torchtitans_notes_say_of_a_run_is_taken() -> None:
    plain, uncompiled, asynchronous, rowwise = (
        scored(TITAN, notes=notes)
        for notes in ("Table 1: FSDP+compile", "Table 1: FSDP; memory GiB", "async TP; float8 tensorwise", "vanilla TP; float8 rowwise")
    )
    assert plain.problem.framework.id == asynchronous.problem.framework.id == "torchtitan"
    assert uncompiled.problem.framework.rotary_passes > plain.problem.framework.rotary_passes
    assert asynchronous.problem.framework.tensor_overlap_forward > plain.problem.framework.tensor_overlap_forward
    assert (plain.problem.training.precision.name, rowwise.problem.training.precision.name) == ("fp8", "bf16")


def test_torchtitans_pipelines_make_one_micro_batch_a_stage() -> None:
    row = replace(TITAN, num_gpus=512, model_name="llama3.1-405b", tensor_parallel_size=8, pipeline_parallel_size=8, global_batch_size=256)
    flat, looped = (scored(row, recompute="full", notes=notes) for notes in ("Table 5: 1F1B", "Table 5: Interleaved 1F1B"))
    assert (flat.strategy.micro_batch_size, flat.strategy.virtual_pipeline_stages) == (4, 1)
    assert (looped.strategy.micro_batch_size, looped.strategy.virtual_pipeline_stages) == (4, 2)


def test_llm_foundrys_rows_alone_have_its_older_attention() -> None:
    shares = []
    for text in ("llm-foundry/Composer FSDP", "PyTorch FSDP"):
        case = case_of(replace(ROW, framework=text, tensor_parallel_size=1, sharding_as_stated="FULL_SHARD"))
        assert isinstance(case, Case)
        shares.append(case.problem.framework.attention_share)
    assert shares[0] == pytest.approx(0.65 * shares[1])


@pytest.mark.parametrize(("experts", "stages", "overlapped"), [(16, 2, True), (8, 2, False), (16, None, False)])
def test_experts_over_nodes_under_virtual_stages_are_exchanged_beside_compute(experts: int, stages: int | None, overlapped: bool) -> None:
    run = replace(
        ROW, device="h100-sxm5-80gb", framework="Megatron-Bridge 25.11", model_name="qwen3-30b-a3b", num_gpus=64, tensor_parallel_size=1,
        pipeline_parallel_size=4, virtual_pipeline_stages=stages, expert_parallel_size=experts,
    )  # fmt: skip
    case = case_of(run)
    assert isinstance(case, Case)
    assert (case.problem.framework.expert_overlap == 0.8) is overlapped
    assert any("recipes have it" in note for note in case.notes) is overlapped


def test_context_parallelism_of_an_earlier_release_is_scored() -> None:
    """torchtitan passed keys and values round a ring once; plans for today's gather them."""
    case = case_of(replace(ROW, framework="torchtitan 2024-12", model_name="llama3.1-8b", tensor_parallel_size=1, context_parallel_size=8))
    assert isinstance(case, Case)
    assert case.strategy.context_parallel_kind not in case.problem.framework.context_parallel_kinds


@pytest.mark.parametrize(
    ("text", "modules", "layers"),
    [
        ("selective: mla_up_proj+mlp", (RecomputeModule.MLA_UP_PROJ, RecomputeModule.MLP), 0),
        ("moe_act, layernorm", (RecomputeModule.LAYERNORM, RecomputeModule.MOE_ACT), 0),
        ("selective", (), 0),
        ("full, 5 layers", (), 5),
    ],
)
def test_modules_and_layers_are_read_from_the_text(text: str, modules: tuple[RecomputeModule, ...], layers: int) -> None:
    case = case_of(replace(ROW, framework="Megatron-Core", recompute=text))
    assert isinstance(case, Case)
    assert case.strategy.recompute_modules == modules
    assert case.strategy.num_recompute_layers == layers


def test_what_a_row_says_it_held_changes_its_memory_alone() -> None:
    plain, narrow = (case_of(replace(ROW, peak_memory_gb=60.0, notes=notes)) for notes in ("", "gradient_bytes=2, as its recipe"))
    assert isinstance(plain, Case)
    assert isinstance(narrow, Case)
    assert narrow.problem == plain.problem
    assert narrow.held is not None
    assert narrow.held.framework.gradient_bytes == 2


@pytest.mark.parametrize(("framework", "count"), [("pytorch-eager", "tensors"), ("torchtitan 2025", "reserved"), ("Megatron-LM", "driver")])
def test_a_peak_counts_what_its_source_reports(framework: str, count: str) -> None:
    case = case_of(replace(ROW, framework=framework, tensor_parallel_size=1, recompute="none"))
    assert isinstance(case, Case)
    assert case.memory_counts == count
