"""The message for a question whose answer is no: what nearly fits, what would hold the model, what uses the memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING

from autopar.costmodel.spec.units import format_bytes, format_count

if TYPE_CHECKING:
    from autopar.costmodel.problem import Problem
    from autopar.search import SearchResult


def no_plan_text(problem: Problem, result: SearchResult, constraints: tuple[str, ...]) -> str:
    """Why no strategy is left, with numbers, and the smallest number of GPUs that would hold the model."""
    model, cluster, training = problem.model, problem.cluster, problem.training
    where = f"{cluster.num_gpus:,} x {cluster.device.name} ({format_bytes(cluster.device.memory_bytes)} each)"
    batch = f"{training.global_batch_size:,} sequences of {training.sequence_length:,} tokens a step"
    text = [f"nothing fits: {model.name} ({format_count(model.num_parameters)} parameters) on {where}, {batch}"]
    if constraints:
        text.append(f"constraints: {', '.join(constraints)}")
    summary = result.summary
    refused = sorted(((name, count) for name, count in summary.rejected.items() if count), key=lambda item: -item[1])
    rules = ", ".join(f"{name} {count:,}" for name, count in refused)
    text.append(f"{summary.evaluated:,} strategies were evaluated; refused by rule: {rules or 'none'}")
    misses = [
        f"least memory: {miss.strategy.describe()} needs {format_bytes(miss.peak_memory_bytes)}" for miss in result.nearest_misses[:3]
    ]
    return "\n".join([*text, *misses, *_smallest(problem, constrained=bool(constraints))])


def _smallest(problem: Problem, *, constrained: bool) -> list[str]:
    from autopar.search import smallest_cluster

    found = smallest_cluster(problem)
    if found is None:
        return ["no number of these GPUs holds it: one layer alone is too large for the device"]
    count, breakdown = found
    note = " without the constraints" if constrained else ""
    if count <= problem.cluster.num_gpus:
        advice = f"smallest number of GPUs that holds it{note}: {count:,}; so memory is not what is missing"
        return [
            advice,
            f"change the global batch or the number of GPUs ({problem.training.global_batch_size:,} sequences have to divide evenly)",
        ]
    uses = ", ".join(f"{name.replace('_', ' ')} {format_bytes(value)}" for name, value in _items(breakdown))
    return [f"smallest number of GPUs that holds it{note}: {count:,} (--gpus {count})", f"memory of its fullest GPU there: {uses}"]


def _items(breakdown: object) -> list[tuple[str, float]]:
    if is_dataclass(breakdown) and not isinstance(breakdown, type):
        pairs = [(f.name, getattr(breakdown, f.name)) for f in fields(breakdown)]
    elif isinstance(breakdown, Mapping):
        pairs = list(breakdown.items())
    else:
        return []
    return sorted(((name, value) for name, value in pairs if value), key=lambda item: -item[1])
