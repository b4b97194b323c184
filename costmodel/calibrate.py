"""Fits named physical constants to measured steps, shrunk towards the values they start from.

With u the shift of each constant in units of its plausible deviation and e_i the logarithm of predicted over measured of row i::

    minimise  sum_i w_i rho(e_i(u) / noise) + sum_j u_j^2,   rho(x) = 2 (sqrt(1 + x^2) - 1)

A ridge: n rows move a constant that shifts each of them by s an sd by about n s^2 / (n s^2 + noise^2) of the way, so that few
rows move little. rho (soft L1) keeps one odd row from deciding. Solved by Levenberg-Marquardt with reweighting; numpy alone.
Wrong where rows share a cause that none of the constants describes: cross-validation then shows no gain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from .columns import Bools, Floats, Ints

ROW_NOISE = 0.1
"""Log error of one row that is the row's own: its jitter, and what the model leaves out of its configuration."""
MAX_LEFT_OUT_ONE_BY_ONE = 20
FOLDS = 5
_STEP = 0.02
"""Shift of a constant, in its deviations, that derivatives are taken over."""
_MAX_ITERATIONS = 30
_CONVERGED = 1e-3

Predict = Callable[[Floats], Floats]
"""Settings (m x constants, in the constants' own units) to the logarithm of predicted seconds (m x rows)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """Where each constant starts, how far it may plausibly be, and the range physics allows; one entry a constant.

    ``deviation`` is relative for constants on a logarithmic scale (efficiencies, times), absolute for the others (fractions).
    """

    start: Floats
    deviation: Floats
    low: Floats
    high: Floats
    logarithmic: Bools

    def __len__(self) -> int:
        return len(self.start)

    def values(self, shift: Floats) -> Floats:
        """Constants at ``shift`` deviations from the start; the last axis runs over the constants."""
        moved = shift * self.deviation
        positive = np.where(self.logarithmic, self.start, 1.0)
        return np.clip(np.where(self.logarithmic, positive * np.exp(moved), self.start + moved), self.low, self.high)

    def shifts(self, values: Floats) -> Floats:
        """The inverse of :meth:`values`."""
        positive = np.where(self.logarithmic, values / np.where(self.logarithmic, self.start, 1.0), 1.0)
        return np.where(self.logarithmic, np.log(positive), values - self.start) / self.deviation

    def take(self, chosen: Bools) -> Prior:
        """The constants chosen by a mask."""
        return Prior(
            start=self.start[chosen],
            deviation=self.deviation[chosen],
            low=self.low[chosen],
            high=self.high[chosen],
            logarithmic=self.logarithmic[chosen],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """Mean absolute relative error on rows left out of the fit, before and after; and each row's signed errors."""

    before: float
    after: float
    errors_before: Floats
    errors_after: Floats
    scheme: str


def fit(predict: Predict, log_measured: Floats, prior: Prior, *, weights: Floats | None = None, noise: float = ROW_NOISE) -> Floats:
    """The constants that explain the rows best, given how plausible each shift is.

    Args:
        predict: the cost model as a function of the constants.
        log_measured: logarithm of the measured seconds of each row.
        prior: start, deviation and range of each constant.
        weights: of the rows; 0 leaves a row out.
        noise: log error of one row that no constant explains.
    """
    weight = np.ones(len(log_measured)) if weights is None else weights
    low, high = prior.shifts(prior.low), prior.shifts(prior.high)
    shift = np.zeros(len(prior))
    damping = 1e-2
    errors, slopes = _linearised(predict, log_measured, prior, shift, low, high)
    cost = _cost(errors, weight, shift, noise)
    for _ in range(_MAX_ITERATIONS):
        step = np.clip(shift + _newton(errors, slopes, weight, shift, (low, high), noise, damping), low, high)
        found = predict(prior.values(step)[np.newaxis])[0] - log_measured
        if (lower := _cost(found, weight, step, noise)) > cost:
            damping *= 8
            if damping > 1e6:
                break
            continue
        moved = float(np.max(np.abs(step - shift), initial=0.0))
        shift, cost, damping = step, lower, damping / 4
        if moved < _CONVERGED:
            break
        errors, slopes = _linearised(predict, log_measured, prior, shift, low, high)
    return prior.values(shift)


def sensitivity(predict: Predict, prior: Prior) -> Floats:
    """Largest change of any row's log time for one deviation of each constant: 0 where the rows say nothing of it."""
    count = len(prior)
    shifts = np.concatenate([np.zeros((1, count)), np.eye(count), -np.eye(count)])
    found = predict(prior.values(shifts))
    away = np.abs(found[1:] - found[0])
    largest: Floats = np.max(np.maximum(away[:count], away[count:]), axis=1, initial=0.0)
    return largest


def cross_validated(predict: Predict, log_measured: Floats, prior: Prior, groups: Ints, *, noise: float = ROW_NOISE) -> Validation:
    """The error on rows that the fit did not see.

    Rows of one group (the same configuration measured again) are left out together: one group at a time up to 20 groups, else in 5
    folds that take the groups in turn.
    """
    names, member = np.unique(groups, return_inverse=True)
    one_by_one = len(names) <= MAX_LEFT_OUT_ONE_BY_ONE
    fold = member if one_by_one else member % FOLDS
    before = predict(prior.start[np.newaxis])[0] - log_measured
    after = np.empty_like(before)
    for number in np.unique(fold):
        out = fold == number
        values = fit(predict, log_measured, prior, weights=(~out).astype(np.float64), noise=noise)
        after[out] = (predict(values[np.newaxis])[0] - log_measured)[out]
    errors_before, errors_after = np.expm1(before), np.expm1(after)
    distinct = len(names) == len(groups)
    return Validation(
        before=float(np.abs(errors_before).mean()),
        after=float(np.abs(errors_after).mean()),
        errors_before=errors_before,
        errors_after=errors_after,
        scheme=("leave one out" if distinct else "leave one configuration out") if one_by_one else f"{FOLDS} folds",
    )


def _linearised(predict: Predict, log_measured: Floats, prior: Prior, shift: Floats, low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """Errors at ``shift`` and their derivatives (rows x constants), taken inwards at the upper end of a range."""
    towards = np.where(shift + _STEP <= high, _STEP, -_STEP)
    settings = np.concatenate([shift[np.newaxis], shift + np.diag(towards)])
    found = predict(prior.values(np.clip(settings, low, high)))
    return found[0] - log_measured, ((found[1:] - found[0]) / towards[:, np.newaxis]).T


def _cost(errors: Floats, weight: Floats, shift: Floats, noise: float) -> float:
    robust = 2 * (np.sqrt(1 + np.square(errors / noise)) - 1)
    return float(np.sum(weight * robust) + np.sum(np.square(shift)))


def _newton(
    errors: Floats, slopes: Floats, weight: Floats, shift: Floats, bounds: tuple[Floats, Floats], noise: float, damping: float
) -> Floats:
    """One damped Gauss-Newton step; constants held at a bound that they push against stay there."""
    reweighted = weight / np.sqrt(1 + np.square(errors / noise)) / noise**2
    gradient = slopes.T @ (reweighted * errors) + shift
    held = ((shift <= bounds[0]) & (gradient > 0)) | ((shift >= bounds[1]) & (gradient < 0))
    curvature = (slopes.T * reweighted) @ slopes + (1 + damping) * np.eye(len(shift))
    curvature[held] = curvature[:, held] = 0
    curvature[held, held] = 1
    step: Floats = np.linalg.solve(curvature, np.where(held, 0.0, -gradient))
    return step


def enough(groups: Sequence[int] | Ints) -> str:
    """Why these rows cannot be cross-validated, or "": at least 4 rows of at least 2 configurations are needed."""
    rows, kinds = len(groups), len(set(np.asarray(groups).tolist()))
    if rows >= 4 and kinds >= 2:
        return ""
    return f"{rows} row{'' if rows == 1 else 's'} of {kinds} configuration{'' if kinds == 1 else 's'} cannot be cross-validated"
