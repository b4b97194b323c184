"""How far each method is from the best there is: ``python -m benchmarks.search.quality`` prints a table.

On instances small enough to ask about every strategy, every split of its layers over the stages and every recomputation, the optimum is
known. ``gap`` is how much slower than it a method's answer is, ``left`` how much faster the method says that another placement could be
at most: it is never below the gap.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from autopar.costmodel.columns import StrategyColumns
from autopar.costmodel.inputs import Inputs
from autopar.costmodel.problem import Problem
from autopar.costmodel.spec.model import MixtureOfExperts, ModelSpec
from autopar.costmodel.spec.strategy import Recompute, Strategy
from autopar.costmodel.step import evaluate
from autopar.request import build_problem
from autopar.search import Constraints, Stages, feasibility, search
from autopar.search.neighbours import splits
from autopar.search.space import enumerate_space

WIDE = ModelSpec(
    name="wide vocabulary", num_layers=7, hidden_size=4096, num_attention_heads=32, num_key_value_heads=8, head_dim=128,
    ffn_hidden_size=14_336, vocab_size=256_000, max_position_embeddings=4096, gated_mlp=True,
)  # fmt: skip
EXPERTS = replace(
    WIDE,
    name="dense and expert layers",
    num_layers=6,
    vocab_size=32_000,
    moe=MixtureOfExperts(num_experts=4, experts_per_token=2, ffn_hidden_size=2048, first_dense_layers=2),
)
FIXED = {"tensor_parallel_size": 1, "context_parallel_size": 1, "zero_stage": 1}
PIPELINES = Constraints(fixed=FIXED, minimum={"pipeline_parallel_size": 2}, maximum={"micro_batch_size": 2, "virtual_pipeline_stages": 1})
INTERLEAVED = Constraints(fixed={**FIXED, "pipeline_parallel_size": 2, "virtual_pipeline_stages": 2, "micro_batch_size": 1})
COLUMNS = ("instance", "recomputes", "placements", "optimum s", "method", "gap", "left", "evaluated", "seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A problem small enough for all of its placements."""

    name: str
    problem: Problem
    constraints: Constraints


def instances() -> Iterator[Instance]:
    """Two models, with memory to spare and hardly enough, recomputation alike on all stages and by stage, one and two stages a rank."""
    for model, gigabytes in ((WIDE, (200, 37)), (EXPERTS, (200, 16))):
        for memory, by_stage in itertools.product(gigabytes, (False, True)):
            yield Instance(
                name=f"{model.name}, {memory} GB", problem=question(model, memory * 1e9, by_stage=by_stage), constraints=PIPELINES
            )
        name = f"{model.name}, {gigabytes[1]} GB, two stages a rank"
        yield Instance(name=name, problem=question(model, gigabytes[1] * 1e9, by_stage=False), constraints=INTERLEAVED)


def question(model: ModelSpec, memory_bytes: float, *, by_stage: bool) -> Problem:
    """``model`` on four H100s of so much memory."""
    found, _ = build_problem(model, gpus=4, gpu="h100-sxm5-80gb", global_batch_size=24, sequence_length=4096)
    cluster = replace(found.cluster, device=replace(found.cluster.device, memory_bytes=int(memory_bytes)))
    return replace(found, cluster=cluster, framework=replace(found.framework, recompute_by_stage=by_stage))


def placements(asked: Problem, constraints: Constraints) -> list[Strategy]:
    """Every strategy with every split and recomputation that the framework runs."""
    found = {replace(rows.strategy(row), pipeline_layers=()) for rows in enumerate_space(asked, constraints) for row in range(len(rows))}
    every: list[Strategy] = []
    for shell in sorted(found, key=lambda strategy: strategy.describe()):
        for split in splits(asked.model.num_layers, shell.num_virtual_stages):
            placed = replace(shell, pipeline_layers=split)
            every.append(placed)
            if asked.framework.recompute_by_stage:
                counts = itertools.product(*(range(count + 1) for count in split))
                every += [replace(placed, recompute=Recompute.FULL, stage_recompute_layers=each) for each in counts if any(each)]
            else:
                held = -(-asked.model.num_layers // shell.pipeline_parallel_size)
                every += [replace(placed, recompute=Recompute.FULL, num_recompute_layers=count) for count in range(held)]
    return feasibility.runnable(asked, every)


def optimum(asked: Problem, every: list[Strategy]) -> float:
    """Step seconds of the fastest of ``every`` that fits; infinite where none does."""
    found = evaluate(Inputs.of(asked), StrategyColumns.of(every), simulate=True)
    return float(np.min(found.step_time_seconds, where=found.fits, initial=np.inf))


def rows(instance: Instance) -> Iterator[tuple[str, ...]]:
    """A row for each method, as text."""
    every = placements(instance.problem, instance.constraints)
    least = optimum(instance.problem, every)
    recomputes = "by stage" if instance.problem.framework.recompute_by_stage else "alike"
    for stages in Stages:
        started = time.perf_counter()
        result = search(instance.problem, instance.constraints, stages=stages)
        seconds = time.perf_counter() - started
        found = result.ranked[0].step_time_seconds if result.ranked else np.inf
        bound = result.summary.bound_seconds
        yield (
            instance.name,
            recomputes,
            f"{len(every):,}",
            f"{least:.4g}",
            stages.value,
            f"{found / least - 1:.2%}" if np.isfinite(found) else "does not fit",
            f"{max(1 - bound / found, 0):.2%}" if bound is not None else "-",
            f"{result.summary.evaluated:,}",
            f"{seconds:.2f}",
        )


def main() -> None:
    sys.stdout.write(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}\n")
    for instance in instances():
        for cells in rows(instance):
            sys.stdout.write(f"| {' | '.join(cells)} |\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
