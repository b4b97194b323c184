"""Parameters that hold several matrices in one, and how their rows are stored under tensor parallelism.

A fused query-key-value weight (GPT-2) or gate-up weight (Phi-3, Mixtral's experts) is split section by section: every rank
needs its part of each. DTensor's shards are contiguous, so the whole tensor is stored reordered: first all that rank 0
holds, then rank 1, and so on. What reads or writes whole tensors (checkpoints, initial values) goes through
:class:`FusedLayout`, which maps stored positions to the user's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor, nn

_ATTRIBUTE = "_autopar_fused"


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedLayout:
    """Dimension ``dim`` of the user's tensor is made of ``sections``, each split in ``parts`` equal parts."""

    dim: int
    sections: tuple[int, ...]
    parts: int

    def runs(self, start: int = 0, length: int | None = None) -> Iterator[tuple[int, int, int]]:
        """``(stored position, user's position, length)`` of each contiguous run within ``length`` stored positions from ``start``."""
        end = sum(self.sections) if length is None else start + length
        stored = 0
        starts = tuple(accumulate((0, *self.sections)))
        for part in range(self.parts):
            for first, section in zip(starts, self.sections, strict=False):
                width = section // self.parts
                low, high = max(start, stored), min(end, stored + width)
                if low < high:
                    yield low, first + part * width + low - stored, high - low
                stored += width

    def order(self) -> Tensor:
        """The user's position of each stored one."""
        return torch.cat([torch.arange(place, place + length) for _, place, length in self.runs()])

    def to_stored(self, tensor: Tensor) -> Tensor:
        """A whole tensor in the stored order, from one in the user's."""
        return torch.cat([tensor.narrow(self.dim, place, length) for _, place, length in self.runs()], dim=self.dim)

    def to_user(self, tensor: Tensor) -> Tensor:
        """A whole tensor in the user's order, from one as stored."""
        runs = sorted(self.runs(), key=lambda run: run[1])
        return torch.cat([tensor.narrow(self.dim, stored, length) for stored, _, length in runs], dim=self.dim)


def set_fused_layout(module: nn.Module, name: str, layout: FusedLayout) -> None:
    setattr(module, _ATTRIBUTE, {**getattr(module, _ATTRIBUTE, {}), name: layout})


def fused_layouts(model: nn.Module) -> dict[str, FusedLayout]:
    """The layout of each fused parameter of ``model``, by its fully qualified name."""
    return {
        f"{path}.{name}" if path else name: layout
        for path, module in model.named_modules()
        for name, layout in getattr(module, _ATTRIBUTE, {}).items()
    }
