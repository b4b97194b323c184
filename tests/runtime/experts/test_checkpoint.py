"""Checkpoints of spread experts are read under any other layout, bit for bit, and trained on alike."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from autopar.costmodel.spec.strategy import ContextParallelKind, Strategy
from autopar.runtime.engine import Engine, build_engine
from autopar.runtime.tensor.fused import fused_layouts
from tests.runtime.models import batches, tiny
from tests.runtime.oracle import FP32, adamw
from tests.runtime.processes import run_ranks

ROWS = 4
SAVED = Strategy(data_parallel_size=2, expert_parallel_size=2, zero_stage=1)
READ = (
    Strategy(),
    Strategy(data_parallel_size=4, expert_parallel_size=4),
    Strategy(data_parallel_size=4, expert_parallel_size=2, zero_stage=3),
    Strategy(data_parallel_size=2, context_parallel_size=2, context_parallel_kind=ContextParallelKind.ALL_GATHER, zero_stage=3),
    Strategy(tensor_parallel_size=2, sequence_parallel=True, expert_parallel_size=2, pipeline_parallel_size=2),
    Strategy(tensor_parallel_size=2, sequence_parallel=True, expert_tensor_parallel_size=2, data_parallel_size=2, zero_stage=1),
)


def engine(name: str, strategy: Strategy) -> Engine:
    return build_engine(tiny(name), strategy, optimizer=adamw, global_batch_size=ROWS, options=FP32)


def states(built: Engine) -> dict[str, Tensor]:
    """Whole parameters and second moments, by name; a collective call."""
    found = {}
    for part in built.model_parts:
        fused = fused_layouts(part)
        for name, parameter in part.named_parameters():
            for kind, tensor in (("", parameter.detach()), ("/square", built.optimizer.state[parameter]["exp_avg_sq"])):
                whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
                found[name + kind] = (fused[name].to_user(whole) if name in fused else whole).clone()
    return found


@pytest.mark.parametrize("name", ["mixtral", "reference-gpt-experts"])
def test_spread_experts_are_read_under_any_layout(name: str, tmp_path: Path) -> None:
    first, second = batches(2, size=ROWS)

    def save(_: int) -> tuple[dict[str, Tensor], float]:
        built = engine(name, SAVED)
        built.train_step(first)
        built.save(tmp_path)
        return states(built), built.train_step(second)

    def load(_: int, strategy: Strategy) -> tuple[dict[str, Tensor], float]:
        built = engine(name, strategy)
        built.load(tmp_path)
        return states(built), built.train_step(second)

    truth, loss = run_ranks(2, save)[0]
    for strategy in READ:
        results = run_ranks(strategy.world_size, load, strategy)
        found = {label: tensor for result, _ in results for label, tensor in result.items()}
        assert found.keys() == truth.keys()
        different = [label for label, tensor in found.items() if not torch.equal(tensor, truth[label])]
        assert different == [], strategy.describe()
        assert [value for _, value in results] == pytest.approx([loss] * strategy.world_size, rel=1e-5)
