"""What the engine adds to a step: against the same parallelism written by hand with torch alone."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from autopar.costmodel.spec.strategy import PipelineSchedule, Strategy
from autopar.costmodel.spec.training import PRECISIONS
from autopar.runtime.build import EngineOptions
from autopar.runtime.engine import build_engine

from . import by_hand, task
from .timing import Turn, in_turns

MICRO_BATCH_SIZE = 2
"""Of the pipeline; elsewhere a rank's batch is one micro-batch."""
Step = Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """One layout's step: medians over the rounds, and the median of the rounds' ratios."""

    layout: str
    by_hand: str
    engine_seconds: float
    by_hand_seconds: float
    overhead: float
    """Engine over hand, minus 1."""
    spread: float
    """Half the interquartile range of the rounds' ratios."""
    cpu_overhead: float
    """The same of the processor time of both ranks, which other work on the machine does not change."""
    loss_difference: float
    """Relative, of the first step: both train the same."""


def engine_step(strategy: Strategy) -> Step:
    engine = build_engine(
        task.model(),
        strategy,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=task.LEARNING_RATE),
        global_batch_size=task.GLOBAL_BATCH_SIZE,
        options=EngineOptions(precision=PRECISIONS["fp32"]),
        device=torch.device("cpu"),
    )
    ids = task.token_ids()
    return lambda: engine.train_step(ids)


def _cases() -> dict[str, tuple[Strategy, dict[str, Callable[[], Step]]]]:
    per_rank = task.GLOBAL_BATCH_SIZE // task.RANKS
    microbatches = task.GLOBAL_BATCH_SIZE // MICRO_BATCH_SIZE
    tensor: dict[str, Callable[[], Step]] = {
        "plain collectives": by_hand.TensorParallelCollectives,
        "torch.distributed.tensor.parallel": by_hand.TensorParallelDTensor,
    }
    return {
        "data parallel": (
            Strategy(data_parallel_size=2, micro_batch_size=per_rank, zero_stage=0),
            {"DistributedDataParallel": by_hand.DataParallel},
        ),
        "fully sharded": (
            Strategy(data_parallel_size=2, micro_batch_size=per_rank, zero_stage=3),
            {"fully_shard": by_hand.FullyShardedDataParallel},
        ),
        "tensor parallel": (Strategy(tensor_parallel_size=2, micro_batch_size=task.GLOBAL_BATCH_SIZE, zero_stage=0), tensor),
        "pipeline": (
            Strategy(
                pipeline_parallel_size=2,
                pipeline_schedule=PipelineSchedule.ONE_F_ONE_B,
                micro_batch_size=MICRO_BATCH_SIZE,
                zero_stage=0,
                pipeline_layers=(task.CONFIG.num_layers // 2,) * 2,
            ),
            {"torch.distributed.pipelining": lambda: by_hand.Pipeline(microbatches)},
        ),
    }


def measure(*, rounds: int, steps_per_turn: int) -> list[Overhead]:
    """All layouts, on the ranks of this job."""
    results = []
    for layout, (strategy, rivals) in _cases().items():
        engine = engine_step(strategy)
        steps = {"engine": engine, **{name: make() for name, make in rivals.items()}}
        first = {name: step() for name, step in steps.items()}
        turns = in_turns(steps, rounds=rounds, steps_per_turn=steps_per_turn)
        results += [
            _compare(layout, name, turns["engine"], turns[name], abs(first["engine"] - first[name]) / first[name]) for name in rivals
        ]
    return results


def _compare(layout: str, name: str, engine: Sequence[Turn], hand: Sequence[Turn], loss_difference: float) -> Overhead:
    ratios = [mine.seconds / theirs.seconds for mine, theirs in zip(engine, hand, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else (ratios[0],) * 3
    return Overhead(
        layout=layout,
        by_hand=name,
        engine_seconds=statistics.median(turn.seconds for turn in engine),
        by_hand_seconds=statistics.median(turn.seconds for turn in hand),
        overhead=statistics.median(ratios) - 1,
        spread=(high - low) / 2,
        cpu_overhead=statistics.median(mine.cpu_seconds / theirs.cpu_seconds for mine, theirs in zip(engine, hand, strict=True)) - 1,
        loss_difference=loss_difference,
    )
