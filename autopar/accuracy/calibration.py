"""From a user's tables and logs to the constants of their cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from autopar import __version__
from autopar.catalog.hardware import device
from autopar.costmodel.calibrate import cross_validated, enough, fit
from autopar.costmodel.constants import Rows
from autopar.costmodel.spec.calibration import CalibratedConstant, Calibration
from autopar.costmodel.spec.cluster import ClusterSpec
from autopar.costmodel.spec.errors import AutoparError, Fault, InvalidInputError, NoPlanError
from autopar.costmodel.spec.model import ModelSpec
from autopar.costmodel.spec.units import GB
from autopar.io.logs import LoggedRun, read_log
from autopar.request import resolve_cluster, resolve_model

from .cases import Case, case_of
from .runs import Run, Skipped, read_runs

MINIMUM_GAIN = 0.05
"""Share by which the error on rows left out has to fall before the catalog's constants are given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """What the user says of rows that do not say it themselves."""

    model: str | None = None
    cluster: str | None = None
    gpu: str | None = None
    gpus: int | None = None
    framework: str | None = None
    precision: str | None = None
    global_batch_size: int | None = None
    sequence_length: int | None = None
    strategy: Mapping[str, int] | None = None
    """Columns of a table of runs by name, e.g. ``tensor_parallel_size``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Rows that can be fitted, and what was left out, with the reason."""

    cases: tuple[Case, ...]
    skipped: tuple[Skipped, ...]
    sources: tuple[str, ...]

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the rows left unsaid and was filled in, with the number of rows."""
        counts = Counter(note for case in self.cases for note in case.notes)
        return tuple(f"{note} ({count} row{'' if count == 1 else 's'})" for note, count in sorted(counts.items()))


def read_measured(paths: Sequence[str | Path], stated: Stated) -> Measured:
    """The measured steps of all files: a ``.csv`` is a table of runs, anything else a training log of one configuration.

    Raises:
        InvalidInputError: no file has a usable row; one fault a file or row.
    """
    cases: list[Case] = []
    skipped: list[Skipped] = []
    sources: list[str] = []
    for path in map(Path, paths):
        runs, unreadable = _runs(path)
        skipped += unreadable
        found = [_case(run, stated) for run in runs]
        skipped += [case for case in found if isinstance(case, Skipped)]
        usable = [case for case in found if isinstance(case, Case)]
        cases += usable
        sources += [path.name] if usable else []
    if not cases:
        raise InvalidInputError([Fault(field=left.run_id, given="", required=left.reason) for left in skipped])
    return Measured(cases=tuple(cases), skipped=tuple(skipped), sources=tuple(sources))


def calibrate(measured: Measured) -> Calibration:
    """The constants that ``measured`` refines, or none where rows left out of the fit are predicted no better for it.

    Raises:
        NoPlanError: too few rows to tell.
    """
    cases = measured.cases
    rows = Rows([case.problem for case in cases], [case.strategy for case in cases])
    if reason := enough(rows.groups):
        raise NoPlanError(f"{reason}: at least 4 rows of at least 2 configurations are needed, nothing is written")
    logs = np.log([case.measured_seconds or 1.0 for case in cases])
    predict, prior = rows.predict(), rows.prior()
    validation = cross_validated(predict, logs, prior, rows.groups)
    improves = validation.after < validation.before * (1 - MINIMUM_GAIN)
    values = fit(predict, logs, prior) if improves else prior.start
    constants = tuple(
        CalibratedConstant(
            owner=target.kind.owner, name=target.name, field=target.kind.field, catalog_value=target.start, value=float(value)
        )
        for target, value in zip(rows.targets, values, strict=True)
    )
    return Calibration(
        devices=_distinct(case.problem.hardware.device for case in cases),
        clusters=_distinct(case.problem.cluster.id for case in cases),
        frameworks=_distinct(case.problem.framework.id for case in cases),
        constants=constants if improves else (),
        rows=len(cases),
        error_before=validation.before,
        error_after=validation.after,
        validation=validation.scheme,
        sources=measured.sources,
        autopar_version=__version__,
        residuals=tuple((-np.log1p(validation.errors_after if improves else validation.errors_before)).tolist()),
    )


def _distinct(names: Any) -> tuple[str, ...]:
    return tuple(sorted(set(names)))


def _runs(path: Path) -> tuple[tuple[Run, ...], tuple[Skipped, ...]]:
    """The rows of one file, or the reason why there are none."""
    try:
        if path.suffix.lower() == ".csv":
            return read_runs(path)
        return (_run_of(read_log(path)),), ()
    except InvalidInputError as error:
        return (), (Skipped(run_id=str(path), reason="; ".join(fault.required for fault in error.faults)),)


def _run_of(log: LoggedRun) -> Run:
    """A log as a row. A device name that the catalog does not know is left for the user to state."""
    facts: dict[str, Any] = {name: value for name, value in log.facts.items() if name in _RUN_FIELDS}
    facts["device"] = _device_id(str(facts.get("device", "")))
    memory = log.peak_memory_bytes
    return Run(run_id=log.path, step_time_seconds=log.step_time_seconds, peak_memory_gb=memory / GB if memory else None, **facts)


_RUN_FIELDS = frozenset(f.name for f in fields(Run)) - {"run_id", "step_time_seconds", "peak_memory_gb"}


def _device_id(name: str) -> str:
    try:
        return device(name).id
    except AutoparError:
        return ""


def _case(run: Run, stated: Stated) -> Case | Skipped:
    try:
        completed, model, machines = _completed(run, stated)
    except AutoparError as error:
        return Skipped(run_id=run.run_id, reason=str(error).replace("\n", "; "))
    case = case_of(completed, model=model, machines=machines)
    if isinstance(case, Case) and case.measured_seconds is None:
        return Skipped(run_id=run.run_id, reason="no step time was measured")
    return case


def _completed(run: Run, stated: Stated) -> tuple[Run, ModelSpec | None, ClusterSpec | None]:
    """``run`` with its blanks filled from what the user stated, and the model and cluster they named.

    Raises:
        InvalidInputError: the user says one thing and the row another.
    """
    blanks: dict[str, Any] = {
        "num_gpus": stated.gpus,
        "framework": stated.framework,
        "precision": stated.precision,
        "global_batch_size": stated.global_batch_size,
        "sequence_length": stated.sequence_length,
        **(stated.strategy or {}),
    }
    run = replace(run, **{name: value for name, value in blanks.items() if value is not None and getattr(run, name) in ("", None)})
    name = stated.model or (run.model_name if run.num_layers is None and run.hidden_size is None else "")
    model = resolve_model(name) if name else None
    if model is not None:
        _agree(run, model)
        run = replace(run, model_name=model.name)
    machines = None
    if stated.cluster or (stated.gpu and not run.device):
        machines = resolve_cluster(stated.cluster, run.num_gpus, None if stated.cluster else stated.gpu, [])
        _agree_on_device(run, machines)
        run = replace(run, device=machines.device.id, num_gpus=machines.num_gpus)
    elif not run.device:
        raise InvalidInputError(Fault(field="device", given="", required="is not stated", fix="say it with --gpu or --cluster"))
    return run, model, machines


def _agree(run: Run, model: ModelSpec) -> None:
    names = ("num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size")
    wrong = [
        Fault(field=name, given=str(getattr(run, name)), required=f"{model.name} has {getattr(model, name)}", fix="leave --model out")
        for name in names
        if getattr(run, name) not in (None, getattr(model, name)) and not (name == "ffn_hidden_size" and model.moe)
    ]
    if wrong:
        raise InvalidInputError(wrong)


def _agree_on_device(run: Run, machines: ClusterSpec) -> None:
    if run.device and device(run.device).id != machines.device.id:
        raise InvalidInputError(Fault(field="device", given=run.device, required=f"{machines.id} was stated, with {machines.device.id}"))
