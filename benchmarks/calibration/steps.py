"""Fits the constants of the execution profiles to measured steps, and says what each fit is worth on rows left out.

    python -m benchmarks.calibration.steps [--only GROUP] [--write] [--left-out FILE]

A constant belongs to a framework (``autopar/catalog/frameworks``) or a device (``autopar/catalog/profiles``), never to
a model, a family of runs or a row. A group takes the constants of devices that others fit from the catalog: write Megatron-Core's
first, the rest in a second call. What a fit makes smallest is in :mod:`fitting`. Every fit starts from documented values, not from the
catalog's, which have seen the rows that are left out.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from autopar.accuracy.cases import Case, case_of
from autopar.catalog.frameworks import FOLDER
from autopar.catalog.hardware import device
from autopar.catalog.profiles import FOLDER as PROFILES
from autopar.catalog.profiles import hardware_profile
from autopar.costmodel.columns import Floats
from benchmarks.accuracy.tables import shipped_runs
from benchmarks.accuracy.targets import TIME_TARGETS

from .constants import CONSTANTS, NOT_FITTED, Constant
from .fitting import Fit, Fitter, fit, left_out


def load_cases() -> list[Case]:
    """Every scorable row of the shipped tables that has a step time."""
    runs = [run for run in shipped_runs()[0] if run.family not in NOT_FITTED]
    return [case for run in runs if isinstance(case := case_of(run), Case) and case.measured_seconds]


def write(fitted: Fit) -> None:
    """Put framework constants into their files."""
    for constant, value in zip(fitted.constants, fitted.values, strict=True):
        if constant.owner == "device":
            _write_device(constant, value)
            continue
        for name in constant.names:
            path = FOLDER / f"{name}.toml"
            text, line = path.read_text(), f"{constant.field} = {value:.4g}"
            pattern = rf"^{constant.field} = .*$"
            text = re.sub(pattern, line, text, flags=re.MULTILINE) if re.search(pattern, text, re.MULTILINE) else f"{text}{line}\n"
            path.write_text(text)


def _write_device(constant: Constant, value: float) -> None:
    """Put a device constant, and the rate that moved with it in the fit, into the device's profile, which must have its own file."""
    path = PROFILES / f"{constant.name}.toml"
    source = f"fit to measured steps: benchmarks/calibration/steps.py on {', '.join(constant.families)}"
    text = _with_block(path.read_text(), constant.field, value, "measured", source)
    if constant.field == "gemm_efficiency":
        profile = hardware_profile(device(constant.name))
        short = profile.gemm_small_efficiency * value / profile.gemm_efficiency
        source = "in its ratio to the sustained rate, which is a fit to measured steps: benchmarks/calibration/steps.py"
        text = _with_block(text, "gemm_small_efficiency", short, "interpolated", source)
    path.write_text(text)


def _with_block(text: str, field: str, value: float, origin: str, source: str) -> str:
    block = f'[{field}]\nvalue = {value:.4g}\norigin = "{origin}"\nsource = "{source}"\n'
    pattern = rf"\[{field}\]\n(?:[^\[\n].*\n)*"
    return re.sub(pattern, block, text) if re.search(pattern, text) else f"{text}\n{block}"


def summary(errors: Floats) -> str:
    """Mean and median size, 90th percentile and bias of ``errors`` in percent."""
    size = np.abs(errors) * 100
    return f"mean {size.mean():5.1f}  median {np.median(size):5.1f}  p90 {np.quantile(size, 0.9):5.1f}  bias {errors.mean() * 100:+5.1f}"


def left_out_report(every: Sequence[Case]) -> Iterator[dict[str, object]]:
    """Errors with each family, then each device, then each model left out in turn, and the constants with the rows each was fitted on.

    Yields the report as it grows: the last one is whole. A row whose framework is then fitted to nothing else is left away.
    """
    table: dict[str, dict[str, dict[str, float]]] = {}
    targets: dict[str, dict[str, float]] = {}
    listed = [_listed(constant, every) for constants in CONSTANTS.values() for constant in constants]
    fits = [(mine, Fitter.of(mine, constants)) for constants in CONSTANTS.values() if (mine := rows_of(every, constants))]
    for key in ("family", "device", "model_name"):
        found = [(mine, left_out(fitter, [_named(key, case) for case in mine])) for mine, fitter in fits]
        pairs = [(case, error) for mine, outside in found for case, error in zip(mine, outside, strict=True) if not np.isnan(error)]
        names, errors = np.array([_named(key, case) for case, _ in pairs]), np.array([error for _, error in pairs])
        table[key] = {str(name): figures(errors[names == name]) for name in np.unique(names)} | {"all": figures(errors)}
        print(f"each {key} left out: {summary(errors)}", flush=True)
        if key == "family":
            targets = _by_target(pairs)
        yield {"by": table, "targets": targets, "constants": listed, "not_fitted": NOT_FITTED}


def _by_target(pairs: Sequence[tuple[Case, float]]) -> dict[str, dict[str, float]]:
    held = {target.name: [error for case, error in pairs if target.holds(case)] for target in TIME_TARGETS}
    return {name: figures(np.array(errors)) for name, errors in held.items() if errors}


def _named(key: str, case: Case) -> str:
    return str(getattr(case.run, key))


def _listed(constant: Constant, cases: Sequence[Case]) -> dict[str, object]:
    rows = sum(constant.applies_to(case) for case in cases)
    return {**asdict(constant), "name": ", ".join(constant.names), "value": constant.current(), "rows": rows}


def frameworks_of(constants: Sequence[Constant]) -> frozenset[str]:
    """The frameworks that own any of ``constants``."""
    return frozenset(name for constant in constants if constant.owner == "framework" for name in constant.names)


def rows_of(cases: Sequence[Case], constants: Sequence[Constant]) -> list[Case]:
    """The rows of the frameworks that ``constants`` belong to."""
    owners = frameworks_of(constants)
    return [case for case in cases if case.problem.framework.id in owners]


def figures(errors: Floats) -> dict[str, float]:
    """Rows, mean, median, 90th percentile of the absolute error, and bias."""
    size = np.abs(errors)
    return {
        "rows": len(errors),
        "mean_absolute_error": round(float(size.mean()), 4),
        "median_absolute_error": round(float(np.median(size)), 4),
        "p90_absolute_error": round(float(np.quantile(size, 0.9)), 4),
        "bias": round(float(errors.mean()), 4),
    }


def main() -> None:
    """Fit every group's constants, print what they come to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", help="a group of constants; may be repeated")
    parser.add_argument("--write", action="store_true", help="write the constants into the catalog")
    parser.add_argument("--left-out", type=Path, help="fit with each family, model and device left out, and write the errors here")
    arguments = parser.parse_args()
    every = load_cases()
    if arguments.left_out:
        for report in left_out_report(every):
            arguments.left_out.write_text(json.dumps(report, indent=1) + "\n")
        return
    for group, constants in CONSTANTS.items():
        if arguments.only and group not in arguments.only:
            continue
        cases = rows_of(every, constants)
        found = fit(cases, constants)
        print(f"{group}: {len(cases)} rows, {len(constants)} constants, {summary(found.errors)}")
        for constant, value in zip(constants, found.values, strict=True):
            print(f"    {constant.name}.{constant.field} = {value:.4g} (was {constant.current():.4g})")
        families = np.array([case.run.family for case in cases])
        for family in np.unique(families):
            print(f"  {family:20s} {np.sum(families == family):5d}  {summary(found.errors[families == family])}", flush=True)
        if arguments.write:
            write(found)


if __name__ == "__main__":
    main()
