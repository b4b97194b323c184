"""Accelerate's YAML and the Trainer's flags beside it, as dotted names, and how a plan is written and read."""

from __future__ import annotations

from autopar.costmodel.spec.strategy import ContextParallelKind, Recompute

from .question import Question
from .settings import Kind, Setting, Settings, Value, Vocabulary, integer, is_on, text

_PARALLEL = "parallelism_config.parallelism_config_"
REPLICAS, SHARDS, TENSOR, CONTEXT, ULYSSES = (
    f"{_PARALLEL}{name}_size" for name in ("dp_replicate", "dp_shard", "tp", "cp", "sp")
)  # fmt: skip
CONTEXT_KIND, ULYSSES_BACKEND, ULYSSES_LENGTH = f"{_PARALLEL}cp_comm_strategy", f"{_PARALLEL}sp_backend", f"{_PARALLEL}sp_seq_length"
KIND, PROCESSES, MACHINES, PRECISION = "distributed_type", "num_processes", "num_machines", "mixed_precision"
FSDP_VERSION, RESHARD, FSDP_CHECKPOINTS = (
    "fsdp_config.fsdp_version",
    "fsdp_config.fsdp_reshard_after_forward",
    "fsdp_config.fsdp_activation_checkpointing",
)
STAGE, DS_STEPS = "deepspeed_config.zero_stage", "deepspeed_config.gradient_accumulation_steps"
MICRO, STEPS, CHECKPOINTS = "trainer.per_device_train_batch_size", "trainer.gradient_accumulation_steps", "trainer.gradient_checkpointing"
TRAINER = "trainer."
"""Before the names of flags of the training program, which the YAML does not hold."""

VOCABULARY = Vocabulary(
    settings=(
        Setting(name=MICRO, field="strategy.micro_batch_size", always=True),
        Setting(name=TENSOR, field="strategy.tensor_parallel_size", default=1),
        *(
            Setting(name=name)
            for name in (
                PROCESSES, MACHINES, "machine_rank", REPLICAS, SHARDS, CONTEXT, ULYSSES, ULYSSES_LENGTH, FSDP_VERSION, STAGE, DS_STEPS,
                STEPS,
                "main_process_port", "distributed_config.tp_size", "distributed_config.fsdp_size", "distributed_config.pp_size",
            )
        ),
        *(
            Setting(name=name, kind=Kind.SWITCH)
            for name in (
                RESHARD, FSDP_CHECKPOINTS, CHECKPOINTS, "fsdp_config.fsdp_offload_params", "distributed_config.enable_expert_parallel",
                "deepspeed_config.zero3_init_flag", "use_cpu", "debug", "same_network",
            )
        ),
        *(
            Setting(name=name, kind=Kind.TEXT)
            for name in (
                KIND, PRECISION, CONTEXT_KIND, ULYSSES_BACKEND, f"{_PARALLEL}cp_backend", f"{_PARALLEL}sp_attn_implementation",
                "fsdp_config.fsdp_sharding_strategy", "fsdp_config.fsdp_auto_wrap_policy", "fsdp_config.fsdp_state_dict_type",
                "compute_environment", "main_training_function", "rdzv_backend", "main_process_ip", "trainer.tp_plan",
                "deepspeed_config.offload_optimizer_device", "deepspeed_config.offload_param_device",
                "deepspeed_config.deepspeed_config_file",
            )
        ),
    ),
)  # fmt: skip
PRECISIONS = {"bf16": "bf16", "fp16": "fp16", "fp32": "no"}
CONTEXT_KINDS = {ContextParallelKind.ALL_GATHER: "allgather", ContextParallelKind.RING: "alltoall"}


def uses_deepspeed(question: Question) -> bool:
    """ZeRO-1 and Ulysses are DeepSpeed's here; FSDP2 has stages 2 and 3."""
    ulysses = question.strategy.context_parallel_size > 1 and question.strategy.context_parallel_kind is ContextParallelKind.ULYSSES
    return question.strategy.zero_stage == 1 or ulysses


def settings_of(question: Question) -> dict[str, Value]:
    """The settings of a plan, the Trainer's flags under ``trainer.``."""
    strategy, cluster = question.strategy, question.cluster
    kind = "DEEPSPEED" if uses_deepspeed(question) else "FSDP" if strategy.zero_stage else "MULTI_GPU"
    written: dict[str, Value] = {
        "compute_environment": "LOCAL_MACHINE",
        KIND: kind if strategy.world_size > 1 else "NO",
        PROCESSES: strategy.world_size,
        MACHINES: cluster.num_nodes,
        "machine_rank": 0,
        "rdzv_backend": "static",
        "main_training_function": "main",
        "use_cpu": False,
        "debug": False,
        PRECISION: PRECISIONS.get(question.training.precision.name, ""),
        **VOCABULARY.write(question),
        STEPS: question.num_microbatches,
    }
    recompute = strategy.recompute is Recompute.FULL
    if kind == "DEEPSPEED":
        written |= _deepspeed(question) | {CHECKPOINTS: recompute}
    elif kind == "FSDP":
        written |= _fsdp(question) | {FSDP_CHECKPOINTS: recompute}
    else:
        written |= {CHECKPOINTS: recompute}
    return written


def _deepspeed(question: Question) -> dict[str, Value]:
    strategy = question.strategy
    written: dict[str, Value] = {
        STAGE: strategy.zero_stage, DS_STEPS: question.num_microbatches, "deepspeed_config.zero3_init_flag": strategy.zero_stage == 3,
        "deepspeed_config.offload_optimizer_device": "none", "deepspeed_config.offload_param_device": "none",
    }  # fmt: skip
    if strategy.context_parallel_size > 1:
        length = question.training.sequence_length
        written |= {ULYSSES: strategy.context_parallel_size, ULYSSES_BACKEND: "deepspeed", ULYSSES_LENGTH: length}
        written[SHARDS] = strategy.data_parallel_size
    return written


def _fsdp(question: Question) -> dict[str, Value]:
    strategy = question.strategy
    shards = max(1, question.shard_group // strategy.context_parallel_size)
    written: dict[str, Value] = {
        FSDP_VERSION: 2,
        RESHARD: strategy.zero_stage == 3,
        "fsdp_config.fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_config.fsdp_state_dict_type": "SHARDED_STATE_DICT",
        "fsdp_config.fsdp_offload_params": False,
        REPLICAS: strategy.data_parallel_size // shards,
        SHARDS: shards,
    }
    if strategy.context_parallel_size > 1:
        written |= {CONTEXT: strategy.context_parallel_size, CONTEXT_KIND: CONTEXT_KINDS.get(strategy.context_parallel_kind, "")}
    return written


# -- back -----------------------------------------------------------------------------------------------------------------


def strategy_fields(settings: Settings) -> dict[str, Value]:
    """The strategy's and the training's fields that the settings mean, by dotted names."""
    found = VOCABULARY.read(settings)
    ulysses, context = integer(settings, ULYSSES, 1), integer(settings, CONTEXT, 1)
    kind = "ring" if text(settings, CONTEXT_KIND, "allgather") == "alltoall" else "all_gather"
    found["strategy.context_parallel_size"] = max(ulysses, context, 1)
    found["strategy.context_parallel_kind"] = "ulysses" if ulysses > 1 else kind if context > 1 else "ring"
    found["strategy.sequence_parallel"] = False
    found["strategy.zero_stage"] = zero_stage(settings)
    recomputes = is_on(settings, FSDP_CHECKPOINTS) or is_on(settings, CHECKPOINTS)
    found["strategy.recompute"] = (Recompute.FULL if recomputes else Recompute.NONE).value
    found["training.precision"] = next((name for name, word in PRECISIONS.items() if word == text(settings, PRECISION, "no")), "fp8")
    found["training.num_microbatches"] = integer(settings, STEPS, integer(settings, DS_STEPS, 1))
    return found


def zero_stage(settings: Settings) -> int:
    """The ZeRO stage that the back end and its settings amount to."""
    match text(settings, KIND, "NO"):
        case "DEEPSPEED":
            return integer(settings, STAGE, 2)
        case "FSDP":
            if text(settings, "fsdp_config.fsdp_sharding_strategy", "FULL_SHARD") in ("SHARD_GRAD_OP", "2"):
                return 2
            return 3 if settings.get(RESHARD, True) is True else 2
    return 0
