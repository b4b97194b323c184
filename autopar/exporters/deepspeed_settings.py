"""DeepSpeed's JSON, as dotted names: which are one field of a plan, and how the others are written and read."""

from __future__ import annotations

from autopar.costmodel.spec.strategy import Recompute

from .question import Question
from .settings import Kind, Setting, Settings, Value, Vocabulary, integer, is_on

BATCH, MICRO, ACCUMULATION = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
STAGE, OVERLAP = "zero_optimization.stage", "zero_optimization.overlap_comm"
TENSOR, TENSOR_INNER = "tensor_parallel.autotp_size", "tensor_parallel.tp.tp_size"
EXPERT, EXPERT_ON, EXPERT_TENSOR = "expert_parallel.autoep_size", "expert_parallel.enabled", "expert_parallel.expert_tensor_parallel_size"
ULYSSES, PIPELINE, PARTITION = "sequence_parallel_size", "pipeline.stages", "pipeline.partition"
INTERVAL, CHECKPOINTS = "pipeline.activation_checkpoint_interval", "activation_checkpointing.number_checkpoints"
BF16, FP16 = "bf16.enabled", "fp16.enabled"

VOCABULARY = Vocabulary(
    settings=(
        Setting(name=BATCH, field="training.global_batch_size", always=True),
        Setting(name=MICRO, field="strategy.micro_batch_size", always=True),
        Setting(name=STAGE, field="strategy.zero_stage", default=0, always=True),
        Setting(name=TENSOR, field="strategy.tensor_parallel_size", default=1),
        Setting(name=PIPELINE, field="strategy.pipeline_parallel_size", default=1),
        Setting(name=ULYSSES, field="strategy.context_parallel_size", default=1),
        Setting(name=EXPERT, field="strategy.expert_parallel_size", default=1),
        *(
            Setting(name=name)
            for name in (
                ACCUMULATION, TENSOR_INNER, EXPERT_TENSOR, INTERVAL, CHECKPOINTS, "zero_optimization.zero_hpz_partition_size",
                "zero_optimization.mics_shard_size",
            )
        ),
        *(
            Setting(name=name, kind=Kind.SWITCH)
            for name in (OVERLAP, EXPERT_ON, BF16, FP16, "zero_optimization.contiguous_gradients", "compile.deepcompile",
                         "elasticity.enabled", "torch_autocast.enabled")
        ),
        *(
            Setting(name=name, kind=Kind.NUMBER)
            for name in ("zero_optimization.reduce_bucket_size", "zero_optimization.allgather_bucket_size",
                         "zero_optimization.offload_optimizer.ratio", "zero_optimization.stage3_prefetch_bucket_size",
                         "zero_optimization.stage3_param_persistence_threshold", "zero_optimization.stage3_max_live_parameters",
                         "zero_optimization.stage3_max_reuse_distance", "gradient_clipping")
        ),
        *(
            Setting(name=name, kind=Kind.TEXT)
            for name in (PARTITION, "zero_optimization.offload_optimizer.device", "zero_optimization.offload_param.device",
                         "tensor_parallel.preset_model", "expert_parallel.preset_model", "torch_autocast.dtype")
        ),
        Setting(name="compile.passes", kind=Kind.WORDS),
    ),
)  # fmt: skip
PRECISIONS = ("bf16", "fp16", "fp32")


def settings_of(question: Question) -> dict[str, Value]:
    """The settings of a plan."""
    strategy = question.strategy
    written = VOCABULARY.write(question)
    written[ACCUMULATION] = question.num_microbatches
    pipelined = strategy.pipeline_parallel_size > 1
    if strategy.zero_stage:
        written |= {OVERLAP: True, "zero_optimization.contiguous_gradients": True}
    if strategy.expert_parallel_size > 1:
        written |= {EXPERT_ON: True, EXPERT_TENSOR: 1}
    if pipelined:
        written |= {PARTITION: "uniform", INTERVAL: int(strategy.recompute is Recompute.FULL)}
    elif strategy.recompute is Recompute.FULL:
        written[CHECKPOINTS] = question.model.num_layers
    precision = question.training.precision.name
    return written | {BF16: precision == "bf16", FP16: precision == "fp16"}


# -- back -----------------------------------------------------------------------------------------------------------------


def strategy_fields(settings: Settings) -> dict[str, Value]:
    """The strategy's and the training's fields that the settings mean, by dotted names."""
    found = VOCABULARY.read(settings)
    tensor = max(integer(settings, TENSOR, 0), integer(settings, TENSOR_INNER, 0), 1)
    found["strategy.tensor_parallel_size"] = tensor
    found["strategy.sequence_parallel"] = False
    found["strategy.expert_parallel_size"] = integer(settings, EXPERT, 1) if is_on(settings, EXPERT_ON) else 1
    found["strategy.expert_tensor_parallel_size"] = 1
    found["strategy.context_parallel_kind"] = "ulysses" if integer(settings, ULYSSES, 1) > 1 else "ring"
    if ACCUMULATION in settings or BATCH not in settings or MICRO not in settings:
        found["training.num_microbatches"] = max(1, integer(settings, ACCUMULATION, 1))
    found["strategy.recompute"] = "full" if integer(settings, INTERVAL, 0) or integer(settings, CHECKPOINTS, 0) else "none"
    found["training.precision"] = "bf16" if is_on(settings, BF16) else "fp16" if is_on(settings, FP16) else "fp32"
    return found
