"""Every family trains under a pipeline, tensor and data parallelism together as one process trains it."""

from __future__ import annotations

from collections.abc import Sequence

from autopar.costmodel.spec.strategy import PipelineSchedule, Recompute, Strategy

from .models import batches, tiny
from .oracle import Trained, assert_same, train_alone, train_parallel
from .processes import run_ranks

LISTED = ("llama", "qwen2", "qwen3", "mistral", "gemma", "gpt2", "gpt_neox", "phi", "mixtral")
FURTHER = ("llama-biases", "gemma2", "gemma3_text", "phi3", "qwen3_moe", "gpt_neox-serial", "reference-gpt-rotary")
ALL_AXES = Strategy(
    tensor_parallel_size=2, sequence_parallel=True, pipeline_parallel_size=2, data_parallel_size=2, micro_batch_size=2, zero_stage=1
)


def test_listed_families_under_all_axes() -> None:
    check(LISTED, ALL_AXES)


def test_further_families_under_a_split_backward_and_recomputation() -> None:
    check((*LISTED[:3], *FURTHER), Strategy(pipeline_parallel_size=2, micro_batch_size=2, pipeline_schedule=PipelineSchedule.ZERO_BUBBLE))
    check((*LISTED[3:], *FURTHER), Strategy(pipeline_parallel_size=2, micro_batch_size=2, recompute=Recompute.FULL))


def check(names: Sequence[str], strategy: Strategy) -> None:
    steps = list(batches(2, size=8))
    # Before the ranks are forked, so that each finds the models' code imported.
    alone = {name: train_alone(tiny(name), steps) for name in names}

    def train(_: int) -> list[Trained]:
        return [train_parallel(tiny(name), strategy, steps) for name in names]

    results = run_ranks(strategy.world_size, train, timeout=180)
    for position, name in enumerate(names):
        try:
            assert_same([result[position] for result in results], alone[name])
        except AssertionError as error:
            error.add_note(f"{name} under {strategy.describe()}")
            raise
