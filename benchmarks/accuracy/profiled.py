"""The steps of our own H200 under its measured profile: how far from measured, with and without it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from autopar.accuracy.cases import Case
from autopar.accuracy.runs import read_runs
from autopar.accuracy.score import Prediction, predict, scorable
from autopar.accuracy.view import percent
from autopar.catalog.hardware import device
from autopar.catalog.measured import measured_profile
from autopar.catalog.profiles import hardware_profile
from autopar.costmodel import measurements
from autopar.costmodel.compute import DeviceColumns
from autopar.costmodel.measurements import Measurements
from autopar.costmodel.spec.measured import Kind, MeasuredProfile
from autopar.costmodel.spec.training import ComputeType

from .tables import FOLDER, markdown

TABLE = FOLDER / "h200_steps.csv"
PROFILE = "h200"
STEP_TARGET, MEMORY_TARGET, GEMM_TARGET = 0.04, 0.03, 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """One step: relative errors of time by the catalog's constants and by the profile, and of memory, which knows no kernels."""

    case: Case
    catalog: float
    profile: float
    memory: float


def profiled_steps() -> tuple[Profiled, ...]:
    """The rows of ``h200_steps.csv``, predicted both ways."""
    runs, _ = read_runs(TABLE)
    cases = [case for case in map(scorable, runs) if isinstance(case, Case)]
    measured = Measurements(measured_profile(PROFILE))
    with_profile = [replace(case, problem=replace(case.problem, measured=measured)) for case in cases]
    found = []
    for case, plain, profiled in zip(cases, predict(cases), predict(with_profile), strict=True):
        if isinstance(plain, Prediction) and isinstance(profiled, Prediction):
            errors = plain.time_error, profiled.time_error, plain.memory_error
            found.append(Profiled(case=case, catalog=errors[0] or 0.0, profile=errors[1] or 0.0, memory=errors[2] or 0.0))
    return tuple(found)


def gemm_left_out(profile: MeasuredProfile) -> Mapping[str, np.ndarray]:
    """|predicted / measured - 1| of each product of the profile, left out of the fit alone, by series."""
    spec = device(profile.device)
    found = {}
    for one in profile.of_kind(Kind.GEMM):
        columns = DeviceColumns.of(spec, hardware_profile(spec), ComputeType(one.dtype))
        found[one.name] = measurements.gemm_left_out(one, columns)
    return found


def section() -> list[str]:
    """The page's section."""
    steps, profile = profiled_steps(), measured_profile(PROFILE)
    errors = gemm_left_out(profile)
    together = np.concatenate(list(errors.values()))
    means = [fmean(abs(getattr(step, name)) for step in steps) for name in ("catalog", "profile", "memory")]
    rows = [
        (
            step.case.run.model_name,
            step.case.run.precision,
            f"{step.case.measured_seconds or 0:.3f} s",
            *(f"{error:+.1%}" for error in (step.catalog, step.profile, step.memory)),
        )
        for step in steps
    ]
    return [
        "## Under a measured profile",
        "",
        f"`--profile {PROFILE}`: {profile.num_points} kernel times of one H200, no training steps. Mean absolute error of step time"
        f" {percent(means[1])} (target {percent(STEP_TARGET)}; by the catalog's constants {percent(means[0])}), of peak memory"
        f" {percent(means[2])} (target {percent(MEMORY_TARGET)}; no profile bears on it). Both take the framework's constants"
        " (passes over tensors, kernels a layer), which were fitted with these steps in sight.",
        "",
        *markdown(("step", "precision", "measured", "catalog", "profile", "memory"), rows, text=2),
        f"Products left out of the fit one at a time: median {percent(float(np.median(together)))} (target {percent(GEMM_TARGET)}),"
        f" mean {percent(float(np.mean(together)))} over {len(together)}. Rows below 25 us of GPU work are not in the profile.",
        "",
        *markdown(
            ("series", "points", "median", "mean"),
            [(name, str(len(each)), percent(float(np.median(each))), percent(float(np.mean(each)))) for name, each in errors.items()],
        ),
    ]


if __name__ == "__main__":
    print("\n".join(section()))
