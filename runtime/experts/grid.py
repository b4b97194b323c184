"""The expert grid of a strategy: which ranks split a layer's experts, and which hold the same ones.

It folds over the ranks of a pipeline stage as :class:`~autopar.costmodel.spec.layout.RankLayout` has it, expert axis fastest,
with the expert-data axis split in two like the dense mesh's: ``edp_shard`` ranks share one copy of the experts' sharded states.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard

from autopar.costmodel.spec.layout import RankLayout
from autopar.costmodel.spec.strategy import Strategy
from autopar.runtime.structure import ModelStructure

from .dispatch import Routing, exchanged_routes
from .modules import stacked_experts

AXES: Final = ("pp", "edp_replicate", "edp_shard", "ep")
"""Axes of the grid's mesh, slowest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertGrid:
    """The mesh of the expert grid, and this rank's axes of it."""

    device_mesh: DeviceMesh
    routing: Routing = exchanged_routes

    @property
    def experts(self) -> DeviceMesh:
        """The 1-D mesh of the ranks that split a layer's experts."""
        return self.device_mesh["ep"]

    @property
    def num_copies(self) -> int:
        """Ranks of a stage that hold the same experts."""
        return int(self.device_mesh.size(1) * self.device_mesh.size(2))

    @property
    def sharding(self) -> DeviceMesh:
        """The expert-data axes as FSDP2 takes them: 1-D where there is one copy of the shards, (copies, shards) otherwise."""
        replicated = self.device_mesh.size(1) > 1
        return self.device_mesh["edp_replicate", "edp_shard"] if replicated else self.device_mesh["edp_shard"]

    def placement(self, parameter: nn.Parameter) -> Shard:
        """The dimension along which ``parameter`` (expert, …) of this rank's experts is sharded: one that divides, experts first.

        Parts of a rank's experts are unequal, or empty, where there are fewer of them than shards; every other dimension has to divide.
        """
        shards = int(self.device_mesh.size(2))
        local = parameter._local_tensor.shape  # type: ignore[attr-defined]
        return Shard(next((dim for dim, size in enumerate(local) if size % shards == 0), 0))


def on_expert_grid(model: nn.Module, structure: ModelStructure, strategy: Strategy) -> bool:
    """Whether experts lie otherwise than the dense layers around them: spread over ranks, or whole on ranks that split those."""
    return expert_grid_differs(strategy) and any(True for _ in stacked_experts(model, structure.layout))


def expert_grid_differs(strategy: Strategy) -> bool:
    """Whether ``strategy`` has experts of its own ranks."""
    return strategy.expert_parallel_size > 1 or strategy.expert_tensor_parallel_size < strategy.tensor_parallel_size


def expert_shard_size(strategy: Strategy) -> int:
    """Ranks that share one copy of the experts' sharded states; 1 where nothing is sharded."""
    if strategy.zero_stage == 0:
        return 1
    copies = RankLayout.of(strategy).edp
    return min(strategy.shard_group_size or copies, copies)


def build_expert_grid(strategy: Strategy, device: torch.device, routing: Routing = exchanged_routes) -> ExpertGrid:
    """The grid over all ranks of the default process group, which make its groups together."""
    layout, shard = RankLayout.of(strategy), expert_shard_size(strategy)
    places = [
        layout.rank({"pp": stage, "edp": copy, "ep": part, "etp": 0}, expert=True)
        for stage in range(layout.pp)
        for copy in range(layout.edp)
        for part in range(layout.ep)
    ]
    ranks = torch.tensor(places).view(layout.pp, layout.edp // shard, shard, layout.ep)
    return ExpertGrid(device_mesh=DeviceMesh(device.type, ranks, mesh_dim_names=AXES), routing=routing)
