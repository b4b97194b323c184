"""Modules that hold a layer's experts in stacked parameters, and how each becomes this rank's part of them."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from autopar.runtime.families.family import Family
from autopar.runtime.tensor.blocks import matching_regions, present_blocks
from autopar.runtime.tensor.local import local_parameters, replace_forward, shard_parameter

from .dispatch import ExpertsForward, Routing, dispatched, exchanged_routes, without_rows

COUNT = "num_experts"
"""The attribute by which a module of stacked experts, and Hugging Face's code of theirs, knows how many there are."""


def stacked_experts(model: nn.Module, family: Family) -> Iterator[tuple[str, nn.Module]]:
    """The modules of stacked experts in the blocks that ``model`` (or a pipeline stage of it) holds, by fully qualified name."""
    for path, block in present_blocks(model, family):
        for region, module in matching_regions(block, family):
            if region.experts:
                yield f"{path}.{region.module}.{region.experts}", module.get_submodule(region.experts)


def expert_parallelize(model: nn.Module, family: Family, mesh: DeviceMesh, routing: Routing = exchanged_routes) -> None:
    """Give this rank its part of every layer's experts over the 1-D ``mesh``, in place; tokens are taken to theirs.

    The parameters become DTensors that are sharded over experts, and keep their names. Each rank of the mesh has tokens of its
    own; gradients of an expert are of all tokens on the mesh, and a sum over it is not needed.
    """
    for _, experts in stacked_experts(model, family):
        _parallelize(experts, mesh, routing)


def _parallelize(experts: nn.Module, mesh: DeviceMesh, routing: Routing) -> None:
    number = int(getattr(experts, COUNT))
    for name in list(experts._parameters):
        shard_parameter(experts, name, mesh, 0)
    setattr(experts, COUNT, number // mesh.size())
    compute: ExpertsForward = experts.forward

    def of_this_rank(rows: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        with local_parameters(experts):
            if not len(rows):
                return without_rows(rows, [parameter for parameter in experts._parameters.values() if parameter is not None])
            return compute(rows, index, weights)

    def forward(hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        if mesh.size() == 1:
            return of_this_rank(hidden_states, top_k_index, top_k_weights)
        group = mesh.get_group()
        return dispatched(of_this_rank, hidden_states, top_k_index, top_k_weights, num_experts=number, group=group, routing=routing)

    replace_forward(experts, forward)
