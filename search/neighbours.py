"""Placements near a good one, for schedules with several stages a rank, where no dynamic programme finds the best.

A rank's load does not say which of its stages have the layers, and under an interleaved schedule that alone can make a step some per
cent longer: (3, 1, 2, 1) layers and (2, 1, 3, 1) load two ranks alike, and fill and drain the pipeline differently.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from math import comb

import numpy as np

from autopar.costmodel.stage_budget import StageBudget

from .partition import Partition, loads_of, placed

WHOLE = 3_000
"""Splits that are all asked about where an exact answer is wanted."""


def count_splits(layers: int, stages: int) -> int:
    """Ways to give each of ``stages`` a layer or more."""
    return comb(layers - 1, stages - 1)


def splits(layers: int, stages: int) -> Iterator[tuple[int, ...]]:
    """Every one of them."""
    for cuts in itertools.combinations(range(1, layers), stages - 1):
        yield tuple(end - start for start, end in itertools.pairwise((0, *cuts, layers)))


def nearby(budget: StageBudget, layers: tuple[int, ...], asked: int | None, *, most: int) -> list[Partition]:
    """At most ``most`` placements with one layer moved to another stage, those with the least busy rank first.

    Args:
        budget: of one strategy (N = 1).
        layers: of each stage, now.
        asked: layers recomputed on each rank; None: as few as fit.
        most: how many to return.
    """
    now, stages = np.array(layers), np.arange(len(layers))
    giving, taking = (axis.ravel() for axis in np.meshgrid(np.flatnonzero(now > 1), stages, indexing="ij"))
    giving, taking = giving[giving != taking], taking[giving != taking]
    moved = np.tile(now, (len(giving), 1))
    rows = np.arange(len(moved))
    moved[rows, giving] -= 1
    moved[rows, taking] += 1
    slowest = loads_of(budget, moved, asked).max(axis=1, initial=0.0)
    order = np.argsort(slowest, kind="stable")[:most]
    return [placed(budget, moved[row].tolist(), asked) for row in order.tolist() if np.isfinite(slowest[row])]
