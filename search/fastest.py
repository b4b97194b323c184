"""The fastest strategies of one problem, where nobody asks how many of the others do not fit: bounds first, and a ranking of what is left.

The answer is that of the search over everything (:func:`~autopar.search.solve.search`), which a test holds; what is missing is the count
of strategies by what their memory made of them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from autopar.costmodel.columns import Floats, StrategyColumns
from autopar.costmodel.inputs import Inputs
from autopar.costmodel.layer_floor import layer_floor
from autopar.costmodel.problem import Problem

from .constraints import Constraints
from .exhaustive import Sweep, selective_is_tried
from .pool_floor import FixedStages, Overhead
from .progress import Watch
from .rank_floor import HAIR, Pipelines
from .result import Ranked
from .solve import ranking, search
from .space import Space

_FIRST = 8
"""Strategies that are evaluated first, those of the least bounds; then four times as many, and so on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fastest:
    """The best that fit, in order."""

    ranked: tuple[Ranked, ...]
    evaluated: int
    """Those that got a bound and no more included."""
    rejected: Counter[str]


def fastest(problem: Problem, constraints: Constraints, *, top: int, watch: Watch) -> Fastest:
    """The ``top`` fastest strategies that fit: what :func:`~autopar.search.solve.search` ranks."""
    sweep, passed = Sweep(Space.of(problem, constraints), top=top), 0
    for rows in sweep.space.slices():
        if watch.stops():
            break
        passed += _visit(sweep, rows)
    if not sweep.has_found and watch.stopped is None:
        result = search(problem, constraints, top=top, watch=watch)  # what fits nowhere it knows how to explain, and what to give up first
        return Fastest(ranked=result.ranked, evaluated=result.summary.evaluated, rejected=Counter(result.summary.rejected))
    return Fastest(ranked=ranking(problem, sweep.best()), evaluated=sweep.evaluated + passed, rejected=sweep.rejected)


def _visit(sweep: Sweep, rows: StrategyColumns) -> int:
    """Evaluate those of ``rows`` that may be among the best, and say of how many the bound was enough."""
    bounds = _bounds(sweep, rows)
    order = np.argsort(bounds, kind="stable")
    start, count = 0, _FIRST
    while start < len(order):
        best = sweep.best()
        limit = float(best.seconds[-1]) if best is not None and len(best) >= sweep.top else float("inf")
        chosen = order[start : start + count]
        chosen = chosen[np.isfinite(bounds[chosen]) & (bounds[chosen] <= limit * (1 + HAIR))]
        if not len(chosen):
            break
        sweep.visit(rows.take(np.sort(chosen)))
        start, count = start + len(chosen), 4 * count
    return len(order) - start


def _bounds(sweep: Sweep, rows: StrategyColumns) -> Floats:
    """Seconds of a step that none of ``rows`` goes below, however it recomputes; infinite where it never fits."""
    space = sweep.space
    inputs, choices = Inputs.of(space.problem), space.recompute
    selective = choices.selective and selective_is_tried(space)
    floor = layer_floor(inputs, rows, selective=selective)
    pipes = Pipelines.of(rows, floor.num_microbatches)
    stages = FixedStages.of(inputs, floor, rows, pipes, same_share=True, recomputes=choices.full)
    return np.asarray(Overhead.of(inputs).step(stages.busy_seconds()))
