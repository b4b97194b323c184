"""Fifty steps of a real text task: every layout has the loss curve of one process, weights, dropout and optimizer included.

The text is the project's licence, byte by byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from autopar.costmodel.spec.strategy import PipelineSchedule, Recompute, Strategy
from autopar.costmodel.spec.training import PRECISIONS
from autopar.runtime.build import EngineOptions
from autopar.runtime.engine import build_engine
from autopar.runtime.loss import next_token_loss
from autopar.runtime.random.dropout import LayoutFreeDropout
from autopar.runtime.random.initialise import InitialWeights
from autopar.runtime.reference_gpt import ReferenceGPT, ReferenceGPTConfig

from .processes import run_ranks

TEXT = Path(__file__).parents[2] / "LICENSE"
STEPS, ROWS, LENGTH, SEED = 50, 8, 32, 2
TOLERANCE = 1e-5
"""Of each loss. 4e-7 is seen; differences of rounding grow from step to step."""

LAYOUTS = {
    "tp2 pp2": Strategy(tensor_parallel_size=2, sequence_parallel=True, pipeline_parallel_size=2, micro_batch_size=4),
    "pp2 dp2": Strategy(
        pipeline_parallel_size=2, data_parallel_size=2, zero_stage=1, micro_batch_size=2, pipeline_schedule=PipelineSchedule.GPIPE
    ),
    "dp2 zero3": Strategy(data_parallel_size=2, zero_stage=3, micro_batch_size=2, recompute=Recompute.FULL),
}


def _model() -> ReferenceGPT:
    config = ReferenceGPTConfig(
        num_layers=2,
        hidden_size=32,
        ffn_hidden_size=64,
        num_attention_heads=4,
        max_position_embeddings=LENGTH,
        dropout=0.1,
        tied_embeddings=True,
    )
    with torch.device("meta"):
        return ReferenceGPT(config)


def _optimizer(parameters: Iterator[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=3e-3, weight_decay=0.01, eps=1e-6)


def _batches() -> Iterator[Tensor]:
    text = torch.tensor(list(TEXT.read_bytes()))
    generator = torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        starts = torch.randint(len(text) - LENGTH, (ROWS, 1), generator=generator)
        yield text[starts + torch.arange(LENGTH)]


def _alone() -> list[float]:
    model = _model()
    InitialWeights.read(model, seed=SEED).give_to([model], device=torch.device("cpu"))
    dropout, optimizer, losses = LayoutFreeDropout([model], seed=SEED), _optimizer(model.parameters()), []
    for step, ids in enumerate(_batches()):
        with dropout.forward(step=step, first_sample=0, num_samples=ROWS, sequence_length=LENGTH):
            loss = next_token_loss(model(ids), ids)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def _together(_: int, strategy: Strategy) -> list[float]:
    options = EngineOptions(precision=PRECISIONS["fp32"], seed=SEED, max_grad_norm=1.0)
    engine = build_engine(_model(), strategy, optimizer=_optimizer, global_batch_size=ROWS, options=options)
    return [engine.train_step(ids) for ids in _batches()]


@pytest.fixture(scope="module")
def curve() -> list[float]:
    return _alone()


def test_the_model_learns(curve: list[float]) -> None:
    first, last = sum(curve[:3]) / 3, sum(curve[-3:]) / 3
    assert first > 5.0  # bytes at random: ln 256 = 5.5
    assert last < 3.2  # the letters' frequencies alone: 3.1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_has_the_curve_of_one_process(layout: str, curve: list[float]) -> None:
    strategy = LAYOUTS[layout]
    for losses in run_ranks(strategy.world_size, _together, strategy):
        assert losses == pytest.approx(curve, rel=TOLERANCE)
