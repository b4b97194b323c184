"""Families under combined axes: the engine's losses, gradients and parameters against one process."""

from __future__ import annotations

from typing import Any

import pytest

from autopar.costmodel.spec.strategy import Recompute, Strategy

from .models import batches, tiny
from .oracle import Trained, assert_same, train_alone, train_parallel
from .processes import run_ranks

NAMES = ("qwen3", "gemma2", "gpt2", "phi3", "mixtral")
"""One of each way that weights are laid out, tied and untied, and of each kind of norm."""
STEPS, ROWS = 2, 4


def _strategy(**sizes: Any) -> Strategy:
    return Strategy(**{"tensor_parallel_size": 2, "pipeline_parallel_size": 1, "data_parallel_size": 1, "micro_batch_size": 1, **sizes})


STRATEGIES = (
    _strategy(pipeline_parallel_size=2, sequence_parallel=True),
    _strategy(data_parallel_size=2, sequence_parallel=True, zero_stage=3, recompute=Recompute.FULL),
    _strategy(pipeline_parallel_size=2, micro_batch_size=2),
)


def _run(_: int, name: str) -> list[Trained]:
    return [train_parallel(tiny(name), strategy, list(batches(STEPS, size=ROWS))) for strategy in STRATEGIES]


@pytest.mark.parametrize("name", NAMES)
def test_a_family_trains_under_combined_axes_as_in_one_process(name: str) -> None:
    alone = train_alone(tiny(name), list(batches(STEPS, size=ROWS)))
    results = run_ranks(4, _run, name, timeout=120)
    for index, strategy in enumerate(STRATEGIES):
        try:
            assert_same([result[index] for result in results], alone)
        except AssertionError as error:
            error.add_note(strategy.describe())
            raise
