"""Fits the constants of the execution profiles to measured steps, and says what each fit is worth on rows left out.

    python -m benchmarks.calibration.steps [--only FRAMEWORK] [--write]

A constant belongs to a framework (``autopar/catalog/frameworks``) or a device (``autopar/catalog/profiles``), never to
a model, a family of runs or a row. Errors are of the logarithm, robust (soft L1), with a pull towards the starting value that is
worth one row, so that what the rows do not tell stays where it was.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from autopar.accuracy.cases import Case, case_of
from autopar.accuracy.runs import read_runs
from autopar.catalog.frameworks import FOLDER
from autopar.catalog.profiles import FOLDER as PROFILES
from autopar.costmodel.columns import Bools, Floats, StrategyColumns
from autopar.costmodel.compute import DeviceColumns
from autopar.costmodel.inputs import Inputs
from autopar.costmodel.step import evaluate

from .constants import CONSTANTS, Constant

TABLES = Path(__file__).parents[1] / "accuracy"
PULL = 1.0


def load_cases() -> list[Case]:
    """Every scorable row of the shipped tables that has a step time."""
    runs = [run for path in sorted(TABLES.glob("*.csv")) for run in read_runs(path)[0]]
    return [case for run in runs if isinstance(case := case_of(run), Case) and case.measured_seconds]


@dataclass(frozen=True, slots=True)
class Fit:
    """Constants and the rows they are fitted on."""

    constants: tuple[Constant, ...]
    values: Floats
    errors: Floats
    """Signed relative error of each row."""


def with_constants(inputs: Inputs, cases: Sequence[Case], constants: Sequence[Constant], values: Floats) -> Inputs:
    """``inputs`` with each constant set in the rows of its owner."""
    profiles, device, wide = inputs.framework, inputs.device, inputs.wide_device
    low = inputs.training.low_precision_linear > 0
    for constant, value in zip(constants, values, strict=True):
        mine = np.array([constant.applies_to(case) for case in cases])
        if constant.owner == "framework":
            profiles = replace(profiles, **{constant.field: np.where(mine, value, getattr(profiles, constant.field))})
        elif constant.field == "gemm_efficiency":
            device, wide = _with_rate(device, mine & ~low, value), _with_rate(wide, mine, value)
        elif constant.field == "fp8_efficiency":
            device = _with_rate(device, mine & low, value)
        else:
            device, wide = (replace(c, **{constant.field: np.where(mine, value, getattr(c, constant.field))}) for c in (device, wide))
    return replace(inputs, framework=profiles, device=device, wide_device=wide)


def _with_rate(device: DeviceColumns, rows: Bools, value: float) -> DeviceColumns:
    """Sustained GEMM rate set in ``rows``, the rate of short kernels in proportion."""
    sustained = np.where(rows, value, device.gemm_efficiency)
    small = device.gemm_small_efficiency * sustained / device.gemm_efficiency
    return replace(device, gemm_efficiency=sustained, gemm_small_efficiency=small)


def log_errors(cases: Sequence[Case], inputs: Inputs) -> Floats:
    """Logarithm of predicted over measured."""
    found = evaluate(inputs, StrategyColumns.of([case.strategy for case in cases]), simulate=False)
    return np.log(found.step_time_seconds / np.array([case.measured_seconds for case in cases]))


def fit(cases: Sequence[Case], constants: Sequence[Constant], weights: Floats | None = None) -> Fit:
    """The constants that fit ``cases`` best, from where the catalog has them."""
    inputs = Inputs.stacked([case.problem for case in cases])
    weight = family_weights(cases) if weights is None else weights
    start = np.array([constant.current() for constant in constants])
    low, high = np.array([c.low for c in constants]), np.array([c.high for c in constants])

    def residuals(unit: Floats) -> npt.NDArray[np.float64]:
        values = low + unit * (high - low)
        errors = log_errors(cases, with_constants(inputs, cases, constants, values))
        return np.concatenate([weight * errors, PULL * 0.05 * (unit - unit0)])

    unit0 = np.clip((start - low) / (high - low), 0.001, 0.999)
    solved = least_squares(residuals, unit0, bounds=(0, 1), loss="soft_l1", f_scale=0.1, diff_step=1e-3, max_nfev=25)
    values = low + solved.x * (high - low)
    errors = np.expm1(log_errors(cases, with_constants(inputs, cases, constants, values)))
    return Fit(constants=tuple(constants), values=values, errors=errors)


FAMILY_ROWS = 250
"""A family of more rows counts as this many, so that a big table does not drown the others."""


def family_weights(cases: Sequence[Case]) -> Floats:
    """Weight of each row; squares of a family's weights add up to at most FAMILY_ROWS."""
    names = np.array([case.run.family for case in cases])
    _, index, counts = np.unique(names, return_inverse=True, return_counts=True)
    return np.sqrt(np.minimum(1.0, FAMILY_ROWS / counts))[index]


def left_out(cases: Sequence[Case], constants: Sequence[Constant], key: Callable[[Case], str]) -> Floats:
    """Signed errors of each row with its group's rows left out of the fit."""
    names = np.array([key(case) for case in cases])
    errors = np.empty(len(cases))
    for name in np.unique(names):
        out = names == name
        if out.all():
            errors[out] = np.nan
            continue
        kept = [case for case, gone in zip(cases, out, strict=True) if not gone]
        away = [case for case, gone in zip(cases, out, strict=True) if gone]
        found = fit(kept, constants)
        inputs = with_constants(Inputs.stacked([case.problem for case in away]), away, constants, found.values)
        errors[out] = np.expm1(log_errors(away, inputs))
    return errors


def write(fitted: Fit) -> None:
    """Put framework constants into their files."""
    for constant, value in zip(fitted.constants, fitted.values, strict=True):
        if constant.owner == "device":
            _write_device(constant, value)
            continue
        path = FOLDER / f"{constant.name}.toml"
        text, line = path.read_text(), f"{constant.field} = {value:.4g}"
        pattern = rf"^{constant.field} = .*$"
        text = re.sub(pattern, line, text, flags=re.MULTILINE) if re.search(pattern, text, re.MULTILINE) else f"{text}{line}\n"
        path.write_text(text)


def _write_device(constant: Constant, value: float) -> None:
    """Put a device constant into its profile, which must have its own file."""
    path = PROFILES / f"{constant.name}.toml"
    source = f"fit to measured steps: benchmarks/calibration/steps.py on {', '.join(constant.families)}"
    block = f'[{constant.field}]\nvalue = {value:.4g}\norigin = "measured"\nsource = "{source}"\n'
    text = path.read_text()
    pattern = rf"\[{constant.field}\]\n(?:[^\[\n].*\n)*"
    path.write_text(re.sub(pattern, block, text) if re.search(pattern, text) else f"{text}\n{block}")


def summary(errors: Floats) -> str:
    """Mean and median size, 90th percentile and bias of ``errors`` in percent."""
    size = np.abs(errors) * 100
    return f"mean {size.mean():5.1f}  median {np.median(size):5.1f}  p90 {np.quantile(size, 0.9):5.1f}  bias {errors.mean() * 100:+5.1f}"


def main() -> None:
    """Fit every framework's constants, print what they come to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", help="a framework id; may be repeated")
    parser.add_argument("--write", action="store_true", help="write the constants into the catalog")
    parser.add_argument("--leave-out", choices=("family", "model_name", "device"), help="also report the error with each left out")
    arguments = parser.parse_args()
    every = load_cases()
    for group, constants in CONSTANTS.items():
        if arguments.only and group not in arguments.only:
            continue
        cases = [case for case in every if case.problem.framework.id in {c.name for c in constants if c.owner == "framework"}]
        found = fit(cases, constants)
        print(f"{group}: {len(cases)} rows, {len(constants)} constants, {summary(found.errors)}")
        for constant, value in zip(constants, found.values, strict=True):
            print(f"    {constant.name}.{constant.field} = {value:.4g} (was {constant.current():.4g})")
        families = np.array([case.run.family for case in cases])
        for family in np.unique(families):
            print(f"  {family:20s} {np.sum(families == family):5d}  {summary(found.errors[families == family])}")
        if arguments.leave_out:
            outside = left_out(cases, constants, lambda case: str(getattr(case.run, arguments.leave_out)))
            known = ~np.isnan(outside)
            if known.any():
                print(f"  each {arguments.leave_out} left out: {summary(outside[known])}")
        if arguments.write:
            write(found)


if __name__ == "__main__":
    main()


