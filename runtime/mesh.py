"""The device mesh of a strategy: which process group each parallel axis talks over.

The mesh is the rank layout of the plan (:class:`~autopar.costmodel.spec.layout.RankLayout`, tensor fastest), with the data
axis split in two: ``dp_shard`` ranks share one copy of the sharded states, ``dp_replicate`` copies of it exist. Context-parallel
ranks hold the same parameters as data-parallel ones, and are among these. The order of ranks says which rank sits where in it; the axes
and their order in the mesh are always the same.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import debug

from autopar.costmodel.spec.errors import Fault, InvalidInputError
from autopar.costmodel.spec.layout import RankLayout
from autopar.costmodel.spec.strategy import RankOrder, Strategy

AXES: Final = ("pp", "dp_replicate", "dp_shard", "tp")
"""Axes of the mesh, slowest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelMesh:
    """This rank's place on every axis, and the groups it belongs to."""

    layout: RankLayout
    device_mesh: DeviceMesh
    device: torch.device

    @property
    def rank(self) -> int:
        return self.device_mesh.get_rank()

    def size(self, axis: str) -> int:
        return int(self.device_mesh.size(AXES.index(axis)))

    def coordinate(self, axis: str) -> int:
        """This rank's index on ``axis``."""
        return int(self.device_mesh.get_local_rank(axis))

    def group(self, axis: str) -> dist.ProcessGroup:
        """The ranks that differ from this one on ``axis`` alone."""
        return self.device_mesh.get_group(axis)

    @property
    def tensor(self) -> DeviceMesh:
        """The 1-D mesh of the tensor axis."""
        return self.device_mesh["tp"]

    @property
    def data(self) -> DeviceMesh:
        """The (dp_replicate, dp_shard) mesh."""
        return self.device_mesh["dp_replicate", "dp_shard"]

    @property
    def data_parallel_size(self) -> int:
        return self.layout.dp

    @property
    def data_parallel_rank(self) -> int:
        """Which share of the batch this rank trains on."""
        return self.layout.coordinates(self.rank)["dp"]

    @property
    def num_replicas(self) -> int:
        """Ranks of a stage that hold, or share the shards of, the same parameters."""
        return self.layout.dp * self.layout.cp

    @property
    def pipeline_ranks(self) -> tuple[int, ...]:
        """Global ranks of this rank's pipeline, first stage first."""
        return self.layout.group(self.rank, "pp")

    def pipeline_groups(self, rank_sets: Iterable[tuple[int, ...]]) -> dict[tuple[int, ...], dist.ProcessGroup]:
        """A process group of its own for each of ``rank_sets`` (ranks of a pipeline) that this rank is in.

        A collective call of the whole job, with the same sets on every rank: where communicators are made by splitting, ranks
        outside a group take part in making it.
        """
        groups = {}
        for ranks in rank_sets:
            for first in self.layout.stage_ranks(0):
                members = self.layout.group(first, "pp")
                group = dist.new_group([members[rank] for rank in ranks])
                if self.rank in members and self.coordinate("pp") in ranks:
                    groups[ranks] = group
        return groups


def shard_size(strategy: Strategy) -> int:
    """Data- and context-parallel ranks that share one copy of the sharded states; 1 where nothing is sharded."""
    if strategy.zero_stage == 0:
        return 1
    return strategy.shard_group_size or strategy.data_parallel_size * strategy.context_parallel_size


def build_mesh(strategy: Strategy, device: torch.device) -> ParallelMesh:
    """The mesh of ``strategy`` over all ranks of the default process group.

    Raises:
        InvalidInputError: the job has more or fewer ranks than the strategy, or the shard groups do not divide the data axis.
    """
    layout = RankLayout.of(strategy)
    shard = shard_size(strategy)
    faults = [*world_faults(strategy), *shard_faults(strategy)]
    if faults:
        raise InvalidInputError(faults)
    _forget_earlier_meshes()
    return ParallelMesh(layout=layout, device_mesh=_device_mesh(layout, shard, device), device=device)


def _device_mesh(layout: RankLayout, shard: int, device: torch.device) -> DeviceMesh:
    """The ranks of ``layout`` on the axes of the mesh."""
    shape = (layout.pp, layout.dp * layout.cp // shard, shard, layout.tp)
    if layout.order is RankOrder.TP_CP_DP_PP:
        return init_device_mesh(device.type, shape, mesh_dim_names=AXES)
    ranks = torch.tensor([layout.stage_ranks(stage) for stage in range(layout.pp)], dtype=torch.int)
    return DeviceMesh(device.type, ranks.view(shape), mesh_dim_names=AXES)


def _forget_earlier_meshes() -> None:
    """torch caches the layouts of results by the equality of meshes, and would hand back one whose groups have ended.

    It happens where a process has been in another job before: a dry run, then training.
    """
    clear = getattr(debug, "_clear_sharding_prop_cache", None)
    if clear is not None:
        clear()


def world_faults(strategy: Strategy) -> list[Fault]:
    """Whether the job has the ranks that ``strategy`` needs."""
    given = dist.get_world_size()
    if given == strategy.world_size:
        return []
    required = f"the plan needs {strategy.world_size} ranks ({strategy.describe()})"
    return [Fault(field="world_size", given=str(given), required=required, fix=f"start the job with {strategy.world_size} processes")]


def shard_faults(strategy: Strategy) -> list[Fault]:
    """Whether the shard groups divide the data axis."""
    shard, data = shard_size(strategy), strategy.data_parallel_size * strategy.context_parallel_size
    if data % shard == 0:
        return []
    divisors = ", ".join(str(size) for size in range(1, data + 1) if data % size == 0)
    context = f" x context_parallel_size = {data}" if strategy.context_parallel_size > 1 else ""
    required = f"a divisor of data_parallel_size={strategy.data_parallel_size}{context}"
    return [Fault(field="shard_group_size", given=str(shard), required=required, fix=f"nearest valid: {divisors}")]


def ensure_process_group(device: torch.device, timeout: timedelta = timedelta(minutes=10)) -> None:
    """Join the job that the launcher's environment (torchrun) describes; a process of its own where there is none."""
    if dist.is_initialized():
        return
    backend = "nccl" if device.type == "cuda" else "gloo"
    if "RANK" in os.environ:
        dist.init_process_group(backend, timeout=timeout)
    else:
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1, timeout=timeout)
