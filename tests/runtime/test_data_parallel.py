"""What each ZeRO stage holds and sends: shards, and collectives a step."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from autopar.costmodel.spec.strategy import Strategy
from autopar.runtime.engine import build_engine

from .oracle import FP32, adamw, small_gpt, token_batches
from .processes import run_ranks

BLOCKS, MICROBATCHES = 4, 4
GROUPS = BLOCKS + 1
"""Groups of parameters that are communicated together: the blocks, and embeddings, norm and head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One rank: its share of the parameters, optimizer states and gradients, and what it sent in a step, by collective."""

    parameters: float
    states: float
    gradients: float
    sent: dict[str, int]


class Collectives(TorchDispatchMode):
    """Counts collectives by name."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self.sent[func.__name__.partition(".")[0].strip("_")] += 1
        return func(*args, **(kwargs or {}))


def observe(strategy: Strategy) -> list[Seen]:
    batch = token_batches(1, strategy.data_parallel_size * MICROBATCHES)[0]

    def train(_: int) -> Seen:
        engine = build_engine(small_gpt(), strategy, optimizer=adamw, global_batch_size=len(batch["input_ids"]), options=FP32)
        engine.train_step(batch)
        with Collectives() as collectives:
            engine.train_step(batch)
        whole = local = states = gradients = 0
        for parameter in engine.model_parts[0].parameters():
            whole += parameter.numel()
            local += _local(parameter)
            states += sum(_local(state) for state in engine.optimizer.state[parameter].values() if state.dim())
            gradients += _local(parameter.grad)
        return Seen(parameters=local / whole, states=states / whole, gradients=gradients / whole, sent=dict(collectives.sent))

    return run_ranks(strategy.data_parallel_size, train)


def _local(tensor: object) -> int:
    assert tensor is not None
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return int(local.numel())  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("strategy", "share", "sent"),
    [
        # one bucket, and the loss
        (Strategy(data_parallel_size=2, zero_stage=0), 1, {"allreduce": 2}),
        (Strategy(data_parallel_size=2, zero_stage=1), 1 / 2, {"allgather_base": GROUPS, "reduce_scatter_base": GROUPS, "allreduce": 1}),
        (
            Strategy(data_parallel_size=2, zero_stage=2),
            1 / 2,
            {"allgather_base": GROUPS, "reduce_scatter_base": MICROBATCHES * GROUPS, "allreduce": 1},
        ),
        # blocks are gathered for the forward and again for the backward
        (
            Strategy(data_parallel_size=2, zero_stage=3),
            1 / 2,
            {"allgather_base": MICROBATCHES * (GROUPS + BLOCKS), "reduce_scatter_base": MICROBATCHES * GROUPS, "allreduce": 1},
        ),
        # copies of the shards are summed once a step, whatever the stage
        (
            Strategy(data_parallel_size=4, zero_stage=2, shard_group_size=2),
            1 / 2,
            {"allgather_base": GROUPS, "reduce_scatter_base": MICROBATCHES * GROUPS, "allreduce": GROUPS + 1},
        ),
    ],
    ids=["zero-0", "zero-1", "zero-2", "zero-3", "hsdp"],
)
def test_a_stage_holds_its_shards_and_sends_no_more_than_it_must(strategy: Strategy, share: float, sent: dict[str, int]) -> None:
    for seen in observe(strategy):
        assert seen == Seen(parameters=share, states=2 * share, gradients=share, sent=sent)
