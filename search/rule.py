"""What a rule is: a name, a test over columns, and words for one strategy that breaks it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from autopar.costmodel.columns import Bools, StrategyColumns
from autopar.costmodel.problem import Problem
from autopar.costmodel.spec.errors import Fault
from autopar.costmodel.spec.strategy import Strategy

Mask = Callable[[Problem, StrategyColumns], Bools]
Explanation = Callable[[Problem, Strategy], Fault]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One reason to refuse a strategy.

    ``mask`` is True where a strategy is accepted and looks at the columns named in ``reads`` alone, so that the search applies
    it as soon as those are known. ``explain`` is only asked about a strategy that the mask refuses: one implementation decides.
    """

    name: str
    reads: frozenset[str]
    mask: Mask
    explain: Explanation

    @property
    def summary(self) -> str:
        """The rule in one line."""
        return (self.mask.__doc__ or "").strip().split("\n")[0]

    def fault(self, problem: Problem, strategy: Strategy) -> Fault | None:
        """What is wrong with ``strategy`` by this rule; None where it is accepted."""
        accepted = bool(self.mask(problem, _columns_of(strategy))[0])
        return None if accepted else self.explain(problem, strategy)


@lru_cache(maxsize=1)
def _columns_of(strategy: Strategy) -> StrategyColumns:
    """One row; every rule is asked about the same strategy in turn."""
    return StrategyColumns.of([strategy])


def accepted_values(
    problem: Problem, strategy: Strategy, field: str, candidates: Iterable[int], masks: Sequence[Mask], **others: Callable[[int], Any]
) -> list[int]:
    """Those of ``candidates`` for ``field`` that all ``masks`` accept, everything else as in ``strategy``.

    ``others`` are fields that follow the candidate, such as sequence parallelism, which is off at tensor_parallel_size=1.
    """
    values = sorted(set(candidates))
    if not values:
        return []
    changes: list[dict[str, Any]] = [{field: value, **{name: of(value) for name, of in others.items()}} for value in values]
    rows = [replace(strategy, **change) for change in changes]
    columns = StrategyColumns.of(rows)
    good = np.ones(len(values), dtype=np.bool_)
    for mask in masks:
        good &= mask(problem, columns)
    return [value for value, ok in zip(values, good.tolist(), strict=True) if ok]


def nearest(value: int, valid: Sequence[int]) -> str:
    """``nearest valid: 8, 16``: the valid values on both sides of ``value``."""
    below, above = [v for v in valid if v < value], [v for v in valid if v > value]
    close = [*([max(below)] if below else []), *([min(above)] if above else [])]
    return f"nearest valid: {', '.join(map(str, close))}" if close else ""


def divisors(number: int, *, limit: int | None = None) -> tuple[int, ...]:
    """Divisors of ``number`` up to ``limit``, ascending."""
    small, large, size = [], [], 1
    while size * size <= number:
        if number % size == 0:
            small.append(size)
            if size * size != number:
                large.append(number // size)
        size += 1
    return tuple(d for d in (*small, *reversed(large)) if limit is None or d <= limit)


def everything(columns: StrategyColumns) -> Bools:
    """A mask that accepts every row."""
    return np.ones(len(columns), dtype=np.bool_)
