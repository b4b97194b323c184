"""How fast a strategy with one stage a rank can be at most, over all ways to cut its layers, and the cuts that the bound suggests.

Each path of the schedule (:func:`~autopar.costmodel.pipeline_paths.ramps`) depends on the cuts before and after one stage alone, so that a
dynamic programme over cut points finds the placement whose longest path is shortest: whole layers, memory, recomputation and
the ranks' tails included. Several stages a rank: :mod:`autopar.search.path_game`.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from autopar.costmodel.columns import Floats, Ints
from autopar.costmodel.holdings import Tails
from autopar.costmodel.pipeline_paths import Ramps
from autopar.costmodel.stage_budget import Linear, StageBudget

from .partition import Segments

_FINE = 1e-4
"""Tails that differ by less than this share of the longest are taken together."""
_SUGGESTED = 8
"""Placements that come out with a bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A bound on the pipeline's seconds with the first rank's tail, and placements worth trying."""

    seconds: float
    layers: tuple[tuple[int, ...], ...]


def least_by_cuts(budget: StageBudget, found: Segments, paths: Ramps, *, recomputed: float) -> Answer:
    """The least over all cuts of the longest of ``paths`` with the longest tail of a rank; infinite where nothing fits.

    What recomputation adds before and after a stage is the least that any placement of the layers there needs. Tails are
    taken in bins: with no tail above its upper edge the paths decide, and the tail is no less than the lower one.

    Args:
        budget: of one strategy.
        found: what every run of layers takes on every stage.
        paths: of the schedule.
        recomputed: the most of a stage's layers that may be recomputed, as a share: later ranks' tails hide behind that.
    """
    longest, tails = _longest(budget, found, paths), _tails(budget, found.seconds, recomputed)
    least, most = _distinct(tails[np.isfinite(tails)])
    if not len(most):
        return Answer(seconds=np.inf, layers=())

    def within(last: int) -> tuple[float, tuple[int, ...]]:
        return _cuts(np.where(tails <= most[last], longest, np.inf))

    # bins of tails after one another, the one of the least bound split until it holds a single tail
    value, split = within(len(most) - 1)
    bins, layers = [(value + float(least[0]), 0, len(most) - 1, value)], [split]
    while np.isfinite(bins[0][0]) and bins[0][1] < bins[0][2]:
        _, first, last, value = heappop(bins)
        middle = (first + last) // 2
        heappush(bins, (value + float(least[middle + 1]), middle + 1, last, value))
        value, split = within(middle)
        heappush(bins, (value + float(least[first]), first, middle, value))
        layers.append(split)
    if not np.isfinite(bins[0][0]):
        return Answer(seconds=np.inf, layers=())
    _, _, last, _ = bins[0]
    return Answer(seconds=bins[0][0], layers=(within(last)[1], *dict.fromkeys(layers[::-1]))[:_SUGGESTED])


def _distinct(seconds: Floats) -> tuple[Floats, Floats]:
    """In order, those that differ by less than a ten-thousandth of the largest taken together: the least and the most of each."""
    ordered = np.unique(seconds)
    if not len(ordered):
        return ordered, ordered
    steps = np.flatnonzero(np.diff(np.floor(ordered / (ordered[-1] * _FINE + np.finfo(np.float64).tiny))))
    return ordered[np.append(0, steps + 1)], ordered[np.append(steps, len(ordered) - 1)]


def _longest(budget: StageBudget, found: Segments, paths: Ramps) -> Floats:
    """``[S, L + 1, L + 1]``: the longest path that stays on a stage with a run of layers."""
    before, after = _around(budget, found)
    parts, longest = _parts(budget, found), np.full_like(found.seconds, -np.inf)
    first_weight = float(budget.weight_seconds.base[0, 0] + budget.weight_seconds.slope[0, 0].min())
    for path, stage in enumerate(paths.stage.tolist()):
        sides = _weighed(paths.before[path], before[stage])[:, None] + _weighed(paths.after[path], after[stage])[None, :]
        seconds = sides + _weighed(paths.own[path], parts[:, stage]) + paths.first_weight[path] * first_weight
        np.maximum(longest[stage], seconds, out=longest[stage])
    return longest


def _cuts(longest: Floats) -> tuple[float, tuple[int, ...]]:
    """The cuts whose slowest run is fastest, and its seconds."""
    value, choices = longest[-1][:, -1], []
    for stage in longest[-2::-1]:
        through = np.maximum(stage, value[None, :])
        choices.append(through.argmin(axis=1))
        value = np.take_along_axis(through, choices[-1][:, None], axis=1)[:, 0]
    cuts = [0]
    for choice in reversed(choices):
        cuts.append(int(choice[cuts[-1]]))
    return float(value[0]), tuple(np.diff([*cuts, len(value) - 1]).tolist())


def _tails(budget: StageBudget, seconds: Floats, recomputed: float) -> Floats:
    """``[S, L + 1, L + 1]``: the tail of a run of layers on a stage, at least; infinite where the run does not fit."""
    tables, layers = budget.tails, budget.num_layers
    counts = np.arange(layers + 1)
    runs = np.clip(counts - counts[:, None], 0, tables.rest_seconds.shape[2] - 1)
    kinds = budget.kinds_before()
    forward, plain, again = (
        np.concatenate([[0.0], np.cumsum(line.base[0])[:-1]])[:, None] + kinds @ line.slope[0, 0]
        for line in (budget.forward_seconds, budget.seconds, budget.recomputed_seconds)
    )
    backward = plain + recomputed * (again - plain) - forward
    every = Tails(**{name: getattr(tables, name)[0][:, runs] for name in ("reduction_seconds", "gather_seconds", "rest_seconds")})
    return np.where(np.isfinite(seconds), every.seconds(forward[:, :, None], backward[:, :, None]), np.inf)


def _weighed(passes: Floats, seconds: Floats) -> Floats:
    """Seconds of so many passes of each part; a part that is not passed counts nothing even where it is infinite."""
    used = np.flatnonzero(passes)
    return np.asarray(np.tensordot(passes[used], seconds[used], axes=1))


def _parts(budget: StageBudget, found: Segments) -> Floats:
    """Forward, backward and weight seconds of every run on every stage, ``[3, S, L + 1, L + 1]``."""
    kinds = budget.kinds_before()
    runs = kinds[None, :, :] - kinds[:, None, :]

    def over(line: Linear) -> Floats:
        return np.asarray(line.base[0][:, None, None] + np.einsum("sk,ijk->sij", line.slope[0], runs))

    forward, weight = over(budget.forward_seconds), over(budget.weight_seconds)
    return np.stack([forward, found.seconds - forward - weight, weight])


def _around(budget: StageBudget, found: Segments) -> tuple[Floats, Floats]:
    """``[S, 3, L + 1]``: the least that the stages before take with the layers up to each one, and those after with the rest."""
    total = [np.where(np.arange(budget.num_layers + 1) == 0, 0.0, np.inf)]
    for stage in found.seconds[:-1]:
        total.append((total[-1][:, None] + stage).min(axis=0))
    rest = [np.where(np.arange(budget.num_layers + 1) == budget.num_layers, 0.0, np.inf)]
    for stage in found.seconds[:0:-1]:
        rest.append((stage + rest[-1][None, :]).min(axis=1))
    kinds = budget.kinds_before()

    def split(whole: Floats, layers: Ints, stages: slice) -> Floats:
        fixed = [line.base[0, stages].sum() + layers @ line.slope[0, 0] for line in (budget.forward_seconds, budget.weight_seconds)]
        return np.stack([fixed[0], whole - fixed[0] - fixed[1], fixed[1]])

    before = np.stack([split(each, kinds, slice(0, stage)) for stage, each in enumerate(total)])
    after = np.stack([split(each, kinds[-1] - kinds, slice(stage + 1, None)) for stage, each in enumerate(reversed(rest))])
    return before, after
