"""What keeps a model from being split over a tensor-parallel group of some size."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from autopar.costmodel.spec.errors import Fault
from autopar.runtime.families.family import BlockRegion, Family
from autopar.runtime.structure import ModelStructure

from .analysis import proven_pairs
from .blocks import EXPERT_DIMS, matching_regions, present_blocks, split_regions
from .styles import is_linear, output_dim

FIELD = "tensor_parallel_size"


@dataclass(slots=True)
class _Parts:
    """What is split: how many parts there are at most, and whether ranks may share one."""

    number: int = 0
    shared: bool = True

    def add(self, number: int, *, shared: bool) -> None:
        self.number, self.shared = math.gcd(self.number, number), self.shared and shared

    def allow(self, size: int) -> bool:
        return self.number % size == 0 or (self.shared and size % self.number == 0)


def tensor_parallel_faults(
    model: nn.Module,
    structure: ModelStructure,
    tensor_parallel_size: int,
    *,
    sequence_parallel: bool = False,
    split_experts: bool = True,
) -> tuple[Fault, ...]:
    """Why ``model`` (or the pipeline stage of it) cannot be split over ``tensor_parallel_size`` ranks; empty where it can.

    ``split_experts`` False: regions of experts are left whole.
    """
    if tensor_parallel_size == 1:
        return ()
    family = structure.layout
    shared = [name for pair in structure.tied for name in pair if name.startswith(f"{family.blocks}.")]
    if shared:
        required = f"blocks share parameters ({shared[0]})"
        return (Fault(field=FIELD, given=str(tensor_parallel_size), required=required, fix=f"use {FIELD}=1"),)
    if not family.regions:
        return tuple(_generic_faults(model, family, tensor_parallel_size, sequence_parallel))
    counts: dict[str, _Parts] = {}
    faults: dict[str, Fault] = {}
    for _, block in present_blocks(model, family):
        for fault in _block_faults(block, family, tensor_parallel_size, counts, split_experts=split_experts):
            faults.setdefault(fault.required, fault)
    faults |= {fault.required: fault for fault in _size_faults(counts, tensor_parallel_size)}
    found = [*faults.values(), *_model_faults(model, structure, tensor_parallel_size)]
    return tuple(found)


def _block_faults(block: nn.Module, family: Family, size: int, counts: dict[str, _Parts], *, split_experts: bool) -> Iterator[Fault]:
    """Layers that cannot be split; what there is to split is noted in ``counts`` by name."""
    matched = {region.module for region, _ in matching_regions(block, family)}
    for name in dict.fromkeys(region.module for region in family.regions):
        if name not in matched:
            required = f"{name} of {type(block).__name__} is not laid out as in {family.name}"
            yield Fault(field=FIELD, given=str(size), required=required, fix=f"use {FIELD}=1")
    for region, module in split_regions(block, family, experts=split_experts):
        layers = [*(column.name for column in region.columns), *region.rows]
        odd = {name: f"is a {_kind(module, name)}" for name in layers if not is_linear(module.get_submodule(name))}
        if region.experts:
            biased = (name for name in region.rows if module.get_submodule(name)._parameters.get("bias") is not None)
            odd |= dict.fromkeys(biased, "has a bias beside experts")
        for name, reason in odd.items():
            required = f"{region.module}.{name} {reason}; only plain linear layers can be split"
            yield Fault(field=FIELD, given=str(size), required=required, fix=f"use {FIELD}=1, or plain linear layers")
        if not odd:
            _count(region, module, counts)


def _kind(module: nn.Module, name: str) -> str:
    return type(module.get_submodule(name)).__name__


def _count(region: BlockRegion, module: nn.Module, counts: dict[str, _Parts]) -> None:
    if region.experts:
        weight = module.get_submodule(region.experts).get_parameter("down_proj")
        width = int(weight.shape[EXPERT_DIMS["down_proj"]])
        counts.setdefault("the experts' ffn_hidden_size", _Parts()).add(width, shared=False)
    unit = region.unit(module) if region.unit else 1
    for column in region.columns:
        layer = module.get_submodule(column.name)
        features = int(layer.get_parameter("weight").shape[output_dim(layer)])
        sections = column.sections(module) if column.sections else (features,)
        names = ("query", "key", "value") if len(sections) == 3 else ("",) * len(sections)
        for section, name in zip(sections, names, strict=True):
            what = "the shared experts' ffn_hidden_size" if region.experts else _what(region, column.name, name)
            counts.setdefault(what, _Parts()).add(section // unit, shared=column.grouped)


def _what(region: BlockRegion, column: str, section: str) -> str:
    if region.what != "heads":
        return region.what
    label = section or column
    return "num_key_value_heads" if label.startswith(("k", "v")) else "num_attention_heads"


def _size_faults(counts: dict[str, _Parts], size: int) -> Iterator[Fault]:
    largest = max((parts.number for parts in counts.values()), default=1)
    valid = tuple(each for each in range(1, largest + 1) if all(parts.allow(each) for parts in counts.values()))
    for what, parts in counts.items():
        if not parts.allow(size):
            multiple = ", or be a multiple of it" if parts.shared else ""
            required = f"must divide {what}={parts.number}{multiple}"
            yield Fault(field=FIELD, given=str(size), required=required, fix=_nearest(size, valid))


def _model_faults(model: nn.Module, structure: ModelStructure, size: int) -> Iterator[Fault]:
    vocab = structure.vocab_size
    if vocab and -(-vocab // size) * (size - 1) >= vocab:
        largest = max(part for part in range(1, size) if -(-vocab // part) * (part - 1) < vocab)
        yield Fault(
            field=FIELD, given=str(size), required=f"leaves a rank without any of vocab_size={vocab}", fix=f"largest valid: {largest}"
        )
    config = getattr(model, "config", None)
    if getattr(config, "output_router_logits", False):
        required = "the router's auxiliary loss is not split over a tensor-parallel group"
        yield Fault(field="output_router_logits", given="True", required=required, fix="set config.output_router_logits = False")
    if getattr(config, "router_jitter_noise", 0):
        required = "each rank of a tensor-parallel group would draw its own noise"
        yield Fault(field="router_jitter_noise", given=str(config.router_jitter_noise), required=required, fix="set it to 0")  # type: ignore[union-attr]


def _generic_faults(model: nn.Module, family: Family, size: int, sequence_parallel: bool) -> Iterator[Fault]:
    reasons: dict[str, None] = {}
    counts: dict[str, _Parts] = {}
    for _, block in present_blocks(model, family):
        found = proven_pairs(block)
        if not found.pairs:
            reasons[f"{type(block).__name__}: {found.reason}"] = None
        for pair in found.pairs:
            counts[f"the features between {', '.join(pair.columns)} and {pair.row}"] = _Parts(number=pair.features, shared=False)
    for reason in reasons:
        yield Fault(field=FIELD, given=str(size), required=f"no layers can be proven safe to split; {reason}", fix=f"use {FIELD}=1")
    yield from _size_faults(counts, size)
    if sequence_parallel:
        required = f"what {type(model).__name__} computes between its layers is not known to keep tokens apart"
        yield Fault(field="sequence_parallel", given="True", required=required, fix="set it to False")


def _nearest(size: int, valid: tuple[int, ...]) -> str:
    below, above = [each for each in valid if each < size], [each for each in valid if each > size]
    return f"nearest valid: {', '.join(map(str, [*below[-1:], *above[:1]]))}"
