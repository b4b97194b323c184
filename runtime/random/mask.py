"""Which elements of a tensor dropout drops: a hash of each element's place in the whole tensor of the whole batch.

An element's word is ``mix(row + column)``: ``row`` a random word for its sample and its place in all dimensions but the last,
``column`` one for its place in the last, so that only one addition and one mix run over every element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from autopar.runtime.tensor.region import Extent, Region

from .keys import halves, key, mix_, words_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """The rows of the global batch that a micro-batch has: ``count`` from ``first``, each ``sequence_length`` tokens long."""

    first: int
    count: int
    sequence_length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axis:
    """One dimension of a tensor within the whole: ``size`` places from ``start`` of ``whole``."""

    size: int
    start: int
    whole: int


def dropped(shape: Sequence[int], probability: float, *, stream: int, samples: Samples, region: Region, device: torch.device) -> Tensor:
    """A bool tensor of ``shape``, true with ``probability``, the same for an element under every layout.

    Args:
        shape: the batch is its first dimension, or its second behind the sequence, or a factor of its first (heads or tokens
            flattened into it).
        stream: the :func:`~.keys.key` of this use of dropout in this step.
        region: which part of the whole tensor this rank has.
    """
    batch_dim = next((dim for dim in (0, 1) if dim < len(shape) and shape[dim] == samples.count), None)
    axes = _axes(shape, samples, region)
    if batch_dim is None:
        count = samples.count if shape[0] % samples.count == 0 else 1
        axes[0] = _Axis(size=axes[0].size // count, start=axes[0].start // count, whole=axes[0].whole // count)
    else:
        count = axes.pop(batch_dim).size
    streams = [key(stream, samples.first + index if count == samples.count else "all") for index in range(count)]
    *leading, last = axes or [_Axis(size=1, start=0, whole=1)]
    rows = words_of(_places(leading, device), halves(streams, device)[:, None])
    columns = words_of(_places([last], device), halves([key(stream, "columns")], device)[0])
    drop = mix_(rows[..., None] + columns) < int(probability * 2**32) - 2**31
    if batch_dim == 1:
        return drop.view(count, shape[0], *shape[2:]).movedim(0, 1)
    return drop.view(shape)


def _axes(shape: Sequence[int], samples: Samples, region: Region) -> list[_Axis]:
    axes = [_Axis(size=size, start=0, whole=size) for size in shape]
    dim = _split_dim(shape, samples, region)
    if dim is not None:
        axes[dim] = _Axis(size=shape[dim], start=region.rank * shape[dim], whole=region.size * shape[dim])
    return axes


def _split_dim(shape: Sequence[int], samples: Samples, region: Region) -> int | None:
    """The dimension that ``region`` splits over ranks."""
    if region.extent is Extent.FEATURES:
        return 1 if len(shape) == 4 else len(shape) - 1
    if region.extent is Extent.SEQUENCE and len(shape) > 2 and shape[1] * region.size == samples.sequence_length:
        return 1
    return None


def _places(axes: Sequence[_Axis], device: torch.device) -> Tensor:
    """Numbers of the places along ``axes`` in the whole tensor, in row-major order, as int32 (modulo 2^31)."""
    places = torch.zeros(1, dtype=torch.int64, device=device)
    for axis in axes:
        places = (places[:, None] * axis.whole + torch.arange(axis.start, axis.start + axis.size, device=device)).view(-1)
    return (places & 0x7FFFFFFF).to(torch.int32)
