"""Figures that say how far predictions are from measurements, and how well they order strategies.

Nothing here knows what was measured: numbers in, numbers out, and None where a figure has no meaning (no rows, all rows equal).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autopar.costmodel.columns import Bools, Floats

DISTINCT = 0.05
"""Two measurements closer than this share of the smaller one are not asked to be ordered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorSummary:
    """Relative errors of a set of rows, predicted over measured minus 1; None where there are no rows."""

    rows: int
    mean_absolute_error: float | None
    median_absolute_error: float | None
    p90_absolute_error: float | None
    bias: float | None
    """Mean of the signed errors: above 0 the predictions are too long (or too large)."""

    @classmethod
    def of(cls, errors: Sequence[float]) -> ErrorSummary:
        """The summary of signed ``errors``; the 90th percentile interpolates linearly between rows."""
        if not len(errors):
            return cls(rows=0, mean_absolute_error=None, median_absolute_error=None, p90_absolute_error=None, bias=None)
        values = np.asarray(errors, dtype=np.float64)
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

    ``spearman`` and ``kendall`` (tau-b) are None where all measurements or all predictions are equal. ``pairwise`` is the share of
    the pairs more than 5 % apart that are ordered right, None where there is no such pair. ``regret`` is the measured time of the
    strategy predicted fastest over the best measured, minus 1 (the mean over those predicted equally fast).
    """

    group: str
    rows: int
    spearman: float | None
    kendall: float | None
    pairwise: float | None
    regret: float


def ranking(group: str, measured: Floats, predicted: Floats, *, rows: int | None = None) -> Ranking:
    """The ranking figures of one set; one entry a strategy, ``rows`` where several rows stand behind an entry."""
    first = predicted == predicted.min()
    return Ranking(
        group=group,
        rows=len(measured) if rows is None else rows,
        spearman=_correlation(average_ranks(measured), average_ranks(predicted)),
        kendall=kendall(measured, predicted),
        pairwise=pairs_ordered(measured, predicted),
        regret=float(measured[first].mean() / measured.min() - 1),
    )


def average_ranks(values: Floats) -> Floats:
    """Ranks from 1; equal values share the mean of the ranks they take up."""
    _, codes, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    means: Floats = last - (counts - 1) / 2
    return means[codes]


def spearman(one: Floats, other: Floats) -> float | None:
    """Correlation of the ranks of two columns; None where either is constant."""
    return _correlation(average_ranks(one), average_ranks(other))


def _correlation(one: Floats, other: Floats) -> float | None:
    first, second = one - one.mean(), other - other.mean()
    size = float(np.sqrt((first @ first) * (second @ second)))
    return float(np.clip(first @ second / size, -1, 1)) if size > 0 else None


def kendall(one: Floats, other: Floats) -> float | None:
    """Kendall's tau-b, which discounts ties; None where either column is constant.

    tau-b = (agreeing - disagreeing) / sqrt((pairs - ties in one) (pairs - ties in other))      (Kendall 1945)
    """
    balance = untied_one = untied_other = 0
    for index in range(len(one) - 1):
        first, second = np.sign(one[index + 1 :] - one[index]), np.sign(other[index + 1 :] - other[index])
        balance += int(first @ second)
        untied_one += int(np.count_nonzero(first))
        untied_other += int(np.count_nonzero(second))
    size = float(untied_one) * float(untied_other)
    return balance / float(np.sqrt(size)) if size else None


def pairs_ordered(measured: Floats, predicted: Floats) -> float | None:
    """Share of the pairs whose measurements are more than 5 % apart that the predictions order the same way (a tie does not)."""
    right = asked = 0
    for index in range(len(measured) - 1):
        difference = measured[index + 1 :] - measured[index]
        distinct: Bools = np.abs(difference) > DISTINCT * np.minimum(measured[index + 1 :], measured[index])
        asked += int(distinct.sum())
        right += int((distinct & (difference * np.sign(predicted[index + 1 :] - predicted[index]) > 0)).sum())
    return right / asked if asked else None
