"""Cuts a model over the axes of a strategy, on one rank."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
from torch import nn

from autopar.costmodel.spec.errors import raise_if
from autopar.costmodel.spec.schedule import Schedule, build_schedule
from autopar.costmodel.spec.strategy import Strategy
from autopar.costmodel.spec.training import PRECISIONS, Precision

from .context import ContextGroup, context_group, context_parallelize, loss_faults
from .data_parallel import data_parallelize, shards
from .experts import ExpertGrid, Routing, build_expert_grid, exchanged_routes, expert_parallelize, on_expert_grid
from .loss import LossFunction, build_loss
from .mesh import ParallelMesh, build_mesh, ensure_process_group, world_faults
from .pipeline.executor import StageRunner
from .pipeline.stage import PipelineStage, cut_stages, layers_of_stages, stage_spans
from .precision import TensorTypes, set_matmul_precision, store_parameters, tensor_types
from .random.dropout import LayoutFreeDropout
from .random.initialise import Initialiser, InitialWeights
from .recompute import apply_recompute
from .structure import ModelStructure, read_structure
from .support import training_faults
from .tensor import tensor_parallelize


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What a strategy does not say about a training run."""

    precision: Precision = PRECISIONS["bf16"]
    max_grad_norm: float | None = None
    """Largest 2-norm of all gradients together; larger ones are scaled down to it. None: not clipped."""
    seed: int = 0
    """Of the initial weights of a model on the meta device, and of dropout."""
    check_loss: bool = True
    """Raise on every rank when the loss is no finite number, before the optimizer takes the step."""
    initialise: Initialiser | None = None
    """Sets a module's initial weights where the model's own code does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelModel:
    """One rank's part of a model, ready to run."""

    mesh: ParallelMesh
    axes: Axes
    structure: ModelStructure
    schedule: Schedule
    layers: tuple[int, ...]
    """Blocks of each model stage."""
    runners: dict[int, StageRunner]
    """By virtual stage."""
    dropout: LayoutFreeDropout
    types: TensorTypes


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """The axes of this rank beside the mesh's, where the strategy has them."""

    experts: ExpertGrid | None = None
    context: ContextGroup | None = None


def build_axes(
    model: nn.Module, structure: ModelStructure, strategy: Strategy, mesh: ParallelMesh, routing: Routing = exchanged_routes
) -> Axes:
    """The further axes of ``strategy`` on the ranks of ``mesh``, whose groups all ranks of the job make together; the model is whole."""
    return Axes(
        context=context_group(mesh.layout) if strategy.context_parallel_size > 1 else None,
        experts=build_expert_grid(strategy, mesh.device, routing) if on_expert_grid(model, structure, strategy) else None,
    )


def default_device() -> torch.device:
    """This process's GPU, by torchrun's LOCAL_RANK, or the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device


def parallelise(
    model: nn.Module,
    strategy: Strategy,
    options: EngineOptions,
    *,
    global_batch_size: int,
    loss_fn: LossFunction | None,
    device: torch.device,
) -> ParallelModel:
    """Cut ``model`` over this rank's axes, in place: stages, tensor shards, recomputation, data shards; then give it its values.

    A collective call: every rank of the job makes it, with the same model and strategy.

    Raises:
        InvalidInputError: all that keeps the model from being trained so, before any rank waits for another.
    """
    ensure_process_group(device)
    structure = read_structure(model)
    faults = training_faults(model, structure, strategy, global_batch_size=global_batch_size, precision=options.precision)
    raise_if((*world_faults(strategy), *faults, *loss_faults(loss_fn, strategy)))
    mesh = build_mesh(strategy, device)
    axes = build_axes(model, structure, strategy, mesh)
    types = tensor_types(options.precision)
    set_matmul_precision(types, device)
    _turn_off_cache(model)
    weights = InitialWeights.read(model, seed=options.seed, initialise=options.initialise)
    schedule = build_schedule(
        strategy.pipeline_schedule,
        strategy.pipeline_parallel_size,
        strategy.virtual_pipeline_stages,
        strategy.num_microbatches(global_batch_size),
    )
    layers = layers_of_stages(strategy, structure.num_blocks)
    stages = cut_stages(model, structure, stage_spans(schedule, layers, mesh.coordinate("pp")))
    dropout = LayoutFreeDropout([stage.model for stage in stages], seed=options.seed)
    recomputed = shape_stages(stages, structure, mesh, axes, strategy, types, dropout)
    if not shards(strategy, types, axes.experts):
        for stage in stages:
            _move(stage, device)
    syncs = [data_parallelize(stage, structure, mesh, axes.experts, strategy, types) for stage in stages]
    weights.give_to([stage.model for stage in stages], device=device)
    runners = {}
    for stage, sync in zip(stages, syncs, strict=True):
        loss = build_loss(stage.model, loss_fn)
        stage.arm()
        splits = recomputed.isdisjoint(stage.modules())
        runners[stage.span.index] = StageRunner(stage=stage, loss=loss, sync=sync, splits_backward=splits)
    return ParallelModel(
        mesh=mesh, axes=axes, structure=structure, schedule=schedule, layers=layers, runners=runners, dropout=dropout, types=types
    )


def shape_stages(
    stages: tuple[PipelineStage, ...],
    structure: ModelStructure,
    mesh: ParallelMesh,
    axes: Axes,
    strategy: Strategy,
    types: TensorTypes,
    dropout: LayoutFreeDropout,
) -> set[nn.Module]:
    """Give the stages' parameters their type, split them over the axes and make them recompute; the blocks that do."""
    blocks: dict[int, list[nn.Module]] = {}
    for stage in stages:
        store_parameters(stage, types)
        if strategy.tensor_parallel_size > 1:
            tensor_parallelize(
                stage.model, structure, mesh.tensor, sequence_parallel=strategy.sequence_parallel, split_experts=axes.experts is None
            )
        if axes.context is not None:
            context_parallelize(stage.model, structure.layout, axes.context)
        if axes.experts is not None:
            expert_parallelize(stage.model, structure.layout, axes.experts.experts, axes.experts.routing)
        blocks[stage.span.model_stage] = list(stage.model.get_submodule(structure.blocks).children())
    return apply_recompute(blocks, strategy, dropout.recompute_contexts)


def _turn_off_cache(model: nn.Module) -> None:
    """Training has no use for Hugging Face's cache of keys and values, which a recomputed block would fill a second time."""
    config = getattr(model, "config", None)
    if config is not None and getattr(config, "use_cache", False):
        config.use_cache = False


def _move(stage: nn.Module, device: torch.device) -> None:
    """To ``device``, but for what is on the meta device and gets its values there later."""
    if device.type != "cpu":
        stage._apply(lambda tensor: tensor if tensor.is_meta else tensor.to(device))  # type: ignore[no-untyped-call]
