"""A table of measured runs: its columns, and one row of it.

The columns are those of ``benchmarks/accuracy/published_runs.csv``; most may be blank. A blank stays unknown
until :mod:`cases` fills it, with a note of what it took.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from autopar.costmodel.spec.errors import Fault, InvalidInputError
from autopar.costmodel.spec.strategy import PipelineSchedule

MAX_FILE_BYTES = 200 * 2**20
REQUIRED_COLUMNS = (
    "device", "num_gpus", "sequence_length", "global_batch_size", "tensor_parallel_size", "pipeline_parallel_size",
)  # fmt: skip
"""What no row can be scored without; a table that lacks one has every row skipped, and says which."""
MEASUREMENTS = ("step_time_seconds", "tokens_per_second_per_gpu", "peak_memory_gb", "out_of_memory")
"""At least one of these is needed."""
LARGEST = 1e9
"""Above any size, batch or measurement of a run, and small enough to compute with."""
SMALLEST_MEASUREMENT = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One measured run. Text is "" and a number None where the table is blank."""

    run_id: str
    family: str = ""
    device: str = ""
    cluster: str = ""
    """Catalog id of the cluster; "" lets the device and the interconnect columns decide."""
    interconnect_inter: str = ""
    framework: str = ""
    model_name: str = ""
    sharding_as_stated: str = ""
    recompute: str = ""
    precision: str = ""
    notes: str = ""
    pipeline_schedule: str = ""
    gpus_per_node: int | None = None
    num_gpus: int | None = None
    num_layers: int | None = None
    hidden_size: int | None = None
    ffn_hidden_size: int | None = None
    num_attention_heads: int | None = None
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    vocab_size: int | None = None
    sequence_length: int | None = None
    num_experts: int | None = None
    experts_per_token: int | None = None
    moe_ffn_hidden_size: int | None = None
    global_batch_size: int | None = None
    micro_batch_size: int | None = None
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    virtual_pipeline_stages: int | None = None
    context_parallel_size: int | None = None
    expert_parallel_size: int | None = None
    expert_tensor_parallel_size: int | None = None
    data_parallel_size: int | None = None
    num_recompute_layers: int | None = None
    step_time_seconds: float | None = None
    tokens_per_second_per_gpu: float | None = None
    peak_memory_gb: float | None = None
    gated_mlp: bool | None = None
    multi_latent_attention: bool | None = None
    tied_embeddings: bool | None = None
    sequence_parallel: bool | None = None
    out_of_memory: bool | None = None
    """Whether the run ended for want of memory; blank where the table does not say."""


_NAMES = tuple(f.name for f in fields(Run))
ORDER_NOTE = "order of ranks "
"""What stands before an order of ranks that is not the usual one, among the notes of a row: tables have no column for it."""
_CHOICES = {"pipeline_schedule": tuple(kind.value for kind in PipelineSchedule)}
_TEXT = frozenset(f.name for f in fields(Run) if f.type == "str")
_WHOLE = frozenset(f.name for f in fields(Run) if f.type == "int | None")
_REAL = frozenset(f.name for f in fields(Run) if f.type == "float | None")
_MAY_BE_ZERO = frozenset({"num_experts", "experts_per_token", "moe_ffn_hidden_size", "num_recompute_layers"})
"""Sizes that tables write as 0 where there is none."""
_TRUE = frozenset({"true", "yes", "1", "1.0", "on"})
_FALSE = frozenset({"false", "no", "0", "0.0", "off"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A row that cannot be scored, and why."""

    run_id: str
    reason: str


def read_runs(path: Path) -> tuple[tuple[Run, ...], tuple[Skipped, ...]]:
    """The rows of a CSV file, and those that could not be read, with the reason.

    Raises:
        InvalidInputError: no such file, too large, not text in UTF-8, not CSV, or nothing in it that a table of runs has.
    """
    columns, rows = _rows(path)
    fault = _table_fault(columns)
    if fault and not rows:
        raise InvalidInputError(_unreadable(path, f"a table of runs is needed: {fault}"))
    runs: list[Run] = []
    skipped: list[Skipped] = []
    for number, row in enumerate(rows, start=2):
        run_id = (row.get("run_id") or "").strip() or f"line {number}"
        parsed = Skipped(run_id=run_id, reason=fault) if fault else _parse(run_id, row)
        if isinstance(parsed, Run):
            runs.append(parsed)
        else:
            skipped.append(parsed)
    return tuple(runs), tuple(skipped)


def _rows(path: Path) -> tuple[list[str], list[dict[str, str | None]]]:
    """Header and rows of the file."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InvalidInputError(_unreadable(path, f"a table of at most {MAX_FILE_BYTES >> 20} MiB"))
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:  # a name with a NUL is a ValueError, and so is what is not UTF-8
        if isinstance(error, InvalidInputError):
            raise
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise InvalidInputError(_unreadable(path, f"a readable CSV file is needed ({reason})")) from None
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        columns = [name.strip() for name in reader.fieldnames or ()]
        reader.fieldnames = columns
        return columns, list(reader)
    except csv.Error as error:
        raise InvalidInputError(_unreadable(path, f"a CSV file is needed ({error})")) from None


def _unreadable(path: Path, required: str) -> Fault:
    return Fault(field="runs", given=repr(str(path)), required=required)


def _table_fault(columns: Sequence[str]) -> str:
    """Why no row of a table with these columns can be scored; "" where one may."""
    missing = [name for name in REQUIRED_COLUMNS if name not in columns]
    lacking = [f"no column {', '.join(missing)}"] if missing else []
    if not any(name in columns for name in MEASUREMENTS):
        lacking.append(f"none of the columns {', '.join(MEASUREMENTS)}")
    if lacking:
        return f"the table has {' and '.join(lacking)}"
    twice = sorted({name for name in columns if name in _NAMES and columns.count(name) > 1})
    return f"the table has two columns {', '.join(twice)}" if twice else ""


def _parse(run_id: str, row: Mapping[str, str | None]) -> Run | Skipped:
    values: dict[str, str | int | float | bool | None] = {"run_id": run_id}
    faults = []
    if None in row:
        return Skipped(run_id=run_id, reason="more fields than the header has columns")
    for name in _NAMES[1:]:
        text = (row.get(name) or "").strip()
        if name in _TEXT:
            if name in _CHOICES and text and text not in _CHOICES[name]:
                faults.append(f"{name}={_excerpt(text)} is not one of {', '.join(_CHOICES[name])}")
            values[name] = text
            continue
        try:
            values[name] = _value(name, text)
        except ValueError as error:
            faults.append(f"{name}={_excerpt(text)} {error}")
    if faults:
        return Skipped(run_id=run_id, reason="; ".join(faults))
    return Run(**values)  # type: ignore[arg-type]


def _value(name: str, text: str) -> int | float | bool | None:
    """A number or flag; blank is unknown.

    Raises:
        ValueError: says what the field needs.
    """
    if not text:
        return None
    if name not in _WHOLE and name not in _REAL:
        if text.lower() in _TRUE | _FALSE:
            return text.lower() in _TRUE
        raise ValueError("is not yes or no")
    try:
        number = float(text)
    except ValueError:
        raise ValueError("is not a number") from None
    if name in _REAL:
        if not SMALLEST_MEASUREMENT <= number <= LARGEST:
            raise ValueError(f"is not from {SMALLEST_MEASUREMENT:g} to {LARGEST:g}")
        return number
    lowest = 0 if name in _MAY_BE_ZERO else 1
    if not lowest <= number <= LARGEST:
        raise ValueError(f"is not from {lowest} to {LARGEST:g}")
    if number != int(number):
        raise ValueError("is not a whole number")
    return int(number)


def _excerpt(text: str) -> str:
    """``text`` in quotes, cut where it is long."""
    return repr(text if len(text) <= 40 else f"{text[:37]}...")
