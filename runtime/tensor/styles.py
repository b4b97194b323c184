"""How one module computes under tensor parallelism: the styles that ``parallelize_module`` applies.

Legend: B batch, S sequence, H hidden, F features split over the group (heads x head_dim, feed-forward, vocabulary).
A region begins where a block's attention or feed-forward takes its input and ends at its row-parallel projection
(Megatron-LM, arXiv 1909.08053); under sequence parallelism its ends are an all-gather and a reduce-scatter over the sequence
(arXiv 2205.05198). All gradients inside a region are partial sums, of replicated parameters too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ParallelStyle

from autopar.costmodel.spec.errors import Fault, InvalidInputError, raise_if
from autopar.runtime.loss import first_index

from . import collectives
from .fused import FusedLayout
from .local import local_parameter, local_parameters, mark_partial, replace_forward, run_locally, shard_parameter
from .region import WHOLE, Extent, Region, set_region

SEQUENCE_DIM = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """What a tensor crosses into and out of a region of ``mesh``."""

    mesh: DeviceMesh
    sequence_parallel: bool

    @property
    def group(self) -> collectives.Group:
        return self.mesh.get_group()

    @property
    def inside(self) -> Region:
        return Region(extent=Extent.FEATURES, rank=self.mesh.get_local_rank(), size=self.mesh.size())

    @property
    def outside(self) -> Region:
        if not self.sequence_parallel:
            return WHOLE
        return Region(extent=Extent.SEQUENCE, rank=self.mesh.get_local_rank(), size=self.mesh.size())

    def enter(self, x: Tensor) -> Tensor:
        """The input of a region: (B, S or its shard, H) to (B, S, H)."""
        set_region(self.inside)
        if self.sequence_parallel:
            return collectives.gather_shards(x, SEQUENCE_DIM, self.group)
        return collectives.sum_gradients(x, self.group)

    def leave(self, x: Tensor) -> Tensor:
        """The output of a region: partial sums (B, S, H) to (B, S or its shard, H)."""
        set_region(self.outside)
        if self.sequence_parallel:
            return collectives.scatter_sums(x, SEQUENCE_DIM, self.group)
        return collectives.sum_outputs(x, self.group)

    def split(self, x: Tensor) -> Tensor:
        """Whole sequences to this rank's part of each."""
        raise_if(sequence_faults(int(x.shape[SEQUENCE_DIM]), self.mesh.size()))
        set_region(self.outside)
        return collectives.take_shard(x, SEQUENCE_DIM, self.group)


def sequence_faults(length: int, size: int) -> list[Fault]:
    """Whether sequences of ``length`` tokens can be split over ``size`` ranks."""
    if length % size == 0:
        return []
    required = f"sequence_parallel needs a multiple of tensor_parallel_size={size}"
    fix = f"pad to {-(-length // size) * size}, or turn sequence_parallel off"
    return [Fault(field="sequence_length", given=str(length), required=required, fix=fix)]


class Replicated(ParallelStyle):
    """Parameters are the same on every rank; ``partial`` where each rank sees a part of the tokens or heads."""

    def __init__(self, *, partial: bool) -> None:
        super().__init__()
        self.partial = partial

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for name in list(module._parameters):
            shard_parameter(module, name, device_mesh, None)
        if self.partial:
            mark_partial(module, *module._parameters)
        run_locally(module)
        return module


class Column(ParallelStyle):
    """A linear layer split along its output features: (B, S, in) to (B, S, F / tp), of an input already in the region.

    ``sections``: sizes of the matrices fused in it. ``boundary``: the layer enters its region by itself.
    """

    def __init__(self, *, sections: tuple[int, ...] = (), boundary: Boundary | None = None) -> None:
        super().__init__()
        self.sections, self.boundary = sections, boundary

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        dim, boundary = output_dim(module), self.boundary
        for name, along in (("weight", dim), ("bias", 0)):
            layout = FusedLayout(dim=along, sections=self.sections, parts=device_mesh.size()) if len(self.sections) > 1 else None
            shard_parameter(module, name, device_mesh, along, layout)
        multiply = _multiply(module)

        def forward(x: Tensor) -> Tensor:
            if boundary is not None:
                x = boundary.enter(x)
            return multiply(x, cast(Tensor, local_parameter(module, "weight")), local_parameter(module, "bias"))

        replace_forward(module, forward)
        return module


class GroupedHeads(ParallelStyle):
    """A linear layer to fewer heads than ranks: each rank computes the one head that its query heads use, of ``unit`` features.

    The layer is held whole; its gradient is zero but for the rank's head, and so a partial sum.
    """

    def __init__(self, unit: int) -> None:
        super().__init__()
        self.unit = unit

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        unit, size = self.unit, device_mesh.size()
        heads = int(module.get_parameter("weight").shape[0]) // unit
        head = device_mesh.get_local_rank() * heads // size
        for name in ("weight", "bias"):
            shard_parameter(module, name, device_mesh, None)
        mark_partial(module, "weight", "bias")

        def own(name: str) -> Tensor | None:
            whole = local_parameter(module, name)
            return None if whole is None else whole.narrow(0, head * unit, unit)

        def forward(x: Tensor) -> Tensor:
            return F.linear(x, cast(Tensor, own("weight")), own("bias"))

        replace_forward(module, forward)
        return module


class Row(ParallelStyle):
    """A linear layer split along its input features: (B, S, F / tp) to (B, S or its shard, out), which ends the region.

    ``boundary`` None: it stays inside, and its output, without a bias, is a partial sum.
    """

    def __init__(self, boundary: Boundary | None) -> None:
        super().__init__()
        self.boundary = boundary

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        boundary = self.boundary
        shard_parameter(module, "weight", device_mesh, 1 - output_dim(module))
        shard_parameter(module, "bias", device_mesh, None)
        if boundary is not None and boundary.sequence_parallel:
            mark_partial(module, "bias")
        multiply = _multiply(module)

        def forward(x: Tensor) -> Tensor:
            output = multiply(x, cast(Tensor, local_parameter(module, "weight")), None)
            if boundary is None:
                return output
            output = boundary.leave(output)
            bias = local_parameter(module, "bias")
            return output if bias is None else output + bias

        replace_forward(module, forward)
        return module


class Experts(ParallelStyle):
    """Stacked experts, each split along its feed-forward features: input in the region, output partial sums."""

    def __init__(self, dims: dict[str, int], fused: dict[str, tuple[int, ...]]) -> None:
        super().__init__()
        self.dims, self.fused = dims, fused

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for name, dim in self.dims.items():
            sections = self.fused.get(name)
            layout = FusedLayout(dim=dim, sections=sections, parts=device_mesh.size()) if sections else None
            shard_parameter(module, name, device_mesh, dim, layout)
        run_locally(module)
        return module


class Elsewhere(ParallelStyle):
    """Experts that another grid of ranks lays out."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:  # noqa: ARG002
        return module


class VocabularyEmbedding(ParallelStyle):
    """A token table split along the vocabulary: ids (B, S) to (B, S, H), the same on every rank.

    A rank looks up the ids it holds; the sum over the group has every row once.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        table = cast(nn.Embedding, module)
        shard_parameter(table, "weight", device_mesh, 0)
        size, rank, group = device_mesh.size(), device_mesh.get_local_rank(), device_mesh.get_group()
        start, end = (first_index(table.num_embeddings, size, part) for part in (rank, rank + 1))
        lookup, padding = table.forward, table.padding_idx
        local_padding = padding - start if padding is not None and start <= padding < end else None

        def forward(ids: Tensor) -> Tensor:
            elsewhere = (ids < start) | (ids >= end)
            with local_parameters(table):
                table.padding_idx = local_padding
                try:
                    rows = lookup((ids - start).masked_fill(elsewhere, 0))
                finally:
                    table.padding_idx = padding
            return collectives.sum_outputs(rows.masked_fill(elsewhere[..., None], 0.0), group)

        replace_forward(table, forward)
        return table


class VocabularyHead(ParallelStyle):
    """The output layer split along the vocabulary: (B, S, H) to logits (B, S, V), a DTensor that is never gathered here.

    ``entered``: the input's gradient is summed by what comes before (the gather after the last norm).
    """

    def __init__(self, *, entered: bool) -> None:
        super().__init__()
        self.entered = entered

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        size, group, entered = int(module.get_parameter("weight").shape[output_dim(module)]), device_mesh.get_group(), self.entered
        shard_parameter(module, "weight", device_mesh, output_dim(module))
        shard_parameter(module, "bias", device_mesh, 0)
        multiply = _multiply(module)

        def forward(x: Tensor) -> Tensor:
            if not entered:
                x = collectives.sum_gradients(x, group)
            logits = multiply(x, cast(Tensor, local_parameter(module, "weight")), local_parameter(module, "bias"))
            shape = torch.Size((*logits.shape[:-1], size))
            stride = torch.empty(shape, device="meta").stride()
            return DTensor.from_local(logits, device_mesh, [Shard(logits.ndim - 1)], run_check=False, shape=shape, stride=stride)

        replace_forward(module, forward)
        return module


def output_dim(module: nn.Module) -> int:
    """The dimension of ``weight`` that holds output features: 0, or 1 for the transposed linear of GPT-2."""
    return 1 if is_transposed_linear(module) else 0


def is_transposed_linear(module: nn.Module) -> bool:
    """Whether ``module`` is transformers' ``Conv1D``: weight (in, out)."""
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf")


def is_linear(module: nn.Module) -> bool:
    return type(module) is nn.Linear or is_transposed_linear(module)


def _multiply(module: nn.Module) -> Callable[[Tensor, Tensor, Tensor | None], Tensor]:
    if not is_transposed_linear(module):
        return F.linear

    def transposed(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, weight.t(), bias)

    return transposed


def first_tensor_hook(change: Callable[[Tensor], Tensor]) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], Any]:
    """A forward pre-hook that changes the hidden states: the first positional argument, or ``hidden_states``."""

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if args:
            return (change(args[0]), *args[1:]), kwargs
        name = "hidden_states" if "hidden_states" in kwargs else next(iter(kwargs), "")
        if not isinstance(kwargs.get(name), Tensor):
            raise InvalidInputError(f"{type(module).__name__} was called without hidden states")
        return args, {**kwargs, name: change(kwargs[name])}

    return hook
