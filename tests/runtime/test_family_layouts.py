"""Fused and stacked weights, split over tensor-parallel ranks and again over ZeRO 3's, with recomputation."""

from __future__ import annotations

import pytest

from autopar.costmodel.spec.strategy import Recompute, Strategy

from .models import batches, tiny
from .oracle import Trained, assert_same, train_alone, train_parallel
from .processes import run_ranks

STRATEGY = Strategy(
    tensor_parallel_size=2, sequence_parallel=True, data_parallel_size=2, micro_batch_size=1, zero_stage=3, recompute=Recompute.FULL
)
STEPS, ROWS = 2, 4


def _run(_: int, name: str, strategy: Strategy) -> Trained:
    return train_parallel(tiny(name), strategy, list(batches(STEPS, size=ROWS)))


@pytest.mark.parametrize("name", ["gpt2", "phi3", "mixtral"])
def test_weights_split_twice_train_as_in_one_process(name: str) -> None:
    alone = train_alone(tiny(name), list(batches(STEPS, size=ROWS)))
    assert_same(run_ranks(4, _run, name, STRATEGY, timeout=120), alone)


def test_a_model_of_no_known_family_trains_in_stages() -> None:
    """OPT registers its final norm before its blocks, and calls its table of positions with more than ids."""
    alone = train_alone(tiny("opt"), list(batches(STEPS, size=ROWS)))
    strategy = Strategy(tensor_parallel_size=2, sequence_parallel=False, pipeline_parallel_size=2, micro_batch_size=2)
    assert_same(run_ranks(4, _run, "opt", strategy, timeout=120), alone)
