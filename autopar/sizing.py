"""How many GPUs a training run needs to be done by a deadline, and on which cluster that is cheapest.

The step time does not fall with every GPU added: a number has to divide into heads, layers and batch. So nothing is bisected. The
search starts at the GPUs that the compute alone would take (:mod:`autopar.search.floor`), doubles them until a plan meets the deadline,
and then asks every whole number of nodes from the start on that divides at all, until the first one that meets it: no smaller number does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autopar.costmodel.price import HOUR_SECONDS, cost
from autopar.costmodel.spec.strategy import Strategy
from autopar.costmodel.spec.units import format_count
from autopar.failures import expected_step_seconds
from autopar.io.quantities import format_duration
from autopar.request import resized

if TYPE_CHECKING:
    from autopar.aims import Aims
    from autopar.costmodel.problem import Problem
    from autopar.search import Constraints, Ranked, Stages

SIZE_SCHEMA_VERSION = "1.0"
MAX_GPUS = 131_072
LARGER_BATCHES = (2, 4, 8, 16)
ROUNDED_UP = 1.005
"""A deadline told to three digits is then not below what it stands for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A plan for the whole run on one number of GPUs of one cluster."""

    cluster: str
    device: str
    num_gpus: int
    num_nodes: int
    strategy: Strategy
    step_time_seconds: float
    expected_step_seconds: float
    """Of a kept step where failures are counted in."""
    peak_memory_bytes: float
    num_steps: int
    wall_seconds: float
    gpu_hours: float
    cost: float | None
    """None where no price was given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """A cluster that meets the deadline."""

    cluster: str
    device: str
    fewest: Run
    """On the fewest GPUs: of all smaller numbers none meets the deadline, over the enumerated space."""
    cheapest: Run
    """Of those looked at that meet it: the fewest, and up to twice as many by powers of two and three times those."""
    least_gpu_hours: float
    """What the layers' compute alone takes: no number of GPUs costs fewer GPU-hours."""
    looked_at: int
    """Numbers of GPUs that were planned for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed:
    """A cluster on which no number of GPUs looked at meets the deadline."""

    cluster: str
    device: str
    reasons: tuple[str, ...]
    """Why not, and the least change that would do."""
    fastest: Run | None
    """The closest it comes; None where nothing fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """The answer to ``autopar size``: clusters that meet the deadline, cheapest first (fewest GPU-hours without prices)."""

    model: str
    tokens: float
    deadline_seconds: float
    num_steps: int
    global_batch_size: int
    sequence_length: int
    clusters: tuple[Sized, ...]
    missed: tuple[Missed, ...]
    currency: str
    constraints: tuple[str, ...]
    assumptions: tuple[str, ...]
    fits: bool
    """Whether any cluster meets the deadline; the word that other documents have too."""
    schema_version: str = SIZE_SCHEMA_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What has to be done by when, and within what."""

    tokens: float
    deadline_seconds: float
    max_gpus: int
    constraints: Constraints
    aims: Aims
    stages: Stages

    def steps(self, problem: Problem) -> int:
        """Steps of the run: tokens over tokens of a step, the last one whole."""
        return max(1, math.ceil(self.tokens / problem.training.tokens_per_step))


def size_on(problem: Problem, task: Task, progress: Callable[[str], None] | None = None) -> Sized | Missed:
    """The fewest GPUs of ``problem``'s kind of cluster that meet the deadline, and the cheapest; or why none do."""
    from autopar.search.floor import least_gpu_seconds

    steps = task.steps(problem)
    limit, least = task.deadline_seconds / steps, least_gpu_seconds(problem, task.constraints)
    first, node = max(1, math.floor(least / limit)), problem.cluster.gpus_per_node
    start = first if first <= node // 2 else -(-first // node) * node
    tried = _Tried(problem, task, progress)
    fewest = None if start > task.max_gpus else _fewest(tried, start, limit, least)
    if fewest is None:
        return _missed(problem, task, tried.fastest, start)
    more = [size for size in _doubled(node, fewest.num_gpus + 1, min(2 * fewest.num_gpus, task.max_gpus)) if tried.run(size) is not None]
    meeting = [run for run in (fewest, *map(tried.run, more)) if run is not None and run.expected_step_seconds <= limit]
    return Sized(
        cluster=fewest.cluster,
        device=fewest.device,
        fewest=fewest,
        cheapest=min(meeting, key=lambda run: run.gpu_hours),
        least_gpu_hours=least * steps / HOUR_SECONDS,
        looked_at=len(tried.runs),
    )


class _Tried:
    """The plans of one cluster by number of GPUs, each made once."""

    def __init__(self, problem: Problem, task: Task, progress: Callable[[str], None] | None) -> None:
        self.problem, self.task = problem, task
        self.runs: dict[int, Run | None] = {}
        self._progress = progress

    def run(self, gpus: int) -> Run | None:
        if gpus not in self.runs:
            found = self.runs[gpus] = _run(self.problem, self.task, gpus)
            if self._progress is not None:
                took = f"take {format_duration(found.wall_seconds)}" if found else "hold no plan"
                self._progress(f"{self.problem.cluster.id}: {gpus:,} GPUs {took}")
        return self.runs[gpus]

    @property
    def fastest(self) -> Run | None:
        return min((run for run in self.runs.values() if run is not None), key=lambda run: run.wall_seconds, default=None)


def _fewest(tried: _Tried, start: int, limit: float, least: float) -> Run | None:
    """The first size from ``start`` on that meets the deadline, below the first of the doubled ones that does.

    ``least``: GPU-seconds that no step takes less than.
    """

    def meets(run: Run | None) -> bool:
        return run is not None and run.expected_step_seconds <= limit

    doubled = _doubled(tried.problem.cluster.gpus_per_node, start, tried.task.max_gpus)
    ceiling = next((gpus for gpus in doubled if meets(tried.run(gpus))), None)
    if ceiling is None:
        return None
    hopeful = (gpus for gpus in _between(tried.problem, start, ceiling) if _may_meet(tried, least / gpus, gpus, limit))
    return next((tried.run(gpus) for gpus in hopeful if meets(tried.run(gpus))), tried.run(ceiling))


def _may_meet(tried: _Tried, step_seconds: float, gpus: int, limit: float) -> bool:
    """Whether a step of ``step_seconds``, below which none is, would meet the deadline with the failures of so many nodes."""
    on = resized(tried.problem, gpus)
    return on is not None and expected_step_seconds(on, step_seconds, tried.task.aims.reliability) <= limit


def _doubled(node: int, start: int, most: int) -> Iterator[int]:
    """From ``start`` up: divisors of a node below it, then powers of two and three times those in nodes, and the most allowed."""
    below = [size for size in range(1, node) if node % size == 0]
    nodes = sorted(factor << power for factor in (1, 3) for power in range(most.bit_length()))
    sizes = [*below, *(count * node for count in nodes), most // node * node or most]
    yield from sorted({size for size in sizes if start <= size <= most})


def _between(problem: Problem, start: int, end: int) -> list[int]:
    """The sizes from ``start`` to below ``end`` that a cluster comes in and that divide into heads, sequence, batch and stages."""
    from autopar.search.floor import can_divide

    node = problem.cluster.gpus_per_node
    sizes = [size for size in range(1, node) if node % size == 0 and start <= size < end]
    sizes += range(-(-max(start, node) // node) * node, end, node)
    return [size for size in sizes if can_divide(problem, size)]


def _run(problem: Problem, task: Task, gpus: int) -> Run | None:
    """The fastest plan on ``gpus`` GPUs; None where the cluster does not come in that size, nothing fits, or failures leave no progress."""
    from autopar.search import search

    sized = problem if gpus == problem.cluster.num_gpus else resized(problem, gpus)
    if sized is None:
        return None
    result = search(sized, task.constraints, top=1, stages=task.stages)
    if result.summary.interrupted:
        raise KeyboardInterrupt("while numbers of GPUs were compared")
    found = _of(sized, task, result.ranked[0]) if result.ranked else None
    return found if found is not None and math.isfinite(found.wall_seconds) else None


def _of(problem: Problem, task: Task, ranked: Ranked) -> Run:
    cluster, steps = problem.cluster, task.steps(problem)
    expected = expected_step_seconds(problem, ranked.step_time_seconds, task.aims.reliability)
    wall, price = expected * steps, task.aims.price_of(cluster)
    return Run(
        cluster=cluster.id,
        device=cluster.device.id,
        num_gpus=cluster.num_gpus,
        num_nodes=cluster.num_nodes,
        strategy=ranked.strategy,
        step_time_seconds=ranked.step_time_seconds,
        expected_step_seconds=expected,
        peak_memory_bytes=ranked.peak_memory_bytes,
        num_steps=steps,
        wall_seconds=wall,
        gpu_hours=wall * cluster.num_gpus / HOUR_SECONDS,
        cost=None if price is None else cost(wall, cluster.num_gpus, price),
    )


def _missed(problem: Problem, task: Task, fastest: Run | None, start: int) -> Missed:
    """Why no number of GPUs does, with the least change that would."""
    cluster = problem.cluster
    deadline = format_duration(task.deadline_seconds)
    reasons = []
    if start > task.max_gpus:
        reasons.append(
            f"the matrix products alone take {start:,} GPUs to be done in {deadline}, more than the {task.max_gpus:,} that are looked at"
        )
    elif fastest is None:
        failing = "" if task.aims.reliability is None else ", or failures leave no progress there"
        reasons.append(f"no plan fits on {start:,} to {task.max_gpus:,} GPUs{failing}; `autopar plan` says what refuses them")
    else:
        reasons += [*_bounds(problem, task, fastest), f"least change: a deadline of {format_duration(fastest.wall_seconds * ROUNDED_UP)}"]
        larger = _larger_batch(problem, task, fastest)
        reasons += [larger] if larger else []
    return Missed(cluster=cluster.id, device=cluster.device.id, reasons=tuple(reasons), fastest=fastest)


def _bounds(problem: Problem, task: Task, fastest: Run) -> Iterator[str]:
    """What keeps more GPUs from helping."""
    batch, strategy = problem.training.global_batch_size, fastest.strategy
    yield (
        f"the fastest of up to {task.max_gpus:,} GPUs takes {format_duration(fastest.wall_seconds)}, on {fastest.num_gpus:,}"
        f" ({strategy.describe()})"
    )
    count = strategy.num_microbatches(batch)
    yield (
        f"the batch bounds the data-parallel size: {batch:,} sequences are at most {batch:,} replicas, and {strategy.data_parallel_size:,}"
        f" of them have {count:,} micro-batch{'es' * (count != 1)} each here; beyond that GPUs only cut layers and heads finer"
    )


def _larger_batch(problem: Problem, task: Task, fastest: Run) -> str:
    """The smallest doubling of the batch that meets the deadline, on as many more GPUs."""
    for factor in LARGER_BATCHES:
        batch = problem.training.global_batch_size * factor
        larger = replace(problem, training=replace(problem.training, global_batch_size=batch))
        limit = task.deadline_seconds / task.steps(larger)
        for gpus in (fastest.num_gpus, fastest.num_gpus * factor):
            found = _run(larger, task, gpus) if gpus <= task.max_gpus else None
            if found is not None and found.expected_step_seconds <= limit:
                tokens = format_count(larger.training.tokens_per_step)
                return f"or a batch of {batch:,} sequences ({tokens} tokens a step): {format_duration(found.wall_seconds)} on {gpus:,} GPUs"
    return ""


def in_order(found: Sequence[Sized]) -> tuple[Sized, ...]:
    """Cheapest first; without prices, fewest GPU-hours."""
    return tuple(sorted(found, key=lambda each: (math.inf if each.cheapest.cost is None else each.cheapest.cost, each.cheapest.gpu_hours)))


def missed_text(task: Task, model: str, missed: Sequence[Missed]) -> str:
    """The answer no, cluster by cluster."""
    lines = [f"no number of GPUs trains {model} on {format_count(task.tokens)} tokens in {format_duration(task.deadline_seconds)}"]
    for each in missed:
        head = f"{each.cluster}: " if len(missed) > 1 else ""
        lines += [f"{head}{reason}" for reason in each.reasons]
    return "\n".join(lines)
