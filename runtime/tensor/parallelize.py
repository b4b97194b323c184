"""Splits a model, or a pipeline stage of one, over a tensor-parallel group."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module

from autopar.costmodel.spec.errors import raise_if
from autopar.runtime.families.family import BlockRegion, Family, LocalAttribute
from autopar.runtime.families.family import Column as SplitColumn
from autopar.runtime.loss import KEEP_LOGITS_SHARDED, hugging_face_loss
from autopar.runtime.structure import ModelStructure

from . import collectives
from .analysis import proven_pairs
from .blocks import EXPERT_DIMS, matching_regions, num_heads, present_blocks, shares_heads, split_regions
from .faults import tensor_parallel_faults
from .local import run_locally
from .region import WHOLE, set_region
from .styles import (
    SEQUENCE_DIM,
    Boundary,
    Column,
    Elsewhere,
    Experts,
    GroupedHeads,
    Replicated,
    Row,
    VocabularyEmbedding,
    VocabularyHead,
    first_tensor_hook,
)

GROUP_SIZE = "num_key_value_groups"
"""Hugging Face's attribute for the number of query heads that share a key and value head."""


def tensor_parallelize(
    model: nn.Module, structure: ModelStructure, mesh: DeviceMesh, *, sequence_parallel: bool, split_experts: bool = True
) -> None:
    """Split ``model`` over the 1-D ``mesh``, in place.

    Every parameter becomes a DTensor on the mesh and keeps its name; the model computes on local parts and still takes and
    returns whole tensors, but for logits that go into a loss, which stay sharded over the vocabulary. Blocks, embeddings or head
    may be missing, as in a pipeline stage; hidden states that pass between stages are then this rank's part of the sequence,
    under sequence parallelism. On the meta device nothing is allocated.

    After the last backward pass of a step, the gradients of
    :func:`~autopar.runtime.tensor.local.partial_gradient_parameters` are still to be summed over the group.

    Args:
        split_experts: each expert is split along its features. False: the modules of stacked experts stay as they are, for
            :func:`~autopar.runtime.experts.expert_parallelize`, and get this rank's part of the sequence.

    Raises:
        InvalidInputError: with all of :func:`tensor_parallel_faults`.
    """
    faults = tensor_parallel_faults(model, structure, mesh.size(), sequence_parallel=sequence_parallel, split_experts=split_experts)
    raise_if(faults)
    boundary = Boundary(mesh=mesh, sequence_parallel=sequence_parallel)
    family = structure.layout
    plan: dict[str, ParallelStyle] = {}
    for path, block in present_blocks(model, family):
        plan |= {f"{path}.{name}": style for name, style in _block_plan(block, family, boundary, split_experts).items()}
        if family.regions:
            _add_block_hooks(block, family, boundary, split_experts)
    plan |= _vocabulary_plan(model, structure, boundary)
    plan |= _replicated_plan(model, structure, plan, boundary)
    parallelize_module(model, mesh, plan)
    if not family.regions:
        _read_locally(model, family)
    if sequence_parallel:
        _add_sequence_hooks(model, family, boundary)
    if isinstance(plan.get(family.head), VocabularyHead):
        _add_loss(model, structure)


def _block_plan(block: nn.Module, family: Family, boundary: Boundary, split_experts: bool) -> dict[str, ParallelStyle]:
    if not family.regions:
        return _proven_plan(block, boundary)
    plan: dict[str, ParallelStyle] = {}
    for region, module in matching_regions(block, family):
        if region.experts and not split_experts:
            plan[f"{region.module}.{region.experts}"] = Elsewhere()
            continue
        for column in region.columns:
            plan[f"{region.module}.{column.name}"] = _column(region, module, column, boundary.mesh.size())
        for row in region.rows:
            plan[f"{region.module}.{row}"] = Row(None if region.experts else boundary)
        if region.experts:
            experts = module.get_submodule(region.experts)
            width = int(experts.get_parameter("gate_up_proj").shape[EXPERT_DIMS["gate_up_proj"]]) // 2
            plan[f"{region.module}.{region.experts}"] = Experts(EXPERT_DIMS, {"gate_up_proj": (width, width)})
        for path, inside in module.named_modules(prefix=region.module):
            if path not in plan and not _below(path, plan) and next(inside.parameters(recurse=False), None) is not None:
                plan[path] = Replicated(partial=True)
    return plan


def _column(region: BlockRegion, module: nn.Module, column: SplitColumn, size: int) -> ParallelStyle:
    if shares_heads(region, module, column, size):
        assert region.unit is not None
        return GroupedHeads(region.unit(module))
    return Column(sections=column.sections(module) if column.sections else ())


def _proven_plan(block: nn.Module, boundary: Boundary) -> dict[str, ParallelStyle]:
    plan: dict[str, ParallelStyle] = {}
    for pair in proven_pairs(block).pairs:
        plan |= {name: Column(boundary=boundary) for name in pair.columns}
        plan[pair.row] = Row(boundary)
    return plan


def _add_block_hooks(block: nn.Module, family: Family, boundary: Boundary, split_experts: bool) -> None:
    def begin(*_: Any) -> None:
        set_region(boundary.outside)

    block.register_forward_pre_hook(begin)
    for region, module in split_regions(block, family, experts=split_experts):
        module.register_forward_pre_hook(first_tensor_hook(boundary.enter), with_kwargs=True)
        if region.experts:
            module.register_forward_hook(partial(_leave, boundary))
        for attribute in region.attributes:
            _divide(module, attribute, boundary.mesh.size())
        _regroup(region, module, boundary.mesh.size())


def _leave(boundary: Boundary, _: nn.Module, __: tuple[Any, ...], output: Tensor) -> Tensor:
    # A copy: the module's own graph may need its output as it is.
    return boundary.leave(output if boundary.sequence_parallel else output.clone())


def _regroup(region: BlockRegion, module: nn.Module, size: int) -> None:
    """All query heads of a rank use its one key and value head, where ranks share heads."""
    shared = [column for column in region.columns if shares_heads(region, module, column, size)]
    if shared and hasattr(module, GROUP_SIZE):
        setattr(module, GROUP_SIZE, getattr(module, GROUP_SIZE) * num_heads(region, module, shared[0]) // size)


def _divide(module: nn.Module, attribute: LocalAttribute, size: int) -> None:
    owner: Any = module
    if attribute.of_config:
        if module.config is getattr(module, "_autopar_config", None):
            owner = module.config
        else:
            owner = module.config = module._autopar_config = copy.copy(module.config)
    setattr(owner, attribute.name, getattr(owner, attribute.name) // size)


def _vocabulary_plan(model: nn.Module, structure: ModelStructure, boundary: Boundary) -> dict[str, ParallelStyle]:
    family = structure.layout
    plan: dict[str, ParallelStyle] = {}
    if not family.regions:
        return plan
    if _holds(model, family.embedding):
        plan[family.embedding] = VocabularyEmbedding()
    if _holds(model, family.head):
        plan[family.head] = VocabularyHead(entered=boundary.sequence_parallel)
    return plan


def _replicated_plan(
    model: nn.Module, structure: ModelStructure, plan: dict[str, ParallelStyle], boundary: Boundary
) -> dict[str, ParallelStyle]:
    """Every other module with parameters of its own."""
    family = structure.layout
    in_sequence = (f"{family.blocks}.", f"{family.final_norm}.")
    return {
        path: Replicated(partial=boundary.sequence_parallel and f"{path}.".startswith(in_sequence))
        for path, module in model.named_modules()
        if path not in plan and not _below(path, plan) and next(module.parameters(recurse=False), None) is not None
    }


def _read_locally(model: nn.Module, family: Family) -> None:
    """Code of an unknown model may read the parameters of modules inside it, as torch's attention does of its projection."""
    blocks = model.get_submodule(family.blocks)
    for _, block in present_blocks(model, family):
        run_locally(block, *(module for module in block.modules() if module is not block))
    in_blocks = set(blocks.modules())
    run_locally(model, *(module for module in model.modules() if module is not model and module not in in_blocks))


def _below(path: str, plan: dict[str, ParallelStyle]) -> bool:
    """Whether a module around ``path`` has a style that covers what is inside it."""
    parents = path.split(".")
    return any(isinstance(plan.get(".".join(parents[:depth])), Experts | Elsewhere) for depth in range(1, len(parents)))


def _add_sequence_hooks(model: nn.Module, family: Family, boundary: Boundary) -> None:
    """Whole sequences become shards before the model's first block, on whichever stage, and whole again after its final norm."""
    first = model.get_submodule(family.blocks)._modules.get("0")
    if first is not None:
        first.register_forward_pre_hook(first_tensor_hook(boundary.split), with_kwargs=True)
    if _holds(model, family.final_norm):

        def join(_: nn.Module, __: tuple[Any, ...], output: Tensor) -> Tensor:
            set_region(WHOLE)
            return collectives.gather_shards(output, SEQUENCE_DIM, boundary.group)

        model.get_submodule(family.final_norm).register_forward_hook(join)


def _add_loss(model: nn.Module, structure: ModelStructure) -> None:
    """Losses take sharded logits where they can, and whole ones otherwise; callers get whole ones."""
    model.register_forward_hook(_gather_logits)
    if structure.family == "reference-gpt" or not hasattr(model, "loss_function"):
        return
    own = getattr(model, "_loss_function", None)
    if own is None:
        model.loss_function = hugging_face_loss  # type: ignore[assignment]
        return

    def with_whole_logits(*args: Any, **kwargs: Any) -> Any:
        return own(*_whole(args), **_whole(kwargs))

    model.loss_function = with_whole_logits  # type: ignore[assignment]


def _gather_logits(model: nn.Module, _: tuple[Any, ...], output: Any) -> Any:
    if getattr(model, KEEP_LOGITS_SHARDED, False) or getattr(output, "loss", None) is not None:
        return output
    return _whole(output)


def _whole(value: Any) -> Any:
    return pytree.tree_map_only(DTensor, DTensor.full_tensor, value)


def _holds(model: nn.Module, path: str) -> bool:
    """Whether ``model`` has parameters at ``path``: other stages' modules are absent, or stand-ins without any."""
    if not path:
        return False
    parent, _, name = path.rpartition(".")
    module = model.get_submodule(parent)._modules.get(name)
    return module is not None and next(module.parameters(recurse=False), None) is not None
