"""The search as the API and the command line call it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from autopar.costmodel.problem import Problem
from autopar.costmodel.spec.plan import SearchSummary

from . import feasibility
from .constraints import NO_CONSTRAINTS, Constraints
from .exhaustive import Candidates, Sweep
from .feasibility import PREFERENCES, Preference
from .result import Ranked, SearchResult
from .space import Space

PROVEN = "proven over the enumerated space"
TIE = 0.01
"""Relative difference of step times that the cost model cannot tell apart, where a problem brings no residuals of measured runs."""
MAX_GPUS = 131_072


def search(
    problem: Problem,
    constraints: Constraints = NO_CONSTRAINTS,
    *,
    top: int = 5,
    interrupted: Callable[[], bool] | None = None,
) -> SearchResult:
    """The ``top`` fastest strategies that fit, by looking at all of them.

    Args:
        problem: what to train, on what.
        constraints: sizes the user fixed, bounded or forbade.
        top: how many to rank.
        interrupted: asked between slices of the space; once true (or on KeyboardInterrupt) the best so far comes back, and
            the summary's ``optimality`` says so.
    """
    started = time.perf_counter()
    sweep, stopped = _sweep(problem, constraints, PREFERENCES, top, interrupted)
    lifted: tuple[str, ...] = ()
    if not sweep.has_found and not stopped:
        strict = [p for p in PREFERENCES if not p.liftable]
        lifted = tuple(p.name for p in PREFERENCES if p.liftable and sweep.rejected[p.name])
        if lifted:
            sweep, stopped = _sweep(problem, constraints, strict, top, interrupted)
    ranked = _ranked(problem, sweep.best())
    summary = SearchSummary(
        evaluated=sweep.evaluated,
        rejected=dict(sorted(sweep.rejected.items())),
        method="exhaustive",
        optimality=_optimality(sweep, stopped, lifted),
    )
    refused = sweep.space.last_refused if not sweep.evaluated else []
    return SearchResult(
        best=ranked[0].strategy if ranked else None,
        ranked=ranked,
        summary=summary,
        nearest_misses=_plain(sweep.nearest_misses()),
        refused_by=tuple(fault for strategy in refused for fault in feasibility.faults(problem, strategy)),
        seconds=time.perf_counter() - started,
    )


def _sweep(
    problem: Problem,
    constraints: Constraints,
    preferences: Sequence[Preference],
    top: int,
    interrupted: Callable[[], bool] | None,
) -> tuple[Sweep, bool]:
    """The whole space, or as much of it as there was time for; and whether it was cut short."""
    sweep = Sweep(Space.of(problem, constraints, preferences=preferences), top=top)
    try:
        for rows in sweep.space.slices():
            if interrupted is not None and interrupted():
                return sweep, True
            sweep.visit(rows)
    except KeyboardInterrupt:
        return sweep, True
    return sweep, False


def _optimality(sweep: Sweep, stopped: bool, lifted: Sequence[str]) -> str:
    if stopped:
        return "interrupted: the best of the strategies evaluated so far" if sweep.has_found else "interrupted: nothing fitted so far"
    if not lifted:
        return PROVEN
    return f"{PROVEN}, without {', '.join(lifted)}: with {'it' if len(lifted) == 1 else 'them'} nothing fits"


def _ranked(problem: Problem, found: Candidates | None) -> tuple[Ranked, ...]:
    """The rows of ``found``, which are in order, with the ties of the first marked."""
    if found is None:
        return ()
    strategies = [found.columns.strategy(row) for row in range(len(found))]
    limit = float(found.seconds[0]) * (1 + tie_gap(problem))
    return tuple(
        Ranked(strategy=strategy, step_time_seconds=seconds, peak_memory_bytes=memory, tie=place > 0 and seconds <= limit)
        for place, (strategy, seconds, memory) in enumerate(zip(strategies, found.seconds.tolist(), found.memory.tolist(), strict=True))
    )


def _plain(found: Candidates | None) -> tuple[Ranked, ...]:
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


def smallest_cluster(problem: Problem, constraints: Constraints = NO_CONSTRAINTS) -> tuple[int, Ranked] | None:
    """The fewest GPUs of this kind on which a strategy fits, and the fastest one there; None where there is none up to 131,072.

    Sizes below a node are its divisors, above it whole nodes: doubled until something fits, then every whole number of nodes
    (at most 32 steps) between the last size that did not fit and that one, since a size that fits does not make
    the next one fit (the batch and the heads have to divide too).
    """
    node = problem.cluster.gpus_per_node
    misses = 0
    for size in _doubling(node):
        if _holds(problem, constraints, size):
            for smaller in _between(misses, size, node):
                if _holds(problem, constraints, smaller):
                    return _smallest(problem, constraints, smaller)
            return _smallest(problem, constraints, size)
        misses = size
    return None


def _doubling(node: int) -> list[int]:
    inside = [size for size in range(1, node + 1) if node % size == 0]
    sizes = [*inside]
    while sizes[-1] * 2 <= MAX_GPUS:
        sizes.append(sizes[-1] * 2)
    return sizes


def _between(low: int, high: int, node: int) -> range:
    step = node * max(1, (high - low) // node // 32)
    return range(low + step, high, step) if low >= node else range(0)


def _resized(problem: Problem, num_gpus: int) -> Problem:
    return replace(problem, cluster=replace(problem.cluster, num_gpus=num_gpus))


def _holds(problem: Problem, constraints: Constraints, num_gpus: int) -> bool:
    """Whether any strategy fits on ``num_gpus``."""
    space = Space.of(_resized(problem, num_gpus), constraints, preferences=[p for p in PREFERENCES if not p.liftable])
    sweep = Sweep(space, top=1)
    for rows in space.slices():
        sweep.visit_frugal(rows)
        if sweep.has_found:
            return True
    return False


def _smallest(problem: Problem, constraints: Constraints, num_gpus: int) -> tuple[int, Ranked] | None:
    result = search(_resized(problem, num_gpus), constraints, top=1)
    return (num_gpus, result.ranked[0]) if result.ranked else None


__all__ = ["PROVEN", "search", "smallest_cluster", "tie_gap"]
