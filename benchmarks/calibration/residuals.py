"""Residuals of every public measured run, for the error bars of estimates.

    python -m benchmarks.calibration.residuals [--leave-out family] [--write]

With ``--leave-out`` the residual of a row is that of constants fitted without its family, which is the error a new family meets; a family
that is the only one of its framework has nothing else to be fitted on, and keeps the shipped constants' residual.

A device that nobody measured is worse known than its relatives' own rows tell: the residuals of its regimes are those of rows whose
device was left out of the fit.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from autopar.accuracy.cases import Case, case_of
from autopar.accuracy.runs import Skipped
from autopar.accuracy.score import Prediction, comparable_set, predict
from autopar.catalog.residuals import FILE, dump_residuals
from autopar.costmodel.columns import Bools, Floats
from autopar.costmodel.intervals import FEWEST, bounds, regime_of, resolvable_gap, sample
from autopar.costmodel.spec.residuals import Regime, ResidualGroup, ResidualTable
from benchmarks.accuracy.tables import shipped_runs

from .constants import CONSTANTS
from .fitting import Fitter, left_out
from .steps import frameworks_of

SMALLEST_MEASURED_GAP = 0.01
"""Measured steps closer than this are not in any order: it is what repeating a run changes."""


def load_cases() -> list[Case]:
    """Every scorable row of the shipped tables, with a step time or a peak memory."""
    return [case for run in shipped_runs()[0] if isinstance(case := case_of(run), Case)]


def predicted(cases: Sequence[Case]) -> list[Prediction]:
    """A prediction for each of ``cases``.

    Raises:
        ValueError: the model has no figure for some of the shipped rows: they have to be skipped before, by a rule.
    """
    found = predict(cases)
    skipped = [each for each in found if isinstance(each, Skipped)]
    if skipped:
        raise ValueError(f"{skipped[0].run_id}: {skipped[0].reason}")
    return [each for each in found if isinstance(each, Prediction)]


def _log_ratio(measured: float | None, predicted: float) -> float:
    return float(np.log(measured / predicted)) if measured else float("nan")


def step_residuals(cases: Sequence[Case], leave_out: str) -> Floats:
    """log(measured / predicted) of the step time; NaN where none was measured."""
    found = np.array([_log_ratio(p.measured_seconds, p.predicted_seconds) for p in predicted(cases)])
    if leave_out == "nothing":
        return found
    outside = left_out_residuals(cases, "family")
    refitted = int(np.sum(~np.isnan(outside)))
    print(f"{refitted} of {int(np.sum(~np.isnan(found)))} rows predicted by constants fitted without their family")
    return np.where(np.isnan(outside), found, outside)


def left_out_residuals(cases: Sequence[Case], key: str) -> Floats:
    """log(measured / predicted) by constants fitted without the rows of equal ``key``; NaN where those are all of the row's framework."""
    found = np.full(len(cases), np.nan)
    for constants in CONSTANTS.values():
        frameworks = frameworks_of(constants)
        mine = [i for i, case in enumerate(cases) if case.problem.framework.id in frameworks and case.measured_seconds]
        if mine:
            names = [str(getattr(cases[i].run, key)) for i in mine]
            outside = -np.log1p(left_out(Fitter.of([cases[i] for i in mine], constants), names))
            found[mine] = np.where(_told_by_others([cases[i] for i in mine], names), outside, np.nan)
    return found


def _told_by_others(cases: Sequence[Case], names: Sequence[str]) -> Bools:
    """Whether the constants of a row's framework are still fitted to something with the rows of its name left out."""
    told: dict[str, set[str]] = defaultdict(set)
    for case, name in zip(cases, names, strict=True):
        told[case.problem.framework.id].add(name)
    return np.array([len(told[case.problem.framework.id]) > 1 for case in cases])


def memory_residuals(cases: Sequence[Case]) -> Floats:
    """log(measured / predicted) of the peak memory; NaN where none was measured."""
    return np.array([_log_ratio(p.measured_bytes, p.predicted_bytes) for p in predicted(cases)])


def grouped(cases: Sequence[Case], residuals: Floats, *, unmeasured: bool = False) -> tuple[ResidualGroup, ...]:
    """Residuals by family and regime; ``unmeasured`` of a device that is left out, as if nobody had measured it."""
    members: dict[tuple[str, Regime], list[float]] = defaultdict(list)
    for case, residual in zip(cases, residuals, strict=True):
        regime = regime_of(case.problem)
        if not np.isnan(residual):
            members[case.run.family, replace(regime, device_measured=False) if unmeasured else regime].append(float(residual))
    return tuple(
        ResidualGroup(family=family, regime=regime, values=tuple(values))
        for (family, regime), values in sorted(members.items(), key=lambda item: (item[0][0], str(item[0][1])))
    )


def gap_of(cases: Sequence[Case], residuals: Floats) -> float:
    """The resolvable gap of all pairs of runs that differ in strategy alone."""
    sets: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for case, residual in zip(cases, residuals, strict=True):
        if case.measured_seconds and not np.isnan(residual):
            sets[comparable_set(case.run)].append((case.measured_seconds, case.measured_seconds * float(np.exp(-residual))))
    gaps, wrong, weights = [], [], []
    for rows in sets.values():
        for (measured, predicted), (other, guess) in combinations(rows, 2):
            if abs(measured / other - 1) < SMALLEST_MEASURED_GAP or predicted == guess:
                continue
            gaps.append(max(predicted, guess) / min(predicted, guess) - 1)
            wrong.append(float((predicted - guess) * (measured - other) < 0))
            weights.append(1 / (len(rows) - 1))
    print(f"{len(gaps):,} comparable pairs, {np.average(wrong, weights=weights):.1%} ordered wrong")
    return resolvable_gap(np.array(gaps), np.array(wrong), np.array(weights))


def coverage(groups: Sequence[ResidualGroup]) -> float:
    """Share of rows inside the interval of the other families' residuals, each family left out in turn."""
    inside = rows = 0
    for group in groups:
        others = [other for other in groups if other.family != group.family]
        found = sample(others, group.regime)
        if found is not None:
            low, high = bounds(found.values)
            inside += sum(low <= value <= high for value in group.values)
            rows += len(group.values)
    return inside / rows if rows else float("nan")


def report(table: ResidualTable) -> None:
    """Print the intervals of every regime and what they cover."""
    for name in ("step_time", "memory"):
        groups: tuple[ResidualGroup, ...] = getattr(table, name)
        print(f"{name}: {sum(len(group.values) for group in groups)} residuals, families left out whole: {coverage(groups):.1%} inside")
        for regime in sorted({group.regime for group in groups}, key=str):
            if found := sample(groups, regime):
                low, high = np.expm1(bounds(found.values))
                print(f"  {regime!s:50s} {low:+.1%} to {high:+.1%} of the prediction ({found.basis})")
            else:
                print(f"  {regime!s:50s} fewer than {FEWEST} residuals")
    print(f"resolvable gap: {table.resolvable_gap:.2%}")


def main() -> None:
    """Take the residuals, print what they come to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--leave-out", choices=("family", "nothing"), default="nothing")
    parser.add_argument("--write", action="store_true", help="write them into the catalog")
    arguments = parser.parse_args()
    cases = load_cases()
    steps = step_residuals(cases, arguments.leave_out)
    devices = grouped(cases, left_out_residuals(cases, "device"), unmeasured=True)
    measured = tuple(group for group in grouped(cases, steps) if group.regime.device_measured)
    print(f"measured devices, families left out whole: {coverage(measured):.1%} inside; devices left out: {coverage(devices):.1%}")
    table = ResidualTable(
        step_time=tuple(sorted((*measured, *devices), key=lambda group: (group.family, str(group.regime)))),
        memory=grouped(cases, memory_residuals(cases)),
        resolvable_gap=gap_of(cases, steps),
        left_out=arguments.leave_out,
    )
    report(table)
    if arguments.write:
        FILE.write_text(dump_residuals(table), encoding="utf-8")
        print(f"wrote {FILE.name}")


if __name__ == "__main__":
    main()
