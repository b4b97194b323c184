"""Collectives of one tensor-parallel group that autograd goes through, on local tensors.

Each names what happens forward and backward. "Shard" is this rank's part along a dimension; parts are equal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Group = dist.ProcessGroup
Exchange = Callable[[Tensor, int, Group], Tensor]

# torch 2.13 renamed these two; the old names warn there, the new ones are missing before.
_gather_into = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_into = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def sum_gradients(x: Tensor, group: Group) -> Tensor:
    """Identity; backward an all-reduce. Where a replicated tensor enters a tensor-parallel region."""
    return _apply(_SumGradients, x, group)


def sum_outputs(x: Tensor, group: Group) -> Tensor:
    """All-reduce of ``x``, in its place; backward the identity. Where partial sums leave a tensor-parallel region."""
    return _apply(_SumOutputs, x, group)


def gather_shards(x: Tensor, dim: int, group: Group) -> Tensor:
    """All-gather along ``dim``; backward a reduce-scatter. Where a shard enters a tensor-parallel region."""
    return _apply(_Exchange, x, dim, group, all_gather, reduce_scatter)


def scatter_sums(x: Tensor, dim: int, group: Group) -> Tensor:
    """Reduce-scatter along ``dim``; backward an all-gather. Where partial sums leave a region as shards."""
    return _apply(_Exchange, x, dim, group, reduce_scatter, all_gather)


def take_shard(x: Tensor, dim: int, group: Group) -> Tensor:
    """This rank's part along ``dim``; backward an all-gather. Where a replicated tensor becomes shards."""
    return _apply(_Exchange, x, dim, group, shard, all_gather)


def join_shards(x: Tensor, dim: int, group: Group) -> Tensor:
    """All-gather along ``dim``; backward this rank's part. Where shards become a replicated tensor."""
    return _apply(_Exchange, x, dim, group, all_gather, shard)


def _apply(function: type[torch.autograd.Function], *arguments: Any) -> Tensor:
    result: Tensor = function.apply(*arguments)  # type: ignore[no-untyped-call]
    return result


def all_reduce(x: Tensor, group: Group) -> Tensor:
    """The sum over the group, as a new tensor: a gradient may be shared with another branch."""
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total


def all_gather(x: Tensor, dim: int, group: Group) -> Tensor:
    size = dist.get_world_size(group)
    joined = x.new_empty((size * x.shape[0], *x.shape[1:]))
    _gather_into(joined, x.contiguous(), group=group)
    if dim == 0:
        return joined
    return joined.view(size, *x.shape).movedim(0, dim).flatten(dim, dim + 1)


def reduce_scatter(x: Tensor, dim: int, group: Group) -> Tensor:
    size = dist.get_world_size(group)
    parts = torch.cat(x.chunk(size, dim)) if dim else x.contiguous()
    total = x.new_empty(parts.shape[0] // size, *parts.shape[1:])
    _reduce_into(total, parts, group=group)
    return total


def shard(x: Tensor, dim: int, group: Group) -> Tensor:
    return x.chunk(dist.get_world_size(group), dim)[dist.get_rank(group)].contiguous()


class _SumGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return all_reduce(grad, ctx.group), None


class _SumOutputs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        if not x.is_contiguous():
            return all_reduce(x, group)
        ctx.mark_dirty(x)
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # noqa: ARG004
        return grad, None


class _Exchange(torch.autograd.Function):
    """An exchange along a dimension, and the one that takes its gradient back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, group: Group, there: Exchange, back: Exchange) -> Tensor:
        ctx.dim, ctx.group, ctx.back = dim, group, back
        return there(x, dim, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        return ctx.back(grad, ctx.dim, ctx.group), None, None, None, None
