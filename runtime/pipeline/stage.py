"""Cuts a model into the virtual stages of one pipeline rank, and runs one of them.

A stage is the user's model with the blocks, embeddings and head of other stages taken out; every parameter keeps its
fully qualified name. Hidden states of the stage before replace the input of the first block kept; after the last one the
model's forward ends early. Names of shapes: B micro-batch, T tokens, H hidden size.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import nn

from autopar.costmodel.spec.errors import Fault, raise_if
from autopar.costmodel.spec.schedule import Schedule, stage_holders
from autopar.costmodel.spec.strategy import Strategy, balanced_layers, split_text
from autopar.runtime.structure import ModelStructure

from .absent import (
    AbsentEmbedding,
    AbsentModule,
    ArrivalBlock,
    Boundary,
    EndBlock,
    EndOfStage,
    PassedBlock,
    StageBlocks,
    with_hidden_states,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSpan:
    """Which part of the model a virtual stage holds: blocks ``first`` to ``stop`` (exclusive) of ``num_blocks``.

    ``index`` is the virtual stage of the schedule, ``model_stage`` its place in the model.
    """

    index: int
    model_stage: int
    first: int
    stop: int
    is_first: bool
    is_last: bool


class PipelineStage(nn.Module):
    """One virtual stage of the model, and the root of its data-parallel sharding."""

    def __init__(self, model: nn.Module, span: StageSpan) -> None:
        super().__init__()
        self.model = model
        self.span = span
        self._boundary = Boundary()
        self._kept: tuple[nn.Module, ...] = ()

    def forward(self, received: torch.Tensor | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The model's output on the last stage, the hidden states (B, T, H) for the next one elsewhere.

        Args:
            received: hidden states of the stage before; None on the first.
            args, kwargs: the micro-batch, as the whole model takes it.
        """
        self._boundary.received = received
        try:
            output = self.model(*args, **kwargs)
        except EndOfStage:
            output = self._boundary.last_of_stage
        finally:
            self._boundary.received = self._boundary.last_of_stage = None
        return output

    def cut(self, structure: ModelStructure) -> None:
        """Take out of the model what other stages hold."""
        span = self.span
        if not span.is_first:
            for name in structure.prefix:
                _replace(self.model, name, self._stand_in(self.model.get_submodule(name)))
        if not span.is_last:
            for name in structure.suffix:
                _replace(self.model, name, AbsentModule())
        self._cut_blocks(structure)

    def arm(self) -> None:
        """Hook the blocks where this stage begins and ends: to be called when all other hooks are in place.

        The first block takes what was received before anything else sees its input, and the forward ends when all else is done
        with the last one's output.
        """
        if not self._kept:
            return
        if not self.span.is_first:
            self._kept[0].register_forward_pre_hook(self._arrive, prepend=True, with_kwargs=True)
        if not self.span.is_last:
            self._kept[-1].register_forward_hook(lambda _, __, output: self._boundary.end(output))

    def _arrive(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        assert self._boundary.received is not None
        return with_hidden_states(args, kwargs, self._boundary.received)

    def _stand_in(self, module: nn.Module) -> nn.Module:
        width = getattr(module, "embedding_dim", None)
        return AbsentModule() if width is None else AbsentEmbedding(self._boundary, width)

    def _cut_blocks(self, structure: ModelStructure) -> None:
        blocks = self.model.get_submodule(structure.blocks)
        first, stop, total = self.span.first, self.span.stop, structure.num_blocks
        passed, end = PassedBlock(self._boundary), EndBlock(self._boundary)
        stand_ins: dict[int, Any] = dict.fromkeys(range(first), passed) | dict.fromkeys(range(stop, total), end)
        if first == stop == total:
            stand_ins[total - 1] = ArrivalBlock(self._boundary)
        for index in stand_ins:
            del blocks._modules[str(index)]
        blocks.__class__ = type(f"Stage{type(blocks).__name__}", (StageBlocks, type(blocks)), {})
        blocks.stand_ins = stand_ins  # type: ignore[assignment]  # not a module, so a plain attribute
        blocks.num_blocks = total  # type: ignore[assignment]
        self._kept = tuple(blocks.children())


def layers_of_stages(strategy: Strategy, num_blocks: int) -> tuple[int, ...]:
    """Blocks of each virtual stage in model order; the strategy has none of :func:`split_faults`."""
    if strategy.pipeline_layers:
        return strategy.pipeline_layers
    holders = stage_holders(strategy.pipeline_schedule, strategy.pipeline_parallel_size, strategy.virtual_pipeline_stages)
    return balanced_layers(num_blocks, strategy.num_virtual_stages, holders=holders)


def split_faults(strategy: Strategy, num_blocks: int) -> list[Fault]:
    """Whether every stage has something of a model of ``num_blocks`` blocks to run."""
    stages, layers = strategy.num_virtual_stages, strategy.pipeline_layers
    if layers and (len(layers) != stages or sum(layers) != num_blocks):
        required = f"{stages} stages whose layers sum to the model's {num_blocks}"
        return [Fault(field="pipeline_layers", given=split_text(layers), required=required, fix="leave it out for an even split")]
    if layers and min(layers[1:-1], default=1) < 1:
        required = "at least one layer in every stage but the first and the last"
        return [Fault(field="pipeline_layers", given=split_text(layers), required=required, fix="leave it out for an even split")]
    if not layers and stages > num_blocks:
        required = f"at most the model's {num_blocks} blocks in virtual stages"
        return [Fault(field="pipeline_parallel_size x virtual_pipeline_stages", given=str(stages), required=required)]
    return []


def stage_spans(schedule: Schedule, layers: Sequence[int], rank: int) -> tuple[StageSpan, ...]:
    """The parts of the model that pipeline rank ``rank`` holds, in the order of its virtual stages."""
    ends = tuple(accumulate(layers))
    last = schedule.num_model_stages - 1
    places = ((stage, schedule.model_stage(stage)) for stage in schedule.rank_stages(rank))
    return tuple(
        StageSpan(
            index=stage, model_stage=place, first=ends[place] - layers[place], stop=ends[place], is_first=place == 0, is_last=place == last
        )
        for stage, place in places
    )


def cut_stages(model: nn.Module, structure: ModelStructure, spans: Sequence[StageSpan]) -> tuple[PipelineStage, ...]:
    """The stages of ``spans``. The model is cut in place and becomes the last of them; nothing of it is copied but its modules.

    Raises:
        InvalidInputError: :func:`stray_parameters`.
    """
    if len(spans) > 1 or not (spans[0].is_first and spans[0].is_last):
        raise_if(stray_parameters(model, structure))
    tensors = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    models = [copy.deepcopy(model, dict(tensors)) for _ in spans[1:]] + [model]
    stages = tuple(PipelineStage(part, span) for part, span in zip(models, spans, strict=True))
    for stage in stages:
        if not (stage.span.is_first and stage.span.is_last):
            stage.cut(structure)
    _own_parameters(stages)
    return stages


def _own_parameters(stages: Sequence[PipelineStage]) -> None:
    """A parameter that two stages of this rank share becomes two, with the same values."""
    seen: set[int] = set()
    for stage in stages:
        copies: dict[int, nn.Parameter] = {}
        for module in stage.modules():
            for name, parameter in list(module._parameters.items()):
                if parameter is not None and id(parameter) in seen:
                    copied = copies.setdefault(id(parameter), nn.Parameter(parameter.detach().clone(), parameter.requires_grad))
                    module._parameters[name] = copied
        seen |= {id(parameter) for parameter in stage.parameters()}


def stray_parameters(model: nn.Module, structure: ModelStructure) -> list[Fault]:
    """Parameters that no stage of a pipeline would own."""
    owners = tuple(f"{name}." for name in (structure.blocks, *structure.prefix, *structure.suffix))
    strays = [name for name, _ in model.named_parameters() if not name.startswith(owners)]
    if not strays:
        return []
    required = "every parameter in the repeated blocks, in what runs before them or in what runs after them"
    return [Fault(field="pipeline_parallel_size", given=", ".join(strays), required=required, fix="use pipeline_parallel_size=1")]


def _replace(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    model.get_submodule(parent)._modules[child] = module
