"""What a benchmark run found, as the document that the next report is compared with."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from autopar.costmodel.spec.errors import Fault, InvalidInputError
from autopar.costmodel.spec.strategy import Strategy
from autopar.io.codec import from_json_as
from autopar.io.files import read_bytes
from benchmarks.search.speed import Speed

SCHEMA_VERSION = "1.0"
FOLDER = Path(__file__).parents[1] / "results"
NAME = "report.json"
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Errors of the predictions on one set of measured runs; shares, not per cent."""

    name: str
    rows: int
    mean: float | None
    median: float | None
    p90: float | None
    bias: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingQuality:
    """How often strategies of one question are put in the right order."""

    sets: int
    spearman: float | None
    pairs_right: float | None
    regret: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The plan of one question of the fixed set; ``strategy`` is None where nothing fits."""

    model: str
    gpus: int
    gpu: str
    framework: str
    precision: str
    strategy: Strategy | None
    step_time_seconds: float
    tokens_per_second_per_gpu: float
    mfu: float
    peak_memory_bytes: float
    fit_probability: float | None

    @property
    def question(self) -> tuple[str, int, str, str, str]:
        return self.model, self.gpus, self.gpu, self.framework, self.precision


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeTable:
    """Something that was measured on the runtime, as it is printed."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """All of it."""

    date: str
    autopar_version: str
    machine: str
    accuracy: tuple[Errors, ...]
    ranking: RankingQuality
    search: tuple[Speed, ...]
    plans: tuple[Planned, ...]
    runtime: tuple[RuntimeTable, ...]
    schema_version: str = SCHEMA_VERSION


def read_results(path: Path) -> Results:
    """The results in the file ``path``.

    Raises:
        InvalidInputError: it is no such file, or one of another version.
    """
    found = from_json_as(Results, read_bytes(path, field="previous"))
    if found.schema_version.split(".")[0] != SCHEMA_VERSION.split(".")[0]:
        required = f"results of version {SCHEMA_VERSION.split('.')[0]}.x are compared"
        raise InvalidInputError(Fault(field="previous", given=found.schema_version, required=required))
    return found


def previous(folder: Path, before: str) -> Path | None:
    """The newest report older than the day ``before`` (year-month-day) in ``folder``."""
    days = sorted(path.name for path in folder.glob("*") if _DATE.fullmatch(path.name) and (path / NAME).is_file() and path.name < before)
    return folder / days[-1] / NAME if days else None
