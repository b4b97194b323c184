"""Builds one rank of any layout in one process without hardware, and counts what it holds.

The rank's process groups are fake (collectives return at once, with nothing), its parameters are on the meta device and
its activations are fake tensors, which have shapes and types but no memory: a rank of a thousand fits on a laptop.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from autopar.costmodel.spec.errors import Fault, InvalidInputError, raise_if
from autopar.costmodel.spec.schedule import ActionKind, Schedule, build_schedule
from autopar.costmodel.spec.strategy import Strategy
from autopar.costmodel.spec.training import Precision

from .build import Axes, build_axes, shape_stages
from .data_parallel import data_parallelize, shards
from .experts import balanced_routes
from .loss import build_loss
from .mesh import ParallelMesh, build_mesh
from .pipeline.absent import Boundary, PassedBlock
from .pipeline.stage import PipelineStage, cut_stages, layers_of_stages, stage_spans
from .precision import TensorTypes, tensor_types
from .random.dropout import LayoutFreeDropout
from .structure import ModelStructure, read_structure
from .support import training_faults


@dataclass(frozen=True, slots=True, kw_only=True)
class DryBatch:
    """One step's batch, by its sizes."""

    global_batch_size: int
    sequence_length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankParts:
    """What one rank holds. Bytes are of tensors on this rank alone."""

    rank: int
    coordinates: dict[str, int]
    """Its index on each axis of the mesh, and of the expert grid where it has one."""
    layers: tuple[tuple[int, int], ...]
    """``(first, last + 1)`` blocks of each of its virtual stages."""
    num_parameters: int
    """Before data-parallel sharding."""
    sharded_parameter_bytes: int
    """Parameters as the optimizer updates them, after sharding."""
    compute_parameter_bytes: int
    """Gathered copies that forward and backward read, at their most: all of them, or under ZeRO-3 the two largest units."""
    gradient_bytes: int
    optimizer_state_bytes: int
    activation_bytes: int | None
    """Kept for backward at the schedule's fullest moment; None where they could not be counted."""
    activations_not_counted: str = ""
    """Why."""


def build_rank(
    build_model: Callable[[], nn.Module],
    strategy: Strategy,
    batch: DryBatch,
    precision: Precision,
    *,
    rank: int,
    count_activations: bool = True,
) -> RankParts:
    """Rank ``rank`` of ``strategy``: cut, sharded and counted.

    Args:
        build_model: makes the model on the meta device; called twice where activations are counted.

    Raises:
        InvalidInputError: no such rank, or all that keeps the model from being trained so.
    """
    if not 0 <= rank < strategy.world_size:
        raise InvalidInputError(Fault(field="rank", given=str(rank), required=f"the plan has ranks 0 to {strategy.world_size - 1}"))
    with _fake_job(rank, strategy.world_size):
        model = build_model()
        structure = read_structure(model)
        raise_if(training_faults(model, structure, strategy, global_batch_size=batch.global_batch_size, precision=precision))
        mesh, types = build_mesh(strategy, torch.device("cpu")), tensor_types(precision)
        axes = build_axes(model, structure, strategy, mesh, balanced_routes)
        rank_schedule = build_schedule(
            strategy.pipeline_schedule,
            strategy.pipeline_parallel_size,
            strategy.virtual_pipeline_stages,
            strategy.num_microbatches(batch.global_batch_size),
        )
        builder = _Builder(structure=structure, strategy=strategy, mesh=mesh, axes=axes, types=types, schedule=rank_schedule)
        kept, reason = _try_activations(builder, build_model(), batch) if count_activations else (None, "not asked for")
        return _counted(builder, model, rank, kept, reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Builder:
    """Cuts models into this rank's stages."""

    structure: ModelStructure
    strategy: Strategy
    mesh: ParallelMesh
    axes: Axes
    types: TensorTypes
    schedule: Schedule

    def stages(self, model: nn.Module, stored: TensorTypes) -> tuple[PipelineStage, ...]:
        """The rank's stages, tensor-sharded and with recomputation, their parameters in the type ``stored`` says."""
        layers = layers_of_stages(self.strategy, self.structure.num_blocks)
        stages = cut_stages(model, self.structure, stage_spans(self.schedule, layers, self.mesh.coordinate("pp")))
        dropout = LayoutFreeDropout([stage.model for stage in stages], seed=0)
        shape_stages(stages, self.structure, self.mesh, self.axes, self.strategy, stored, dropout)
        return stages


def _counted(builder: _Builder, model: nn.Module, rank: int, activations: int | None, reason: str) -> RankParts:
    """Parameters, gradients and optimizer states, from the sharded model itself."""
    strategy, types = builder.strategy, builder.types
    stages = builder.stages(model, types)
    units = [_local_elements(_unit_parameters(stage, builder.structure)) for stage in stages]
    whole = sum(sum(each) for each in units)
    for stage in stages:
        data_parallelize(stage, builder.structure, builder.mesh, builder.axes.experts, strategy, types)
    parameters = [parameter for stage in stages for parameter in stage.parameters()]
    sharded = sum(_local(parameter).nbytes for parameter in parameters)
    gathers = shards(strategy, types, builder.axes.experts) and (builder.mesh.num_replicas > 1 or types.is_mixed)
    at_once = whole if strategy.zero_stage < 3 else sum(sorted((count for each in units for count in each), reverse=True)[:2])
    accumulated = whole if strategy.zero_stage < 2 else sum(_local(parameter).numel() for parameter in parameters)
    return RankParts(
        rank=rank,
        coordinates=_coordinates(builder, rank),
        layers=tuple((stage.span.first, stage.span.stop) for stage in stages),
        num_parameters=whole,
        sharded_parameter_bytes=sharded,
        compute_parameter_bytes=at_once * types.computed.itemsize if gathers else 0,
        gradient_bytes=accumulated * types.reduced.itemsize,
        optimizer_state_bytes=_adam_bytes(parameters),
        activation_bytes=activations,
        activations_not_counted=reason,
    )


def _coordinates(builder: _Builder, rank: int) -> dict[str, int]:
    dense = {axis: builder.mesh.coordinate(axis) for axis in ("pp", "dp_replicate", "dp_shard", "tp")}
    if builder.axes.context is not None:
        dense["cp"] = builder.axes.context.rank
    if builder.axes.experts is None:
        return dense
    expert = builder.mesh.layout.coordinates(rank, expert=True)
    return dense | {axis: expert[axis] for axis in ("edp", "ep")}


def _unit_parameters(stage: PipelineStage, structure: ModelStructure) -> Iterator[list[nn.Parameter]]:
    """Parameters that are gathered together: each block's, and the rest."""
    blocks = list(stage.model.get_submodule(structure.blocks).children())
    inside = {id(parameter) for block in blocks for parameter in block.parameters()}
    for block in blocks:
        yield list(block.parameters())
    yield [parameter for parameter in stage.parameters() if id(parameter) not in inside]


def _local_elements(units: Iterable[list[nn.Parameter]]) -> list[int]:
    return [sum(_local(parameter).numel() for parameter in unit) for unit in units]


def _adam_bytes(parameters: Sequence[nn.Parameter]) -> int:
    """What AdamW's first step makes on these shards."""
    local = [nn.Parameter(_local(parameter).detach()) for parameter in parameters if parameter.requires_grad]
    if not local:
        return 0
    for parameter in local:
        parameter.grad = torch.empty_like(parameter)
    optimizer = torch.optim.AdamW(local)
    optimizer.step()
    states = (value for each in optimizer.state.values() for value in each.values())
    return sum(value.nbytes for value in states if isinstance(value, Tensor) and value.dim())


# -- activations -------------------------------------------------------------------------------------


def _try_activations(builder: _Builder, model: nn.Module, batch: DryBatch) -> tuple[int | None, str]:
    """Bytes kept at the fullest moment, or the reason why they cannot be counted: code that needs values has none here."""
    if builder.types.autocast:
        return None, "torch's autocast has no form for tensors without values"
    if builder.axes.context is not None and _has_mask(model):
        return None, "Hugging Face's code looks at the values of a mask of split sequences"
    try:
        return _peak_activations(builder, model, batch), ""
    except Exception as error:
        detail = str(error).splitlines()
        return None, f"{type(error).__name__}: {detail[0] if detail else ''}"[:200]


def _peak_activations(builder: _Builder, model: nn.Module, batch: DryBatch) -> int:
    computed = builder.types.computed
    stored = TensorTypes(stored=computed, computed=computed, reduced=computed)
    stages = builder.stages(model, stored)
    kept = {}
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    for stage in stages:
        loss = build_loss(stage.model)
        stage.arm()
        _pass_plainly(stage, builder.structure)
        _make_fake(stage, mode)
        kept[stage.span.index] = _kept_by_forward(stage, loss, builder, batch, mode)
    rank = builder.mesh.coordinate("pp")
    return _fullest(builder.schedule, rank, kept)


def _kept_by_forward(stage: PipelineStage, loss: Any, builder: _Builder, batch: DryBatch, mode: FakeTensorMode) -> int:
    """Bytes alive after the forward of one micro-batch, beside parameters and inputs."""
    rows, columns = builder.strategy.micro_batch_size, batch.sequence_length
    with mode:
        ids = torch.zeros((rows, columns), dtype=torch.int64)
        inputs = {"input_ids": ids, "labels": ids}
        if builder.axes.context is not None:
            inputs, columns = builder.axes.context.batch(inputs, masked=False), columns // builder.axes.context.size
        total = torch.ones((), dtype=torch.int64)
        received = None
        if not stage.span.is_first:
            split = builder.strategy.tensor_parallel_size if builder.strategy.sequence_parallel else 1
            shape = (rows, columns // split, builder.structure.hidden_size)
            received = torch.zeros(shape, dtype=builder.types.computed, requires_grad=True)
    gc.collect()
    with mode, _Storages() as made:
        output: Any = stage(received, (), _with_mask(loss.inputs(inputs, total), stage, rows, columns))
        if stage.span.is_last:
            output = loss.share(output, inputs, total)
    gc.collect()
    alive: int = made.alive_bytes()
    del output
    return alive


def _pass_plainly(stage: PipelineStage, structure: ModelStructure) -> None:
    """Absent blocks pass on what was received as it is: a fake tensor cannot be marked as the engine marks it."""
    stand_ins: dict[int, Any] = getattr(stage.model.get_submodule(structure.blocks), "stand_ins", {})
    for index, block in stand_ins.items():
        if isinstance(block, PassedBlock):
            stand_ins[index] = _PlainBlock(block._boundary)


class _PlainBlock:
    """Hands over what was received; the first block kept takes it in any case."""

    def __init__(self, boundary: Boundary) -> None:
        self._boundary = boundary

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor | None:  # noqa: ARG002
        return self._boundary.received


def _with_mask(inputs: dict[str, Any], stage: PipelineStage, rows: int, columns: int) -> dict[str, Any]:
    """Hugging Face's mask code looks at values unless it gets a whole mask."""
    if not _has_mask(stage.model):
        return inputs
    return {**inputs, "attention_mask": torch.zeros((rows, 1, columns, columns), dtype=torch.bool)}


def _has_mask(model: nn.Module) -> bool:
    """Whether ``model`` is Hugging Face's."""
    return hasattr(model, "config") and hasattr(model, "dtype")


def _fullest(schedule: Schedule, rank: int, kept: dict[int, int]) -> int:
    """The most that is kept at once when ``rank`` runs its actions; a split backward frees with its second part."""
    splits = {(action.microbatch, action.stage) for action in schedule.actions[rank] if action.kind is ActionKind.BACKWARD_WEIGHT}
    held = peak = 0
    for action in schedule.actions[rank]:
        if action.kind is ActionKind.FORWARD:
            held += kept[action.stage]
            peak = max(peak, held)
        elif action.kind is not ActionKind.BACKWARD_INPUT or (action.microbatch, action.stage) not in splits:
            held -= kept[action.stage]
    return peak


class _Storages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every storage that is made inside."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seen: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {_key(tensor) for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and (key := _key(tensor)) not in given:
                storage = tensor.untyped_storage()
                self._seen[key] = (StorageWeakRef(storage), storage.nbytes())  # type: ignore[no-untyped-call]
        return result

    def alive_bytes(self) -> int:
        alive = [size for reference, size in self._seen.values() if not reference.expired()]  # type: ignore[no-untyped-call]
        return sum(alive)


def _key(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _make_fake(stage: nn.Module, mode: FakeTensorMode) -> None:
    """Parameters and buffers as tensors that are on the CPU but hold nothing; tied ones stay one."""
    done: dict[int, Tensor] = {}

    def fake(tensor: Tensor) -> Tensor:
        if id(tensor) not in done:
            local = _local(tensor)
            with mode:
                made: Tensor = torch.empty(local.shape, dtype=local.dtype, device="cpu")
            if isinstance(tensor, DTensor):
                made = DTensor.from_local(
                    made, tensor.device_mesh, tensor.placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
                )
            done[id(tensor)] = nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else made
        return done[id(tensor)]

    for module in stage.modules():
        for store in (module._parameters, module._buffers):
            for name, tensor in store.items():
                if tensor is not None:
                    store[name] = fake(tensor)  # type: ignore[assignment]


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@contextmanager
def _fake_job(rank: int, world_size: int) -> Iterator[None]:
    """A default process group of ``world_size`` ranks of which only this one exists.

    Raises:
        InvalidInputError: this process is in a job already.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        raise InvalidInputError(Fault(field="dry run", given="", required="runs in a process of its own, outside torchrun"))
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    try:
        yield
    finally:
        dist.destroy_process_group()
