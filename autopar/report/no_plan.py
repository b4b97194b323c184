"""The message for a question whose answer is no: what nearly fits, what would hold the model, what uses the memory."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from autopar.costmodel.spec.units import format_bytes, format_count

from .text import batch_text

if TYPE_CHECKING:
    from autopar.costmodel.problem import Problem
    from autopar.search import Ranked, SearchResult

MAX_RULES = 4
NOTHING_FITS = "nothing fits"


def no_plan_text(problem: Problem, result: SearchResult, constraints: tuple[str, ...], smallest: tuple[Problem, Ranked] | None) -> str:
    """Why no strategy is left, with numbers, and the smallest number of GPUs that would hold the model."""
    model, cluster, training = problem.model, problem.cluster, problem.training
    where = f"{cluster.num_gpus:,} x {cluster.device.name} ({format_bytes(cluster.device.memory_bytes)} each)"
    verdict = NOTHING_FITS if result.summary.evaluated else "no strategy is possible"
    text = [f"{verdict}: {model.name} ({format_count(model.num_parameters)} parameters) on {where}, {batch_text(training)} a step"]
    if constraints:
        text.append(f"constraints: {', '.join(constraints)}")
    summary = result.summary
    refused = sorted(((name, count) for name, count in summary.rejected.items() if count), key=lambda item: -item[1])
    rules = ", ".join(f"{name} {count:,}" for name, count in refused[:MAX_RULES])
    text.append(f"{summary.evaluated:,} strategies were evaluated; refused by rule: {rules or 'none'}")
    text += [f"closest strategy: {fault}" for fault in result.refused_by]
    misses = [
        f"least memory: {miss.strategy.describe()} needs {format_bytes(miss.peak_memory_bytes)}" for miss in result.nearest_misses[:3]
    ]
    return "\n".join([*text, *misses, *_smallest_lines(problem, smallest, verdict, constrained=bool(constraints))])


def _smallest_lines(problem: Problem, smallest: tuple[Problem, Ranked] | None, verdict: str, *, constrained: bool) -> list[str]:
    if smallest is None:
        within = "within these constraints; loosen one" if constrained else "with this batch and sequence length"
        none = "no number of these GPUs holds it" if verdict == NOTHING_FITS else "no other number of these GPUs makes one possible"
        return [f"{none} {within}"]
    on, ranked = smallest
    count = on.cluster.num_gpus
    best = ranked.strategy.describe()
    if count <= problem.cluster.num_gpus:
        gpus = f"{count:,} GPU{'' if count == 1 else 's'}"
        return [f"memory is not the obstacle: {gpus} would hold it ({best}); the sizes have to divide the batch, the heads and the GPUs"]
    uses = ", ".join(f"{name.replace('_', ' ')} {format_bytes(value)}" for name, value in _fullest_gpu(on, ranked))
    return [f"smallest number of GPUs that holds it: {count:,} ({best})", f"what uses the memory of the fullest GPU there: {uses}"]


def _fullest_gpu(problem: Problem, ranked: Ranked) -> list[tuple[str, float]]:
    from autopar.costmodel.estimate import estimate

    memory = max(estimate(problem, ranked.strategy).stages, key=lambda stage: stage.peak_memory_bytes).memory
    return sorted(((f.name, getattr(memory, f.name)) for f in fields(memory) if getattr(memory, f.name) >= 1), key=lambda item: -item[1])
