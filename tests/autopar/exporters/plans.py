"""The plans whose exports are kept as golden files, and what of them each framework takes."""

from __future__ import annotations

from typing import Any

from autopar.costmodel.spec.strategy import ContextParallelKind, PipelineSchedule, Recompute, Strategy
from autopar.exporters.question import Question
from autopar.request import build_problem

INTERLEAVED = PipelineSchedule.INTERLEAVED
PLANS: dict[str, tuple[str, int, str, Strategy]] = {
    "gpt-175b": (
        "gpt-175b", 256, "a100-sxm4-80gb",
        Strategy(tensor_parallel_size=8, sequence_parallel=True, pipeline_parallel_size=4, virtual_pipeline_stages=8,
                 pipeline_schedule=INTERLEAVED, data_parallel_size=8, micro_batch_size=3),
    ),
    "llama3-405b": (
        "llama3-405b", 1024, "h100-sxm5-80gb",
        Strategy(tensor_parallel_size=8, sequence_parallel=True, pipeline_parallel_size=16, virtual_pipeline_stages=4,
                 pipeline_schedule=INTERLEAVED, context_parallel_size=2, data_parallel_size=4, pipeline_layers=(1, *([2] * 62), 1)),
    ),
    "deepseek-v3": (
        "deepseek-v3", 2048, "h800-sxm-80gb",
        Strategy(pipeline_parallel_size=16, expert_parallel_size=8, data_parallel_size=128, pipeline_layers=(*([4] * 15), 1),
                 recompute=Recompute.FULL),
    ),
}  # fmt: skip
"""What the search finds for them, kept here so that a change of the cost model changes no golden file."""

_PLAIN: dict[str, Any] = {"virtual_pipeline_stages": 1, "pipeline_schedule": PipelineSchedule.ONE_F_ONE_B, "pipeline_layers": ()}
_SHARDED: dict[str, Any] = {**_PLAIN, "pipeline_parallel_size": 1, "sequence_parallel": False}
INSTEAD: dict[tuple[str, str], dict[str, Any] | None] = {
    ("gpt-175b", "torchtitan"): None,
    ("gpt-175b", "nanotron"): None,
    ("gpt-175b", "deepspeed"): {**_PLAIN, "sequence_parallel": False},
    ("gpt-175b", "accelerate"): {**_SHARDED, "data_parallel_size": 32, "zero_stage": 3, "micro_batch_size": 1},
    ("llama3-405b", "torchtitan"): {"context_parallel_kind": ContextParallelKind.ALL_GATHER},
    ("llama3-405b", "deepspeed"): {
        **_SHARDED, "context_parallel_kind": ContextParallelKind.ULYSSES, "data_parallel_size": 64, "zero_stage": 3,
    },
    ("llama3-405b", "accelerate"): {
        **_SHARDED, "context_parallel_kind": ContextParallelKind.ALL_GATHER, "data_parallel_size": 64, "zero_stage": 3,
    },
    ("llama3-405b", "nanotron"): {**_PLAIN, "pipeline_parallel_size": 2, "context_parallel_size": 1, "data_parallel_size": 64},
    ("deepseek-v3", "deepspeed"): {**_SHARDED, "tensor_parallel_size": 2, "data_parallel_size": 1024, "zero_stage": 2},
    ("deepseek-v3", "accelerate"): None,
    ("deepseek-v3", "nanotron"): None,
}  # fmt: skip
"""What to change for a framework that does not take the plan; None where it has no such model."""


def plan_question(name: str) -> Question:
    """The question of one of ``PLANS``."""
    model, gpus, gpu, strategy = PLANS[name]
    problem, _ = build_problem(model, gpus=gpus, gpu=gpu)
    return Question.of(problem, strategy)
