"""The search as the API and the command line call it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum

from autopar.costmodel.problem import Problem
from autopar.costmodel.spec.plan import SearchSummary

from . import feasibility
from .constraints import NO_CONSTRAINTS, Constraints
from .exhaustive import Candidates, Sweep, anything_fits
from .feasibility import PREFERENCES, Preference
from .partition_cp_sat import require
from .progress import Progress, Stopped, Watch
from .refine import Refinement, refine
from .result import Ranked, SearchResult
from .space import Space

PROVEN = "proven over the enumerated space"
TIE = 0.01
"""Relative difference of step times that the cost model cannot tell apart, where a problem brings no residuals of measured runs."""
MAX_GPUS = 131_072
_ROUNDING = 1e-9
"""Relative difference of a bound and a step time that is no difference."""


class Stages(StrEnum):
    """How layers are put on the stages of a pipeline."""

    EVEN = "even"
    """Equal numbers, or as equal as the ends' weight lets them be."""
    UNEVEN = "uneven"
    """And one by one, with recomputation by stage where the framework has it, and a bound on what another placement could gain."""
    EXACT = "exact"
    """And proven by OR-Tools where it may."""


METHODS = {
    Stages.EVEN: "exhaustive",
    Stages.UNEVEN: "exhaustive, then dynamic programming over stages",
    Stages.EXACT: "exhaustive, then dynamic programming and CP-SAT over stages",
}


def search(
    problem: Problem,
    constraints: Constraints = NO_CONSTRAINTS,
    *,
    top: int = 5,
    stages: Stages = Stages.EVEN,
    watch: Watch | None = None,
) -> SearchResult:
    """The ``top`` fastest strategies that fit, by looking at all of them.

    Args:
        problem: what to train, on what.
        constraints: sizes the user fixed, bounded or forbade.
        top: how many to rank.
        stages: whether layers and recomputation are placed stage by stage too (:mod:`autopar.search.refine`); the result then has a bound.
        watch: asked between slices of the space; once it stops (or on KeyboardInterrupt) the best so far comes back, and the
            summary's ``optimality`` says so.
    """
    watch = watch or Watch()
    if stages is Stages.EXACT:
        require()
    sweep = _sweep(problem, constraints, PREFERENCES, top, watch)
    lifted: tuple[str, ...] = ()
    if not sweep.has_found and watch.stopped is None:
        strict = [p for p in PREFERENCES if not p.liftable]
        lifted = tuple(p.name for p in PREFERENCES if p.liftable and sweep.rejected[p.name])
        if lifted:
            sweep = _sweep(problem, constraints, strict, top, watch)
    ranked = ranking(problem, sweep.best())
    found = _refine(sweep, ranked, top, stages, watch) if stages is not Stages.EVEN and watch.stopped is None else None
    if found is not None and found.placed:
        ranked = _merged(problem, ranked, found, top)
    summary = SearchSummary(
        evaluated=sweep.evaluated + (found.tried if found else 0),
        rejected=dict(sorted(sweep.rejected.items())),
        method=METHODS[stages if found else Stages.EVEN],
        optimality=optimality(bool(ranked), watch.stopped, lifted, _gap(ranked, found)),
        interrupted=watch.stopped is Stopped.INTERRUPTED,
        bound_seconds=found.bound_seconds if found else None,
    )
    refused = sweep.space.last_refused if not sweep.evaluated else []
    return SearchResult(
        best=ranked[0].strategy if ranked else None,
        ranked=ranked,
        summary=summary,
        nearest_misses=() if ranked else plain(sweep.nearest_misses()),
        refused_by=tuple(fault for strategy in refused for fault in feasibility.faults(problem, strategy)),
        seconds=watch.seconds,
    )


def _sweep(problem: Problem, constraints: Constraints, preferences: Sequence[Preference], top: int, watch: Watch) -> Sweep:
    """The whole space, or as much of it as ``watch`` gave time for."""
    sweep = Sweep(Space.of(problem, constraints, preferences=preferences), top=top)
    try:
        for rows in sweep.space.slices():
            if watch.stops():
                break
            sweep.visit(rows)
            watch.tell(lambda: Progress(evaluated=sweep.evaluated, rejected=sweep.rejected, best_seconds=sweep.fastest, bound_seconds=None))
    except KeyboardInterrupt:
        watch.stopped = Stopped.INTERRUPTED
    return sweep


def _refine(sweep: Sweep, ranked: Sequence[Ranked], top: int, stages: Stages, watch: Watch) -> Refinement | None:
    """Placements stage by stage that are faster than the best even strategy, or any that fit where no even one does."""
    best = ranked[0].step_time_seconds if ranked else float("inf")
    try:
        return refine(replace(sweep.space, rejected=Counter()), best, top=top, exact=stages is Stages.EXACT, watch=watch)
    except KeyboardInterrupt:
        watch.stopped = Stopped.INTERRUPTED
        return None


def _merged(problem: Problem, ranked: Sequence[Ranked], found: Refinement, top: int) -> tuple[Ranked, ...]:
    """Placed and even strategies in one ranking."""
    placed = [
        Ranked(strategy=each.strategy, step_time_seconds=each.step_time_seconds, peak_memory_bytes=each.peak_memory_bytes, tie=False)
        for each in found.placed
    ]
    order = sorted([*placed, *ranked], key=lambda each: each.step_time_seconds)[:top]
    limit = order[0].step_time_seconds * (1 + tie_gap(problem))
    return tuple(replace(each, tie=place > 0 and each.step_time_seconds <= limit) for place, each in enumerate(order))


def _gap(ranked: Sequence[Ranked], found: Refinement | None) -> float | None:
    """How much faster than the best found another placement could be, as a share of its step time; None where nothing bounds it."""
    if found is None or not ranked:
        return None
    return max(1 - found.bound_seconds / ranked[0].step_time_seconds, 0.0)


def optimality(has_found: bool, stopped: Stopped | None, lifted: Sequence[str], gap: float | None = None) -> str:
    """What is known of the answer: proven, bounded by a share of its step time, or (``stopped`` too early for a bound) heuristic.

    ``gap``: that share, where layers were placed stage by stage too.
    """
    if stopped is not None:
        if not has_found:
            return f"{stopped.value}: nothing fitted so far"
        known = "" if gap is None else f"; bounded by {_percent(gap)}: no strategy is faster by more"
        return f"{stopped.value}: the best of the strategies evaluated so far{known}"
    proof = PROVEN if gap is None else f"{PROVEN}{_placement_text(gap)}"
    if not lifted:
        return proof
    return f"{proof}, without {', '.join(lifted)}: with {'it' if len(lifted) == 1 else 'them'} nothing fits"


def _placement_text(gap: float) -> str:
    if gap <= _ROUNDING:
        return ", placed stage by stage too"
    return f" with even stages; bounded by {_percent(gap)} stage by stage: no placement is faster by more"


def _percent(gap: float) -> str:
    """Rounded up: what is said to bound has to."""
    return f"{math.ceil(gap * 1000 - _ROUNDING) / 10:.1f}%"


def ranking(problem: Problem, found: Candidates | None) -> tuple[Ranked, ...]:
    """The rows of ``found``, which are in order, with the ties of the first marked."""
    if found is None:
        return ()
    strategies = [found.columns.strategy(row) for row in range(len(found))]
    limit = float(found.seconds[0]) * (1 + tie_gap(problem))
    return tuple(
        Ranked(strategy=strategy, step_time_seconds=seconds, peak_memory_bytes=memory, tie=place > 0 and seconds <= limit)
        for place, (strategy, seconds, memory) in enumerate(zip(strategies, found.seconds.tolist(), found.memory.tolist(), strict=True))
    )


def plain(found: Candidates | None) -> tuple[Ranked, ...]:
    """The rows of ``found`` as they are: their step times may be lower bounds."""
    if found is None:
        return ()
    numbers = zip(found.seconds.tolist(), found.memory.tolist(), strict=True)
    return tuple(
        Ranked(strategy=found.columns.strategy(row), step_time_seconds=seconds, peak_memory_bytes=memory, tie=False)
        for row, (seconds, memory) in enumerate(numbers)
    )


def tie_gap(problem: Problem) -> float:
    """Relative difference of step times below which the order of two strategies of ``problem`` is not to be relied on.

    Measured, not derived from the intervals of the two: strategies of one problem err together, so that intervals, which
    hold the common error too, overlap for nearly all that a search ranks, also where published pairs are in the right order
    99 times in 100.
    """
    return TIE if problem.residuals is None else problem.residuals.resolvable_gap


Resize = Callable[[int], Problem | None]
"""The problem on another number of GPUs of the same kind; None where the cluster does not come in that size."""


def smallest_cluster(
    problem: Problem, constraints: Constraints = NO_CONSTRAINTS, *, resize: Resize | None = None
) -> tuple[Problem, Ranked] | None:
    """The problem on the fewest GPUs of this kind that hold it, and the fastest strategy there; None where there is none.

    Sizes below a node are its divisors, above it whole nodes: doubled until something fits (at most to 131,072), then every
    whole number of nodes (at most 32 steps) between the last size that did not fit and that one, since a size that fits does
    not make the next one fit (the batch and the heads have to divide too).

    Args:
        problem: what did not fit, or anything else of its kind.
        constraints: as of the search.
        resize: where links change with the size (one node has no network); None: the same links at every size.
    """
    sized = resize or (lambda num_gpus: replace(problem, cluster=replace(problem.cluster, num_gpus=num_gpus)))
    node = problem.cluster.gpus_per_node
    misses = 0
    for size in _doubling(node):
        if _holds(sized(size), constraints):
            for smaller in _between(misses, size, node):
                if _holds(sized(smaller), constraints):
                    return _fastest(sized(smaller), constraints)
            return _fastest(sized(size), constraints)
        misses = size
    return None


def _doubling(node: int) -> list[int]:
    sizes = [size for size in range(1, node + 1) if node % size == 0]
    while sizes[-1] * 2 <= MAX_GPUS:
        sizes.append(sizes[-1] * 2)
    return sizes


def _between(low: int, high: int, node: int) -> range:
    step = node * max(1, (high - low) // node // 32)
    return range(low + step, high, step) if low >= node else range(0)


def _holds(problem: Problem | None, constraints: Constraints) -> bool:
    """Whether any strategy fits."""
    strict = [p for p in PREFERENCES if not p.liftable]
    return problem is not None and anything_fits(Space.of(problem, constraints, preferences=strict))


def _fastest(problem: Problem | None, constraints: Constraints) -> tuple[Problem, Ranked] | None:
    ranked = search(problem, constraints, top=1).ranked if problem is not None else ()
    return (problem, ranked[0]) if problem is not None and ranked else None


__all__ = ["PROVEN", "optimality", "plain", "ranking", "search", "smallest_cluster", "tie_gap"]
