"""Megatron-LM's flags: which are one field of a plan, and how the others are written and read."""

from __future__ import annotations

from autopar.costmodel.spec.strategy import ContextParallelKind, PipelineSchedule, RankOrder, Recompute, RecomputeModule

from . import megatron_layout as layout
from .megatron_model import MODEL_SETTINGS, model_settings
from .question import Question
from .settings import Kind, Setting, Settings, Value, Vocabulary, integer, is_on, text, words

_SIZES = (
    Setting(name="tensor-model-parallel-size", field="strategy.tensor_parallel_size", default=1, always=True),
    Setting(name="sequence-parallel", kind=Kind.SWITCH, field="strategy.sequence_parallel", default=False),
    Setting(name="pipeline-model-parallel-size", field="strategy.pipeline_parallel_size", default=1, always=True),
    Setting(name="context-parallel-size", field="strategy.context_parallel_size", default=1, always=True),
    Setting(name="expert-model-parallel-size", field="strategy.expert_parallel_size", default=1, always=True),
    # Megatron's own default is the tensor parallel size, so it is always written; a reader puts that default in.
    Setting(name="expert-tensor-parallel-size", field="strategy.expert_tensor_parallel_size", always=True),
    Setting(name="micro-batch-size", field="strategy.micro_batch_size", always=True),
    Setting(name="global-batch-size", field="training.global_batch_size", always=True),
    Setting(name="seq-length", field="training.sequence_length", always=True),
)
_SWITCHES = (
    "use-distributed-optimizer", "overlap-grad-reduce", "overlap-param-gather", "use-megatron-fsdp", "use-torch-fsdp2", "bf16", "fp16",
    "accumulate-allreduce-grads-in-fp32", "grad-reduce-in-bf16", "tp-comm-overlap", "moe-grouped-gemm", "use-tp-pp-dp-mapping",
    "recompute-activations", "distribute-saved-activations", "overlap-moe-expert-parallel-comm", "delay-wgrad-compute",
    "fp8-param-gather", "overlap-param-gather-with-optimizer-step", "no-overlap-p2p-communication",
    "no-gradient-accumulation-fusion", "hybrid-context-parallel", "calculate-per-token-loss", "optimizer-cpu-offload",
    "use-precision-aware-optimizer", "moe-shared-expert-overlap", "defer-embedding-wgrad-compute",
    "decrease-batch-size-if-needed", "init-model-with-meta-device", "fake-process-group", "moe-router-pre-softmax", "use-nccl-ub",
    "first-last-layers-bf16",
    "enable-cuda-graph", "moe-permute-fusion", "mock-data", "enable-hyper-connections", "overlap-p2p-comm", "batch-p2p-comm",
    "should-pad-vocab", layout.FOR_EMBEDDING, layout.FOR_LOSS,
)  # fmt: skip
_NUMBERS = (
    layout.VIRTUAL_STAGES, layout.LAYERS_PER_VIRTUAL, layout.FIRST, layout.LAST, "microbatch-group-size-per-virtual-pipeline-stage",
    "num-distributed-optimizer-instances", "recompute-num-layers", "tensor-parallel-num-weight-shards", "eval-global-batch-size",
    "eval-micro-batch-size", "cpu-offloading-num-layers", "moe-router-num-groups", "moe-router-group-topk",
    "num-layers-at-start-in-bf16", "num-layers-at-end-in-bf16", "train-iters", "linear-num-key-heads", "linear-num-value-heads",
    "mamba-num-heads", "mamba-num-groups",
)  # fmt: skip
_TEXTS = (
    layout.LAYOUT, "data-parallel-sharding-strategy", "outer-dp-sharding-strategy", "ckpt-format", "recompute-granularity",
    "recompute-method", "fp8-format", "fp8-recipe", "fp4-format", "fp4-recipe", "moe-token-dispatcher-type",
    "moe-flex-dispatcher-backend", "optimizer", "step-batch-size-schedule", "dataloader-type", "hybrid-layer-pattern",
    "tokenizer-type", "transformer-impl", "cuda-graph-impl",
)  # fmt: skip
_WORDS = ("cp-comm-type", "hierarchical-context-parallel-sizes", "recompute-modules")

VOCABULARY = Vocabulary(
    prefix="--",
    settings=(
        *_SIZES,
        *MODEL_SETTINGS,
        *(Setting(name=name, kind=Kind.SWITCH) for name in _SWITCHES),
        *(Setting(name=name) for name in _NUMBERS),
        *(Setting(name=name, kind=Kind.TEXT) for name in _TEXTS),
        *(Setting(name=name, kind=Kind.WORDS) for name in _WORDS),
    ),
)

CONTEXT_KINDS = {
    ContextParallelKind.RING: "p2p",
    ContextParallelKind.ALL_GATHER: "allgather",
    ContextParallelKind.ULYSSES: "a2a",
}
GROUPED_FROM = 8
"""Compute capability from which there are grouped products of experts (Ampere)."""
SHARDING = {2: "optim_grads", 3: "optim_grads_params"}
"""ZeRO stage -> what Megatron-FSDP calls it. Stages 0 and 1 need no FSDP."""


def settings_of(question: Question) -> dict[str, Value]:
    """The flags of a plan, without those of the job (data, learning rate, checkpoints)."""
    strategy, model = question.strategy, question.model
    written = VOCABULARY.write(question) | model_settings(model, question.training.sequence_length)
    written |= layout.split_settings(
        question.layers,
        uneven=bool(strategy.pipeline_layers),
        virtual_stages=strategy.virtual_pipeline_stages,
        mtp_layers=model.mtp_layers,
    )
    if strategy.context_parallel_size > 1:
        written["cp-comm-type"] = (CONTEXT_KINDS[strategy.context_parallel_kind],)
    if strategy.rank_order is RankOrder.TP_CP_PP_DP:
        written["use-tp-pp-dp-mapping"] = True
        if model.moe is None:
            # Megatron lays out groups of experts for dense models too, and refuses them where they put a rank in another stage.
            written["expert-tensor-parallel-size"] = strategy.tensor_parallel_size * strategy.context_parallel_size
    if model.moe is not None:
        written["moe-token-dispatcher-type"] = "alltoall"
        if question.capability >= GROUPED_FROM:
            written["moe-grouped-gemm"] = True
    return written | _sharding(question) | _recompute(question) | _precision(question)


def _sharding(question: Question) -> dict[str, Value]:
    strategy = question.strategy
    several = question.shard_ranks > 1
    overlap: dict[str, Value] = {"overlap-grad-reduce": True} if several else {}
    if strategy.zero_stage == 0:
        return overlap
    # Megatron-FSDP turns the distributed optimizer on by itself; saying it keeps the file free of silent changes.
    settings: dict[str, Value] = {"use-distributed-optimizer": True, **overlap}
    settings |= {"overlap-param-gather": True} if several else {}
    instances = question.shard_ranks // question.shard_group
    if instances > 1:
        settings["num-distributed-optimizer-instances"] = instances
    if strategy.zero_stage in SHARDING:
        settings |= {
            "use-megatron-fsdp": True,
            "data-parallel-sharding-strategy": SHARDING[strategy.zero_stage],
            "ckpt-format": "fsdp_dtensor",
            "no-gradient-accumulation-fusion": True,
        }
    return settings


def _recompute(question: Question) -> dict[str, Value]:
    strategy = question.strategy
    match strategy.recompute:
        case Recompute.NONE:
            return {}
        case Recompute.SELECTIVE:
            modules = tuple(module.value for module in strategy.recompute_modules) or (RecomputeModule.CORE_ATTN.value,)
            return {"recompute-granularity": "selective", "recompute-modules": modules}
        case Recompute.FULL if strategy.num_recompute_layers == 0:
            return {"recompute-granularity": "full", "recompute-method": "uniform", "recompute-num-layers": 1}
        case Recompute.FULL:
            per_stage = strategy.num_recompute_layers // strategy.virtual_pipeline_stages
            return {"recompute-granularity": "full", "recompute-method": "block", "recompute-num-layers": per_stage}


_PRECISIONS: dict[str, dict[str, Value]] = {
    "bf16": {"bf16": True, "accumulate-allreduce-grads-in-fp32": True},
    "fp16": {"fp16": True},
    "fp8": {"bf16": True, "accumulate-allreduce-grads-in-fp32": True, "fp8-format": "hybrid", "fp8-recipe": "tensorwise"},
    "mxfp8": {"bf16": True, "accumulate-allreduce-grads-in-fp32": True, "fp8-format": "e4m3", "fp8-recipe": "mxfp8"},
    "nvfp4": {"bf16": True, "accumulate-allreduce-grads-in-fp32": True, "fp4-format": "e2m1", "fp4-recipe": "nvfp4"},
    "fp32": {},
}
PRECISIONS = tuple(_PRECISIONS)
"""Precisions that Megatron has."""


def _precision(question: Question) -> dict[str, Value]:
    return dict(_PRECISIONS.get(question.training.precision.name, {}))


# -- back -----------------------------------------------------------------------------------------------------------------


def strategy_fields(settings: Settings, *, num_layers: int) -> dict[str, Value]:
    """The strategy's and the training's fields that the flags mean, by dotted names.

    Raises:
        InvalidInputError: a pipeline layout that cannot be read.
    """
    found = VOCABULARY.read(settings)
    tensor, pipeline = integer(settings, "tensor-model-parallel-size", 1), integer(settings, "pipeline-model-parallel-size", 1)
    if "num-experts" in settings:
        found.setdefault("strategy.expert_tensor_parallel_size", tensor)
    else:
        found["strategy.expert_tensor_parallel_size"] = 1
    found.setdefault("strategy.micro_batch_size", 1)
    virtual, layers = layout.split_fields(settings, num_layers=num_layers, pipeline=max(pipeline, 1))
    found["strategy.virtual_pipeline_stages"] = virtual
    found["strategy.pipeline_layers"] = layers
    found["strategy.pipeline_schedule"] = (PipelineSchedule.INTERLEAVED if virtual > 1 else PipelineSchedule.ONE_F_ONE_B).value
    found["strategy.context_parallel_kind"] = context_kind(settings).value
    found["strategy.sequence_parallel"] = is_on(settings, "sequence-parallel") and tensor > 1
    if is_on(settings, "use-tp-pp-dp-mapping"):
        found["strategy.rank_order"] = RankOrder.TP_CP_PP_DP.value
    found["training.precision"] = precision_name(settings)
    return found | _recompute_fields(settings, virtual) | {"strategy.zero_stage": zero_stage(settings)}


def context_kind(settings: Settings) -> ContextParallelKind:
    """How context-parallel ranks share attention, by the first layer's communication type."""
    given = (words(settings, "cp-comm-type") or ("p2p",))[0]
    spelled = {"all_gather": ContextParallelKind.ALL_GATHER, "a2a+p2p": ContextParallelKind.ULYSSES}
    return spelled.get(given) or next((kind for kind, name in CONTEXT_KINDS.items() if name == given), ContextParallelKind.RING)


def zero_stage(settings: Settings) -> int:
    """The ZeRO stage that the sharding flags amount to."""
    if is_on(settings, "use-torch-fsdp2"):
        return 3
    if is_on(settings, "use-megatron-fsdp"):
        strategy = text(settings, "data-parallel-sharding-strategy", "optim_grads_params")
        return {"no_shard": 0, "optim": 1, "optim_grads": 2}.get(strategy, 3)
    return int(is_on(settings, "use-distributed-optimizer"))


def precision_name(settings: Settings) -> str:
    """The precision preset that the flags amount to."""
    if "fp4-format" in settings:
        return "nvfp4"
    if "fp8-format" in settings:
        return "mxfp8" if text(settings, "fp8-recipe") == "mxfp8" else "fp8"
    return "bf16" if is_on(settings, "bf16") else "fp16" if is_on(settings, "fp16") else "fp32"


def _recompute_fields(settings: Settings, virtual_stages: int) -> dict[str, Value]:
    granularity = text(settings, "recompute-granularity")
    if is_on(settings, "recompute-activations"):
        granularity = "selective"
    if granularity == "full":
        block = text(settings, "recompute-method") == "block"
        layers = integer(settings, "recompute-num-layers", 1) * virtual_stages if block else 0
        return {"strategy.recompute": Recompute.FULL.value, "strategy.num_recompute_layers": layers}
    modules = words(settings, "recompute-modules") or ("core_attn",)
    known = tuple(module.value for module in RecomputeModule if module.value in modules) if granularity == "selective" else ()
    found: dict[str, Value] = {"strategy.recompute": (Recompute.SELECTIVE if known else Recompute.NONE).value}
    # the attention core alone is what recompute=selective says by itself
    return found if known in ((), (RecomputeModule.CORE_ATTN.value,)) else {**found, "strategy.recompute_modules": known}
