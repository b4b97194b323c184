"""The engine beside its numerics: batches, evaluation, precision, errors that reach every rank."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from autopar.costmodel.spec.errors import InvalidInputError
from autopar.costmodel.spec.strategy import PipelineSchedule, Recompute, Strategy
from autopar.costmodel.spec.training import PRECISIONS
from autopar.runtime.engine import EngineOptions, build_engine
from autopar.runtime.failures import TrainingFailedError

from .oracle import FP32, Trained, adamw, assert_same, small_gpt, token_batches, train_alone, train_parallel, whole_tensors
from .processes import run_ranks

PIPELINE_AND_DATA = Strategy(pipeline_parallel_size=2, data_parallel_size=2, micro_batch_size=1, zero_stage=2)


def test_a_part_of_the_batch_for_each_data_parallel_rank_trains_as_the_whole_does() -> None:
    batches = token_batches(2, 8)

    def train(_: int) -> list[float]:
        engine = build_engine(small_gpt(), PIPELINE_AND_DATA, optimizer=adamw, global_batch_size=8, options=FP32)
        first = 4 * engine.mesh.data_parallel_rank
        losses = []
        for batch in batches:
            part = {name: value[first : first + 4] for name, value in batch.items()}
            losses.append(engine.train_step(part, local_batch=True))
        return losses

    alone = train_alone(small_gpt(), batches).losses
    assert run_ranks(4, train) == [pytest.approx(alone, rel=1e-5)] * 4


@pytest.mark.parametrize(
    "strategy",
    [PIPELINE_AND_DATA, Strategy(pipeline_parallel_size=4, micro_batch_size=1, pipeline_schedule=PipelineSchedule.DUALPIPE)],
    ids=["1f1b", "dualpipe"],
)
def test_evaluation_takes_any_number_of_micro_batches_and_leaves_no_trace(strategy: Strategy) -> None:
    """Dropout is off in it; the loss is the one process's."""
    train, test = token_batches(1, 8)[0], token_batches(2, 12)[1]

    def evaluate(_: int) -> tuple[float, float, list[float]]:
        engine = build_engine(small_gpt(), strategy, optimizer=adamw, global_batch_size=8, options=FP32)
        before = engine.eval_step(test)
        trained = engine.train_step(train)
        return before, trained, [engine.eval_step(test), engine.eval_step(test)]

    first = train_alone(small_gpt(), [test]).losses[0]
    for before, trained, after in run_ranks(4, evaluate):
        assert before == pytest.approx(first, rel=1e-5)
        assert trained == pytest.approx(train_alone(small_gpt(), [train]).losses[0], rel=1e-5)
        assert after[0] == after[1] != before


def test_token_ids_alone_are_a_batch() -> None:
    ids = token_batches(1, 8, ignored=False)[0]["input_ids"]

    def train(_: int) -> float:
        engine = build_engine(small_gpt(), PIPELINE_AND_DATA, optimizer=adamw, global_batch_size=8, options=FP32)
        return engine.train_step(ids)

    expected = train_alone(small_gpt(), [{"input_ids": ids, "labels": ids}]).losses[0]
    assert run_ranks(4, train) == [pytest.approx(expected, rel=1e-5)] * 4


def test_batches_of_other_lengths_may_follow_one_another() -> None:
    batches = [token_batches(1, 4, sequence=length)[0] for length in (8, 6, 8, 3)]

    def train(_: int) -> tuple[float, ...]:
        return train_parallel(small_gpt(), Strategy(pipeline_parallel_size=2), batches).losses

    assert run_ranks(2, train) == [pytest.approx(train_alone(small_gpt(), batches).losses, rel=1e-5)] * 2


def test_a_loss_that_is_no_number_stops_every_rank_before_the_parameters_move() -> None:
    def train(_: int) -> tuple[str, bool]:
        model = small_gpt()
        with torch.no_grad():
            model.head.weight[0, 0] = float("nan")
        engine = build_engine(model, PIPELINE_AND_DATA, optimizer=adamw, global_batch_size=8, options=replace(FP32, max_grad_norm=1.0))
        before = whole_tensors(engine)
        with pytest.raises(TrainingFailedError) as caught:
            engine.train_step(token_batches(1, 8)[0])
        after = whole_tensors(engine)
        return str(caught.value), all(torch.equal(before[name], after[name]) for name in after if name != "head.weight")

    for message, unmoved in run_ranks(4, train):
        assert "the loss of step 1 is nan" in message
        assert unmoved


def test_a_loss_that_is_no_number_is_returned_where_that_is_asked() -> None:
    def train(_: int) -> float:
        model = small_gpt()
        with torch.no_grad():
            model.head.weight[0, 0] = float("nan")
        engine = build_engine(model, Strategy(), optimizer=adamw, global_batch_size=1, options=replace(FP32, check_loss=False))
        return engine.train_step(token_batches(1, 1)[0])

    assert str(run_ranks(1, train)) == "[nan]"


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        ({"input_ids": torch.zeros(6, 4, dtype=torch.int64)}, "6 rows: tensors of 8 rows"),
        ({"input_ids": torch.zeros(8, 4, dtype=torch.int64), "labels": torch.zeros(4, 4, dtype=torch.int64)}, "labels=4 rows"),
        ({"input_ids": torch.zeros((), dtype=torch.int64), "labels": 3}, "labels=int"),
        ({}, "batch=nothing"),
    ],
)
def test_a_batch_of_other_rows_is_refused_on_every_rank(batch: Any, said: str) -> None:
    def train(_: int) -> str:
        engine = build_engine(small_gpt(), PIPELINE_AND_DATA, optimizer=adamw, global_batch_size=8, options=FP32)
        with pytest.raises(InvalidInputError) as caught:
            engine.train_step(batch)
        return str(caught.value)

    assert all(said in message for message in run_ranks(4, train, timeout=30))


def test_one_rank_with_a_bad_part_of_the_batch_stops_all() -> None:
    def train(rank: int) -> str:
        engine = build_engine(small_gpt(), Strategy(data_parallel_size=2), optimizer=adamw, global_batch_size=8, options=FP32)
        with pytest.raises(InvalidInputError) as caught:
            engine.train_step(token_batches(1, 4 if rank == 0 else 3)[0], local_batch=True)
        return str(caught.value)

    good, bad = run_ranks(2, train, timeout=30)
    assert "another data-parallel rank's part" in good
    assert "input_ids=3 rows: tensors of 4 rows" in bad


def test_all_faults_come_at_once_and_on_every_rank() -> None:
    strategy = Strategy(
        data_parallel_size=3, context_parallel_size=2, pipeline_layers=(3,), zero_stage=3, shard_group_size=4, micro_batch_size=2
    )

    def build(_: int) -> str:
        options = replace(FP32, precision=PRECISIONS["fp8"])
        with pytest.raises(InvalidInputError) as caught:
            build_engine(small_gpt(), strategy, optimizer=adamw, global_batch_size=8, options=options)
        return str(caught.value)

    first, second = run_ranks(2, build, timeout=30)
    assert first == second
    assert first.splitlines() == [
        f"world_size=2: the plan needs 6 ranks ({strategy.describe()}); start the job with 6 processes",
        "context_parallel_kind=ring: this runtime gathers keys and values (all_gather); use context_parallel_kind=all_gather",
        "shard_group_size=4: a divisor of data_parallel_size=3 x context_parallel_size = 6; nearest valid: 1, 2, 3, 6",
        "pipeline_layers=3: 1 stages whose layers sum to the model's 4; leave it out for an even split",
        "precision=fp8: fp8 needs kernels that torch alone does not have, which this runtime does not provide; "
        "it runs bf16, amp-bf16, pure-bf16, fp32 or tf32; use bf16",
        "global_batch_size=8: a multiple of data_parallel_size x micro_batch_size = 6; nearest valid: 6, 12",
    ]


@pytest.mark.parametrize(("name", "stored"), [("bf16", "float32"), ("amp-bf16", "float32"), ("pure-bf16", "bfloat16")])
def test_lower_precisions_train_close_to_fp32(name: str, stored: str) -> None:
    """To bf16's three digits; what the optimizer updates has the type that the precision's bytes say."""
    batches = token_batches(2, 8)
    options = EngineOptions(precision=PRECISIONS[name], max_grad_norm=1.0)
    plans = [Strategy(data_parallel_size=2, zero_stage=zero, micro_batch_size=2) for zero in (0, 1, 3)]
    plans.append(Strategy(pipeline_parallel_size=2, micro_batch_size=2, pipeline_schedule=PipelineSchedule.ZERO_BUBBLE))
    plans.append(Strategy(tensor_parallel_size=2, sequence_parallel=True, micro_batch_size=2, recompute=Recompute.FULL))

    def train(_: int) -> list[tuple[tuple[float, ...], set[str]]]:
        results = []
        for strategy in plans:
            done = train_parallel(small_gpt(tied_embeddings=True), strategy, batches, options=options)
            results.append((done.losses, {str(value.dtype) for value in done.parameters.values()}))
        return results

    alone = train_alone(small_gpt(tied_embeddings=True), batches, max_grad_norm=1.0).losses
    for results in run_ranks(2, train):
        for strategy, (losses, types) in zip(plans, results, strict=True):
            assert losses == pytest.approx(alone, rel=1e-2), strategy.describe()
            assert types == {f"torch.{stored}"}


def test_frozen_layers_stay_as_they_are_and_the_rest_trains() -> None:
    """The first stage keeps its first layer and embeddings frozen: what it sends needs a gradient from the second layer on."""
    batches = token_batches(2, 8)
    plans = [
        Strategy(pipeline_parallel_size=2, pipeline_schedule=kind) for kind in (PipelineSchedule.ONE_F_ONE_B, PipelineSchedule.ZERO_BUBBLE)
    ]
    plans += [Strategy(data_parallel_size=2, zero_stage=zero) for zero in (0, 3)]

    def frozen() -> torch.nn.Module:
        model = small_gpt()
        for name, parameter in model.named_parameters():
            parameter.requires_grad = not name.startswith(("tokens", "positions", "blocks.0", "blocks.3.attention"))
        return model

    def train(_: int) -> list[Trained]:
        return [train_parallel(frozen(), strategy, batches) for strategy in plans]

    alone = train_alone(frozen(), batches)
    results = run_ranks(2, train)
    for position in range(len(plans)):
        assert_same([result[position] for result in results], alone)


def test_a_single_process_needs_no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    batches = token_batches(2, 4)
    try:
        assert train_parallel(small_gpt(), Strategy(micro_batch_size=2), batches).losses == pytest.approx(
            train_alone(small_gpt(), batches).losses, rel=1e-5
        )
    finally:
        torch.distributed.destroy_process_group()
