"""The Pareto front of a question over time, GPUs, memory, money and energy: what no other plan beats in all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from autopar.costmodel.inputs import Inputs
from autopar.costmodel.memory import least_state_bytes
from autopar.costmodel.price import economics
from autopar.costmodel.spec.errors import Fault, UnknownNameError, raise_if
from autopar.costmodel.spec.strategy import Strategy
from autopar.failures import expected_step_seconds
from autopar.request import resized

if TYPE_CHECKING:
    from autopar.aims import Aims
    from autopar.costmodel.problem import Problem
    from autopar.costmodel.spec.cluster import ClusterSpec
    from autopar.question import Asked, Effort
    from autopar.search import Constraints, SearchResult

PARETO_SCHEMA_VERSION = "1.0"
ALL_NODE_COUNTS = 16
"""Up to so many nodes every number of them is planned for."""


class Axis(StrEnum):
    """What a front may be of; less is better in each."""

    TIME = "time"
    """Of a step; of a kept step where failures are counted in."""
    GPUS = "gpus"
    MEMORY = "memory"
    """Peak of the fullest GPU."""
    COST = "cost"
    ENERGY = "energy"


VARY_GPUS = (Axis.GPUS, Axis.COST, Axis.ENERGY)
"""Axes that compare numbers of GPUs: on one number money and rated energy are the time over again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParetoPoint:
    """One strategy on one number of GPUs."""

    num_gpus: int
    strategy: Strategy
    step_time_seconds: float
    expected_step_seconds: float
    """The same as the step time where no failures are counted in."""
    peak_memory_bytes: float
    cost_per_million_tokens: float | None
    cost_per_step: float | None
    energy_joules_per_step: float | None
    """None where neither money nor energy was asked about."""

    def value(self, axis: Axis) -> float:
        """What the point is compared by on ``axis``."""
        found = {
            Axis.TIME: self.expected_step_seconds,
            Axis.GPUS: float(self.num_gpus),
            Axis.MEMORY: self.peak_memory_bytes,
            Axis.COST: self.cost_per_step,
            Axis.ENERGY: self.energy_joules_per_step,
        }[axis]
        assert found is not None, "an axis that is asked for has its figures"
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ParetoFront:
    """The front over ``axes``, fastest first."""

    axes: tuple[Axis, ...]
    points: tuple[ParetoPoint, ...]
    looked_at: tuple[int, ...]
    """Numbers of GPUs that were planned for."""
    nothing_fits: tuple[int, ...]
    """Of those, the ones that hold no strategy."""
    currency: str
    model: str
    device: str
    cluster: str
    global_batch_size: int
    sequence_length: int
    constraints: tuple[str, ...]
    assumptions: tuple[str, ...]
    evaluated: int
    """Strategies whose time and memory were computed."""
    optimality: str
    interrupted: bool = False
    schema_version: str = PARETO_SCHEMA_VERSION


def read_axes(names: str | Iterable[str]) -> tuple[Axis, ...]:
    """Axes of ``time,gpus,memory``, in order.

    Raises:
        InvalidInputError: a word that is no axis, fewer than two axes, or one twice.
    """
    words = names.replace(",", " ").split() if isinstance(names, str) else [str(name) for name in names]
    faults: list[Fault] = []
    for word in words:
        if word.lower() not in list(Axis):
            faults += UnknownNameError("axis", word, list(Axis)).faults
    if len(words) < 2 or len(set(words)) < len(words):
        required = "a front takes two axes or more, each once"
        faults.append(Fault(field="--pareto", given=repr(",".join(words)), required=required, fix="for example time,memory"))
    raise_if(faults)
    return tuple(Axis(word.lower()) for word in words)


def gpu_counts(cluster: ClusterSpec) -> tuple[int, ...]:
    """Numbers of GPUs to plan for, up to the cluster's: the divisors of a node, every number of nodes up to 16, above that two
    and three times powers of two and the eighths of the whole.
    """
    node, whole = cluster.gpus_per_node, cluster.num_gpus
    nodes = whole // node
    counts = set(range(1, min(nodes, ALL_NODE_COUNTS) + 1))
    if nodes > ALL_NODE_COUNTS:
        counts |= {factor << power for factor in (1, 3) for power in range(nodes.bit_length()) if factor << power <= nodes}
        counts |= {nodes * part // 8 for part in range(1, 9)}
    sizes = {size for size in range(1, node) if node % size == 0} | {count * node for count in counts}
    return tuple(sorted(size for size in {*sizes, whole} if size <= whole))


def pareto_front(asked: Asked, axes: Sequence[Axis], effort: Effort, progress: Callable[[str], None] | None) -> ParetoFront:
    """The front of a question over ``axes``: exact over the enumerated spaces of the numbers of GPUs looked at.

    At one number of GPUs every axis rises with time or with memory, so the front over them all is in the union of the fronts of time
    and memory; where memory is no axis, of the fastest strategies, their layers placed as ``effort`` says.
    """
    from autopar.search.progress import Stopped

    problem, aims = asked.problem, asked.aims
    counts = gpu_counts(problem.cluster) if set(axes) & set(VARY_GPUS) else (problem.cluster.num_gpus,)
    points: list[ParetoPoint] = []
    looked_at, empty, evaluated, ways = [], [], 0, set()
    for gpus in reversed(counts):
        sized = problem if gpus == problem.cluster.num_gpus else resized(problem, gpus)
        if sized is None:
            continue
        found = _fronts(sized, asked.constraints, axes, effort)
        has_points = found is not None and bool(found.ranked)
        if effort.watch.stopped is not None and not has_points:
            break  # nothing is known of this number
        looked_at.append(gpus)
        if not has_points:
            empty.append(gpus)
        if found is not None:
            ways.add(found.summary.optimality)
            evaluated += found.summary.evaluated
            points += _points(sized, found, axes, aims)
        if progress is not None and len(counts) > 1:
            progress(f"{gpus:,} GPUs: {'nothing fits' if gpus in empty else f'{len(found.ranked) if found else 0} candidates'}")
    return ParetoFront(
        axes=tuple(axes),
        points=_kept(points, axes),
        looked_at=tuple(sorted(looked_at)),
        nothing_fits=tuple(sorted(empty)),
        currency=next((price.currency for price in aims.prices.values()), ""),
        model=problem.model.name,
        device=problem.cluster.device.id,
        cluster=problem.cluster.id,
        global_batch_size=problem.training.global_batch_size,
        sequence_length=problem.training.sequence_length,
        constraints=asked.texts,
        assumptions=asked.assumptions,
        evaluated=evaluated,
        optimality="; ".join(sorted(ways)),
        interrupted=effort.watch.stopped is Stopped.INTERRUPTED,
    )


def _fronts(problem: Problem, constraints: Constraints, axes: Sequence[Axis], effort: Effort) -> SearchResult | None:
    """The front of one number of GPUs; None where the model's states alone are too large for it."""
    cluster = problem.cluster
    if float(least_state_bytes(Inputs.of(problem))) > cluster.num_gpus * cluster.device.memory_bytes:
        return None
    if Axis.MEMORY in axes:
        from autopar.search.pareto import front

        return front(problem, constraints, watch=effort.watch)
    from autopar.search import search

    return search(problem, constraints, top=1, stages=effort.stages, watch=effort.watch)


def _points(problem: Problem, found: SearchResult, axes: Sequence[Axis], aims: Aims) -> list[ParetoPoint]:
    price, reliability = aims.price_of(problem.cluster), aims.reliability
    priced = price is not None or Axis.ENERGY in axes
    points = []
    for ranked in found.ranked:
        expected = expected_step_seconds(problem, ranked.step_time_seconds, reliability)
        money = economics(problem, expected, price) if priced else None
        points.append(
            ParetoPoint(
                num_gpus=problem.cluster.num_gpus,
                strategy=ranked.strategy,
                step_time_seconds=ranked.step_time_seconds,
                expected_step_seconds=expected,
                peak_memory_bytes=ranked.peak_memory_bytes,
                cost_per_million_tokens=money.cost_per_million_tokens if money else None,
                cost_per_step=money.cost_per_step if money else None,
                energy_joules_per_step=money.energy_joules_per_step if money else None,
            )
        )
    return points


def _kept(points: Sequence[ParetoPoint], axes: Sequence[Axis]) -> tuple[ParetoPoint, ...]:
    """Those that no other beats on all axes; of those equal on all of them the fastest."""
    from autopar.search.pareto import non_dominated

    if not points:
        return ()
    values = np.array([[point.value(axis) for axis in axes] for point in points])
    kept: dict[tuple[float, ...], ParetoPoint] = {}
    for row in np.flatnonzero(non_dominated(values)).tolist():
        key = tuple(values[row].tolist())
        if key not in kept or points[row].expected_step_seconds < kept[key].expected_step_seconds:
            kept[key] = points[row]
    return tuple(sorted(kept.values(), key=lambda point: (point.expected_step_seconds, point.num_gpus, point.peak_memory_bytes)))
