"""A genetic search over the uses of the pools, for where they are too many to look at each: needs DEAP.

A genome names a use of the pools and a size on every axis of the strategy. It is read as the strategy of that use that is nearest to
those sizes, so that every genome is one that runs; the layers and the micro-batches are not in it: the decoder places them by dynamic
programming, and the cost model prices what comes out. One that does not beat the best so far counts by its bound, which costs a
fraction of pricing it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from autopar.costmodel.columns import Floats, StrategyColumns
from autopar.costmodel.spec.errors import UnavailableError
from autopar.costmodel.spec.strategy import Strategy

from .pool_shells import Shell, Shells
from .pool_stages import Priced

_SIZES = (
    "tensor_parallel_size", "sequence_parallel", "pipeline_parallel_size", "context_parallel_size", "expert_parallel_size",
    "expert_tensor_parallel_size", "virtual_pipeline_stages", "pipeline_schedule", "micro_batch_size", "zero_stage",
)  # fmt: skip
"""The genes after the first, which is the use; the data-parallel size follows from them."""
_WEIGHTS = np.array([4, 8, 4, 4, 2, 2, 1, 2, 1, 1], dtype=np.float64)
"""How far apart two strategies are for each doubling of a size, or each other choice: what decides the rank grid first."""
_POLISHED_GENES = 3
"""The best strategy is compared at the end with all that differ from it in so many sizes."""
_NO_PLACEMENT = 1e9
"""Seconds added to the bound of a strategy of which no placement fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How long a population is and lives."""

    seed: int = 0
    population: int = 48
    generations: int = 40
    patience: int = 10
    """Generations without a better strategy after which it ends."""
    crossover: float = 0.6
    mutation: float = 0.5
    tournament: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What one generation brought."""

    found: tuple[Priced, ...]
    """Faster than all before, fastest last."""
    evaluated: int
    """Strategies that were new."""


def require() -> None:
    """Raises:
    UnavailableError: DEAP is not installed.
    """
    if find_spec("deap") is None:
        raise UnavailableError(
            "so many ways to use the pools are searched genetically, which needs DEAP: pip install 'autopar[search]', or fix a size"
        )


@cache
def _classes() -> tuple[Any, Any]:
    """DEAP's fitness, and an individual with one; made here, not in its ``creator``, whose classes are global."""
    from deap import base  # type: ignore[import-untyped]

    class StepTime(base.Fitness):  # type: ignore[misc]
        weights = (-1.0,)

    class Individual(list[float]):
        def __init__(self, genes: Sequence[float]) -> None:
            super().__init__(genes)
            self.fitness = StepTime()

    return StepTime, Individual


def evolve(shells: Shells, seeds: Sequence[Strategy], best_seconds: float, settings: Settings) -> Iterator[Generation]:
    """Generation after generation until the settings say so; the same seed gives the same ones.

    Args:
        shells: the strategies of every use.
        seeds: strategies to start from, in every use the nearest there is.
        best_seconds: of the best known.
        settings: of the population.
    """
    if shells.spaces:
        yield from _Evolution(shells, settings, best_seconds).run(seeds)


class _Evolution:
    """One run: the population, what was decoded already, and the best so far."""

    def __init__(self, shells: Shells, settings: Settings, best_seconds: float) -> None:
        self._shells, self._settings, self._best = shells, settings, best_seconds
        self._uses = [(space, order) for space in shells.spaces for order in shells.orders(space)]
        self._genes = {id(space): _genes(space.rows) for space in shells.spaces}
        self._known: dict[tuple[int, int], float] = {}
        self._random = random.Random(settings.seed)
        self._fittest: tuple[int, int] | None = None
        """The use and the row of the best strategy met."""

    def run(self, seeds: Sequence[Strategy]) -> Iterator[Generation]:
        from deap import tools

        settings = self._settings
        population = self._first(seeds)
        yield self._evaluate(population)
        idle = 0
        for _ in range(settings.generations):
            with _seeded(self._random):
                children = self._children(population, tools)
            generation = self._evaluate(children)
            population = tools.selBest([*population, *children], settings.population - settings.population // 4)
            population += self._newcomers(settings.population - len(population))
            yield generation
            yield self._evaluate([each for each in population if not each.fitness.valid])
            idle = 0 if generation.found else idle + 1
            if idle >= settings.patience:
                break
        yield self._polished()

    def _polished(self) -> Generation:
        """Every strategy that is close to the best of the last population in the same use: its neighbours on each axis, and on two."""
        if not self._fittest:
            return Generation(found=(), evaluated=0)
        use, best = self._fittest
        space, _ = self._uses[use]
        genes = self._genes[id(space)]
        near = np.flatnonzero((genes != genes[best]).sum(axis=1) <= _POLISHED_GENES)
        individual = _classes()[1]
        return self._evaluate([individual([float(use), *genes[row].tolist()]) for row in near.tolist()])

    def _first(self, seeds: Sequence[Strategy]) -> list[Any]:
        """The seeds in every use, and as many others as it takes."""
        _, individual = _classes()
        given = _genes(StrategyColumns.of(seeds)) if seeds else np.zeros((0, len(_SIZES)))
        uses = range(len(self._uses))
        started = [individual([float(use), *genes]) for genes in given[:4].tolist() for use in uses]
        return [*started, *self._newcomers(max(self._settings.population - len(started), 0))]

    def _newcomers(self, count: int) -> list[Any]:
        _, individual = _classes()
        found = []
        for _ in range(count):
            use = self._random.randrange(len(self._uses))
            genes = self._genes[id(self._uses[use][0])]
            found.append(individual([float(use), *genes[self._random.randrange(len(genes))].tolist()]))
        return found

    def _children(self, population: list[Any], tools: Any) -> list[Any]:
        _, individual = _classes()
        settings = self._settings
        parents = tools.selTournament(population, settings.population, tournsize=settings.tournament)
        children = [individual(parent) for parent in parents]
        for one, other in zip(children[::2], children[1::2], strict=False):
            if random.random() < settings.crossover:
                tools.cxUniform(one, other, indpb=0.5)
        for child in children:
            if random.random() < settings.mutation:
                self._mutate(child)
        return children

    def _mutate(self, child: Any) -> None:
        """One gene, or two, taken from any strategy of its use; or another use with the same sizes."""
        for _ in range(random.choice((1, 1, 2))):
            gene = random.randrange(len(_SIZES) + 1)
            if gene == 0:
                child[0] = float(random.randrange(len(self._uses)))
            else:
                genes = self._genes[id(self._uses[int(child[0])][0])]
                child[gene] = float(genes[random.randrange(len(genes)), gene - 1])

    def _evaluate(self, individuals: list[Any]) -> Generation:
        """Give every individual its fitness; those met before have theirs already."""
        read = [(int(each[0]), self._row(each)) for each in individuals]
        new = sorted({pair for pair in read if pair not in self._known})
        found: list[Priced] = []
        for use in sorted({use for use, _ in new}):
            space, order = self._uses[use]
            rows = np.array([row for other, row in new if other == use], dtype=np.int64)
            self._known |= {(use, row): _NO_PLACEMENT for row in rows.tolist()}
            for kept, bounds in self._shells.bounds(space, rows, order, float("inf")):
                own = {(order, row): bound for row, bound in zip(kept.tolist(), bounds.tolist(), strict=True)}
                self._known |= {(use, row): bound for (_, row), bound in own.items()}
                promising = {pair: bound for pair, bound in own.items() if bound < self._best}
                for shell in sorted(self._shells.of(space, promising), key=lambda each: (each.bound_seconds, each.row)):
                    self._known[use, shell.row] = self._seconds((use, shell.row), shell, found)
        for each, pair in zip(individuals, read, strict=True):
            each.fitness.values = (self._known[pair],)
        return Generation(found=tuple(found), evaluated=len(new))

    def _seconds(self, pair: tuple[int, int], shell: Shell, found: list[Priced]) -> float:
        """The step time of the best placement where it beats the best so far, else what none can beat."""
        if not np.isfinite(shell.bound_seconds):
            return _NO_PLACEMENT
        if shell.bound_seconds >= self._best:
            return float(shell.bound_seconds)
        placed, bound = shell.placed(self._shells.machine, self._best)
        if placed:
            self._best = placed[-1].step_time_seconds
            self._fittest = pair
            found.extend(placed)
            return self._best
        return float(max(bound, self._best)) if np.isfinite(bound) else _NO_PLACEMENT

    def _row(self, individual: Any) -> int:
        """The strategy of the individual's use that is nearest to its genes; of equals the first."""
        genes = self._genes[id(self._uses[int(individual[0])][0])]
        distance = np.abs(genes - np.array(individual[1:])) @ _WEIGHTS
        return int(np.argmin(distance))


def _genes(rows: StrategyColumns) -> Floats:
    """``[N, genes]``: sizes by their doublings, choices as they are coded."""
    plain = ("sequence_parallel", "pipeline_schedule", "zero_stage")
    columns = [getattr(rows, name).astype(np.float64) if name in plain else np.log2(getattr(rows, name)) for name in _SIZES]
    return np.stack(columns, axis=1)


@contextmanager
def _seeded(source: random.Random) -> Iterator[None]:
    """DEAP draws from Python's global generator: it draws from ``source`` here, and the global one is left as it was."""
    kept = random.getstate()
    random.setstate(source.getstate())
    try:
        yield
    finally:
        source.setstate(random.getstate())
        random.setstate(kept)
