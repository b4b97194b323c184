"""Logs of Megatron-LM and of its forks: the dump of arguments, and a line every ``log_interval`` iterations."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from .logs import Fact, Parsed, Step, dotted_settings, flag, known, whole

_ITERATION = re.compile(r"\biteration\s+(\d+)\s*/\s*(?:\d+|infinity)\s*\|.*?elapsed time per iteration \(ms\):\s*([0-9.]+)")
_BATCH = re.compile(r"global batch size:\s*(\d+)")
_RESERVED = re.compile(r"memory \(MB\)\s*\|.*?max reserved:\s*([0-9.]+)")


def read(lines: Sequence[str]) -> Parsed | None:
    """The run, or None where no iteration is in the form that Megatron-LM prints.

    Iterations of another global batch than the most common one belong to a ramp-up and are left out.
    """
    found = [(match, _BATCH.search(line)) for line in lines if (match := _ITERATION.search(line))]
    if not found:
        return None
    batches = Counter(int(batch[1]) for _, batch in found if batch)
    usual = batches.most_common(1)[0][0] if batches else None
    steps = tuple(
        Step(number=int(match[1]), seconds=float(match[2]) / 1000)
        for match, batch in found
        if usual is None or (batch is not None and int(batch[1]) == usual)
    )
    arguments = dotted_settings(lines)
    facts = _facts(arguments)
    if usual is not None:
        facts["global_batch_size"] = usual
    reserved = [float(match[1]) * 2**20 for line in lines if (match := _RESERVED.search(line))]
    return Parsed(facts=facts, steps=steps, peak_memory_bytes=max(reserved, default=None))


def _facts(given: Mapping[str, str]) -> dict[str, Fact]:
    if not given:
        return {}
    experts = whole(given.get("num_experts"))
    return (
        known(
            framework=_framework(given),
            num_gpus=whole(given.get("world_size")),
            sequence_length=whole(given.get("seq_length")),
            global_batch_size=whole(given.get("global_batch_size")),
            micro_batch_size=whole(given.get("micro_batch_size")),
            tensor_parallel_size=whole(given.get("tensor_model_parallel_size")),
            pipeline_parallel_size=whole(given.get("pipeline_model_parallel_size")),
            virtual_pipeline_stages=whole(given.get("virtual_pipeline_model_parallel_size")),
            context_parallel_size=whole(given.get("context_parallel_size")),
            expert_parallel_size=whole(given.get("expert_model_parallel_size")) if experts else None,
            expert_tensor_parallel_size=whole(given.get("expert_tensor_parallel_size")) if experts else None,
            data_parallel_size=whole(given.get("data_parallel_size")),
            sequence_parallel=flag(given.get("sequence_parallel")),
            precision=_precision(given),
            sharding_as_stated=_sharding(given),
        )
        | _model(given, experts)
        | _recompute(given)
    )


def _model(given: Mapping[str, str], experts: int | None) -> dict[str, Fact]:
    untied = flag(given.get("untie_embeddings_and_output_weights"))
    grouped = flag(given.get("group_query_attention"))
    return known(
        num_layers=whole(given.get("num_layers")),
        hidden_size=whole(given.get("hidden_size")),
        ffn_hidden_size=whole(given.get("ffn_hidden_size")),
        num_attention_heads=whole(given.get("num_attention_heads")),
        num_key_value_heads=whole(given.get("num_query_groups")) if grouped else None,
        head_dim=whole(given.get("kv_channels")),
        vocab_size=whole(given.get("vocab_size")) or whole(given.get("padded_vocab_size")),
        gated_mlp=flag(given.get("swiglu")),
        multi_latent_attention=flag(given.get("multi_latent_attention")),
        tied_embeddings=None if untied is None else not untied,
        num_experts=experts,
        experts_per_token=whole(given.get("moe_router_topk")) if experts else None,
        moe_ffn_hidden_size=whole(given.get("moe_ffn_hidden_size")) if experts else None,
    )


def _framework(given: Mapping[str, str]) -> str | None:
    """Megatron-Core dumps its transformer implementation; the DeepSpeed fork its own switch."""
    if flag(given.get("deepspeed")):
        return "megatron-deepspeed"
    if "transformer_impl" in given:
        return "megatron-core"
    return "megatron-2022" if "sequence_parallel" in given else "megatron-2021"


def _precision(given: Mapping[str, str]) -> str | None:
    if given.get("fp8", "None") not in ("None", "False"):
        return "mxfp8" if given.get("fp8_recipe") == "mxfp8" else "fp8"
    if flag(given.get("bf16")):
        return "bf16"
    if flag(given.get("fp16")):
        return "fp16"
    return "fp32" if {"bf16", "fp16"} <= given.keys() else None


def _sharding(given: Mapping[str, str]) -> str | None:
    if (stage := whole(given.get("zero_stage"))) is not None and flag(given.get("deepspeed")):
        return str(stage)
    if "use_distributed_optimizer" in given:
        return "1" if flag(given["use_distributed_optimizer"]) else "0"
    return None


def _recompute(given: Mapping[str, str]) -> dict[str, Fact]:
    if "recompute_granularity" not in given:
        return {"recompute": "full"} if flag(given.get("checkpoint_activations")) else {}
    granularity = given["recompute_granularity"]
    if granularity not in ("full", "selective"):
        return {"recompute": "none"}
    layers = whole(given.get("recompute_num_layers"))
    if granularity == "full" and given.get("recompute_method") == "block" and layers:
        return {"recompute": "full", "num_recompute_layers": layers}
    return {"recompute": granularity}
