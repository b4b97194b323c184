"""Scores predictions against measurements: errors of step time and memory, and the order of strategies."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from autopar.costmodel.columns import StrategyColumns, stack
from autopar.costmodel.inputs import Inputs
from autopar.costmodel.makespan import CLOSED_FORM
from autopar.costmodel.spec.errors import AutoparError, Fault, InvalidInputError
from autopar.costmodel.spec.strategy import Strategy
from autopar.costmodel.step import Evaluation, evaluate

from .cases import Case, case_of
from .metrics import ErrorSummary, Ranking, ranking
from .peaks import MemoryCount
from .runs import MEASUREMENTS, Run, Skipped

ACCURACY_SCHEMA_VERSION = "1.0"
DEFAULT_GROUPS = ("family", "device")
GROUP_COLUMNS = tuple(f.name for f in fields(Run) if f.name not in ("run_id", "notes", *MEASUREMENTS[:-1]))
"""What ``--by`` takes: every column that is not a measurement, a name or a remark."""
NOT_STATED = "not stated"
SMALLEST_SET = 3
"""Strategies that a set needs before their order says anything."""
MAX_ACTIONS = 4_000_000
"""Passes of a schedule that are simulated for one row: a hundred times what the largest published run has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One scored row, in seconds and bytes; None where not measured."""

    run_id: str
    measured_seconds: float | None
    predicted_seconds: float
    measured_bytes: float | None
    predicted_bytes: float
    ran_out_of_memory: bool | None
    """What the row says; a run with a measured step did not."""
    predicted_fits: bool
    notes: tuple[str, ...]

    @property
    def time_error(self) -> float | None:
        """Predicted over measured step time, minus 1."""
        return None if self.measured_seconds is None else self.predicted_seconds / self.measured_seconds - 1

    @property
    def memory_error(self) -> float | None:
        """Predicted over measured peak memory, minus 1."""
        return None if self.measured_bytes is None else self.predicted_bytes / self.measured_bytes - 1


RECOMPUTE_ASSUMED = "recompute taken as"
"""How the note begins of a row that does not state its recomputation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """How often the verdict on memory is right, over the rows that are known to have run, or to have run out."""

    rows: int
    right: int
    wrong: int
    said_to_fit: int
    """Wrong: it ran out, and was said to fit."""
    said_not_to_fit: int
    """Wrong: it ran, and was said not to fit."""
    assumed: int = 0
    """Rows left out because their recomputation, which decides over the memory, was not stated."""

    @classmethod
    def of(cls, predictions: Iterable[Prediction]) -> OutOfMemory:
        verdicts = [prediction for prediction in predictions if prediction.ran_out_of_memory is not None]
        stated = [p for p in verdicts if not any(note.startswith(RECOMPUTE_ASSUMED) for note in p.notes)]
        known = [(bool(p.ran_out_of_memory), p.predicted_fits) for p in stated]
        said_to_fit = sum(ran_out and fits for ran_out, fits in known)
        said_not = sum(not ran_out and not fits for ran_out, fits in known)
        wrong = said_to_fit + said_not
        return cls(
            rows=len(known),
            right=len(known) - wrong,
            wrong=wrong,
            said_to_fit=said_to_fit,
            said_not_to_fit=said_not,
            assumed=len(verdicts) - len(stated),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """Everything ``autopar accuracy`` reports. ``predictions`` and ``cases`` go together, row for row."""

    rows: int
    skipped: tuple[Skipped, ...]
    predictions: tuple[Prediction, ...]
    cases: tuple[Case, ...]
    step_time: ErrorSummary
    step_time_groups: Mapping[str, Mapping[str, ErrorSummary]]
    """By column, then by the column's value."""
    memory: ErrorSummary
    memory_groups: Mapping[str, Mapping[str, ErrorSummary]]
    over_predicted: float | None
    """Share of the rows with a measured peak whose prediction is above it."""
    under_predicted: float | None
    out_of_memory: OutOfMemory
    ranking: tuple[Ranking, ...]


def group_columns(text: str) -> tuple[str, ...]:
    """The columns that ``--by device,family`` names.

    Raises:
        InvalidInputError: one is no column that rows can be grouped by; names those that are.
    """
    given = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    unknown = [name for name in given if name not in GROUP_COLUMNS]
    if unknown or not given:
        required = f"columns to group by, of {', '.join(GROUP_COLUMNS)}"
        raise InvalidInputError(Fault(field="--by", given=", ".join(unknown) or repr(text), required=required))
    return given


def score(runs: Sequence[Run], skipped: Sequence[Skipped] = (), *, by: Iterable[str] = DEFAULT_GROUPS) -> Accuracy:
    """Predict ``runs`` and summarise.

    Args:
        runs: rows as read; those that cannot be scored are listed with their reason.
        skipped: rows that could not even be read.
        by: columns of :class:`Run` to group the errors by.
    """
    found = [scorable(run) for run in runs]
    cases = [case for case in found if isinstance(case, Case)]
    left_out = [*skipped, *(case for case in found if isinstance(case, Skipped))]
    answers = predict(cases)
    pairs = [(case, answer) for case, answer in zip(cases, answers, strict=True) if isinstance(answer, Prediction)]
    left_out += [answer for answer in answers if isinstance(answer, Skipped)]
    kept, predictions = [case for case, _ in pairs], [prediction for _, prediction in pairs]
    times, sizes = [p.time_error for p in predictions], [p.memory_error for p in predictions]
    known_sizes = [error for error in sizes if error is not None]
    columns = tuple(by)
    return Accuracy(
        rows=len(runs) + len(skipped),
        skipped=tuple(left_out),
        predictions=tuple(predictions),
        cases=tuple(kept),
        step_time=ErrorSummary.of([error for error in times if error is not None]),
        step_time_groups={column: _grouped(kept, times, column) for column in columns},
        memory=ErrorSummary.of(known_sizes),
        memory_groups={column: _grouped(kept, sizes, column) for column in columns},
        over_predicted=sum(error > 0 for error in known_sizes) / len(known_sizes) if known_sizes else None,
        under_predicted=sum(error < 0 for error in known_sizes) / len(known_sizes) if known_sizes else None,
        out_of_memory=OutOfMemory.of(predictions),
        ranking=rankings(kept, predictions),
    )


def scorable(run: Run) -> Case | Skipped:
    """The case of ``run``, or the reason why it has none.

    A run that ended for want of memory measured nothing; its verdict is what is scored, so it passes as measured to
    :func:`case_of`, which asks for a measurement.
    """
    verdict_alone = run.out_of_memory is not None and not (run.step_time_seconds or run.tokens_per_second_per_gpu or run.peak_memory_gb)
    case = case_of(replace(run, peak_memory_gb=1.0) if verdict_alone else run)
    if isinstance(case, Skipped):
        return case
    if (actions := _simulated_actions(case)) > MAX_ACTIONS:
        return Skipped(run_id=run.run_id, reason=f"its schedule has {actions:,} passes, more than the {MAX_ACTIONS:,} that are simulated")
    return replace(case, run=run, measured_bytes=None) if verdict_alone else case


def _simulated_actions(case: Case) -> int:
    """Forward and backward passes of the schedule, where its time takes a simulation."""
    strategy = case.strategy
    if strategy.pipeline_parallel_size == 1 or strategy.pipeline_schedule in CLOSED_FORM:
        return 0
    count = strategy.num_microbatches(case.problem.training.global_batch_size)
    return 2 * count * strategy.pipeline_parallel_size * strategy.virtual_pipeline_stages


def predict(cases: Sequence[Case]) -> tuple[Prediction | Skipped, ...]:
    """Predictions of all ``cases`` at once, as arrays, in order; a row that the model has no figure for is skipped with the reason."""
    columns = [_inputs(case) for case in cases]
    kept = [case for case, inputs in zip(cases, columns, strict=True) if isinstance(inputs, Inputs)]
    if not kept:
        return tuple(row for row in columns if isinstance(row, Skipped))
    inputs = stack([row for row in columns if isinstance(row, Inputs)])
    with np.errstate(all="ignore"):  # what overflows is not finite, and is skipped below with its reason
        found = _with_held_memory(evaluate(inputs, StrategyColumns.of([case.strategy for case in kept]), simulate=True), kept)
    predictions = iter([_prediction(case, found, row) for row, case in enumerate(kept)])
    return tuple(row if isinstance(row, Skipped) else next(predictions) for row in columns)


def _with_held_memory(found: Evaluation, cases: Sequence[Case]) -> Evaluation:
    """``found`` with the memory of the rows that hold something narrower than the problem whose time is predicted."""
    rows = [row for row, case in enumerate(cases) if case.held is not case.problem]
    if not rows:
        return found
    held = evaluate(Inputs.stacked([cases[row].held for row in rows]), StrategyColumns.of([cases[row].strategy for row in rows]))
    peak, allocated = found.peak_memory_bytes.copy(), found.allocated_memory_bytes.copy()
    peak[rows], allocated[rows] = held.peak_memory_bytes, held.allocated_memory_bytes
    return replace(found, peak_memory_bytes=peak, allocated_memory_bytes=allocated)


def _inputs(case: Case) -> Inputs | Skipped:
    """The constants of one row's problem, unless its device cannot run it (FP8 on a GPU that has none)."""
    try:
        return Inputs.of(case.problem)
    except AutoparError as error:
        return Skipped(run_id=case.run.run_id, reason=str(error).replace("\n", "; "))


def _prediction(case: Case, found: Evaluation, row: int) -> Prediction | Skipped:
    seconds = float(found.step_time_seconds[row])
    size = _counted_bytes(case, found, row)
    if not (math.isfinite(seconds) and seconds > 0 and math.isfinite(size)):
        return Skipped(run_id=case.run.run_id, reason="the sizes are too large for the model to give a finite time and memory")
    ran = case.measured_seconds is not None or case.measured_bytes is not None
    out_of_memory = case.run.out_of_memory if case.run.out_of_memory is not None else (False if ran else None)
    return Prediction(
        run_id=case.run.run_id,
        measured_seconds=case.measured_seconds,
        predicted_seconds=seconds,
        measured_bytes=case.measured_bytes,
        predicted_bytes=size,
        ran_out_of_memory=out_of_memory if case.memory_comparable else None,
        predicted_fits=bool(found.fits[row]),
        notes=case.notes,
    )


def _counted_bytes(case: Case, found: Evaluation, row: int) -> float:
    """The part of the predicted peak that the row's measurement counts."""
    tensors = float(found.allocated_memory_bytes[row])
    match case.memory_counts:
        case MemoryCount.TENSORS:
            return tensors
        case MemoryCount.RESERVED:
            return tensors * (1 + case.problem.framework.fragmentation)
        case MemoryCount.DRIVER:
            return float(found.peak_memory_bytes[row])


def _grouped(cases: Sequence[Case], errors: Sequence[float | None], column: str) -> dict[str, ErrorSummary]:
    members: dict[str, list[float]] = defaultdict(list)
    for case, error in zip(cases, errors, strict=True):
        if error is not None:
            value = getattr(case.run, column)
            members[NOT_STATED if value in ("", None) else str(value)].append(error)
    return {name: ErrorSummary.of(values) for name, values in sorted(members.items())}


def comparable_set(run: Run) -> str:
    """Rows with the same value differ in strategy alone: model, device, GPUs, batch, sequence, precision and framework agree."""
    shape = (run.model_name, run.num_layers, run.hidden_size, run.num_experts)
    model = " ".join(str(part) for part in shape if part not in ("", None))
    rest = (run.device, run.num_gpus, run.global_batch_size, run.sequence_length, run.precision, run.framework)
    return " | ".join("-" if part in ("", None) else str(part) for part in (model, *rest))


def rankings(cases: Sequence[Case], predictions: Sequence[Prediction]) -> tuple[Ranking, ...]:
    """Ranking of every comparable set of at least three different strategies.

    A strategy measured several times enters once, with its median measured and its median predicted time: days differ,
    and an order between a strategy and itself means nothing.
    """
    sets: dict[str, dict[Strategy, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for case, prediction in zip(cases, predictions, strict=True):
        if prediction.measured_seconds is not None:
            pair = (prediction.measured_seconds, prediction.predicted_seconds)
            sets[comparable_set(case.run)][case.strategy].append(pair)
    found = []
    for name, strategies in sorted(sets.items()):
        if len(strategies) >= SMALLEST_SET:
            medians = np.array([np.median(np.array(pairs), axis=0) for pairs in strategies.values()])
            rows = sum(len(pairs) for pairs in strategies.values())
            found.append(ranking(name, medians[:, 0], medians[:, 1], rows=rows))
    return tuple(found)
