"""Fits constants to measured steps: robust, pulled towards what is documented and towards what relatives came to.

The sum that is made smallest, over rows and constants (each in units of its range)::

    sum rho(weight x log(predicted / measured))
    + sum rho(PULL x (constant - documented)) + sum rho(KINSHIP x (constant - mean of its relatives))

with rho the soft L1 loss of scipy at 0.1. Rows alone would send what they do not tell to a bound; the two pulls leave it where
documentation or a related framework has it. Their strengths are those with the smallest errors on families left out
(docs/design/0003-calibration.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import least_squares

from autopar.accuracy.cases import Case
from autopar.catalog.profiles import ATTENTION_RATES
from autopar.costmodel.columns import Bools, Floats, StrategyColumns, gather
from autopar.costmodel.compute import DeviceColumns
from autopar.costmodel.inputs import Inputs
from autopar.costmodel.step import evaluate

from .constants import RELATIVES, TRUST, Constant

EVALUATIONS = 25
GAIN = 3e-4
"""A step that is worth less than this share of the sum ends the fit."""
REACH = 0.3
"""Most that one step moves a constant, of its range."""
SOFT = 0.1
"""Error from which the loss grows as the error and no longer as its square."""
PULL = 0.3
"""Error of one row that a constant may make up for by moving over its whole range."""
KINSHIP = 0.3
"""The same for a constant that moves away from those of related owners by its whole range."""
FAMILY_ROWS = 250
"""A family of more rows counts as this many, so that a big table does not drown the others."""
STEP = 1e-3
"""Difference quotients are taken over this share of a constant's range."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Constants and the rows they are fitted on."""

    constants: tuple[Constant, ...]
    values: Floats
    errors: Floats
    """Signed relative error of each row."""


def members(cases: Sequence[Case], constants: Sequence[Constant]) -> Bools:
    """constants x rows: whether the constant is one of the row's."""
    return np.array([[constant.applies_to(case) for case in cases] for constant in constants], dtype=np.bool_)


def with_constants(inputs: Inputs, mine: Bools, constants: Sequence[Constant], values: Floats) -> Inputs:
    """``inputs`` with each constant set in the rows of its owner (``mine``, of :func:`members`); a value each, or one for each row."""
    profiles, device, wide = inputs.framework, inputs.device, inputs.wide_device
    low = inputs.training.low_precision_linear > 0
    for constant, rows, value in zip(constants, mine, values, strict=True):
        if constant.owner == "framework":
            profiles = replace(profiles, **{constant.field: _of_framework(getattr(profiles, constant.field), rows, constant, value)})
        elif constant.field == "gemm_efficiency":
            share = value / constant.current()
            device, wide = _with_rate(device, rows & ~low, value), _with_rate(wide, rows, value)
            if constant.in_proportion:
                device, wide = _with_rate(device, rows & low, device.gemm_efficiency * share), _with_attention(wide, rows, share)
        elif constant.field == "fp8_efficiency":
            device = _with_rate(device, rows & low, value * device.gemm_efficiency / constant.current())  # FP4 has its share of it
        else:
            device, wide = (replace(c, **{constant.field: np.where(rows, value, getattr(c, constant.field))}) for c in (device, wide))
    return replace(inputs, framework=profiles, device=device, wide_device=wide)


def _of_framework(given: Floats, rows: Bools, constant: Constant, value: Floats) -> Floats:
    """A framework's constant set in ``rows``: older attention kernels keep their part of it, rows whose notes say otherwise theirs."""
    if constant.field == "attention_share":
        return np.where(rows, value * given / constant.current(), given)
    return np.where(rows & (given == constant.current()), value, given)


def _with_attention(device: DeviceColumns, rows: Bools, share: Floats) -> DeviceColumns:
    """Rates of attention times ``share`` in ``rows``."""
    rates = {name: np.where(rows, share, 1.0) * getattr(device, name) for name in ATTENTION_RATES}
    return replace(device, **rates)


def _with_rate(device: DeviceColumns, rows: Bools, value: Floats) -> DeviceColumns:
    """Sustained GEMM rate set in ``rows``, the rate of short kernels in proportion."""
    sustained = np.where(rows, value, device.gemm_efficiency)
    small = device.gemm_small_efficiency * sustained / device.gemm_efficiency
    return replace(device, gemm_efficiency=sustained, gemm_small_efficiency=small)


@dataclass(frozen=True, slots=True)
class Rows:
    """Measured rows as columns, ready to be predicted under any constants."""

    inputs: Inputs
    strategies: StrategyColumns
    measured: Floats
    mine: Bools
    """constants x rows."""

    @classmethod
    def of(cls, cases: Sequence[Case], constants: Sequence[Constant]) -> Rows:
        """The rows of ``cases``."""
        inputs, strategies = Inputs.stacked([case.problem for case in cases]), StrategyColumns.of([case.strategy for case in cases])
        return cls(inputs, strategies, np.array([case.measured_seconds for case in cases]), members(cases, constants))

    def repeated(self, times: int) -> Rows:
        """All of them, ``times`` over: many settings of the constants in one evaluation, which costs little more than one."""
        index = np.tile(np.arange(len(self.measured)), times)
        return Rows(gather(self.inputs, index), self.strategies.take(index), self.measured[index], self.mine[:, index])

    def log_errors(self, constants: Sequence[Constant], values: Floats) -> Floats:
        """Logarithm of predicted over measured."""
        found = evaluate(with_constants(self.inputs, self.mine, constants, values), self.strategies, simulate=False)
        return np.asarray(np.log(found.step_time_seconds / self.measured))


def family_weights(cases: Sequence[Case]) -> Floats:
    """Weight of each row; squares of a family's weights add up to at most FAMILY_ROWS."""
    names = np.array([case.run.family for case in cases])
    _, index, counts = np.unique(names, return_inverse=True, return_counts=True)
    trust = np.array([TRUST.get(name, 1.0) for name in names])
    return np.asarray(np.sqrt(np.minimum(1.0, FAMILY_ROWS / counts))[index] * trust)


def documented(constants: Sequence[Constant]) -> Floats:
    """Where every fit starts, and what it is pulled to."""
    return np.array([constant.documented() for constant in constants])


@dataclass(frozen=True, slots=True)
class _Point:
    """One setting of the constants in units of their ranges, with what its rows come to there."""

    unit: Floats
    errors: Floats
    """Logarithm of predicted over measured."""
    slopes: Floats
    """rows x constants."""


@dataclass(frozen=True, slots=True)
class Fitter:
    """Rows, constants and pulls: everything that the fits of one group of constants share, whatever rows they leave out."""

    rows: Rows
    copies: Rows
    """The rows once for the errors and once for each group of constants that share no row."""
    constants: tuple[Constant, ...]
    together: tuple[tuple[int, ...], ...]
    weight: Floats
    pulls: Floats
    """One row a pull: of each constant to its documented value, of relatives to their mean."""
    low: Floats
    range: Floats
    start: Floats

    @classmethod
    def of(cls, cases: Sequence[Case], constants: Sequence[Constant]) -> Fitter:
        """The fits of ``constants`` on ``cases``, or on some of them."""
        rows, low = Rows.of(cases, constants), np.array([c.low for c in constants])
        together = _disjoint(rows.mine)
        span = np.array([c.high for c in constants]) - low
        return cls(
            rows=rows,
            copies=rows.repeated(len(together) + 1),
            constants=tuple(constants),
            together=tuple(tuple(group) for group in together),
            weight=family_weights(cases),
            pulls=np.concatenate([PULL * np.eye(len(constants)), KINSHIP * _kinship(constants)]),
            low=low,
            range=span,
            start=np.clip((documented(constants) - low) / span, 0, 1),
        )

    def at(self, unit: Floats) -> _Point:
        """Errors of all rows and their slopes, in one evaluation of the model."""
        count, step = len(self.rows.measured), np.where(unit + STEP <= 1, STEP, -STEP)
        moved = np.repeat(unit[:, None], len(self.together) + 1, axis=1)
        for copy, group in enumerate(self.together, start=1):
            moved[list(group), copy] += step[list(group)]
        values = self.low[:, None] + np.repeat(moved, count, axis=1) * self.range[:, None]
        base, *changed = self.copies.log_errors(self.constants, values).reshape(-1, count)
        slopes = np.zeros((count, len(unit)))
        for group, after in zip(self.together, changed, strict=True):
            slopes[:, list(group)] = self.rows.mine[list(group)].T * ((after - base)[:, None] / step[list(group)])
        return _Point(unit, base, slopes)

    def residuals(self, point: _Point, weight: Floats, move: Floats) -> Floats:
        """What is made small, ``move`` away from ``point`` where the errors are taken as straight."""
        away = point.unit + move - self.start
        return np.concatenate([weight * (point.errors + point.slopes @ move), self.pulls @ away])

    def solved(self, weight: Floats, point: _Point, evaluations: int) -> _Point:
        """The best setting for rows of these weights: Gauss-Newton from ``point``, each step within bounds and a trust region.

        A step is the exact optimum of the straightened problem; one that makes the sum larger is halved. It ends where a step
        gains less than ``GAIN`` of the sum.
        """
        cost = soft_sum(self.residuals(point, weight, 0 * point.unit))
        reach, used = REACH, 0
        while used < evaluations:
            move = self._move(point, weight, reach)
            if soft_sum(self.residuals(point, weight, move)) > cost * (1 - GAIN):
                break
            tried, used = self.at(np.clip(point.unit + move, 0, 1)), used + 1
            found = soft_sum(self.residuals(tried, weight, 0 * move))
            if found < cost:
                point, cost = tried, found
            else:
                reach = float(np.max(np.abs(move))) / 4
        return point

    def _move(self, point: _Point, weight: Floats, reach: float) -> Floats:
        jacobian = np.concatenate([weight[:, None] * point.slopes, self.pulls])

        def residuals(move: Floats) -> Floats:
            return self.residuals(point, weight, move)

        def slopes(_: Floats) -> Floats:
            return jacobian

        low, high = np.maximum(-point.unit, -reach), np.minimum(1 - point.unit, reach)
        inside = 1e-6 * (high - low)
        return np.asarray(
            least_squares(
                residuals,
                np.clip(0 * point.unit, low + inside, high - inside),
                jac=slopes,
                bounds=(low, high),
                loss="soft_l1",
                f_scale=SOFT,
                max_nfev=40,
            ).x
        )

    def whole(self) -> _Point:
        """The fit on every row, from documented values."""
        return self.solved(self.weight, self.at(self.start), EVALUATIONS)


def soft_sum(residuals: Floats) -> float:
    """Half the soft L1 loss of scipy at SOFT, summed."""
    return float(np.sum(SOFT**2 * (np.sqrt(1 + (residuals / SOFT) ** 2) - 1)))


def fit(cases: Sequence[Case], constants: Sequence[Constant]) -> Fit:
    """The constants that fit ``cases`` best."""
    fitter = Fitter.of(cases, constants)
    found = fitter.whole()
    return Fit(constants=tuple(constants), values=fitter.low + found.unit * fitter.range, errors=np.expm1(found.errors))


def _kinship(constants: Sequence[Constant]) -> Floats:
    """Rows that take a constant's distance from the mean of its relatives: owners of one kin, the same field, ranges alike."""
    rows = []
    for kin in RELATIVES:
        related = [i for i, constant in enumerate(constants) if constant.name in kin]
        for field in sorted({constants[i].field for i in related}):
            same = [i for i in related if constants[i].field == field]
            for i in same if len(same) > 1 else ():
                row = np.zeros(len(constants))
                row[same] -= 1 / len(same)
                row[i] += 1
                rows.append(row)
    return np.array(rows).reshape(-1, len(constants))


def _disjoint(mine: Bools) -> list[list[int]]:
    """Constants in groups of which no two share a row: their slopes come from one evaluation."""
    groups: list[tuple[Bools, list[int]]] = []
    for column, rows in enumerate(mine):
        for number, (taken, group) in enumerate(groups):
            if not np.any(taken & rows):
                groups[number] = (taken | rows, [*group, column])
                break
        else:
            groups.append((rows, [column]))
    return [group for _, group in groups]


def left_out(fitter: Fitter, names: Sequence[str]) -> Floats:
    """Signed errors of each row with the rows of its name left out of the fit; NaN where that name is all there is.

    Rows that are left out weigh nothing. Every fit starts from documented values: where two settings fit what is left alike, one
    that starts from the fit of all rows ends at the setting that the rows left out have told it.
    """
    groups, errors, start = np.array(names), np.full(len(names), np.nan), fitter.at(fitter.start)
    for name in np.unique(groups):
        out = groups == name
        if not out.all():
            errors[out] = np.expm1(fitter.solved(np.where(out, 0.0, fitter.weight), start, EVALUATIONS).errors[out])
    return errors
