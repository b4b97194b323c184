"""Which part of a step carries the error: the terms of the estimates beside the measurements, family by family."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, fields

import numpy as np

from autopar.accuracy.cases import Case
from autopar.accuracy.metrics import spearman
from autopar.accuracy.score import Accuracy
from autopar.costmodel.columns import Floats
from autopar.costmodel.estimate import estimate
from autopar.costmodel.spec.estimate import TimeBreakdown

PARTS = {
    "compute": ("matrix_multiplication", "attention", "elementwise", "embedding_and_loss", "gradient_accumulation"),
    "recompute": ("recompute",),
    "host launch": ("host_launch",),
    "exposed communication": (
        "exposed_tensor_communication", "exposed_context_communication", "exposed_expert_communication",
        "exposed_pipeline_communication", "exposed_data_communication",
    ),
    "bubble": ("pipeline_bubble",),
    "optimizer": ("optimizer",),
    "overhead": ("overhead",),
}  # fmt: skip
"""Terms of a breakdown in the groups that a person looks at."""
MOST_ROWS = 120
"""Rows of one family that are broken down, evenly spread: an estimate takes milliseconds."""
FEWEST_ROWS = 8
SMALLEST_SHARE = 0.02
"""A part below this share of the step cannot carry an error worth naming."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyTerms:
    """Mean shares of the parts in a family's steps, and the part whose share goes with the error."""

    family: str
    rows: int
    shares: dict[str, float]
    suspect: str
    """The part with the strongest rank correlation between its share and the signed error; "" where none passes 0.3."""
    correlation: float


def breakdown(case: Case) -> TimeBreakdown:
    """The terms of the estimate of ``case``."""
    return estimate(case.problem, case.strategy).time


def shares(time: TimeBreakdown) -> dict[str, float]:
    """Share of each part in the step."""
    total = sum(getattr(time, f.name) for f in fields(time))
    return {part: sum(getattr(time, name) for name in names) / total for part, names in PARTS.items()}


def largest_terms(case: Case, count: int = 3) -> str:
    """``matrix multiplication 61 %, pipeline bubble 14 %``: the largest terms of one row's estimate."""
    time = breakdown(case)
    total = sum(getattr(time, f.name) for f in fields(time))
    terms = sorted(((getattr(time, f.name) / total, f.name) for f in fields(time)), reverse=True)[:count]
    return ", ".join(f"{name.replace('_', ' ')} {share:.0%}" for share, name in terms)


def family_terms(accuracy: Accuracy) -> tuple[FamilyTerms, ...]:
    """Every family with enough measured steps."""
    members: dict[str, list[tuple[Case, float]]] = defaultdict(list)
    for case, prediction in zip(accuracy.cases, accuracy.predictions, strict=True):
        if prediction.time_error is not None:
            members[case.run.family].append((case, prediction.time_error))
    return tuple(_of_family(name, rows) for name, rows in sorted(members.items()) if len(rows) >= FEWEST_ROWS)


def _of_family(family: str, rows: list[tuple[Case, float]]) -> FamilyTerms:
    chosen = [rows[int(index)] for index in np.unique(np.linspace(0, len(rows) - 1, MOST_ROWS).astype(int))]
    table = [shares(breakdown(case)) for case, _ in chosen]
    errors: Floats = np.array([error for _, error in chosen])
    columns = {part: np.array([row[part] for row in table]) for part in PARTS}
    related = {part: spearman(column, errors) or 0.0 for part, column in columns.items()}
    weighty = [part for part, column in columns.items() if column.mean() >= SMALLEST_SHARE]
    suspect = max(weighty, key=lambda part: abs(related[part]))
    known = abs(related[suspect]) >= 0.3
    return FamilyTerms(
        family=family,
        rows=len(rows),
        shares={part: float(column.mean()) for part, column in columns.items()},
        suspect=suspect if known else "",
        correlation=related[suspect] if known else 0.0,
    )
