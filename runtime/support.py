"""What this runtime refuses, found before a process waits for another: all faults of a plan at once."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from autopar.costmodel.spec.errors import Fault
from autopar.costmodel.spec.schedule import Schedule, build_schedule, schedule_faults
from autopar.costmodel.spec.strategy import RecomputeModule, Strategy, split_text
from autopar.costmodel.spec.training import Precision

from .context import context_faults, kind_faults
from .experts import expert_faults, grid_faults
from .mesh import shard_faults
from .pipeline.stage import layers_of_stages, split_faults, stage_spans, stray_parameters
from .precision import precision_faults
from .structure import ModelStructure
from .tensor import tensor_parallel_faults


def unsupported(strategy: Strategy, structure: ModelStructure | None = None) -> tuple[Fault, ...]:
    """What of ``strategy`` this runtime cannot run, on whatever model (``structure`` None) or on this one."""
    faults = [*_axes(strategy), *grid_faults(strategy), *shard_faults(strategy)]
    if structure is not None:
        faults += split_faults(strategy, structure.num_blocks)
    elif strategy.pipeline_layers and len(strategy.pipeline_layers) != strategy.num_virtual_stages:
        required = f"one entry for each of the {strategy.num_virtual_stages} virtual stages"
        faults.append(Fault(field="pipeline_layers", given=split_text(strategy.pipeline_layers), required=required))
    return tuple(faults)


def training_faults(
    model: nn.Module, structure: ModelStructure, strategy: Strategy, *, global_batch_size: int, precision: Precision
) -> tuple[Fault, ...]:
    """All that keeps ``model`` from being trained under ``strategy`` with this batch and precision."""
    faults = [*unsupported(strategy, structure), *precision_faults(precision), *batch_faults(strategy, global_batch_size)]
    tensor, pipeline = strategy.tensor_parallel_size, strategy.pipeline_parallel_size
    split_experts = strategy.expert_tensor_parallel_size > 1
    faults += tensor_parallel_faults(model, structure, tensor, sequence_parallel=strategy.sequence_parallel, split_experts=split_experts)
    faults += context_faults(model, structure, strategy)
    if not grid_faults(strategy):
        faults += expert_faults(model, structure, strategy)
    if pipeline > 1 or strategy.virtual_pipeline_stages > 1:
        faults += [*stray_parameters(model, structure), *_router_faults(model), *_order_faults(model, structure)]
    return tuple(faults or _frozen_faults(model, structure, strategy, global_batch_size))


def batch_faults(strategy: Strategy, global_batch_size: int) -> list[Fault]:
    """Whether the batch divides into micro-batches, in a number that the schedule exists for."""
    share = strategy.data_parallel_size * strategy.micro_batch_size
    if global_batch_size < 1 or global_batch_size % share:
        below, above = global_batch_size // share * share, (max(global_batch_size, 0) // share + 1) * share
        nearest = ", ".join(str(size) for size in (below, above) if size > 0)
        required = f"a multiple of data_parallel_size x micro_batch_size = {share}"
        return [Fault(field="global_batch_size", given=str(global_batch_size), required=required, fix=f"nearest valid: {nearest}")]
    return schedule_faults(
        strategy.pipeline_schedule,
        strategy.pipeline_parallel_size,
        strategy.virtual_pipeline_stages,
        strategy.num_microbatches(global_batch_size),
    )


def _axes(strategy: Strategy) -> list[Fault]:
    faults = kind_faults(strategy)
    counts = strategy.stage_recompute_layers
    if counts and len(counts) != strategy.num_virtual_stages:
        required = f"one entry for each of the {strategy.num_virtual_stages} virtual stages"
        faults.append(Fault(field="stage_recompute_layers", given=split_text(counts), required=required))
    if set(strategy.recompute_modules) - {RecomputeModule.CORE_ATTN}:
        required = "autopar's runtime recomputes the attention core or whole layers"
        faults.append(Fault(field="recompute_modules", given="+".join(strategy.recompute_modules), required=required, fix="leave it out"))
    if strategy.sequence_parallel and strategy.tensor_parallel_size == 1:
        required = "sequence parallelism runs on the tensor-parallel group"
        faults.append(Fault(field="sequence_parallel", given="True", required=required, fix="use False, or tensor_parallel_size=2"))
    return faults


def _frozen_faults(model: nn.Module, structure: ModelStructure, strategy: Strategy, global_batch_size: int) -> list[Fault]:
    """Pipeline ranks that would have nothing to train, and so no optimizer. The plan has no other fault."""
    schedule = build_schedule(
        strategy.pipeline_schedule,
        strategy.pipeline_parallel_size,
        strategy.virtual_pipeline_stages,
        strategy.num_microbatches(global_batch_size),
    )
    layers = layers_of_stages(strategy, structure.num_blocks)
    trained = {name for name, parameter in model.named_parameters(remove_duplicate=False) if parameter.requires_grad}
    ranks = range(schedule.pipeline_parallel_size)
    frozen = [rank for rank in ranks if not any(name.startswith(_owned(structure, schedule, layers, rank)) for name in trained)]
    if not frozen:
        return []
    if len(frozen) == len(ranks):
        return [Fault(field="model", given="all frozen", required="a parameter with requires_grad=True")]
    required = f"a parameter to train on every pipeline rank; rank {', '.join(map(str, frozen))} has frozen ones alone"
    return [Fault(field="pipeline_parallel_size", given=str(len(ranks)), required=required, fix="use pipeline_layers=, or fewer ranks")]


def _owned(structure: ModelStructure, schedule: Schedule, layers: Sequence[int], rank: int) -> tuple[str, ...]:
    """Beginnings of the names of the parameters that pipeline rank ``rank`` holds."""
    if schedule.num_model_stages == 1:
        return ("",)
    owned: list[str] = []
    for span in stage_spans(schedule, layers, rank):
        owned += [f"{structure.blocks}.{index}" for index in range(span.first, span.stop)]
        owned += structure.prefix if span.is_first else ()
        owned += structure.suffix if span.is_last else ()
    return tuple(f"{name}." for name in owned)


def _router_faults(model: nn.Module) -> list[Fault]:
    """A loss over the routers of all layers needs all layers on one rank."""
    if not getattr(getattr(model, "config", None), "output_router_logits", False):
        return []
    required = "the routers' balancing loss needs every layer on one rank; a pipeline spreads them"
    fix = "set config.output_router_logits=False, or pipeline_parallel_size=1"
    return [Fault(field="output_router_logits", given="True", required=required, fix=fix)]


def _order_faults(model: nn.Module, structure: ModelStructure) -> list[Fault]:
    """Stages hold what runs before and after the blocks, which must be known to do so."""
    if structure.layout.order_is_known:
        return []
    required = f"a run of {type(model).__name__} on the meta device does not show which modules run before and after {structure.blocks}"
    return [Fault(field="pipeline_parallel_size", given="", required=required, fix="use pipeline_parallel_size=1")]
