"""Whether the framework that a plan is made for takes it: asked of the exporter that would write it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from autopar.exporters import exporter
from autopar.exporters.question import Question

if TYPE_CHECKING:
    from autopar.costmodel.problem import Problem
    from autopar.costmodel.spec.strategy import Strategy
    from autopar.search import Ranked

EXPORTERS = {
    "accelerate": "accelerate",
    "deepspeed": "deepspeed",
    "megatron-bridge-25": "megatron-bridge",
    "megatron-bridge-26": "megatron-bridge",
    "megatron-core": "megatron-lm",
    "megatron-fsdp": "megatron-lm",
    "megatron-mlperf": "megatron-lm",
    "nanotron": "nanotron",
    "torchtitan": "torchtitan",
}
"""Execution profile -> who writes plans for the framework; profiles of the past, and of no framework of their own, have nobody."""


def refusal(problem: Problem, strategy: Strategy) -> str:
    """The first thing that the framework of ``problem`` does not take about ``strategy``; empty where it takes it, or nobody can tell."""
    name = EXPORTERS.get(problem.framework.id)
    if name is None:
        return ""
    broken = exporter(name).broken_rules(Question.of(problem, strategy))
    return f"{name} does not take it: {broken[0].fault}" if broken else ""


def that_run(problem: Problem, ranked: Sequence[Ranked]) -> tuple[tuple[Ranked, ...], str]:
    """Those of ``ranked`` that the framework takes, all of them where it takes none; and what was passed over, in words.

    The rules of the search keep most of the others out. What is left are conditions of one exporter on several settings at once, and
    models that a framework does not have, for which no strategy helps.
    """
    refusals = [refusal(problem, each.strategy) for each in ranked]
    kept, refused = tuple(each for each, text in zip(ranked, refusals, strict=True) if not text), refusals[0]
    if not refused:
        return kept, ""
    if not kept:
        return tuple(ranked), f"export: {refused}"
    gain = 1 - ranked[0].step_time_seconds / kept[0].step_time_seconds
    return kept, f"export: {ranked[0].strategy.describe()} is {gain:.1%} faster, and {refused}"
