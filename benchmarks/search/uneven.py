"""What uneven stages gain, and what is left at most: ``python -m benchmarks.search.uneven [--exact]`` prints a table.

``even`` is the uniform search. ``by split`` also places layers, for a framework that recomputes alike on all stages; ``by stage`` lets each
stage recompute what it must. ``left`` is how much faster than that another placement could be at most.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace

from autopar.costmodel.problem import Problem
from autopar.request import build_problem
from autopar.search import Constraints, SearchResult, Stages, search

CASES: tuple[tuple[str, int, str, dict[str, int]], ...] = (
    ("gpt-175b", 256, "a100-sxm4-80gb", {}),
    ("gpt-175b", 256, "a100-sxm4-40gb", {}),
    ("gpt-175b", 10_240, "a100-sxm4-80gb", {}),
    ("llama3-405b", 1_024, "h100-sxm5-80gb", {}),
    ("llama3-405b", 1_024, "h100-sxm5-80gb", {"pipeline_parallel_size": 16, "virtual_pipeline_stages": 1}),
    ("deepseek-v3", 2_048, "h800-sxm-80gb", {}),
    ("deepseek-v3", 2_048, "h800-sxm-80gb", {"pipeline_parallel_size": 16, "virtual_pipeline_stages": 1}),
    ("gemma2-27b", 64, "a100-sxm4-40gb", {}),
    ("gemma2-27b", 64, "a100-sxm4-40gb", {"pipeline_parallel_size": 8, "virtual_pipeline_stages": 1}),
)


def timed(asked: Problem, constraints: Constraints, stages: Stages) -> tuple[SearchResult, float]:
    """The result and the seconds of processor time it took."""
    started = time.process_time()
    return search(asked, constraints, stages=stages), time.process_time() - started


def measure(model: str, gpus: int, gpu: str, fixed: dict[str, int], stages: Stages) -> str:
    """One line of the table."""
    asked, _ = build_problem(model, gpus=gpus, gpu=gpu)
    free = replace(asked, framework=replace(asked.framework, recompute_by_stage=True))
    constraints = Constraints(fixed=fixed)
    even, seconds = timed(asked, constraints, Stages.EVEN)
    cells = [f"{model}", f"{gpus:,} {gpu}", " ".join(f"{name}={value}" for name, value in fixed.items()) or "free"]
    base = even.ranked[0].step_time_seconds if even.ranked else None
    cells += [f"{base:.2f}" if base else "does not fit", f"{seconds:.2f}"]
    for problem in (asked, free):
        result, seconds = timed(problem, constraints, stages)
        best, bound = result.ranked[0].step_time_seconds, result.summary.bound_seconds
        gain = f"{1 - best / base:.2%}" if base else "fits"
        cells += [gain, "-" if bound is None else f"{max(1 - bound / best, 0):.1%}", f"{seconds:.2f}"]
    return f"| {' | '.join(cells)} |"


def main(arguments: list[str]) -> None:
    stages = Stages.EXACT if "--exact" in arguments else Stages.UNEVEN
    names = ["model", "GPUs", "fixed", "even s", "search s", "by split gains", "left", "search s", "by stage gains", "left", "search s"]
    sys.stdout.write(f"| {' | '.join(names)} |\n|{'---|' * len(names)}\n")
    for case in CASES:
        sys.stdout.write(measure(*case, stages) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
