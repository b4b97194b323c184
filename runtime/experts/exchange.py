"""The all-to-all of rows between expert-parallel ranks, with as many rows for each of them as the router sends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

Group = dist.ProcessGroup


def exchange_rows(rows: Tensor, to: Sequence[int], from_: Sequence[int], group: Group) -> Tensor:
    """Rows (R, …) sorted by the rank they go to; the rows that come from each rank, in rank order. Backward: the way back.

    ``to`` and ``from_``: how many rows go to each rank, and how many come from each.
    """
    return cast(Tensor, _ExchangeRows.apply(rows, list(to), list(from_), group))  # type: ignore[no-untyped-call]


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
    def forward(ctx: Any, rows: Tensor, to: list[int], from_: list[int], group: Group) -> Tensor:
        # A recomputation stops at the last tensor that its backward has saved. Every rank of the group has to get as far as this
        # exchange, also one whose experts got no rows, so there is one saved here.
        ctx.save_for_backward(rows.new_empty(0))
        ctx.to, ctx.from_, ctx.group = to, from_, group
        return _send(rows, to, from_, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        _ = ctx.saved_tensors  # which is when a recomputation runs
        return _send(grad, ctx.from_, ctx.to, ctx.group), None, None, None
