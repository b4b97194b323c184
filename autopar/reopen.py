"""The least changes that give a question without an answer one: a constraint less, or a batch nearby."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING

from autopar.search import Constraints, search

if TYPE_CHECKING:
    from autopar.costmodel.problem import Problem
    from autopar.costmodel.spec.strategy import Strategy

KINDS = ("fixed", "maximum", "minimum")
_PREFIX = {"fixed": "", "maximum": "max ", "minimum": "min "}
MAX_PAIRS = 15
"""Pairs of constraints that are tried where no single one does it."""
NEARBY_BATCHES = 6

Part = tuple[str, str]
"""The kind of a constraint and its field."""


def reopenings(problem: Problem, constraints: Constraints) -> tuple[str, ...]:
    """What would make a plan possible, each in a line with the plan; empty where none of the changes tried does.

    Constraints are left out one at a time, then two; a batch is moved to the nearest multiples of powers of two.
    """
    parts = _parts(constraints)
    found = list(_loosened(problem, constraints, combinations(parts, 1)))
    if not found:
        pairs = list(combinations(parts, 2))
        found = list(_loosened(problem, constraints, pairs[:MAX_PAIRS]))
    batch = _nearest_batch(problem, constraints)
    return (*found, *([batch] if batch else []))


def _loosened(problem: Problem, constraints: Constraints, groups: Iterable[tuple[Part, ...]]) -> Iterator[str]:
    from autopar.io.flags import short_name

    for group in groups:
        best = _best(problem, _without(constraints, group))
        if best is not None:
            names = " and ".join(_text(constraints, part, short_name(part[1])) for part in group)
            yield f"without {names}: {best.describe()}"


def _parts(constraints: Constraints) -> list[Part]:
    bounds = [(kind, name) for kind in KINDS for name in getattr(constraints, kind)]
    return [*bounds, *(("forbidden", name) for name in sorted(constraints.forbidden))]


def _without(constraints: Constraints, group: tuple[Part, ...]) -> Constraints:
    return Constraints(
        fixed={name: value for name, value in constraints.fixed.items() if ("fixed", name) not in group},
        maximum={name: value for name, value in constraints.maximum.items() if ("maximum", name) not in group},
        minimum={name: value for name, value in constraints.minimum.items() if ("minimum", name) not in group},
        forbidden=frozenset(name for name in constraints.forbidden if ("forbidden", name) not in group),
    )


def _text(constraints: Constraints, part: Part, name: str) -> str:
    kind, field = part
    return f"forbid {name}" if kind == "forbidden" else f"{_PREFIX[kind]}{name}={getattr(constraints, kind)[field]}"


def _nearest_batch(problem: Problem, constraints: Constraints) -> str:
    """The nearest batch that has a plan, where the one asked for divides badly."""
    now = problem.training.global_batch_size
    for size in _nearby(now):
        best = _best(replace(problem, training=replace(problem.training, global_batch_size=size)), constraints)
        if best is not None:
            return f"with a batch of {size:,} sequences in place of {now:,}: {best.describe()}"
    return ""


def _nearby(batch: int) -> list[int]:
    """The multiples of powers of two next to ``batch``, nearest first."""
    sizes: set[int] = set()
    step = 2
    while step <= 2 * batch and len(sizes) < 4 * NEARBY_BATCHES:
        sizes |= {batch // step * step, (batch // step + 1) * step}
        step *= 2
    return sorted((size for size in sizes if size >= 1 and size != batch), key=lambda size: (abs(size - batch), -size))[:NEARBY_BATCHES]


def _best(problem: Problem, constraints: Constraints) -> Strategy | None:
    return search(problem, constraints, top=1).best
