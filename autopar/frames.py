"""Answers as pandas DataFrames, for notebooks and for figures of one's own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import singledispatch
from typing import TYPE_CHECKING, Any

from autopar.accuracy.score import Accuracy
from autopar.comparison import Comparison
from autopar.costmodel.spec.errors import Fault, InvalidInputError, UnavailableError
from autopar.costmodel.spec.plan import Alternative, Plan
from autopar.costmodel.spec.strategy import Strategy
from autopar.frontier import ParetoFront
from autopar.perturbation import WhatIf
from autopar.sizing import Sizing

if TYPE_CHECKING:
    from pandas import DataFrame

Row = dict[str, object]
_SCALARS = (str, int, float, bool, type(None))
_TUPLES = ("pipeline_layers", "stage_recompute_layers", "recompute_modules", "notes")
"""Fields that are told in one cell all the same."""


def frame(answer: object) -> DataFrame:
    """A row for each strategy, plan, point, change or measured run of ``answer``; times in seconds, sizes in bytes.

    Args:
        answer: what :func:`autopar.plan` (the best strategy, then the runners-up), :func:`autopar.pareto`, :func:`autopar.compare`,
            :func:`autopar.whatif` or :func:`autopar.size` found, or the accuracy on measured runs.

    Raises:
        InvalidInputError: an answer that is no table.
        UnavailableError: pandas is not installed.

    >>> autopar.frame(autopar.plan("gpt-175b", gpus=256))[["tensor_parallel_size", "step_time_seconds"]]
    """
    try:
        from pandas import DataFrame
    except ModuleNotFoundError:
        raise UnavailableError("autopar.frame needs pandas: pip install 'autopar[report]'") from None
    return DataFrame.from_records(list(_rows(answer)))


@singledispatch
def _rows(answer: object) -> Iterator[Row]:
    required = "takes a Plan, a ParetoFront, a Comparison, a WhatIf, a Sizing or an Accuracy"
    raise InvalidInputError(Fault(field="answer", given=type(answer).__name__, required=required))


@_rows.register
def _(answer: Plan) -> Iterator[Row]:
    best = answer.estimate
    first = Alternative(
        strategy=answer.strategy, step_time_seconds=best.step_time_seconds, peak_memory_bytes=best.peak_memory_bytes, tie=False
    )
    yield from ({"rank": place, **_flat(each)} for place, each in enumerate((first, *answer.alternatives), 1))


@_rows.register
def _(answer: ParetoFront) -> Iterator[Row]:
    return (_flat(point) for point in answer.points)


@_rows.register
def _(answer: Comparison) -> Iterator[Row]:
    return (_flat(plan) for plan in answer.plans)


@_rows.register
def _(answer: WhatIf) -> Iterator[Row]:
    for effect in answer.effects:
        outcomes = {"same": effect.same, "replanned": effect.replanned}
        told = {f"{name}_{key}": value for name, each in outcomes.items() if each for key, value in _flat(each).items()}
        yield {key: value for key, value in _flat(effect).items() if key not in outcomes} | told


@_rows.register
def _(answer: Sizing) -> Iterator[Row]:
    for each in answer.clusters:
        for kind, run in (("fewest", each.fewest), ("cheapest", each.cheapest)):
            yield {"choice": kind, **_flat(run), "least_gpu_hours": each.least_gpu_hours}


@_rows.register
def _(answer: Accuracy) -> Iterator[Row]:
    for prediction, case in zip(answer.predictions, answer.cases, strict=True):
        errors = {"time_error": prediction.time_error, "memory_error": prediction.memory_error}
        run = {name: value for name, value in _flat(case.run).items() if name not in ("run_id", "notes")}
        yield _flat(prediction) | errors | run


def _named(strategy: Strategy) -> Row:
    """A strategy in one word, and its sizes."""
    return {"strategy": strategy.describe(), **_flat(strategy)}


def _flat(record: object) -> Row:
    """The scalars of a record, those of its strategy and of its time by term among them."""
    assert is_dataclass(record), "every row of an answer is a record"
    found: Row = {}
    for each in fields(record):
        value: Any = getattr(record, each.name)
        if isinstance(value, Strategy):
            found |= _named(value)
        elif is_dataclass(value) and each.name in ("estimate", "time"):
            found |= {key: part for key, part in _flat(value).items() if key not in found}
        elif isinstance(value, Enum):
            found[each.name] = value.value
        elif isinstance(value, _SCALARS) or each.name in _TUPLES:
            found[each.name] = value
    found.pop("schema_version", None)
    return found
