"""How long a search takes: ``python -m benchmarks.search.speed`` prints a table.

The first search of a process also builds the schedules it simulates; the later ones find them cached. ``covered`` counts the
strategies that a rule, memory or the fewest-layers argument decides about without an evaluation of their own.
"""

from __future__ import annotations

import resource
import sys
import time
from dataclasses import dataclass, replace

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
COLUMNS = ("model", "GPUs", "framework", "evaluated", "covered", "first s", "best s", "evaluated a second")


def problem(model: str, gpus: int, gpu: str, framework: str) -> Problem:
    """The problem of a case; ``every schedule`` is a framework that refuses nothing, the widest space there is."""
    every = framework == "every schedule"
    asked, _ = build_problem(model, gpus=gpus, gpu=gpu, framework="megatron-core" if every else framework)
    if not every:
        return asked
    stages = (0, 1, 2, 3)
    open_to_all = replace(asked.framework, schedules=tuple(PipelineSchedule), zero_stages=stages, zero_stages_with_pipeline=stages)
    return replace(asked, framework=open_to_all)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """What one case took."""

    model: str
    gpus: int
    framework: str
    evaluated: int
    covered: int
    first_seconds: float
    best_seconds: float

    @property
    def evaluated_per_second(self) -> float:
        return self.evaluated / self.best_seconds


def measure(case: tuple[str, int, str, str], repeats: int = REPEATS) -> Speed:
    """Search ``repeats`` times."""
    asked = problem(*case)
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        result = search(asked)
        seconds.append(time.perf_counter() - started)
    model, gpus, _, framework = case
    return Speed(
        model=model,
        gpus=gpus,
        framework=framework,
        evaluated=result.summary.evaluated,
        covered=sum(result.summary.rejected.values()),
        first_seconds=seconds[0],
        best_seconds=min(seconds),
    )


def row(speed: Speed) -> tuple[str, ...]:
    """The cells under ``COLUMNS``."""
    return (
        speed.model,
        f"{speed.gpus:,}",
        speed.framework,
        f"{speed.evaluated:,}",
        f"{speed.covered:,}",
        f"{speed.first_seconds:.2f}",
        f"{speed.best_seconds:.2f}",
        f"{speed.evaluated_per_second:,.0f}",
    )


def main() -> None:
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    lines += ["| " + " | ".join(row(measure(case))) + " |" for case in CASES]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    sys.stdout.write("\n".join([*lines, "", f"peak memory of the process: {peak:.0f} MB", ""]))


if __name__ == "__main__":
    main()
