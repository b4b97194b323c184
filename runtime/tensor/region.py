"""Which part of the whole tensors the code now running holds.

Between the input of an attention or feed-forward and its last projection, a rank has all tokens and its own heads or
features; elsewhere it has all features, and, under sequence parallelism, its own part of the sequence. What depends on a
value's place in the whole tensor, as a dropout mask does, asks here.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from enum import StrEnum


class Extent(StrEnum):
    """What is split over the tensor-parallel group where the code is now."""

    WHOLE = "whole"
    """Nothing: every rank of the group computes the same."""
    SEQUENCE = "sequence"
    """Dimension 1 of (batch, sequence, hidden)."""
    FEATURES = "features"
    """Heads (dimension 1 of (batch, heads, sequence, …)) or the feed-forward's features (the last dimension)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """The extent, and this rank's place among the ``size`` that split it."""

    extent: Extent
    rank: int = 0
    size: int = 1


WHOLE = Region(extent=Extent.WHOLE)


class _State(threading.local):
    region = WHOLE


_state = _State()


def current_region() -> Region:
    """The region that this thread's forward pass is in."""
    return _state.region


def set_region(region: Region) -> None:
    """Enter ``region``; the one before is not kept, since an early end of a forward pass would not restore it."""
    _state.region = region
