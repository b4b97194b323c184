"""The blocks that a model or a stage holds, and the regions of each."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from autopar.runtime.families.family import BlockRegion, Family

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
