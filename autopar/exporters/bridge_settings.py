"""Megatron-Bridge's keys and the Megatron flags they stand for: one table, read both ways.

Bridge drives Megatron-Core, so a plan is written in Megatron's flags first and every rule of Megatron is asked of those.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from . import megatron_layout as layout
from .settings import Settings, Value

Bridged = bool | int | float | str | tuple[int | str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One flag and its keys in Bridge; ``absent`` is what a plan without the flag says, since a recipe has values of its own."""

    flag: str
    keys: tuple[str, ...]
    absent: Bridged = None


def _key(flag: str, *keys: str, absent: Bridged = None) -> Key:
    return Key(flag=flag, keys=keys, absent=absent)


KEYS: tuple[Key, ...] = (
    _key("tensor-model-parallel-size", "model.tensor_model_parallel_size", absent=1),
    _key("sequence-parallel", "model.sequence_parallel", absent=False),
    _key("pipeline-model-parallel-size", "model.pipeline_model_parallel_size", absent=1),
    _key(layout.VIRTUAL_STAGES, "model.virtual_pipeline_model_parallel_size"),
    _key(layout.LAYOUT, "model.pipeline_model_parallel_layout"),
    _key(layout.FIRST, "model.num_layers_in_first_pipeline_stage"),
    _key(layout.LAST, "model.num_layers_in_last_pipeline_stage"),
    _key(layout.FOR_EMBEDDING, "model.account_for_embedding_in_pipeline_split", absent=False),
    _key(layout.FOR_LOSS, "model.account_for_loss_in_pipeline_split", absent=False),
    _key("context-parallel-size", "model.context_parallel_size", absent=1),
    _key("cp-comm-type", "model.cp_comm_type"),
    _key("hierarchical-context-parallel-sizes", "model.hierarchical_context_parallel_sizes"),
    _key("expert-model-parallel-size", "model.expert_model_parallel_size", absent=1),
    _key("expert-tensor-parallel-size", "model.expert_tensor_parallel_size"),
    _key("moe-token-dispatcher-type", "model.moe_token_dispatcher_type", absent="alltoall"),
    _key("moe-grouped-gemm", "model.moe_grouped_gemm", absent=False),
    _key("recompute-granularity", "model.recompute_granularity"),
    _key("recompute-method", "model.recompute_method"),
    _key("recompute-num-layers", "model.recompute_num_layers"),
    _key("recompute-modules", "model.recompute_modules"),
    _key("seq-length", "model.seq_length", "dataset.seq_length"),
    _key("micro-batch-size", "train.micro_batch_size"),
    _key("global-batch-size", "train.global_batch_size"),
    _key("use-distributed-optimizer", "ddp.use_distributed_optimizer", "optimizer.use_distributed_optimizer", absent=False),
    _key("num-distributed-optimizer-instances", "ddp.num_distributed_optimizer_instances", absent=1),
    _key("overlap-grad-reduce", "ddp.overlap_grad_reduce", absent=False),
    _key("overlap-param-gather", "ddp.overlap_param_gather", absent=False),
    _key("use-megatron-fsdp", "dist.use_megatron_fsdp", "ddp.use_megatron_fsdp", absent=False),
    _key("data-parallel-sharding-strategy", "ddp.data_parallel_sharding_strategy", absent="no_shard"),
    _key("ckpt-format", "checkpoint.ckpt_format", absent="torch_dist"),
    _key("use-tp-pp-dp-mapping", "dist.use_tp_pp_dp_mapping", absent=False),
)
MODEL_KEYS: tuple[Key, ...] = tuple(
    _key(flag, f"model.{key}", absent=absent)
    for flag, key, absent in (
        ("num-layers", "num_layers", None), ("hidden-size", "hidden_size", None), ("ffn-hidden-size", "ffn_hidden_size", None),
        ("num-attention-heads", "num_attention_heads", None), ("num-query-groups", "num_query_groups", None),
        ("kv-channels", "kv_channels", None), ("vocab-size", "vocab_size", None), ("swiglu", "gated_linear_unit", False),
        ("normalization", "normalization", "LayerNorm"), ("position-embedding-type", "position_embedding_type", "learned_absolute"),
        ("add-qkv-bias", "add_qkv_bias", False), ("qk-layernorm", "qk_layernorm", False), ("mtp-num-layers", "mtp_num_layers", None),
        ("num-experts", "num_moe_experts", None), ("moe-router-topk", "moe_router_topk", 2),
        ("moe-ffn-hidden-size", "moe_ffn_hidden_size", None),
        ("moe-shared-expert-intermediate-size", "moe_shared_expert_intermediate_size", None),
        ("moe-router-enable-expert-bias", "moe_router_enable_expert_bias", False),
        ("moe-router-score-function", "moe_router_score_function", "softmax"),
        ("moe-router-pre-softmax", "moe_router_pre_softmax", False),
    )
)  # fmt: skip
"""Shapes, for models that have no recipe of their own. ``disable-bias-linear`` and untying are said the other way round."""
NUMBER_KEYS: tuple[Key, ...] = (_key("rotary-base", "model.rotary_base"), _key("norm-epsilon", "model.layernorm_epsilon"))
"""Written wherever the plan's model says them, also over a recipe's own."""
REVERSED = {
    "disable-bias-linear": "model.add_bias_linear",
    "untie-embeddings-and-output-weights": "model.share_embeddings_and_output_weights",
}
PRECISIONS = {
    "bf16": "bf16_mixed", "fp16": "fp16_mixed", "fp8": "bf16_with_fp8_current_scaling_mixed", "mxfp8": "bf16_with_mxfp8_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
}  # fmt: skip
OVERLAP = {
    "tp-comm-overlap": "comm_overlap.tp_comm_overlap",
    "overlap-moe-expert-parallel-comm": "comm_overlap.overlap_moe_expert_parallel_comm",
    "delay-wgrad-compute": "comm_overlap.delay_wgrad_compute",
    "overlap-p2p-comm": "comm_overlap.overlap_p2p_comm",
    "batch-p2p-comm": "comm_overlap.batch_p2p_comm",
    "defer-embedding-wgrad-compute": "comm_overlap.defer_embedding_wgrad_compute",
}
OTHERS = {
    "dist.use_torch_fsdp2": "use-torch-fsdp2", "model.moe_flex_dispatcher_backend": "moe-flex-dispatcher-backend",
    "model.should_pad_vocab": "should-pad-vocab", "model.make_vocab_size_divisible_by": "make-vocab-size-divisible-by",
    "model.cpu_offloading_num_layers": "cpu-offloading-num-layers", "optimizer.optimizer_cpu_offload": "optimizer-cpu-offload",
    "model.moe_shared_expert_overlap": "moe-shared-expert-overlap", "ddp.nccl_ub": "use-nccl-ub",
    "model.microbatch_group_size_per_vp_stage": "microbatch-group-size-per-virtual-pipeline-stage",
    "optimizer.use_precision_aware_optimizer": "use-precision-aware-optimizer",
    "model.calculate_per_token_loss": "calculate-per-token-loss", "model.moe_layer_freq": "moe-layer-freq",
    "comm_overlap.overlap_grad_reduce": "overlap-grad-reduce", "comm_overlap.overlap_param_gather": "overlap-param-gather",
    "validation.eval_global_batch_size": "eval-global-batch-size", "validation.eval_micro_batch_size": "eval-micro-batch-size",
    "model.multi_latent_attention": "multi-latent-attention",
}  # fmt: skip
"""Keys that are read, and not written."""


def bridge_settings(flags: Settings, *, precision: str, with_model: bool) -> dict[str, Bridged]:
    """The keys of Bridge for Megatron's ``flags``; every one of the plan is said, since the recipe it starts from has its own."""
    written: dict[str, Bridged] = {}
    for key in (*KEYS, *(MODEL_KEYS if with_model else ())):
        value: Bridged = flags.get(key.flag, key.absent)
        value = value[0] if key.flag == "cp-comm-type" and isinstance(value, tuple) else value
        written |= dict.fromkeys(key.keys, value)
    written |= {key: flags[entry.flag] for entry in NUMBER_KEYS for key in entry.keys if entry.flag in flags}
    if with_model:
        written |= {key: flags.get(flag) is not True for flag, key in REVERSED.items()}
    if flags.get("num-experts") is None:
        for name in ("model.moe_token_dispatcher_type", "model.moe_grouped_gemm"):
            written.pop(name)
    return {**written, "mixed_precision": PRECISIONS.get(precision, "")}


def megatron_flags(keys: Mapping[str, object]) -> tuple[dict[str, object], list[str]]:
    """Megatron's flags for Bridge's ``keys``, and the keys that have none."""
    names = (
        {key: entry.flag for entry in (*KEYS, *MODEL_KEYS, *NUMBER_KEYS) for key in entry.keys}
        | OTHERS
        | {key: flag for flag, key in OVERLAP.items()}
    )
    flags: dict[str, object] = {}
    left: list[str] = []
    for key, value in keys.items():
        if key in names:
            flags |= {names[key]: value} if value is not None else {}
        elif key in REVERSED.values():
            flags[next(flag for flag, name in REVERSED.items() if name == key)] = value is not True
        elif key == "mixed_precision":
            flags |= precision_flags(str(value))
        else:
            left.append(key)
    if "num-query-groups" in flags and flags.get("multi-latent-attention") is not True:
        flags["group-query-attention"] = True
    return flags, left


def precision_flags(name: str) -> dict[str, Value]:
    """Megatron's flags for a precision recipe of Bridge, by its words."""
    plain = name.replace("-", "_")
    flags: dict[str, Value] = {"fp16": True} if plain.startswith("fp16") else {"bf16": True}
    if "nvfp4" in plain:
        return flags | {"fp4-format": "e2m1", "fp4-recipe": "nvfp4"}
    if "mxfp8" in plain:
        return flags | {"fp8-format": "e4m3", "fp8-recipe": "mxfp8"}
    if "fp8" in plain:
        recipe = "delayed" if "delayed" in plain else "blockwise" if "subchannel" in plain else "tensorwise"
        return flags | {"fp8-format": "hybrid", "fp8-recipe": recipe}
    return flags
