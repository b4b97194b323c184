"""Uneven stages: after the uniform search, which strategies could still win with layers and recomputation placed stage by stage.

Every strategy of the space is first given a bound that no placement beats; those whose bound is below the best so far are given a
tighter one that knows the memory. The survivors are placed in the order of their bounds until the next bound is no better than the
best found: what is left can gain nothing, and the least bound says how far the answer is at most from the best placement there is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from autopar.costmodel.columns import Floats, Ints, StrategyColumns
from autopar.costmodel.inputs import Inputs, attention_is_fused
from autopar.costmodel.partition_bound import busy_limit, partition_bound_seconds, placed_bound_seconds, step_bound_seconds
from autopar.costmodel.pipeline_paths import ramps
from autopar.costmodel.spec.strategy import Recompute, Strategy
from autopar.costmodel.stage_budget import StageBudget, stage_budgets
from autopar.costmodel.step import evaluate

from . import partition_cp_sat
from .cut_bound import Answer, least_by_cuts
from .feasibility import runnable
from .neighbours import WHOLE, count_splits, nearby, splits
from .partition import Partition, filled, pareto_partitions, placed, segments, segments_alike, share_of
from .path_game import PathBounds
from .progress import Progress, Watch
from .rank_loads import RankLoads
from .relaxation import relaxed_slowest_seconds
from .space import Space

WORTH = 1e-3
"""An uneven placement has to be faster by this share than the best even one to be put before it."""
_EFFORT = (8, 32)
"""Simulations of a schedule that one strategy's bound may take, and further ones where it is then still far from the limit.

The paths they find serve all strategies of its shape.
"""
_FAR = 0.01


_MOVES = {False: 100, True: 1_000}
"""Single moves of a layer that are asked about at a time; more where an exact answer is wanted."""

_Choice = tuple[int | None, Partition]
"""Layers recomputed on each rank (None: as few as fit), and where the layers are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A strategy with its layers placed stage by stage."""

    strategy: Strategy
    step_time_seconds: float
    peak_memory_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Refinement:
    """What placing layers stage by stage found."""

    placed: tuple[Placed, ...]
    """Faster than the best even one, fastest first."""
    tried: int
    """Strategies whose layers were placed."""
    bound_seconds: float
    """No placement is faster."""
    complete: bool
    """Whether every strategy that could win was tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shell:
    """A strategy whose layers are not placed yet."""

    bound_seconds: float
    budget: StageBudget
    place: int
    strategy: Strategy
    plain: Recompute
    """How layers run that are not recomputed whole."""


def refine(space: Space, best_seconds: float, *, top: int, exact: bool = False, watch: Watch | None = None) -> Refinement:
    """Placements of the strategies of ``space`` that are faster than ``best_seconds``, which may be infinite.

    Args:
        space: what the uniform search enumerated.
        best_seconds: of the best even strategy.
        top: how many to keep.
        exact: let OR-Tools place the layers where :func:`~autopar.search.partition.filled` may miss the best placement.
        watch: asked before each strategy; once it stops, what was found so far comes back.
    """
    watch = watch or Watch()
    inputs = Inputs.of(space.problem)
    found: list[Placed] = []
    place = _Placer(space, inputs, exact=exact)
    bar, tried, complete = best_seconds * (1 - WORTH), 0, True
    shells = _shells(space, inputs, bar)
    bounds = [shell.bound_seconds for shell in shells]
    for position, shell in enumerate(shells):
        limit = found[top - 1].step_time_seconds if len(found) >= top else bar
        if shell.bound_seconds >= limit:
            bounds = [*bounds[:position], shell.bound_seconds]
            break
        if watch.stops():
            bounds, complete = bounds[: position + 1], False
            break
        tried += 1
        placed, bounds[position] = place(shell, limit)
        found = sorted([*found, *placed], key=lambda each: (each.step_time_seconds, each.strategy.describe()))[:top]
        best = found[0].step_time_seconds if found else best_seconds
        bound = min([best, *bounds])
        watch.tell(_progress(space, tried, best, bound))
    return Refinement(placed=tuple(found), tried=tried, bound_seconds=min([best_seconds, *bounds]), complete=complete)


def _progress(space: Space, tried: int, best: float, bound: float) -> Callable[[], Progress]:
    return lambda: Progress(evaluated=tried, rejected=space.rejected, best_seconds=best, bound_seconds=bound)


def _shells(space: Space, inputs: Inputs, bar: float) -> list[_Shell]:
    """The strategies that could be faster than ``bar``, by their bounds."""
    hopeful = [rows.take(partition_bound_seconds(inputs, rows) < bar) for rows in map(_without_splits, space.slices()) if len(rows)]
    hopeful = [rows for rows in hopeful if len(rows)]
    if not hopeful:
        return []
    rows = StrategyColumns.concatenate(hopeful)
    shells = []
    selective = space.recompute.selective and not attention_is_fused(space.problem)
    for plain in (Recompute.NONE, Recompute.SELECTIVE) if selective else (Recompute.NONE,):
        for budget in stage_budgets(inputs, rows, plain=plain):
            bounds = placed_bound_seconds(inputs, budget, relaxed_slowest_seconds(budget))
            shells += [
                _Shell(
                    bound_seconds=float(bounds[place]),
                    budget=budget,
                    place=place,
                    strategy=rows.strategy(int(budget.rows[place])),
                    plain=plain,
                )
                for place in np.flatnonzero(bounds < bar).tolist()
            ]
    return sorted(shells, key=lambda shell: (shell.bound_seconds, shell.strategy.describe()))


def _without_splits(rows: StrategyColumns) -> StrategyColumns:
    """Each pipeline once, without its split; a single stage has nothing to place."""
    piped = rows.pipeline_parallel_size > 1
    stages = rows.pipeline_parallel_size * rows.virtual_pipeline_stages
    again = np.zeros(len(rows), dtype=np.bool_)
    for row in np.flatnonzero(rows.layer_split).tolist():
        again[row] = sum(rows.splits[int(rows.layer_split[row])]) % int(stages[row]) == 0
    kept = rows.take(piped & ~again)
    return kept.with_columns(layer_split=np.zeros(len(kept), dtype=np.int64))


class _Placer:
    """Places the layers of one strategy after the other; keeps the paths that it finds for their schedules."""

    def __init__(self, space: Space, inputs: Inputs, *, exact: bool) -> None:
        self._space, self._inputs, self._exact = space, inputs, exact
        self._paths = PathBounds()

    def __call__(self, shell: _Shell, limit: float) -> tuple[list[Placed], float]:
        """The placements of one strategy that beat ``limit``, and the bound of those there are."""
        budget = shell.budget.take(shell.place)
        if float(budget.num_microbatches[0]) < 2:
            return [], shell.bound_seconds
        answers = dict(self._answers(budget, self._asked(shell, budget), limit))
        steps = {asked: step_bound_seconds(self._inputs, answer.seconds) for asked, answer in answers.items()}
        bound = max(shell.bound_seconds, min(steps.values(), default=np.inf))
        if bound >= limit:
            return [], bound
        hopeful = {asked: answer.layers for asked, answer in answers.items() if steps[asked] < limit}
        if self._exact and _can_ask_all(budget, hopeful):
            found = self._fastest_of_all(shell, budget, hopeful, limit)
            return found, max(bound, found[-1].step_time_seconds if found else limit)
        choices = [*_partitions(budget, list(hopeful))]
        for asked, suggested in hopeful.items():
            choices += [(asked, placed(budget, layers, asked)) for layers in suggested]
        if self._exact and not _is_exact(budget):
            answer = partition_cp_sat.least_busy(budget)
            bound = max(bound, float(placed_bound_seconds(self._inputs, budget, np.array([answer.bound_seconds]))[0]))
            choices += [(asked, placed(budget, answer.layers, asked)) for asked in hopeful if answer.layers]
        return self._with_moves(shell, budget, choices, limit), bound

    def _fastest_of_all(self, shell: _Shell, budget: StageBudget, hopeful: Iterable[int | None], limit: float) -> list[Placed]:
        every = (placed(budget, layers, asked) for asked in hopeful for layers in splits(budget.num_layers, budget.num_stages))
        return list(self._faster(self._strategies(shell, every), limit))

    def _with_moves(self, shell: _Shell, budget: StageBudget, choices: list[_Choice], limit: float) -> list[Placed]:
        """Those of ``choices`` that beat ``limit``; with several stages a rank, single layers are moved as long as that helps.

        Where an exact answer is wanted, from the best of them whether or not it beats the limit; else those whose busiest rank alone
        is too slow are not asked about.
        """
        made: dict[Strategy, _Choice] = {}
        if not self._exact:
            choices = [choice for choice in choices if self._least_seconds(budget, choice[1]) < limit]
        for asked, partition in choices:
            made |= dict.fromkeys(self._strategies(shell, [partition]), (asked, partition))
        found = list(self._faster(list(made), np.inf if self._exact else limit))
        while found and not _is_single(budget):
            asked, partition = made[found[-1].strategy]
            near = nearby(budget, partition.layers, asked, most=_MOVES[self._exact])
            fresh = {strategy: (asked, each) for each in near for strategy in self._strategies(shell, [each]) if strategy not in made}
            better = list(self._faster(list(fresh), found[-1].step_time_seconds))
            if not better:
                break
            made |= fresh
            found += better
        return [each for each in found if each.step_time_seconds < limit]

    def _answers(self, budget: StageBudget, choices: list[int | None], limit: float) -> Iterator[tuple[int | None, Answer]]:
        """Choices of recomputation with their bounds; once memory does not bind, recomputing more only adds work."""
        for asked in choices:
            yield asked, self._answer(budget, asked, limit)
            if asked == choices[-1]:
                return
            loads = RankLoads(budget, asked, worth=1.0, way=np.zeros(budget.num_holders))
            if not loads.memory_binds(busy_limit(self._inputs, limit)):
                return

    def _answer(self, budget: StageBudget, asked: int | None, limit: float) -> Answer:
        """A bound with ``asked`` layers recomputed on each rank, and placements that come near it."""
        paths = ramps(budget.schedule, budget.num_ranks, round(float(budget.num_microbatches[0]))) if _is_single(budget) else None
        if paths is None:
            busy = busy_limit(self._inputs, limit)
            answer = self._paths.answer(budget, asked, busy, effort=_EFFORT[0])
            is_far = np.isfinite(busy) and answer.seconds < busy * (1 - _FAR)
            return self._paths.answer(budget, asked, busy, effort=_EFFORT[1]) if is_far else answer
        if asked is None:
            return least_by_cuts(budget, segments(budget), paths, recomputed=1.0)
        return least_by_cuts(budget, segments_alike(budget, asked), paths, recomputed=share_of(budget, asked))

    def _least_seconds(self, budget: StageBudget, partition: Partition) -> float:
        """Of a step with this placement's busiest rank."""
        return float(placed_bound_seconds(self._inputs, budget, np.array([partition.slowest_seconds]))[0])

    def _strategies(self, shell: _Shell, partitions: Iterable[Partition]) -> list[Strategy]:
        """Those that fit and that the framework runs, each once."""
        by_stage = self._space.problem.framework.recompute_by_stage
        real = (partition for partition in partitions if np.isfinite(partition.slowest_seconds))
        made = dict.fromkeys(_strategy(shell, partition, by_stage=by_stage) for partition in real)
        return runnable(self._space.problem, list(made))

    def _faster(self, strategies: list[Strategy], limit: float) -> Iterator[Placed]:
        if strategies:
            yield from _faster(self._inputs, strategies, limit)

    def _asked(self, shell: _Shell, budget: StageBudget) -> list[int | None]:
        """Layers recomputed on every rank, each count there can be; None: each stage its own."""
        choices = self._space.recompute
        if shell.plain is Recompute.SELECTIVE:
            return [0]
        if choices.full and self._space.problem.framework.recompute_by_stage:
            return [None]
        held = -(-budget.num_layers // budget.num_ranks)
        return [*([0] if choices.none else []), *choices.of_rank(held, shell.strategy.virtual_pipeline_stages)]


def _is_single(budget: StageBudget) -> bool:
    """Whether every holder has one stage."""
    return budget.num_stages == budget.num_holders


def _is_exact(budget: StageBudget) -> bool:
    """Whether no placement has a faster busiest rank than the best that comes out of :func:`_partitions`."""
    return _is_single(budget) or not (budget.is_expert.any() and not budget.is_expert.all())


def _can_ask_all(budget: StageBudget, hopeful: Collection[int | None]) -> bool:
    """Whether every placement is asked about: there are few, and one number of layers recomputed on each rank says it all."""
    few = count_splits(budget.num_layers, budget.num_stages) * len(hopeful) <= WHOLE
    return few and None not in hopeful and not _is_single(budget)


def _partitions(budget: StageBudget, choices: list[int | None]) -> Iterator[_Choice]:
    """Placements worth asking the cost model about: with every share of recomputation where it is the same for all stages."""
    for asked in choices:
        if asked is None and _is_single(budget):
            yield from ((asked, partition) for partition in pareto_partitions(budget, segments(budget)))
            continue
        found = _placed_alike(budget, asked)
        if found is None:
            continue
        yield asked, found


def _placed_alike(budget: StageBudget, asked: int | None) -> Partition | None:
    """The placement with the least busy rank, ``asked`` layers recomputed on each; None where nothing fits."""
    if budget.num_stages > budget.num_holders:
        return filled(budget, asked)
    assert asked is not None, "with one stage a rank, each stage's own recomputation is the Pareto front's"
    # with the same share everywhere the sum of the stages is the same for all splits
    return next(pareto_partitions(budget, segments_alike(budget, asked)), None)


def _strategy(shell: _Shell, partition: Partition, *, by_stage: bool) -> Strategy:
    """``shell`` with its layers placed; what is the same on all stages is written as such."""
    split, recomputes = partition.layers, any(partition.recomputed)
    counts = partition.recomputed if recomputes and by_stage and partition.recomputed != split else ()
    alike = 0 if by_stage else max(partition.recomputed)
    held = -(-sum(split) // shell.strategy.pipeline_parallel_size)
    return replace(
        shell.strategy,
        pipeline_layers=() if len(set(split)) == 1 else split,
        recompute=Recompute.FULL if recomputes else shell.plain,
        stage_recompute_layers=counts,
        num_recompute_layers=0 if alike >= held else alike,
    )


def _faster(inputs: Inputs, strategies: list[Strategy], limit: float) -> Iterator[Placed]:
    """Those of ``strategies`` that fit and are faster than ``limit``, simulated only where their bound is."""
    columns = StrategyColumns.of(strategies)
    asked = evaluate(inputs, columns)
    rows: Ints = np.flatnonzero(asked.fits & (asked.step_time_seconds < limit))
    rows = rows[np.argsort(asked.step_time_seconds[rows], kind="stable")]
    for row in rows.tolist():
        if asked.step_time_seconds[row] >= limit:
            return
        seconds: Floats = evaluate(inputs, columns.take(np.array([row])), simulate=True).step_time_seconds
        if float(seconds[0]) < limit:
            limit = float(seconds[0])
            yield Placed(strategy=strategies[row], step_time_seconds=limit, peak_memory_bytes=float(asked.peak_memory_bytes[row]))
