"""The blocks that a model or a stage holds, and the regions of each."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from autopar.runtime.families.family import BlockRegion, Column, Family

from .styles import output_dim

EXPERT_DIMS = {"gate_up_proj": 1, "down_proj": 2}
"""Where Hugging Face's stacked experts, (expert, out, in), hold the feed-forward's features."""


def present_blocks(model: nn.Module, family: Family) -> Iterator[tuple[str, nn.Module]]:
    """The blocks that ``model`` holds, by fully qualified name."""
    for index, block in model.get_submodule(family.blocks)._modules.items():
        if block is not None:
            yield f"{family.blocks}.{index}", block


def matching_regions(block: nn.Module, family: Family) -> Iterator[tuple[BlockRegion, nn.Module]]:
    """The regions of ``block``: of those that share a module's name, the one whose layers it has."""
    for region in family.regions:
        module = block._modules.get(region.module)
        wanted = {region.experts, *(column.name for column in region.columns), *region.rows} - {""}
        if module is not None and wanted <= {path for path, _ in module.named_modules()}:
            yield region, module


def split_regions(block: nn.Module, family: Family, *, experts: bool) -> Iterator[tuple[BlockRegion, nn.Module]]:
    """The regions of ``block`` that are split over a tensor-parallel group, those of experts where ``experts`` says so."""
    return ((region, module) for region, module in matching_regions(block, family) if experts or not region.experts)


def num_heads(region: BlockRegion, module: nn.Module, column: Column) -> int:
    """Units (heads, or single features) that a column layer of one matrix puts out."""
    layer = module.get_submodule(column.name)
    return int(layer.get_parameter("weight").shape[output_dim(layer)]) // (region.unit(module) if region.unit else 1)


def shares_heads(region: BlockRegion, module: nn.Module, column: Column, size: int) -> bool:
    """Whether several of ``size`` ranks use the same key and value head."""
    if not column.grouped:
        return False
    heads = num_heads(region, module, column)
    return heads < size and size % heads == 0
