"""Models of experts train under expert parallelism as one process trains them: loss, norm, every gradient and parameter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import nn

from autopar.costmodel.spec.strategy import PipelineSchedule, Recompute, Strategy
from autopar.costmodel.spec.training import PRECISIONS
from autopar.runtime.engine import EngineOptions, build_engine
from autopar.runtime.loss import build_loss
from tests.runtime.models import batches, tiny
from tests.runtime.oracle import FP32, TOLERANCE, Trained, adamw, assert_same, distances, train_alone, train_parallel
from tests.runtime.processes import run_ranks

MODELS = ("mixtral", "qwen3_moe", "reference-gpt-experts")
ROWS = 8
TWO = Strategy(data_parallel_size=2, expert_parallel_size=2)
FOUR = Strategy(data_parallel_size=4, expert_parallel_size=2)
TENSOR = Strategy(tensor_parallel_size=2, sequence_parallel=True, micro_batch_size=2)
PIPELINE = Strategy(pipeline_parallel_size=2, data_parallel_size=2, expert_parallel_size=2)


def one_sided(name: str) -> nn.Module:
    """With a router that has no preferences: all tokens of the first step go to the same two experts."""
    model = tiny(name)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if path.endswith(("mlp.gate.weight", "router.weight")):
                parameter.zero_()
    return model


def test_over_the_data_axis() -> None:
    check(MODELS, [replace(TWO, micro_batch_size=2), replace(TWO, zero_stage=3, recompute=Recompute.FULL)])


def test_with_copies_of_the_experts_under_every_zero_stage() -> None:
    check(MODELS[:2], [replace(FOUR, zero_stage=stage) for stage in range(4)])
    check(MODELS[2:], [replace(FOUR, zero_stage=1, shard_group_size=2), replace(FOUR, expert_parallel_size=4)])


def test_under_a_pipeline() -> None:
    check(MODELS[:1], [PIPELINE, replace(PIPELINE, pipeline_schedule=PipelineSchedule.DUALPIPE)])
    check(MODELS[1:], [replace(PIPELINE, pipeline_schedule=PipelineSchedule.ZERO_BUBBLE, zero_stage=stage) for stage in (1, 3)])


def test_under_tensor_and_sequence_parallelism() -> None:
    """Each rank's experts see its own part of the sequence; whole ones on every rank, too."""
    check((*MODELS, "qwen2_moe"), [TENSOR, replace(TENSOR, expert_parallel_size=2)])
    check(MODELS, [replace(TENSOR, data_parallel_size=2, expert_parallel_size=size, zero_stage=1) for size in (1, 2, 4)])


def test_experts_that_are_cut_as_the_dense_layers_are() -> None:
    check(MODELS, [replace(TENSOR, expert_tensor_parallel_size=2), replace(TENSOR, sequence_parallel=False, expert_tensor_parallel_size=2)])


def test_all_axes_on_eight_ranks() -> None:
    strategy = replace(TENSOR, data_parallel_size=2, pipeline_parallel_size=2, expert_parallel_size=4, micro_batch_size=1, zero_stage=1)
    check(MODELS[:2], [strategy])


def test_a_router_that_sends_all_tokens_to_one_rank() -> None:
    """The other ranks' experts get nothing, and their gradients are zeros that nobody waits for in vain."""
    alone, spread = replace(FOUR, expert_parallel_size=4), replace(PIPELINE, pipeline_schedule=PipelineSchedule.ZERO_BUBBLE)
    check(MODELS, [replace(alone, zero_stage=2, recompute=Recompute.FULL), replace(spread, zero_stage=3)], build=one_sided)


def test_clipping_counts_each_expert_once() -> None:
    check(MODELS[:2], [FOUR, replace(TENSOR, data_parallel_size=2, expert_parallel_size=2)], max_grad_norm=0.3)


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe"])
def test_a_balancing_loss_is_the_mean_over_micro_batches(name: str) -> None:
    """Each is of its own micro-batch's tokens, on one rank or on two, as in a loop that accumulates gradients."""

    def build() -> nn.Module:
        model = tiny(name)
        model.config.output_router_logits = True
        model.router_aux_loss_coef = 0.5  # type: ignore[assignment]
        return model

    (batch,) = batches(1, size=ROWS)
    alone, loss, expected = build(), build_loss(build()), 0.0
    total = loss.count(batch)
    for first in range(0, ROWS, 2):
        part = {key: value[first : first + 2] for key, value in batch.items()}
        output = alone(**part)  # the mean over its own labels, and the balancing loss
        share = output.loss * (loss.count(part) / total)
        share.backward()
        expected += share.item()
    gradients = {label: parameter.grad for label, parameter in alone.named_parameters()}

    def train(_: int, strategy: Strategy) -> Trained:
        return train_parallel(build(), strategy, [batch])

    for strategy in (Strategy(micro_batch_size=2), replace(TWO, micro_batch_size=2)):
        for result in run_ranks(strategy.world_size, train, strategy):
            assert result.losses == pytest.approx((expected,), rel=1e-5)
            assert max(distances(result.gradients[0], gradients).values()) < TOLERANCE  # type: ignore[arg-type]


@pytest.mark.parametrize("precision", ["bf16", "amp-bf16", "pure-bf16"])
def test_lower_precisions_train(precision: str) -> None:
    """Near the loss of fp32: their rounding is coarse, and routing may turn on it."""

    def train(_: int) -> list[float]:
        options = EngineOptions(precision=PRECISIONS[precision])
        engine = build_engine(tiny("mixtral"), replace(TWO, micro_batch_size=2), optimizer=adamw, global_batch_size=ROWS, options=options)
        return [engine.train_step(batch) for batch in batches(2, size=ROWS)]

    alone = train_alone(tiny("mixtral"), list(batches(2, size=ROWS)))
    for losses in run_ranks(2, train):
        assert losses == pytest.approx(alone.losses, rel=2e-2)


def check(
    names: Sequence[str], strategies: Sequence[Strategy], *, max_grad_norm: float | None = None, build: object = tiny, steps: int = 2
) -> None:
    """The layouts of one number of ranks share the start of their processes."""
    assert callable(build)
    data = list(batches(steps, size=ROWS))
    alone = {name: train_alone(build(name), data, max_grad_norm=max_grad_norm) for name in names}
    options = replace(FP32, max_grad_norm=max_grad_norm)
    cases = [(name, strategy) for strategy in strategies for name in names]

    def train(_: int) -> list[Trained]:
        return [train_parallel(build(name), strategy, data, options=options) for name, strategy in cases]

    results = run_ranks(strategies[0].world_size, train, timeout=240)
    for position, (name, strategy) in enumerate(cases):
        try:
            # Clipped gradients are not the oracle's; norm and parameters are.
            assert_same([result[position] for result in results], alone[name], compare_gradients=max_grad_norm is None)
        except AssertionError as error:
            error.add_note(f"{name} under {strategy.describe()}")
            raise
