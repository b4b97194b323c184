"""The description of a model family, as data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A linear layer of a region that is split along its output features.

    ``sections`` gives the sizes of the matrices fused in it, from the region's module; None for one matrix. Each section is a
    whole number of units (heads) on every rank.
    """

    name: str
    sections: Callable[[nn.Module], tuple[int, ...]] | None = None
    grouped: bool = False
    """Keys or values of their own layer, whose heads several query heads share: ranks may hold the same one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalAttribute:
    """A size that a module keeps and that its forward needs as of this rank: divided by the group's size."""

    name: str
    of_config: bool = False
    """The attribute is of the module's ``config``, of which the module gets a copy of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRegion:
    """A part of a block that is split by heads or by features: all between its ``columns`` and its ``rows``.

    ``unit`` gives the features that must stay together (head_dim), from the region's module; None where each may go its own way.
    ``experts``: name of the module that holds stacked experts; the region then ends at its own output, and its rows have no bias.
    """

    module: str
    columns: tuple[Column, ...] = ()
    rows: tuple[str, ...] = ()
    unit: Callable[[nn.Module], int] | None = None
    attributes: tuple[LocalAttribute, ...] = ()
    experts: str = ""
    what: str = "ffn_hidden_size"
    """What is split, in a fault's words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Where the modules of a model class are, relative to the model."""

    name: str
    blocks: str
    prefix: tuple[str, ...]
    suffix: tuple[str, ...]
    regions: tuple[BlockRegion, ...]
    embedding: str
    final_norm: str
    head: str
    order_is_known: bool = True
    """False where ``prefix`` and ``suffix`` are only supposed to run before and after the blocks."""
