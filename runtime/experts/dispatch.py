"""Takes tokens to the ranks that hold their experts and brings the results back.

Legend: T tokens of this rank, K experts a token, E experts, L experts of a rank (E / ranks), R rows that this rank's experts
receive (in ``_rl``: ranks), H hidden. A row is a token on its way to one of its experts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from .exchange import exchange_counts, exchange_rows

ExpertsForward = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Tokens (R, H), their experts (R, K) and the experts' weights (R, K) to the weighted sums (R, H)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    """How many rows go to each rank and come from each, and for which of this rank's experts those that come are."""

    to: list[int]
    from_: list[int]
    local_r: Tensor


Routing = Callable[[Tensor, int, dist.ProcessGroup], Routes]
"""Of the experts of all rows (T x K), E and the group."""


def exchanged_routes(experts: Tensor, num_experts: int, group: dist.ProcessGroup) -> Routes:
    """As the router of every rank says; the counts are read on the host, once."""
    ranks = dist.get_world_size(group)
    sent_rl = torch.bincount(experts, minlength=num_experts).view(ranks, -1)
    received_rl = exchange_counts(sent_rl, group)
    to, from_ = torch.stack((sent_rl.sum(1), received_rl.sum(1))).tolist()
    local = torch.arange(received_rl.shape[1], device=experts.device).repeat(ranks).repeat_interleave(received_rl.reshape(-1))
    return Routes(to=to, from_=from_, local_r=local)


def balanced_routes(experts: Tensor, num_experts: int, group: dist.ProcessGroup) -> Routes:
    """As many rows for each rank, whatever the router says: a dry run's tokens have no values, and nobody to count them with."""
    ranks, rows = dist.get_world_size(group), len(experts)
    even = [rows // ranks + (rank < rows % ranks) for rank in range(ranks)]
    local = num_experts // ranks
    return Routes(to=even, from_=even, local_r=torch.arange(rows, device=experts.device) * local // max(rows, 1))


def dispatched(
    forward: ExpertsForward,
    tokens_th: Tensor,
    index_tk: Tensor,
    weights_tk: Tensor,
    *,
    num_experts: int,
    group: dist.ProcessGroup,
    routing: Routing = exchanged_routes,
) -> Tensor:
    """What ``forward``, of this rank's experts alone, gives on all ranks of ``group`` together for these tokens: (T, H).

    Rows go out sorted by expert, in their order within each, and are weighted where their token is: routing weights and their
    gradients do not travel. Whatever the routing, two exchanges of rows and one of counts happen, on every rank.
    """
    per_token, experts = index_tk.shape[-1], index_tk.reshape(-1)
    order = torch.argsort(experts, stable=True)
    routes = routing(experts, num_experts, group)
    rows_rh = exchange_rows(tokens_th[order // per_token], routes.to, routes.from_, group)
    rows_rh = forward(rows_rh, routes.local_r[:, None], rows_rh.new_ones(len(rows_rh), 1))
    back_th = exchange_rows(rows_rh, routes.from_, routes.to, group)
    back_tkh = back_th[torch.argsort(order)].view(*index_tk.shape, -1)
    return (back_tkh * weights_tk[..., None]).sum(1).to(tokens_th.dtype)


def without_rows(rows: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """``rows``, of which there are none, as the output of experts with these ``parameters``, whose gradients are then zeros.

    Gradients that are missing on one rank of a data-parallel group would leave the others waiting for it, and a graph without
    the rows would leave out the exchange on the backward's way.
    """
    return cast(Tensor, _WithoutRows.apply(rows, *parameters))  # type: ignore[no-untyped-call]


class _WithoutRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, *parameters: Tensor) -> Tensor:
        ctx.shapes = [(parameter.shape, parameter.dtype, parameter.device) for parameter in parameters]
        return rows.view_as(rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        return grad, *(torch.zeros(shape, dtype=dtype, device=device) for shape, dtype, device in ctx.shapes)
