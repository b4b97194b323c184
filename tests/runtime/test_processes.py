"""The helper that starts ranks: results in order, errors with their type, no hanging."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist

from autopar.costmodel.spec.errors import InvalidInputError

from .processes import run_ranks


def _sum_of_ranks(rank: int, offset: int) -> tuple[int, torch.Tensor]:
    total = torch.tensor([float(rank + offset)])
    dist.all_reduce(total)
    return rank, total


def test_results_come_in_rank_order() -> None:
    assert run_ranks(3, _sum_of_ranks, 1) == [(rank, torch.tensor([6.0])) for rank in range(3)]


def _fails_on_one(rank: int) -> None:
    if rank == 1:
        raise InvalidInputError("a reason")
    dist.barrier()


def test_an_error_keeps_its_type_and_ends_the_others() -> None:
    started = time.monotonic()
    with pytest.raises(InvalidInputError, match="a reason") as caught:
        run_ranks(2, _fails_on_one, timeout=60)
    assert "on rank 1 of 2" in caught.value.__notes__[0]
    assert time.monotonic() - started < 30


def _hangs(rank: int) -> None:
    if rank == 0:
        time.sleep(60)


def test_a_hang_names_the_ranks_that_hang() -> None:
    with pytest.raises(TimeoutError, match=r"\[0\] of 2"):
        run_ranks(2, _hangs, timeout=2)
