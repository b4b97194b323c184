"""Fits constants to measured steps: robust, pulled towards what is documented and towards what relatives came to.

The sum that is made smallest, over rows and constants (each in units of its range)::

    sum rho(weight x log(predicted / measured))
    + sum rho(PULL x (constant - documented)) + sum rho(KINSHIP x (constant - mean of its relatives))

with rho the soft L1 loss of scipy at 0.1. Rows alone would send what they do not tell to a bound; the two pulls leave it where
documentation or a related framework has it. Their strengths are those with the smallest errors on families left out
(docs/design/0003-calibration.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from autopar.accuracy.cases import Case
from autopar.costmodel.columns import Bools, Floats, StrategyColumns, gather
from autopar.costmodel.compute import DeviceColumns
from autopar.costmodel.inputs import Inputs
from autopar.costmodel.step import evaluate

from .constants import RELATIVES, TRUST, Constant

EVALUATIONS = 25
LEFT_OUT_EVALUATIONS = 6
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
            profiles = replace(profiles, **{constant.field: np.where(rows, value, getattr(profiles, constant.field))})
        elif constant.field == "gemm_efficiency":
            device, wide = _with_rate(device, rows & ~low, value), _with_rate(wide, rows, value)
        elif constant.field == "fp8_efficiency":
            device = _with_rate(device, rows & low, value)
        else:
            device, wide = (replace(c, **{constant.field: np.where(rows, value, getattr(c, constant.field))}) for c in (device, wide))
    return replace(inputs, framework=profiles, device=device, wide_device=wide)


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


def errors_of(cases: Sequence[Case], constants: Sequence[Constant], values: Floats) -> Floats:
    """Signed relative error of each row under these values."""
    return np.expm1(Rows.of(cases, constants).log_errors(constants, values))


def family_weights(cases: Sequence[Case]) -> Floats:
    """Weight of each row; squares of a family's weights add up to at most FAMILY_ROWS."""
    names = np.array([case.run.family for case in cases])
    _, index, counts = np.unique(names, return_inverse=True, return_counts=True)
    trust = np.array([TRUST.get(name, 1.0) for name in names])
    return np.asarray(np.sqrt(np.minimum(1.0, FAMILY_ROWS / counts))[index] * trust)


def documented(constants: Sequence[Constant]) -> Floats:
    """Where every fit starts, and what it is pulled to."""
    return np.array([constant.documented() for constant in constants])


def fit(cases: Sequence[Case], constants: Sequence[Constant], *, evaluations: int = EVALUATIONS) -> Fit:
    """The constants that fit ``cases`` best."""
    rows, weight = Rows.of(cases, constants), family_weights(cases)
    low, high = np.array([c.low for c in constants]), np.array([c.high for c in constants])
    start = (documented(constants) - low) / (high - low)
    prior, kin = PULL * np.eye(len(constants)), KINSHIP * _kinship(constants)
    together = _disjoint(rows.mine)
    copies = rows.repeated(len(together) + 1)

    def errors(unit: Floats) -> Floats:
        return rows.log_errors(constants, low + unit * (high - low))

    def residuals(unit: Floats) -> npt.NDArray[np.float64]:
        return np.concatenate([weight * errors(unit), prior @ (unit - start), kin @ unit])

    def slopes(unit: Floats) -> npt.NDArray[np.float64]:
        step = np.where(unit + STEP <= 1, STEP, -STEP)
        moved = np.repeat(unit[:, None], len(together) + 1, axis=1)
        for copy, group in enumerate(together, start=1):
            moved[group, copy] += step[group]
        values = low[:, None] + np.repeat(moved, len(cases), axis=1) * (high - low)[:, None]
        base, *changed = copies.log_errors(constants, values).reshape(-1, len(cases))
        found = np.zeros((len(cases), len(unit)))
        for group, after in zip(together, changed, strict=True):
            found[:, group] = rows.mine[group].T * ((after - base)[:, None] / step[group])
        return np.concatenate([weight[:, None] * found, prior, kin])

    first = np.clip(start, STEP, 1 - STEP)
    solved = least_squares(residuals, first, jac=slopes, bounds=(0, 1), loss="soft_l1", f_scale=0.1, max_nfev=evaluations)
    return Fit(constants=tuple(constants), values=low + solved.x * (high - low), errors=np.expm1(errors(solved.x)))


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


def left_out(
    cases: Sequence[Case], constants: Sequence[Constant], key: Callable[[Case], str], *, evaluations: int = LEFT_OUT_EVALUATIONS
) -> Floats:
    """Signed errors of each row with its group's rows left out of the fit; NaN where the group is all there is."""
    names = np.array([key(case) for case in cases])
    errors = np.full(len(cases), np.nan)
    for name in np.unique(names):
        out = names == name
        if not out.all():
            kept = [case for case, gone in zip(cases, out, strict=True) if not gone]
            away = [case for case, gone in zip(cases, out, strict=True) if gone]
            errors[out] = errors_of(away, constants, fit(kept, constants, evaluations=evaluations).values)
    return errors
