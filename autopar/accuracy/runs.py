"""A table of measured runs: its columns, and one row of it.

The columns are those of ``benchmarks/accuracy/published_runs.csv``; most may be blank. A blank stays unknown
until :mod:`cases` fills it, with a note of what it took.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from autopar.costmodel.spec.errors import Fault, InvalidInputError

MAX_FILE_BYTES = 200 * 2**20
REQUIRED_COLUMNS = ("num_layers", "hidden_size", "sequence_length", "global_batch_size", "device", "num_gpus")


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


_TEXT = frozenset(f.name for f in fields(Run) if f.type == "str")
_WHOLE = frozenset(f.name for f in fields(Run) if f.type == "int | None")
_REAL = frozenset(f.name for f in fields(Run) if f.type == "float | None")
_TRUE = frozenset({"true", "yes", "1", "1.0", "on"})
_FALSE = frozenset({"false", "no", "0", "0.0", "off"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A row that cannot be scored, and why."""

    run_id: str
    reason: str


def read_runs(path: Path) -> tuple[tuple[Run, ...], tuple[Skipped, ...]]:
    """The rows of a CSV file, and those whose fields could not be read.

    Raises:
        InvalidInputError: no such file, not text, or columns that every row needs are missing.
    """
    rows = _rows(path)
    runs: list[Run] = []
    skipped: list[Skipped] = []
    for number, row in enumerate(rows, start=2):
        run_id = (row.get("run_id") or "").strip() or f"line {number}"
        parsed = _parse(run_id, row)
        if isinstance(parsed, Run):
            runs.append(parsed)
        else:
            skipped.append(parsed)
    return tuple(runs), tuple(skipped)


def _rows(path: Path) -> list[dict[str, str | None]]:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InvalidInputError(Fault(field=str(path), given="", required=f"a table of at most {MAX_FILE_BYTES >> 20} MiB"))
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InvalidInputError(Fault(field=str(path), given="", required=f"a readable CSV file ({error.strerror})")) from None
    except UnicodeDecodeError:
        raise InvalidInputError(Fault(field=str(path), given="", required="a CSV file in UTF-8")) from None
    reader = csv.DictReader(io.StringIO(text))
    try:
        columns = [name.strip() for name in reader.fieldnames or ()]
        reader.fieldnames = columns
        rows = list(reader)
    except csv.Error as error:
        raise InvalidInputError(Fault(field=str(path), given="", required=f"a CSV file ({error})")) from None
    missing = [name for name in REQUIRED_COLUMNS if name not in columns]
    if "step_time_seconds" not in columns and "tokens_per_second_per_gpu" not in columns and "peak_memory_gb" not in columns:
        missing.append("step_time_seconds (or tokens_per_second_per_gpu, or peak_memory_gb)")
    if missing:
        raise InvalidInputError(
            [
                Fault(field=f"{path}", given="", required=f"column {name} is missing", fix="docs/accuracy.md lists the columns")
                for name in missing
            ]
        )
    return rows


def _parse(run_id: str, row: Mapping[str, str | None]) -> Run | Skipped:
    values: dict[str, str | int | float | bool | None] = {"run_id": run_id}
    faults = []
    if None in row:
        return Skipped(run_id=run_id, reason="more fields than the header has columns")
    for name in (f.name for f in fields(Run) if f.name != "run_id"):
        text = (row.get(name) or "").strip()
        if name in _TEXT:
            values[name] = text
            continue
        try:
            values[name] = _value(name, text)
        except ValueError as error:
            faults.append(f"{name}={text!r} {error}")
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
    if not 0 <= number < 1e15:
        raise ValueError("is not a positive finite number")
    if name in _REAL:
        return number
    if number != int(number):
        raise ValueError("is not a whole number")
    return int(number)
