"""The search over pools of unlike devices: every way to use them, or where these are too many, those that a genetic search comes upon.

Pools alone are the uniform search's. For stages by pool and for replicas by pool every strategy of the space gets a lower bound, all of
them at once; then layers are placed and micro-batches shared for one after the other until the next bound is above the best found. What
the cost model says of a placement counts, and nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from autopar.costmodel.mixed import Machine
from autopar.costmodel.pools import MixedProblem
from autopar.costmodel.problem import Problem
from autopar.costmodel.spec.cluster import LinkKind
from autopar.costmodel.spec.mixed import Lane, MixedStrategy, Reference
from autopar.costmodel.spec.plan import SearchSummary
from autopar.costmodel.spec.strategy import Recompute, Strategy

from .constraints import NO_CONSTRAINTS, Constraints
from .fastest import Fastest, fastest
from .genetic import Settings, evolve, require
from .pool_shells import Shells
from .pool_space import Manner
from .pool_stages import Priced
from .progress import Progress, Stopped, Watch

EXACT_ROWS = 300_000
"""Strategies times orders of the pools up to which all of them are looked at; beyond, the search is genetic."""
BOUNDED_ROWS = 1_000_000
"""Strategies up to which a genetic search also says what none of them goes below."""
WORTH = 1e-6
"""A placement has to be faster by this share than the best so far to be looked for: rounding, and no more."""


class Method(StrEnum):
    """How the uses of the pools are searched."""

    AUTO = "auto"
    """All of them up to ``EXACT_ROWS``, beyond genetic."""
    EXACT = "exact"
    GENETIC = "genetic"


METHODS = {
    Method.EXACT: "every use of the pools, then dynamic programming over stages and shares by speed",
    Method.GENETIC: "genetic over the uses of the pools, with dynamic programming over stages and shares by speed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedResult:
    """The best strategies that fit, fastest first."""

    ranked: tuple[Priced, ...]
    summary: SearchSummary
    references: tuple[Reference, ...]
    """What planning as if all GPUs were alike comes to."""
    tiled: bool = True
    """Whether any strategy of the space uses several pools."""
    seconds: float = 0.0
    """Wall time; not part of a plan, which has to be the same every time."""

    @property
    def best(self) -> Priced | None:
        return self.ranked[0] if self.ranked else None


@dataclass(slots=True)
class Found:
    """The best so far, and how much was looked at. Not frozen: a search that is cut short hands out what is in it."""

    top: int
    ranked: list[Priced] = field(default_factory=list)
    references: list[Reference] = field(default_factory=list)
    tiled: bool = True
    evaluated: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """By rule."""
    bound_seconds: float | None = None
    """No strategy of the manners looked at so far is faster."""
    unbounded: bool = False
    """Whether some of them have no bound."""

    @property
    def best_seconds(self) -> float:
        return self.ranked[0].step_time_seconds if self.ranked else float("inf")

    @property
    def limit(self) -> float:
        """Step time to beat: a runner-up is what was the best on the way, or beside it."""
        return self.best_seconds * (1 - WORTH)

    def add(self, found: list[Priced]) -> None:
        """Keep what is among the best, and the best of one lane; strategies that differ in their placement alone count once."""
        whole = sorted([*self.ranked, *found], key=lambda each: (each.step_time_seconds, each.mixed.describe()))
        kept: dict[object, Priced] = {}
        for each in whole:
            kept.setdefault(_sizes(each.mixed), each)
        order = list(kept.values())
        runnable = next((each for each in order if len(each.mixed.lanes) == 1), None)
        self.ranked = order[: self.top]
        if runnable is not None and runnable not in self.ranked and self.top > 1:
            self.ranked[-1] = runnable


def _sizes(mixed: MixedStrategy) -> object:
    """What tells two strategies apart besides layers and recomputation."""
    plain = replace(mixed.strategy, pipeline_layers=(), stage_recompute_layers=(), num_recompute_layers=0, recompute=Recompute.NONE)
    return plain, tuple((lane.pools, lane.data_parallel_size) for lane in mixed.lanes)


def mixed_search(
    problem: MixedProblem,
    constraints: Constraints = NO_CONSTRAINTS,
    *,
    top: int = 5,
    manners: tuple[Manner, ...] = tuple(Manner),
    method: Method = Method.AUTO,
    seed: int = 0,
    watch: Watch | None = None,
) -> MixedResult:
    """The ``top`` fastest ways to use the pools of ``problem``.

    Args:
        problem: what to train, on what.
        constraints: sizes the user fixed, bounded or forbade; of a mixed strategy the pipeline ranks and replicas are those of all pools.
        top: how many to rank.
        manners: the ways in which several pools may be used.
        method: all uses of the pools, or those a genetic search comes upon.
        seed: of the genetic search; the same seed gives the same plan.
        watch: asked between strategies; once it stops (or on KeyboardInterrupt) the best so far comes back.
    """
    watch = watch or Watch()
    if method is Method.GENETIC:
        require()
    found, used = Found(top=top), Method.EXACT if method is Method.AUTO else method
    try:
        seeds = _uniform(problem, constraints, found, watch)
        machine, found.tiled = Machine.of(problem), False
        # stages first: what comes of them is proven the best that a framework runs, whatever replicas would take
        for manner in sorted(manners, key=list(Manner).index):
            if watch.stops():
                break
            shells = Shells(machine, constraints, manner)
            found.refused.update(shells.refused)
            found.tiled |= bool(shells.spaces)
            if method is Method.GENETIC or (method is Method.AUTO and shells.size > EXACT_ROWS):
                used = Method.GENETIC
                require()
                _evolve(shells, seeds, found, seed, watch)
            else:
                _look(shells, found, watch)
    except KeyboardInterrupt:
        watch.stopped = Stopped.INTERRUPTED
    return MixedResult(
        ranked=tuple(found.ranked),
        summary=_summary(found, used, watch.stopped),
        references=tuple(found.references),
        tiled=found.tiled,
        seconds=watch.seconds,
    )


def _summary(found: Found, used: Method, stopped: Stopped | None) -> SearchSummary:
    bound = None
    if stopped is None and found.ranked and not found.unbounded:
        bound = min(found.best_seconds, found.best_seconds if found.bound_seconds is None else found.bound_seconds)
    return SearchSummary(
        evaluated=found.evaluated,
        rejected=dict(sorted(found.refused.items())),
        method=METHODS[used],
        optimality=_optimality(found, bound, stopped, used),
        interrupted=stopped is Stopped.INTERRUPTED,
        bound_seconds=bound,
    )


def _uniform(problem: MixedProblem, constraints: Constraints, found: Found, watch: Watch) -> list[Strategy]:
    """What planning as if all GPUs were alike comes to: the references, the best of each pool alone, and strategies to start from."""
    seeds = []
    slowest, slow = as_the_slowest(problem)
    result = fastest(slow, constraints, top=found.top, watch=watch)
    found.references.append(_reference(f"all {problem.num_gpus:,} GPUs as {slowest}", result))
    seeds += [each.strategy for each in result.ranked]
    for pool in problem.pools:
        if watch.stopped is not None:
            break
        result = fastest(pool.problem, constraints, top=found.top, watch=watch)
        found.references.append(_reference(f"{pool.name} alone", result))
        found.evaluated += result.evaluated
        found.refused.update(result.rejected)
        seeds += [each.strategy for each in result.ranked]
        batch = pool.problem.training.global_batch_size
        found.add(
            [
                Priced(
                    mixed=on_one_pool(pool.name, each.strategy, batch),
                    step_time_seconds=each.step_time_seconds,
                    peak_memory_bytes=each.peak_memory_bytes,
                )
                for each in result.ranked
            ]
        )
    return seeds


def _reference(name: str, result: Fastest) -> Reference:
    if not result.ranked:
        return Reference(name=name, strategy=None, step_time_seconds=None)
    best = result.ranked[0]
    return Reference(name=name, strategy=best.strategy, step_time_seconds=best.step_time_seconds)


def as_the_slowest(problem: MixedProblem) -> tuple[str, Problem]:
    """The question on as many GPUs as there are, all of the slowest kind with the smallest memory and the slowest network; and that kind.

    What a uniform planner has to assume of a mixed cluster, and what a uniform plan takes on one.
    """
    linear = problem.question.training.precision.linear.value
    slowest = min(problem.pools, key=lambda pool: pool.problem.cluster.device.peak_flops.get(linear, 0.0))
    cluster = slowest.problem.cluster
    memory = min(pool.problem.cluster.device.memory_bytes for pool in problem.pools)
    links = list(zip(cluster.tiers, slowest.problem.links, strict=True))
    networks = [link for link in links if link[0].kind is LinkKind.NETWORK]
    networks.append((problem.between.tier, problem.between.profile))
    kept = [link for link in links if link[0].kind is not LinkKind.NETWORK]
    kept.append(min(networks, key=lambda link: link[0].bandwidth / link[0].oversubscription))
    whole = replace(
        cluster,
        num_gpus=problem.num_gpus,
        device=replace(cluster.device, memory_bytes=memory),
        tiers=tuple(tier for tier, _ in kept),
    )
    return slowest.name, replace(slowest.problem, cluster=whole, links=tuple(profile for _, profile in kept))


def on_one_pool(name: str, strategy: Strategy, global_batch_size: int) -> MixedStrategy:
    """A uniform strategy as a lane of one pool."""
    lane = Lane(
        pools=(name,) * strategy.pipeline_parallel_size,
        data_parallel_size=strategy.data_parallel_size,
        num_microbatches=strategy.num_microbatches(global_batch_size),
    )
    return MixedStrategy(strategy=strategy, lanes=(lane,))


def _look(shells: Shells, found: Found, watch: Watch) -> None:
    """Place the strategies of every use in the order of their bounds, until none could still be the best."""
    found.evaluated += shells.size
    bounds: list[float] = [] if found.bound_seconds is None else [found.bound_seconds]
    for shell in shells.below(lambda: found.limit, watch.stops):
        if shell.bound_seconds >= found.limit:
            continue
        if watch.stops():
            return
        placed, bound = shell.placed(shells.machine, found.limit)
        bounds.append(bound)
        found.add(placed)
        watch.tell(_progress(found))
    found.bound_seconds = min([found.limit, *bounds])


def _evolve(shells: Shells, seeds: list[Strategy], found: Found, seed: int, watch: Watch) -> None:
    """What a genetic search started from ``seeds`` finds, generation by generation."""
    for generation in evolve(shells, seeds, found.best_seconds, Settings(seed=seed)):
        found.evaluated += generation.evaluated
        found.add(list(generation.found))
        watch.tell(_progress(found))
        if watch.stops():
            return
    bound = shells.least_bound(watch.stops, found.best_seconds) if shells.size <= BOUNDED_ROWS else None
    if bound is None:
        found.unbounded = True
        return
    found.bound_seconds = min([bound, *([] if found.bound_seconds is None else [found.bound_seconds])])


def _progress(found: Found) -> Callable[[], Progress]:
    best = found.best_seconds if found.ranked else None
    return lambda: Progress(evaluated=found.evaluated, rejected=found.refused, best_seconds=best, bound_seconds=None)


def _optimality(found: Found, bound: float | None, stopped: Stopped | None, method: Method) -> str:
    if stopped is not None:
        return f"{stopped.value}: {'the best of the strategies evaluated so far' if found.ranked else 'nothing fitted so far'}"
    if not found.ranked:
        return "nothing fits"
    looked = "every use of the pools looked at" if method is Method.EXACT else "heuristic"
    if bound is None:
        return f"{looked}, without a bound"
    gap = max(1 - bound / found.best_seconds, 0.0)
    return f"{looked}; no placement is faster by more than {gap:.1%}"
