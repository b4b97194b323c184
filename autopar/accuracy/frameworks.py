"""Which execution profile describes a measured run, and what the row says of how its framework was run."""

from __future__ import annotations

import re
from dataclasses import replace

from autopar.catalog.frameworks import framework, framework_names
from autopar.costmodel.problem import Problem
from autopar.costmodel.spec.cluster import ClusterSpec
from autopar.costmodel.spec.framework import ExecutionProfile
from autopar.costmodel.spec.strategy import Strategy

from .reasons import UnscorableError
from .runs import Run

_FRAMEWORKS: tuple[tuple[str, str], ...] = (
    (r"vtrain", "megatron-vtrain"),
    (r"pytorch-eager", "pytorch-eager"),
    (r"transformers", "transformers"),
    (r"megatron-bridge.*(25\.|26\.0[1-5])", "megatron-bridge-25"),
    (r"megatron-bridge", "megatron-bridge-26"),
    (r"megatron\+deepspeed zero-3", "deepspeed-2021"),
    (r"zero-3", "deepspeed"),
    (r"deepspeed", "megatron-deepspeed"),
    (r"mlperf", "megatron-mlperf"),
    (r"nemo-megatron (1\d|2[0-3])\.", "megatron-2022"),  # its configurations turn flash attention on from 24.01
    (r"nemo|megatron-core", "megatron-core"),
    (r"megatron-lm.*(2019|2020|8aa4619f)", "megatron-2019"),
    (r"megatron-lm.*2022", "megatron-2022"),
    (r"megatron-lm", "megatron-2021"),
    (r"torchtitan", "torchtitan"),
    (r"internevo", "internevo"),
    (r"hai-llm", "hai-llm"),
    (r"metaseq", ""),
    (r"fsdp", "fsdp"),
)


def framework_profile_id(text: str) -> str:
    """The execution profile that a framework's name and release mean.

    Raises:
        UnscorableError: no profile describes it.
    """
    if text.lower() in framework_names():
        return text.lower()
    for pattern, name in _FRAMEWORKS:
        if name and re.search(pattern, text, re.IGNORECASE):
            return name
    raise UnscorableError(f"no execution profile describes framework {text!r}")


_UNCOMPILED = (
    "elementwise_forward_passes",
    "elementwise_backward_passes",
    "rotary_passes",
    "gated_activation_passes",
    "elementwise_kernels",
)
TORCHTITAN = "torchtitan"
EAGER_LOGITS_BYTES, EAGER_SPLIT_LOGITS_BYTES = 14.0, 18.0
"""Bytes a logit of torchtitan's loss before it was compiled: three or, split over ranks, four fp32 tensors (log-probabilities, gradient,
exponentials and their sum) and the block that the low-precision logits left, too small for any of them."""
EAGER_SELECTIVE_KEPT = 0.45
"""Share that recomputation by operator keeps where blocks are not compiled: the last product's output too, which nothing reads."""
ASYNC_TENSOR_OVERLAP = 0.7
"""Share of the products that torchtitan's asynchronous tensor parallelism hides its collectives behind: eight chunks, the first exposed."""

INTERLEAVED_EXPERT_OVERLAP = 0.8
"""Share of an exchange between nodes that Megatron's overlap of a forward with another micro-batch's backward hides; both slow a little."""
TRITON_ATTENTION = 0.65
"""Rate of the flash attention in Triton that MPT was trained with over FlashAttention-2, which is 1.3 to 2.5 times as fast (Dao 2023)."""


def profile_of(run: Run, machines: ClusterSpec, notes: list[str]) -> ExecutionProfile:
    """The profile of the row's framework and release, with what its notes say of how the run was made."""
    if not run.framework:
        return framework("megatron-core")
    name, notes_of_run = framework_profile_id(run.framework), run.notes.lower()
    if name == "megatron-bridge-26" and machines.device.architecture.lower() == "hopper":
        notes.append("profile of the earlier releases: the grouped kernels of 26.06 are Blackwell's")
        return framework("megatron-bridge-25")
    profile = framework(name)
    if name == "fsdp" and "llm-foundry" in run.framework.lower():
        notes.append("flash attention in Triton, as llm-foundry's configurations of 2023 have it")
        return replace(profile, attention_share=profile.attention_share * TRITON_ATTENTION)
    if name == TORCHTITAN:
        return _torchtitan_of(profile, run.framework, notes_of_run, notes)
    if profile.low_precision_copies and "fp8" in run.precision.lower():
        notes.append("FP8 weights taken as the parameters themselves, as NVIDIA's own runs have them")
        return replace(profile, low_precision_copies=0.0)
    return profile


def _torchtitan_of(profile: ExecutionProfile, release: str, notes_of_run: str, notes: list[str]) -> ExecutionProfile:
    """torchtitan as it was at the row's release, and as the row's notes say that it was run."""
    if re.search(r"202[34]", release):
        notes.append("loss not compiled: releases of 2024")
        profile = replace(profile, logits_bytes=EAGER_LOGITS_BYTES, split_logits_bytes=EAGER_SPLIT_LOGITS_BYTES)
    if re.search(r"async ?tp", notes_of_run):
        notes.append("asynchronous tensor parallelism, as the row's notes say")
        return replace(profile, tensor_overlap_forward=ASYNC_TENSOR_OVERLAP, tensor_overlap_backward=ASYNC_TENSOR_OVERLAP)
    if re.match(r"table \d+: fsdp(;|$)", notes_of_run):
        notes.append("not compiled, as the row's notes say")
        eager = framework("pytorch-eager")
        uncompiled = {field: getattr(eager, field) for field in _UNCOMPILED}
        return replace(profile, id=f"{TORCHTITAN}, not compiled", selective_kept=EAGER_SELECTIVE_KEPT, **uncompiled)
    return profile


def overlaps_exchange(problem: Problem, strategy: Strategy) -> bool:
    """Megatron-Bridge's recipes overlap the exchange where experts span nodes (moe_a2a_overlap); a pipeline needs virtual stages for it."""
    spans = strategy.expert_parallel_size * strategy.expert_tensor_parallel_size > problem.cluster.fast_domain_size
    return problem.framework.id.startswith("megatron-bridge") and spans and strategy.virtual_pipeline_stages > 1
