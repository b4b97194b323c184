"""How long a search takes: ``python -m benchmarks.search.speed`` prints a table.

The first search of a process also builds the schedules it simulates; the later ones find them cached. ``covered`` counts the
strategies that a rule, memory or the fewest-layers argument decides about without an evaluation of their own.
"""

from __future__ import annotations

import resource
import sys
import time
from dataclasses import replace

from autopar.costmodel.problem import Problem
from autopar.costmodel.spec.strategy import PipelineSchedule
from autopar.request import build_problem
from autopar.search import search

CASES: tuple[tuple[str, int, str, str], ...] = (
    ("gpt-175b", 256, "h100-sxm5-80gb", "megatron-core"),
    ("llama3-405b", 16_384, "h100-sxm5-80gb", "megatron-core"),
    ("deepseek-v3", 2_048, "h800-sxm-80gb", "megatron-core"),
    ("llama3-405b", 16_384, "h100-sxm5-80gb", "torchtitan"),
    ("deepseek-v3", 2_048, "h800-sxm-80gb", "every schedule"),
)
REPEATS = 5


def problem(model: str, gpus: int, gpu: str, framework: str) -> Problem:
    """The problem of a case; ``every schedule`` is a framework that refuses nothing, the widest space there is."""
    every = framework == "every schedule"
    asked, _ = build_problem(model, gpus=gpus, gpu=gpu, framework="megatron-core" if every else framework)
    if not every:
        return asked
    stages = (0, 1, 2, 3)
    open_to_all = replace(asked.framework, schedules=tuple(PipelineSchedule), zero_stages=stages, zero_stages_with_pipeline=stages)
    return replace(asked, framework=open_to_all)


def measure(case: tuple[str, int, str, str]) -> str:
    """One line of the table."""
    asked = problem(*case)
    seconds = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        result = search(asked)
        seconds.append(time.perf_counter() - started)
    evaluated, covered = result.summary.evaluated, sum(result.summary.rejected.values())
    model, gpus, _, framework = case
    return (
        f"| {model} | {gpus:,} | {framework} | {evaluated:,} | {covered:,} | {seconds[0]:.2f} | {min(seconds):.2f}"
        f" | {evaluated / min(seconds):,.0f} |"
    )


def main() -> None:
    lines = ["| model | GPUs | framework | evaluated | covered | first s | best s | evaluated a second |", "|" + "---|" * 8]
    lines += [measure(case) for case in CASES]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    sys.stdout.write("\n".join([*lines, "", f"peak memory of the process: {peak:.0f} MB", ""]))


if __name__ == "__main__":
    main()
