"""Fused parameters for torch.distributed.checkpoint: stored reordered under tensor parallelism, saved in the user's order.

A shard of the stored tensor is several runs of the user's (:class:`~autopar.runtime.tensor.fused.FusedLayout`), so it is
written as several chunks, each a view of the shard, and read back into them. Nothing is gathered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from .tensor.fused import FusedLayout


@dataclass(frozen=True, slots=True)
class _Run:
    """One contiguous piece in the user's order."""

    offsets: torch.Size
    values: Tensor


class FusedTensor(Tensor):
    """A whole tensor in the user's order, of which this rank holds some pieces; only torch.distributed.checkpoint uses it."""

    _runs: tuple[_Run, ...]

    @staticmethod
    def of(stored: DTensor, layout: FusedLayout) -> FusedTensor:
        local = stored.to_local()
        shape, offset = compute_local_shape_and_global_offset(stored.shape, stored.device_mesh, stored.placements)
        view = Tensor._make_wrapper_subclass(FusedTensor, stored.shape, dtype=stored.dtype, device=local.device)
        assert isinstance(view, FusedTensor)
        view._runs = tuple(_runs(local, shape, offset, layout)) if local.numel() else ()
        return view

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's own stub has an instance method
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten.detach.default:
            return args[0]
        raise NotImplementedError(f"{func} of a fused parameter's pieces")

    def __create_write_items__(self, fqn: str, _: object) -> list[WriteItem]:
        properties = TensorProperties(dtype=self.dtype)
        return [
            WriteItem(
                index=MetadataIndex(fqn, run.offsets),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(chunk=_chunk(run), properties=properties, size=self.shape),
            )
            for run in self._runs
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [_chunk(run) for run in self._runs]

    def __get_tensor_shard__(self, index: MetadataIndex) -> Tensor:
        return next(run.values for run in self._runs if run.offsets == index.offset)


def _runs(local: Tensor, shape: Sequence[int], offset: Sequence[int], layout: FusedLayout) -> list[_Run]:
    dim, start = layout.dim, offset[layout.dim]
    return [
        _Run(torch.Size((*offset[:dim], place, *offset[dim + 1 :])), local.narrow(dim, stored - start, length))
        for stored, place, length in layout.runs(start, shape[dim])
    ]


def _chunk(run: _Run) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(offsets=run.offsets, sizes=run.values.size())
