"""This rank's part of a whole tensor, cut without communication."""

from __future__ import annotations

from torch import Tensor
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.placement_types import _StridedShard


def cut(whole: Tensor, like: DTensor) -> Tensor:
    """The shard of ``whole`` that this rank holds under the mesh and placements of ``like``; may be a view of it.

    FSDP2 cuts what tensor parallelism left. Where both cut one dimension, it shows as a strided placement on a mesh dimension
    before the tensor-parallel one; such mesh dimensions are cut last.
    """
    mesh, coordinate, local = like.device_mesh, like.device_mesh.get_coordinate(), whole
    if coordinate is None:
        return whole.new_empty(0)
    placements = list(enumerate(like.placements))
    cut_last = [(mesh_dim, placement) for mesh_dim, placement in placements if isinstance(placement, _StridedShard)]
    for mesh_dim, placement in [*(pair for pair in placements if pair not in cut_last), *cut_last]:
        if isinstance(placement, (Shard, _StridedShard)):
            local = _chunk(local, mesh.size(mesh_dim), coordinate[mesh_dim], placement.dim)
        elif not placement.is_replicate():
            raise ValueError(f"a parameter cannot be placed as {placement}")
    return local


def _chunk(tensor: Tensor, count: int, index: int, dim: int) -> Tensor:
    """Part ``index`` of :func:`torch.chunk`; the last parts may be empty."""
    size = -(-tensor.size(dim) // count)
    start = min(index * size, tensor.size(dim))
    return tensor.narrow(dim, start, min(size, tensor.size(dim) - start))
