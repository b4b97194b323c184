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

    A collective call of the whole job: it makes the groups of ranks that share a parameter.

    Args:
        models: this rank's stages by virtual stage index, with the whole model's parameter names.
        layers: blocks of each model stage.
    """
    places = _Places(structure, schedule, layers)
    groups = _groups(places.rank_sets(), mesh)
    copies: dict[str, dict[int, nn.Parameter]] = {}
    for stage, model in models.items():
        for name, parameter in model.named_parameters():
            copies.setdefault(places.first_name(name), {})[stage] = parameter
    shared = []
    for name in sorted(copies):
        stages = places.stages(name)
        if len(stages) > 1:
            group = groups.get(places.ranks(stages))
            shared.append(SharedParameter(members=tuple(copies[name].values()), group=group, num_copies=len(stages)))
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
        return self._virtual({self._model_stage(name) for name in aliases})

    def ranks(self, stages: set[int]) -> tuple[int, ...]:
        """The pipeline ranks that hold virtual stages ``stages``."""
        return tuple(sorted({self._schedule.stage_rank[stage] for stage in stages}))

    def rank_sets(self) -> set[tuple[int, ...]]:
        """The ranks that share a parameter, for every parameter of the model."""
        tied = [self.stages(first) for first in self._first_names.values()]
        whole = [self._virtual({stage}) for stage in range(self._schedule.num_model_stages)]
        return {ranks for ranks in map(self.ranks, (*tied, *whole)) if len(ranks) > 1}

    def _virtual(self, model_stages: set[int]) -> set[int]:
        return {stage for stage in range(self._schedule.num_stages) if self._schedule.model_stage(stage) in model_stages}

    def _model_stage(self, name: str) -> int:
        blocks = f"{self._structure.blocks}."
        if name.startswith(blocks):
            return self._block_stage[int(name.removeprefix(blocks).partition(".")[0])]
        before = name.startswith(tuple(f"{module}." for module in self._structure.prefix))
        return 0 if before else self._schedule.num_model_stages - 1


def _groups(rank_sets: set[tuple[int, ...]], mesh: ParallelMesh) -> dict[tuple[int, ...], dist.ProcessGroup]:
    """The groups of ``rank_sets`` that this rank is in; the pipeline's own where that is one."""
    whole = tuple(range(mesh.size("pp")))
    groups = mesh.pipeline_groups(sorted(rank_sets - {whole}))
    return {**groups, whole: mesh.group("pp")}
