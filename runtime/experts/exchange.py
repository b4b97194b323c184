"""The all-to-all of rows between expert-parallel ranks, with as many rows for each of them as the router sends."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

Group = dist.ProcessGroup


def exchange_rows(rows: Tensor, splits: Tensor, group: Group) -> Tensor:
    """Rows (R, …) sorted by the rank they go to; the rows that come from each rank, in rank order. Backward: the way back.

    Args:
        splits: (2, ranks) on the CPU: rows that go to each rank, and rows that come from each.
    """
    return cast(Tensor, _ExchangeRows.apply(rows, splits, group))  # type: ignore[no-untyped-call]


def exchange_counts(counts: Tensor, group: Group) -> Tensor:
    """``counts`` (ranks, …) of what goes to each rank; the same of what comes from each."""
    received = torch.empty_like(counts)
    dist.all_to_all_single(received, counts.contiguous(), group=group)
    return received


def _send(rows: Tensor, to: list[int], from_: list[int], group: Group) -> Tensor:
    received = rows.new_empty((sum(from_), *rows.shape[1:]))
    dist.all_to_all_single(received, rows.contiguous(), from_, to, group=group)
    return received


class _ExchangeRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, splits: Tensor, group: Group) -> Tensor:
        # Saved as a tensor: a recomputation stops at the last tensor that its backward needs, and every rank of the group has to
        # get as far as this exchange, also one whose experts got no rows.
        ctx.save_for_backward(splits)
        ctx.group = group
        to, from_ = splits.tolist()
        return _send(rows, to, from_, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (splits,) = ctx.saved_tensors
        to, from_ = splits.tolist()
        return _send(grad, from_, to, ctx.group), None, None
