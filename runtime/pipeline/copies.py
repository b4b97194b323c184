"""Parameters that more than one stage holds: tied embeddings on the first and the last, and everything in DualPipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch.distributed as dist
from torch import nn

from autopar.costmodel.spec.schedule import Schedule
from autopar.runtime.gradients import SharedParameter
from autopar.runtime.mesh import ParallelMesh
from autopar.runtime.structure import ModelStructure


def shared_parameters(
    models: Mapping[int, nn.Module], structure: ModelStructure, schedule: Schedule, layers: Sequence[int], mesh: ParallelMesh
) -> tuple[SharedParameter, ...]:
    """The shared parameters that this rank holds copies of, in an order that all their holders agree on.

    A collective call: the ranks of a pipeline make the groups that they share.

    Args:
        models: this rank's stages by virtual stage index, with the whole model's parameter names.
        layers: blocks of each model stage.
    """
    places = _Places(structure, schedule, layers)
    copies: dict[str, dict[int, nn.Parameter]] = {}
    for stage, model in models.items():
        for name, parameter in model.named_parameters():
            copies.setdefault(places.first_name(name), {})[stage] = parameter
    groups: dict[tuple[int, ...], dist.ProcessGroup | None] = {}
    shared = []
    for name in sorted(copies):
        stages = places.stages(name)
        if len(stages) > 1:
            ranks = tuple(sorted({schedule.stage_rank[stage] for stage in stages}))
            if ranks not in groups:
                groups[ranks] = _group(ranks, mesh)
            shared.append(SharedParameter(members=tuple(copies[name].values()), group=groups[ranks], num_copies=len(stages)))
    return tuple(shared)


class _Places:
    """Which virtual stages hold a parameter."""

    def __init__(self, structure: ModelStructure, schedule: Schedule, layers: Sequence[int]) -> None:
        self._structure = structure
        self._schedule = schedule
        self._block_stage = [stage for stage, count in enumerate(layers) for _ in range(count)]
        self._first_names = {second: first for first, second in structure.tied}

    def first_name(self, name: str) -> str:
        """The name by which all of tied parameters go."""
        return self._first_names.get(name, name)

    def stages(self, first_name: str) -> set[int]:
        """The virtual stages that hold ``first_name`` or a parameter tied to it."""
        aliases = [first_name, *(second for second, first in self._first_names.items() if first == first_name)]
        model_stages = {self._model_stage(name) for name in aliases}
        return {stage for stage in range(self._schedule.num_stages) if self._schedule.model_stage(stage) in model_stages}

    def _model_stage(self, name: str) -> int:
        blocks = f"{self._structure.blocks}."
        if name.startswith(blocks):
            return self._block_stage[int(name.removeprefix(blocks).partition(".")[0])]
        before = name.startswith(tuple(f"{module}." for module in self._structure.prefix))
        return 0 if before else self._schedule.num_model_stages - 1


def _group(ranks: Sequence[int], mesh: ParallelMesh) -> dist.ProcessGroup | None:
    """The group of pipeline ranks ``ranks``, of which this is one; None for one rank by itself."""
    if len(ranks) == 1:
        return None
    if len(ranks) == mesh.size("pp"):
        return mesh.group("pp")
    group: dist.ProcessGroup = dist.new_group([mesh.pipeline_ranks[rank] for rank in ranks], use_local_synchronization=True)
    return group
