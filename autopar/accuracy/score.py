"""Scores predictions against measurements: errors, ranking, regret."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from autopar.costmodel.columns import Floats, StrategyColumns
from autopar.costmodel.inputs import Inputs
from autopar.costmodel.step import evaluate

from .cases import Case, case_of
from .runs import Run, Skipped

ACCURACY_SCHEMA_VERSION = "1.0"
DISTINCT = 0.05
"""Two measured steps closer than this are not asked to be ordered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One scored row, in seconds and bytes; None where not measured."""

    run_id: str
    measured_seconds: float | None
    predicted_seconds: float
    measured_bytes: float | None
    predicted_bytes: float
    notes: tuple[str, ...]

    @property
    def time_error(self) -> float | None:
        """Predicted over measured, minus 1."""
        return None if self.measured_seconds is None else self.predicted_seconds / self.measured_seconds - 1

    @property
    def memory_error(self) -> float | None:
        return None if self.measured_bytes is None else self.predicted_bytes / self.measured_bytes - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorSummary:
    """Relative errors of a set of rows; NaN-free: an empty set has no summary."""

    rows: int
    mean_absolute_error: float
    median_absolute_error: float
    p90_absolute_error: float
    bias: float
    """Mean of the signed errors."""

    @classmethod
    def of(cls, errors: Sequence[float]) -> ErrorSummary | None:
        if not errors:
            return None
        values = np.asarray(errors)
        size = np.abs(values)
        return cls(
            rows=len(values),
            mean_absolute_error=float(size.mean()),
            median_absolute_error=float(np.median(size)),
            p90_absolute_error=float(np.quantile(size, 0.9)),
            bias=float(values.mean()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """How well the strategies of one comparable set are ordered.

    ``pairwise`` is the share of the pairs more than 5 % apart that are ordered right (None if there are none);
    ``regret`` the measured time of the strategy predicted fastest over the best measured, minus 1.
    """

    group: str
    rows: int
    spearman: float | None
    kendall: float | None
    pairwise: float | None
    regret: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """Everything ``autopar accuracy`` reports."""

    rows: int
    skipped: tuple[Skipped, ...]
    predictions: tuple[Prediction, ...]
    cases: tuple[Case, ...]
    step_time: ErrorSummary | None
    step_time_groups: Mapping[str, Mapping[str, ErrorSummary]]
    memory: ErrorSummary | None
    memory_groups: Mapping[str, Mapping[str, ErrorSummary]]
    ranking: tuple[Ranking, ...]


def predict(cases: Sequence[Case]) -> tuple[Prediction, ...]:
    """Predictions of all ``cases`` at once, as arrays."""
    if not cases:
        return ()
    inputs = Inputs.stacked([case.problem for case in cases])
    found = evaluate(inputs, StrategyColumns.of([case.strategy for case in cases]), simulate=True)
    allocated = np.array([case.memory_is_allocated for case in cases])
    memory = np.where(allocated, found.allocated_memory_bytes, found.peak_memory_bytes)
    return tuple(
        Prediction(
            run_id=case.run.run_id,
            measured_seconds=case.measured_seconds,
            predicted_seconds=float(seconds),
            measured_bytes=case.measured_bytes,
            predicted_bytes=float(size),
            notes=case.notes,
        )
        for case, seconds, size in zip(cases, found.step_time_seconds, memory, strict=True)
    )


def score(runs: Sequence[Run], skipped: Sequence[Skipped] = (), *, by: Iterable[str] = ("family", "device")) -> Accuracy:
    """Predict ``runs`` and summarise.

    Args:
        runs: rows as read; those that cannot be scored are listed with their reason.
        skipped: rows that could not even be read.
        by: columns of :class:`Run` to group the errors by.
    """
    cases, left_out = [], list(skipped)
    for run in runs:
        case = case_of(run)
        if isinstance(case, Case):
            cases.append(case)
        else:
            left_out.append(case)
    predictions = predict(cases)
    return Accuracy(
        rows=len(runs) + len(skipped),
        skipped=tuple(left_out),
        predictions=predictions,
        cases=tuple(cases),
        step_time=ErrorSummary.of([p.time_error for p in predictions if p.time_error is not None]),
        step_time_groups={column: _grouped(cases, [p.time_error for p in predictions], column) for column in by},
        memory=ErrorSummary.of([p.memory_error for p in predictions if p.memory_error is not None]),
        memory_groups={column: _grouped(cases, [p.memory_error for p in predictions], column) for column in by},
        ranking=rankings(cases, predictions),
    )


def _grouped(cases: Sequence[Case], errors: Sequence[float | None], column: str) -> dict[str, ErrorSummary]:
    members: dict[str, list[float]] = defaultdict(list)
    for case, error in zip(cases, errors, strict=True):
        if error is not None:
            members[str(getattr(case.run, column)) or "not stated"].append(error)
    return {name: summary for name, values in sorted(members.items()) if (summary := ErrorSummary.of(values)) is not None}


def comparable_set(run: Run) -> str:
    """Rows with the same value differ in strategy alone."""
    parts = (run.family, run.model_name, run.device, run.num_gpus, run.global_batch_size, run.sequence_length, run.precision, run.framework)
    return " ".join("-" if part in ("", None) else str(part) for part in parts)


def rankings(cases: Sequence[Case], predictions: Sequence[Prediction]) -> tuple[Ranking, ...]:
    """Ranking of every comparable set of at least three measured rows with different strategies."""
    sets: dict[str, list[tuple[float, float]]] = defaultdict(list)
    strategies: dict[str, set[object]] = defaultdict(set)
    for case, prediction in zip(cases, predictions, strict=True):
        if prediction.measured_seconds is not None:
            name = comparable_set(case.run)
            sets[name].append((prediction.measured_seconds, prediction.predicted_seconds))
            strategies[name].add(case.strategy)
    return tuple(_ranking(name, np.array(pairs)) for name, pairs in sorted(sets.items()) if len(strategies[name]) >= 3)


def _ranking(name: str, pairs: Floats) -> Ranking:
    from scipy.stats import kendalltau, spearmanr

    measured, predicted = pairs[:, 0], pairs[:, 1]
    constant = np.ptp(measured) == 0 or np.ptp(predicted) == 0
    ordered = [
        (predicted[i] - predicted[j]) * (measured[i] - measured[j]) > 0
        for i, j in combinations(range(len(measured)), 2)
        if abs(measured[i] - measured[j]) > DISTINCT * min(measured[i], measured[j])
    ]
    return Ranking(
        group=name,
        rows=len(measured),
        spearman=None if constant else float(spearmanr(measured, predicted).statistic),
        kendall=None if constant else float(kendalltau(measured, predicted).statistic),
        pairwise=float(np.mean(ordered)) if ordered else None,
        regret=float(measured[np.argmin(predicted)] / measured.min() - 1),
    )
