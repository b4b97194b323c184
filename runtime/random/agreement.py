"""Ranks that built the same model themselves agree on its values."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .keys import key

_LANES = 64
"""Sums of a fingerprint: a value moves the sum that its place belongs to."""


def agree(model: nn.Module) -> tuple[str, ...]:
    """Give every rank rank 0's parameters and buffers where they differ; the names of those that did.

    Ranks compare fingerprints of each tensor, so that a model loaded from the same file costs no traffic. Tensors on the meta
    device have no values and are left alone. A collective call on the default group; nothing happens without one.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return ()
    tensors = dict(_named_tensors(model))
    device = torch.device("cuda", torch.cuda.current_device()) if "nccl" in dist.get_backend() else torch.device("cpu")
    mine = torch.tensor([fingerprint(tensor) for tensor in tensors.values()], dtype=torch.int64, device=device)
    of_ranks = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(of_ranks, mine)
    differ = (torch.stack(of_ranks) != of_ranks[0]).any(0).tolist()
    names = tuple(name for name, different in zip(tensors, differ, strict=True) if different)
    for name in names:
        sent = tensors[name].detach().to(device).contiguous()
        dist.broadcast(sent, src=0)
        tensors[name].detach().copy_(sent)
    return names


def fingerprint(tensor: Tensor) -> int:
    """A number that two tensors of one shape share if they are the same bit for bit, and otherwise share only by chance."""
    raw = tensor.detach().contiguous().view(-1).view(torch.uint8)
    whole = raw.numel() // (8 * _LANES) * (8 * _LANES)
    sums = raw[:whole].view(torch.int64).view(-1, _LANES).sum(0)
    return key(*tensor.shape, *sums.tolist(), *raw[whole:].tolist())


def _named_tensors(model: nn.Module) -> Iterable[tuple[str, Tensor]]:
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if not tensor.is_meta and tensor.numel():
            yield name, tensor
