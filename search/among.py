"""The search over strategies that somebody names: those that were measured, or those a team is willing to run."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from autopar.costmodel.columns import StrategyColumns
from autopar.costmodel.inputs import Inputs
from autopar.costmodel.problem import Problem
from autopar.costmodel.spec.plan import SearchSummary
from autopar.costmodel.spec.strategy import Strategy
from autopar.costmodel.step import evaluate

from . import feasibility
from .exhaustive import Candidates, in_order, least
from .result import SearchResult
from .solve import plain, ranking


def search_among(problem: Problem, strategies: Iterable[Strategy], *, top: int = 5) -> SearchResult:
    """The ``top`` fastest of ``strategies`` that the framework runs and the memory holds, ranked as :func:`autopar.search.search` does.

    Args:
        problem: what to train, on what.
        strategies: each is looked at once; what a rule or memory refuses is counted under its name.
        top: how many to rank.
    """
    asked = StrategyColumns.of(dict.fromkeys(strategies))
    rejected, runs = {}, np.ones(len(asked), dtype=np.bool_)
    for rule in feasibility.RULES if len(asked) else ():
        accepted = rule.mask(problem, asked)
        rejected[rule.name] = int((runs & ~accepted).sum())
        runs &= accepted
    refused, rows = asked.take(~runs), asked.take(runs)
    fitting, missing = _evaluated(problem, rows)
    rejected[feasibility.MEMORY] = len(missing)
    ranked = ranking(problem, in_order(fitting, top)) if len(fitting) else ()
    broken = [feasibility.faults(problem, refused.strategy(row)) for row in range(len(refused))] if not len(rows) else []
    return SearchResult(
        best=ranked[0].strategy if ranked else None,
        ranked=ranked,
        summary=SearchSummary(
            evaluated=len(rows),
            rejected={name: count for name, count in sorted(rejected.items()) if count},
            method="exhaustive",
            optimality="proven over the strategies named",
            interrupted=False,
        ),
        nearest_misses=() if ranked or not len(missing) else plain(least(missing, top)),
        refused_by=tuple(fault for faults in broken for fault in faults),
    )


def _evaluated(problem: Problem, rows: StrategyColumns) -> tuple[Candidates, Candidates]:
    """Those that fit and those that do not, with exact step times."""
    found = evaluate(Inputs.of(problem), rows, simulate=True)
    every = Candidates(rows, found.step_time_seconds, found.exact, found.peak_memory_bytes)
    return every.take(found.fits), every.take(~found.fits)
