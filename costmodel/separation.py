"""What would tell two strategies apart that the model cannot: the term they differ in most, and the constant behind it."""

from __future__ import annotations

import math
from dataclasses import fields

from .spec.estimate import TimeBreakdown
from .spec.units import format_seconds

STEPS = 20
"""Steps after warm-up: a step's jitter of one to two per cent averages to a third of one."""

CONSTANT_BEHIND = {
    "matrix_multiplication": "gemm_efficiency of the device",
    "attention": "attention_forward_efficiency of the device",
    "elementwise": "memory_efficiency of the device",
    "embedding_and_loss": "gemm_efficiency and memory_efficiency of the device",
    "recompute": "gemm_efficiency of the device",
    "host_launch": "launch_seconds of the device",
    "gradient_accumulation": "memory_efficiency of the device",
    "exposed_tensor_communication": "efficiency of the link that tensor parallelism uses, and tensor_overlap of the framework",
    "exposed_context_communication": "efficiency of the link that context parallelism uses, and context_overlap of the framework",
    "exposed_expert_communication": "all-to-all efficiency of the link that experts use, and expert_overlap of the framework",
    "exposed_pipeline_communication": "point-to-point efficiency of the link between stages, and pipeline_overlap of the framework",
    "exposed_data_communication": "efficiency of the network, and data_overlap of the framework",
    "optimizer": "optimizer_memory_efficiency of the device",
    "pipeline_bubble": "the balance of the stages: the times of the embedding and the loss beside those of a layer",
    "overhead": "step_overhead_fraction of the framework",
}


def dominating_difference(one: TimeBreakdown, other: TimeBreakdown) -> tuple[str, float]:
    """The term in which two steps differ most, and by how many seconds ``other`` takes longer in it."""
    differences = {f.name: getattr(other, f.name) - getattr(one, f.name) for f in fields(TimeBreakdown)}
    name = max(differences, key=lambda term: abs(differences[term]))
    return name, differences[name]


def separating_measurement(best: TimeBreakdown, other: TimeBreakdown) -> str:
    """The measurement that would separate a tie, in one sentence.

    The terms are those of each strategy's busiest rank, which need not be the same one: what one has more of in a term it may
    have less of in another. No term is named where the largest speaks against the difference of the whole steps.
    """
    term, seconds = dominating_difference(best, other)
    if seconds == 0:
        return f"run both for {STEPS} steps: the model has no term in which they differ"
    whole = math.fsum(getattr(other, f.name) - getattr(best, f.name) for f in fields(TimeBreakdown))
    if whole * seconds < 0:
        return f"run both for {STEPS} steps: no one term accounts for the difference"
    more = f"{format_seconds(abs(seconds))} {'more' if seconds > 0 else 'less'} {term.replace('_', ' ')}"
    return f"run both for {STEPS} steps: it takes {more}, which rests on {CONSTANT_BEHIND[term]}"
