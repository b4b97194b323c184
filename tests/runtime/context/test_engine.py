"""Models train under context parallelism as one process trains them: loss, every gradient and parameter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from autopar.costmodel.spec.errors import InvalidInputError
from autopar.costmodel.spec.strategy import ContextParallelKind, PipelineSchedule, Recompute, Strategy
from autopar.runtime.engine import build_engine
from tests.runtime.models import batches, tiny
from tests.runtime.oracle import FP32, Trained, adamw, assert_same, train_alone, train_parallel
from tests.runtime.processes import run_ranks

ROWS = 4
CONTEXT = Strategy(context_parallel_size=2, context_parallel_kind=ContextParallelKind.ALL_GATHER, micro_batch_size=2)
DATA = replace(CONTEXT, data_parallel_size=2)
FAMILIES = ("llama", "qwen2", "qwen3", "gemma", "gpt2", "gpt_neox", "phi", "phi3", "nemotron", "mixtral", "qwen2_moe", "qwen3_moe")
REFERENCE = ("reference-gpt", "reference-gpt-rotary", "reference-gpt-experts")


def test_every_family_with_plain_causal_attention() -> None:
    check((*FAMILIES, *REFERENCE), [replace(CONTEXT, zero_stage=0)])


def test_states_are_shared_by_context_and_data_ranks() -> None:
    """Replicas, shards over all of them, and shard groups of a part."""
    stages = [replace(DATA, zero_stage=0), replace(DATA, zero_stage=1), replace(DATA, zero_stage=1, shard_group_size=2)]
    check(("qwen3",), [*stages, replace(DATA, zero_stage=3, recompute=Recompute.FULL, micro_batch_size=1)])
    check(REFERENCE[:1], [replace(CONTEXT, context_parallel_size=4)], max_grad_norm=0.3)


def test_with_tensor_and_sequence_parallelism() -> None:
    tensor = replace(CONTEXT, tensor_parallel_size=2)
    check(("llama", *REFERENCE[:2]), [tensor, replace(tensor, sequence_parallel=True)])


def test_under_a_pipeline() -> None:
    pipeline = replace(CONTEXT, pipeline_parallel_size=2, micro_batch_size=1)
    check(("gpt2", "llama", REFERENCE[1]), [pipeline, replace(pipeline, pipeline_schedule=PipelineSchedule.ZERO_BUBBLE, zero_stage=3)])


def test_with_experts_over_context_ranks() -> None:
    check(("mixtral", REFERENCE[2]), [replace(CONTEXT, expert_parallel_size=2)])
    split = replace(CONTEXT, tensor_parallel_size=2, sequence_parallel=True)
    check(("mixtral",), [replace(DATA, expert_parallel_size=4), replace(split, expert_parallel_size=4)])


def test_evaluation_and_batches_that_cannot_be_split() -> None:
    """Refused on every rank; the engine trains on."""
    (batch,) = batches(1, size=ROWS)

    def run(_: int) -> tuple[float, float, list[str]]:
        engine = build_engine(tiny("llama"), CONTEXT, optimizer=adamw, global_batch_size=ROWS, options=FP32)
        wrong = [
            {name: value[:, :14] for name, value in batch.items()},
            {**batch, "attention_mask": (batch["labels"] != -100).long()},
            {**batch, "position_ids": batch["labels"]},
        ]
        said = []
        for each in wrong:
            with pytest.raises(InvalidInputError) as caught:
                engine.train_step(each)
            said.append(str(caught.value))
        return engine.eval_step(batch), engine.train_step({**batch, "attention_mask": batch["labels"] * 0 + 1}), said

    alone = train_alone(tiny("llama"), [batch])
    for evaluated, trained, said in run_ranks(2, run):
        assert (evaluated, trained) == pytest.approx((alone.losses[0],) * 2, rel=1e-5)
        assert "sequence_length=14: a multiple of 4: two parts for each of context_parallel_size=2; pad to 16" in said[0]
        assert "attention_mask=zeros: sequences without padding" in said[1]
        assert "position_ids: input_ids and labels alone" in said[2]


def check(names: Sequence[str], strategies: Sequence[Strategy], *, max_grad_norm: float | None = None) -> None:
    data = list(batches(2, size=ROWS))
    alone = {name: train_alone(tiny(name), data, max_grad_norm=max_grad_norm) for name in names}
    options = replace(FP32, max_grad_norm=max_grad_norm)
    cases = [(name, strategy) for strategy in strategies for name in names]

    def train(_: int) -> list[Trained]:
        return [train_parallel(tiny(name), strategy, data, options=options) for name, strategy in cases]

    results = run_ranks(strategies[0].world_size, train, timeout=240)
    for position, (name, strategy) in enumerate(cases):
        try:
            assert_same([result[position] for result in results], alone[name], compare_gradients=max_grad_norm is None)
        except AssertionError as error:
            error.add_note(f"{name} under {strategy.describe()}")
            raise
