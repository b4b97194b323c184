"""Predicted memory beside what Megatron-LM's own functional tests record: the peak of tensors on the last pipeline rank.

    python -m benchmarks.accuracy.golden_memory

The rows give the tests' arguments; what is blank takes Megatron-LM's default. See :data:`ASSUMPTIONS`.
"""

from __future__ import annotations

import csv
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from statistics import mean

import autopar
from autopar.accuracy.metrics import ErrorSummary
from autopar.accuracy.view import percent
from autopar.api import build_problem, faults
from autopar.catalog.frameworks import framework
from autopar.costmodel.problem import Problem
from autopar.costmodel.spec.errors import AutoparError
from autopar.costmodel.spec.estimate import StageMemory
from autopar.costmodel.spec.framework import ExecutionProfile
from autopar.costmodel.spec.model import LatentAttention, MixtureOfExperts, ModelSpec, Norm, PositionEmbedding
from autopar.costmodel.spec.strategy import PipelineSchedule, Recompute, Strategy
from autopar.costmodel.spec.units import GIB, MIB

from .tables import FOLDER, markdown

FILE = FOLDER / "megatron_golden_memory.csv"
TARGET = 0.06
GPT2_VOCABULARY, NEMOTRON_VOCABULARY = 50_257, 256_000
DEFAULT_GPUS = 8
CLUSTERS = {"a100": "dgx-a100", "h100": "dgx-h100", "gb200": "nvl72-gb200"}
WORST = 12
OWN_LOSS_BYTES, FUSED_LOSS_BYTES = 6, 10
CUBLAS_WORKSPACE, ENGINE_WORKSPACE, ENGINE_WORKSPACE_HOPPER = 32 * MIB, 4 * MIB, 32 * MIB
"""One workspace a cuBLAS handle (the tests set ``CUBLAS_WORKSPACE_CONFIG=:4096:8``), one of Transformer Engine a device."""

ASSUMPTIONS = (
    "Megatron-LM's defaults where an argument is blank: ZeRO-1 with the distributed optimizer and ZeRO-0 without, tied embeddings,"
    " learned positions, LayerNorm with biases, no recomputation, expert tensor parallel as tensor parallel.",
    "Dropout is not among the arguments recorded: 0.1, Megatron's default, and none in the tests with RMSNorm, which turn it off.",
    f"The vocabulary is the named one's, else GPT-2's {GPT2_VOCABULARY:,}, padded to 128 x tensor parallel; 8 GPUs where none are said.",
    "Attention is unfused (scores kept) where the backend says so or the layers are Megatron's own, fused where Transformer Engine"
    " may choose; records of the older machines (`dracooci`) were made when it was told not to. A few others of the long-term"
    " container were too, which nothing in the arguments tells: they are scored as fused and missed.",
    "The allocator also holds what an estimate has in the framework's reserve: two cuBLAS workspaces of 32 MiB (forward and backward"
    " thread) and Transformer Engine's, 4 MiB and from Hopper on 32 MiB.",
    f"Megatron's own loss holds {OWN_LOSS_BYTES} bytes a logit (BF16, and an fp32 copy overwritten in place), the fused one"
    f" {FUSED_LOSS_BYTES}.",
    "Gradients are fp32 under BF16; under FP16 they are FP16, with an fp32 copy that the optimizer shards where it shards.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Golden:
    """One record: the arguments of a test, and what its last rank held."""

    arguments: Mapping[str, str]

    def text(self, name: str) -> str:
        return self.arguments[name]

    def number(self, name: str, default: int = 0) -> int:
        return int(self.arguments[name] or default)

    def has(self, name: str) -> bool:
        return self.arguments[name] == "True"

    @property
    def case(self) -> str:
        return self.arguments["case"]

    @property
    def peak_bytes(self) -> float:
        return float(self.arguments["mem_max_GiB"]) * GIB

    @property
    def steady_bytes(self) -> float:
        """Bytes between steps: parameters, gradients, optimizer states and what libraries keep."""
        return float(self.arguments["mem_alloc_GiB"]) * GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One record beside the estimate of it; bytes of tensors on the last pipeline rank."""

    golden: Golden
    problem: Problem
    strategy: Strategy
    memory: StageMemory

    @property
    def predicted_bytes(self) -> float:
        """Everything but the framework's reserve, of which only the workspaces are tensors."""
        return self.memory.total - self.memory.framework_reserve + workspace_bytes(self.golden)

    @property
    def states_bytes(self) -> float:
        """What is there between steps."""
        memory = self.memory
        states = memory.parameters + memory.gradients + memory.master_weights + memory.optimizer_states
        return states + workspace_bytes(self.golden)

    @property
    def error(self) -> float:
        return self.predicted_bytes / self.golden.peak_bytes - 1


def workspace_bytes(golden: Golden) -> float:
    """Workspaces of libraries inside the allocator."""
    hopper = golden.text("platform") in ("h100", "gb200")
    engine = 0 if golden.text("transformer-impl") == "local" else ENGINE_WORKSPACE_HOPPER if hopper else ENGINE_WORKSPACE
    return float(2 * CUBLAS_WORKSPACE + engine)


@cache
def goldens() -> tuple[Golden, ...]:
    """Every record of the table."""
    with FILE.open(newline="", encoding="utf-8") as file:
        return tuple(Golden(arguments=row) for row in csv.DictReader(file))


def left_out(golden: Golden) -> str:
    """Why a record is not compared; empty where it is."""
    reasons = (
        (golden.text("suite") not in ("gpt", "moe", "mixtral"), f"{golden.text('suite')}: not a decoder-only transformer"),
        ("grpo" in golden.case, "reinforcement learning, not a training step"),
        (bool(golden.text("hybrid-layer-pattern")), "hybrid of state-space and attention layers"),
        (bool(golden.text("data-parallel-sharding-strategy")), "Megatron-FSDP"),
        (bool(golden.text("cuda-graph-impl")), "CUDA graphs hold their own buffers"),
        (golden.text("test_type") == "release" and not golden.text("n_gpus"), "release test whose number of GPUs is not stated"),
        ("defer_embedding_wgrad" in golden.case, "keeps the logits' gradients of all micro-batches for a deferred weight gradient"),
    )
    return next((reason for applies, reason in reasons if applies), "")


# -- from arguments to a question ---------------------------------------------------------------------------------------


def model_of(golden: Golden) -> ModelSpec:
    """The model that the arguments describe."""
    hidden, heads, layers = golden.number("hidden-size"), golden.number("num-attention-heads"), golden.number("num-layers")
    biased, rotary = not golden.has("disable-bias-linear"), golden.text("position-embedding-type") == "rope"
    positions = PositionEmbedding.ROTARY if rotary else PositionEmbedding.LEARNED
    return ModelSpec(
        name=golden.case,
        num_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        num_key_value_heads=golden.number("num-query-groups", heads) if golden.has("group-query-attention") else heads,
        head_dim=golden.number("kv-channels", hidden // heads),
        ffn_hidden_size=_ffn(golden),
        vocab_size=_vocabulary(golden),
        max_position_embeddings=golden.number("seq-length"),
        gated_mlp=golden.has("swiglu"),
        norm=Norm.RMS_NORM if golden.text("normalization") == "RMSNorm" else Norm.LAYER_NORM,
        position_embedding=PositionEmbedding.NONE if golden.text("position-embedding-type") == "none" else positions,
        tied_embeddings=not golden.has("untie-embeddings-and-output-weights"),
        qkv_bias=biased,
        attention_output_bias=biased,
        mlp_bias=biased,
        latent_attention=_latent(golden) if golden.has("multi-latent-attention") else None,
        moe=_experts(golden) if golden.text("num-experts") else None,
        mtp_layers=golden.number("mtp-num-layers"),
    )


def _ffn(golden: Golden) -> int:
    """Four times hidden, or 8/3 of it in multiples of 64 for a gated one."""
    hidden = golden.number("hidden-size")
    return golden.number("ffn-hidden-size", 4 * hidden * 2 // 3 // 64 * 64 if golden.has("swiglu") else 4 * hidden)


def _vocabulary(golden: Golden) -> int:
    if golden.text("vocab-size"):
        return golden.number("vocab-size")
    return NEMOTRON_VOCABULARY if "256k" in golden.text("tokenizer-model") else GPT2_VOCABULARY


def _latent(golden: Golden) -> LatentAttention:
    return LatentAttention(
        query_lora_rank=golden.number("q-lora-rank"),
        kv_lora_rank=golden.number("kv-lora-rank"),
        qk_nope_head_dim=golden.number("qk-head-dim"),
        qk_rope_head_dim=golden.number("qk-pos-emb-head-dim"),
        v_head_dim=golden.number("v-head-dim"),
    )


def _experts(golden: Golden) -> MixtureOfExperts:
    dense = re.search(r"\[0\]\*(\d+)", golden.text("moe-layer-freq"))
    return MixtureOfExperts(
        num_experts=golden.number("num-experts"),
        experts_per_token=golden.number("moe-router-topk", 2),
        ffn_hidden_size=golden.number("moe-ffn-hidden-size", _ffn(golden)),
        shared_expert_ffn_hidden_size=golden.number("moe-shared-expert-intermediate-size"),
        first_dense_layers=int(dense[1]) if dense else 0,
    )


def profile_of(golden: Golden) -> ExecutionProfile:
    """Megatron-Core with the attention kernel, dropout and gradient width that the arguments ask for."""
    backend = golden.text("attention-backend")
    unfused = (
        backend in ("unfused", "local")
        or golden.text("transformer-impl") == "local"
        or (not backend and "dracooci" in golden.text("golden"))
    )
    half, sharded = golden.has("fp16"), golden.has("use-distributed-optimizer")
    return replace(
        framework("megatron-core"),
        fused_attention=not unfused,
        dropout=golden.text("normalization") != "RMSNorm",
        gradient_bytes=(2 if sharded else 6) if half else 4,
        sharded_gradient_bytes=4 if half and sharded else 0,
        logits_bytes=FUSED_LOSS_BYTES if golden.has("cross-entropy-loss-fusion") else OWN_LOSS_BYTES,
    )


def strategy_of(golden: Golden) -> Strategy:
    """The layout that the arguments describe."""
    tp, pp = golden.number("tensor-model-parallel-size", 1), golden.number("pipeline-model-parallel-size", 1)
    cp, chunks = golden.number("context-parallel-size", 1), _chunks(golden, pp)
    dp = golden.number("n_gpus", DEFAULT_GPUS) // (tp * pp * cp)
    full = golden.text("recompute-granularity") == "full"
    return Strategy(
        tensor_parallel_size=tp,
        sequence_parallel=golden.has("sequence-parallel") and tp > 1,
        pipeline_parallel_size=pp,
        virtual_pipeline_stages=chunks,
        pipeline_schedule=PipelineSchedule.INTERLEAVED if chunks > 1 else PipelineSchedule.ONE_F_ONE_B,
        context_parallel_size=cp,
        expert_parallel_size=golden.number("expert-model-parallel-size", 1),
        expert_tensor_parallel_size=golden.number("expert-tensor-parallel-size", tp) if golden.text("num-experts") else 1,
        data_parallel_size=dp,
        micro_batch_size=golden.number("micro-batch-size"),
        zero_stage=1 if golden.has("use-distributed-optimizer") else 0,
        shard_group_size=dp // 2 if "multi_dist_optimizer_instances" in golden.case else 0,
        recompute=Recompute.FULL if full else Recompute.NONE,
        pipeline_layers=_split(golden, pp * chunks),
    )


def _chunks(golden: Golden, pp: int) -> int:
    if golden.text("num-virtual-stages-per-pipeline-rank"):
        return golden.number("num-virtual-stages-per-pipeline-rank")
    per_stage = golden.number("num-layers-per-virtual-pipeline-stage")
    return golden.number("num-layers") // pp // per_stage if per_stage else 1


def _split(golden: Golden, stages: int) -> tuple[int, ...]:
    """Embedding and loss counted as a layer each, where the arguments say so."""
    first, last = golden.has("account-for-embedding-in-pipeline-split"), golden.has("account-for-loss-in-pipeline-split")
    if not first and not last:
        return ()
    each = (golden.number("num-layers") + first + last) // stages
    return (each - first, *([each] * (stages - 2)), each - last)


def compare(golden: Golden) -> Comparison | str:
    """The record beside its estimate, or the reason why there is none."""
    if reason := left_out(golden):
        return reason
    try:
        problem, _ = build_problem(
            model_of(golden),
            cluster=CLUSTERS[golden.text("platform") or "a100"],
            gpus=golden.number("n_gpus", DEFAULT_GPUS),
            global_batch_size=golden.number("global-batch-size"),
            sequence_length=golden.number("seq-length"),
            precision="fp8" if golden.text("fp8-format") else "fp16" if golden.has("fp16") else "bf16",
        )
        problem, strategy = replace(problem, framework=profile_of(golden)), strategy_of(golden)
        if refused := faults(problem, strategy):
            return f"the planner refuses it: {', '.join(sorted({fault.field for fault in refused}))}"
        stages = autopar.estimate(problem, strategy=strategy).stages
    except AutoparError as error:
        return f"no estimate: {error}".replace("\n", "; ")
    return Comparison(golden=golden, problem=problem, strategy=strategy, memory=stages[-1].memory)


@cache
def comparisons() -> tuple[tuple[Comparison, ...], Mapping[str, int]]:
    """Every record that can be compared, and how many cannot, by reason."""
    found = [compare(golden) for golden in goldens()]
    return tuple(each for each in found if isinstance(each, Comparison)), Counter(each for each in found if isinstance(each, str))


# -- what is said of them -----------------------------------------------------------------------------------------------


def _kinds(each: Comparison) -> Iterator[tuple[str, str]]:
    """The groups a record belongs to."""
    strategy, golden = each.strategy, each.golden
    yield "suite", golden.text("suite")
    yield "optimizer", "distributed" if strategy.zero_stage else "not distributed"
    yield "attention", "fused" if each.problem.framework.fused_attention else "unfused"
    yield "pipeline", f"{strategy.pipeline_parallel_size} x {strategy.virtual_pipeline_stages}"
    yield "precision", each.problem.training.precision.name
    yield "recomputation", strategy.recompute.value
    yield "sequence", golden.text("seq-length")
    yield "hidden size", golden.text("hidden-size")


def _groups(compared: Iterable[Comparison]) -> dict[tuple[str, str], list[Comparison]]:
    groups: dict[tuple[str, str], list[Comparison]] = defaultdict(list)
    for each in compared:
        for kind in _kinds(each):
            groups[kind].append(each)
    return dict(sorted(groups.items()))


GROUP_COLUMNS = ("rows with", "", "rows", "mean error", "bias", "states", "the rest")


def group_rows(compared: Iterable[Comparison]) -> list[tuple[str, ...]]:
    """Errors by group; of the steady part (states) and of what comes on top of it at the peak, apart."""
    rows: list[tuple[str, ...]] = []
    for (kind, value), members in _groups(compared).items():
        errors = ErrorSummary.of([each.error for each in members])
        states = mean(each.states_bytes / each.golden.steady_bytes - 1 for each in members)
        rest = mean(
            (each.predicted_bytes - each.states_bytes) / (each.golden.peak_bytes - each.golden.steady_bytes) - 1 for each in members
        )
        sizes = (percent(errors.mean_absolute_error), percent(errors.bias, signed=True), percent(states, signed=True))
        rows.append((kind, value, str(errors.rows), *sizes, percent(rest, signed=True)))
    return rows


def worst_rows(compared: Iterable[Comparison]) -> list[tuple[str, ...]]:
    """The records that are furthest off, one of each test."""
    worst: dict[str, Comparison] = {}
    for each in sorted(compared, key=lambda each: -abs(each.error)):
        worst.setdefault(each.golden.case, each)
    return [
        (
            f"{each.golden.text('suite')}/{each.golden.case}",
            each.golden.text("golden").removeprefix("golden_values_").removesuffix(".json"),
            f"{each.golden.peak_bytes / GIB:.2f}",
            f"{each.predicted_bytes / GIB:.2f}",
            percent(each.error, signed=True),
        )
        for each in list(worst.values())[:WORST]
    ]


def section() -> list[str]:
    """The part of ``docs/accuracy.md`` about these records."""
    compared, reasons = comparisons()
    total = ErrorSummary.of([each.error for each in compared])
    reached = "reached" if (total.mean_absolute_error or 0) <= TARGET else "**not reached**"
    return [
        "## Memory of Megatron-LM's own tests",
        "",
        f"{len(compared)} of {len(goldens())} records: mean absolute error {percent(total.mean_absolute_error)}, bias"
        f" {percent(total.bias, signed=True)} (asked: {percent(TARGET)}, {reached}). Bytes of tensors on the last pipeline rank;"
        " the columns on the right compare what stays between steps (states) and what comes on top (activations, logits, buffers) apart.",
        "",
        *(f"- {line}" for line in ASSUMPTIONS),
        "",
        *markdown(GROUP_COLUMNS, group_rows(compared), text=2),
        "Furthest off, one record a test (GiB):",
        "",
        *markdown(("test", "record", "measured", "predicted", "error"), worst_rows(compared), text=2),
        *markdown(("records not compared", "rows"), ((reason, str(count)) for reason, count in reasons.items())),
    ]


if __name__ == "__main__":
    print("\n".join(section()))
