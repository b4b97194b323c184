"""Gradients across all axes: copies of one parameter on several stages, and the norm of all gradients together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from .mesh import ParallelMesh


def local_tensor(tensor: Tensor) -> Tensor:
    """This rank's part of a distributed tensor; the tensor itself where it is not."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedParameter:
    """One parameter of the model that several stages hold: tied embeddings, or all of DualPipe's.

    ``members`` are this rank's copies, ``group`` the pipeline ranks that hold the others (None: all are here), ``num_copies``
    how many there are on all pipeline ranks.
    """

    members: tuple[nn.Parameter, ...]
    group: dist.ProcessGroup | None
    num_copies: int


class SharedGradients:
    """Keeps the copies of shared parameters alike: equal from the start, then updated from the sum of their gradients."""

    def __init__(self, shared: Sequence[SharedParameter]) -> None:
        self._shared = tuple(shared)
        self.copies = {id(member): one.num_copies for one in shared for member in one.members}
        """Copies of a parameter over all pipeline ranks, by its id; 1 where it is not here."""

    @torch.no_grad()
    def equalise(self) -> None:
        """Give every copy the values of the first pipeline rank's, so that a difference in what was loaded cannot live on."""
        for one in self._shared:
            first = local_tensor(one.members[0].detach())
            if one.group is not None:
                dist.broadcast(first, group=one.group, group_src=0)
            for member in one.members[1:]:
                local_tensor(member.detach()).copy_(first)

    @torch.no_grad()
    def sum(self) -> None:
        """Replace the gradient of every copy by the sum over all copies."""
        gradients = [[_gradient(member) for member in one.members] for one in self._shared]
        by_group: dict[dist.ProcessGroup, list[Tensor]] = defaultdict(list)
        for one, (total, *others) in zip(self._shared, gradients, strict=True):
            for other in others:
                total += other
            if one.group is not None:
                by_group[one.group].append(total)
        for group, totals in by_group.items():
            _all_reduce_together(totals, group)
        for total, *others in gradients:
            for other in others:
                other.copy_(total)


def _gradient(parameter: nn.Parameter) -> Tensor:
    """The local gradient, zeros where this rank's stage made none: others wait for a sum of all."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return local_tensor(parameter.grad)


class GradientNorm:
    """The 2-norm of all gradients of the model: every element once, on however many ranks it lies.

    A rank adds the squares of its local gradients, each divided by the number of ranks that hold the same element (tensor- and
    data-parallel replicas, stages with copies). The sum over all ranks is then the square of the norm.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], mesh: ParallelMesh, copies: Mapping[int, int]) -> None:
        self._parameters = tuple(parameters)
        ranks = mesh.layout.ranks_per_stage
        holders = [ranks // _num_shards(p) * copies.get(id(p), 1) for p in self._parameters]
        self._weights = torch.tensor([1 / count for count in holders], dtype=torch.float32, device=mesh.device)
        self._device = mesh.device

    @torch.no_grad()
    def local_square(self) -> Tensor:
        """This rank's part of the squared norm, an fp32 scalar."""
        here = [index for index, parameter in enumerate(self._parameters) if parameter.grad is not None]
        if not here:
            return torch.zeros((), device=self._device)
        gradients = self._gradients()
        norms = torch.stack([norm.float() for norm in torch._foreach_norm(gradients, 2, dtype=torch.float32)])
        weights = self._weights if len(here) == len(self._parameters) else self._weights[here]
        return torch.dot(norms.square(), weights)

    @torch.no_grad()
    def clip(self, norm: Tensor, max_norm: float) -> None:
        """Scale all gradients by ``max_norm`` / ``norm`` where that is below 1, as torch's clip_grad_norm_ does."""
        gradients = self._gradients()
        if gradients:
            torch._foreach_mul_(gradients, (max_norm / (norm + 1e-6)).clamp(max=1.0))

    def _gradients(self) -> list[Tensor]:
        return [local_tensor(parameter.grad) for parameter in self._parameters if parameter.grad is not None]


def _num_shards(parameter: Tensor) -> int:
    """Ranks of a stage that hold different parts of ``parameter``."""
    if not isinstance(parameter, DTensor):
        return 1
    sharded = {dim for dim, placement in enumerate(parameter.placements) if placement.is_shard() or "Shard" in type(placement).__name__}
    shards = 1
    for dim in sharded:
        shards *= parameter.device_mesh.size(dim)
    return shards


class PartialGradients:
    """Gradients of parameters that tensor-parallel ranks replicate, each having seen a part of the tokens or heads."""

    def __init__(self, parameters: Iterable[nn.Parameter], group: dist.ProcessGroup) -> None:
        self._parameters = tuple(parameters)
        self._group = group

    @torch.no_grad()
    def sum(self) -> None:
        """Sum them over the tensor-parallel group, in one all-reduce."""
        gradients = [local_tensor(p.grad) for p in self._parameters if p.grad is not None]
        if gradients:
            _all_reduce_together(gradients, self._group)


def _all_reduce_together(tensors: Sequence[Tensor], group: dist.ProcessGroup) -> None:
    """Sum each of ``tensors`` over ``group``, in place; all of one type."""
    if len(tensors) == 1 and tensors[0].is_contiguous():
        dist.all_reduce(tensors[0], group=group)
        return
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    dist.all_reduce(flat, group=group)
    parts = torch.split(flat, [tensor.numel() for tensor in tensors])
    torch._foreach_copy_(list(tensors), [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)])
