"""Fills a report: scores the public runs, searches, plans the fixed set, and reads what the runtime measured."""

from __future__ import annotations

import csv
import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import autopar
from autopar.accuracy.metrics import ErrorSummary
from autopar.accuracy.score import Accuracy
from autopar.accuracy.view import RankingMean
from autopar.costmodel.spec.errors import NoPlanError
from benchmarks.search.speed import CASES, REPEATS, measure

from .results import Errors, Planned, RankingQuality, Results, RuntimeTable

QUESTIONS: tuple[tuple[str, int, str, str, str], ...] = (
    ("gpt-175b", 256, "h100-sxm5-80gb", "megatron-core", "bf16"),
    ("gpt-175b", 1_024, "a100-sxm4-80gb", "megatron-core", "bf16"),
    ("gpt-22b", 8, "a100-sxm4-80gb", "megatron-core", "bf16"),
    ("llama3-8b", 64, "h100-sxm5-80gb", "torchtitan", "bf16"),
    ("llama3-70b", 128, "h100-sxm5-80gb", "megatron-core", "bf16"),
    ("llama3-70b", 128, "h200-sxm-141gb", "megatron-core", "fp8"),
    ("llama3-70b", 256, "mi300x-192gb", "megatron-core", "bf16"),
    ("llama3-405b", 16_384, "h100-sxm5-80gb", "megatron-core", "bf16"),
    ("mixtral-8x7b", 64, "h100-sxm5-80gb", "megatron-core", "bf16"),
    ("deepseek-v3", 2_048, "h800-sxm-80gb", "megatron-core", "bf16"),
)
"""Model, GPUs, device, framework and precision of the plans that every report compares."""
RUNTIME = Path(__file__).parents[1] / "runtime"


def all_results(date: str, accuracy: Accuracy, *, repeats: int = REPEATS) -> Results:
    """Everything measured now."""
    return Results(
        date=date,
        autopar_version=autopar.__version__,
        machine=f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}",
        accuracy=tuple(accuracy_lines(accuracy)),
        ranking=_ranking(accuracy),
        search=tuple(measure(case, repeats) for case in CASES),
        plans=tuple(planned(*question) for question in QUESTIONS),
        runtime=tuple(runtime_tables(RUNTIME)),
    )


def accuracy_lines(accuracy: Accuracy) -> Iterator[Errors]:
    """All step times, all peaks, and step times by device."""
    yield _errors("step time, all runs", accuracy.step_time)
    yield _errors("peak memory, all runs", accuracy.memory)
    for device, summary in accuracy.step_time_groups.get("device", {}).items():
        yield _errors(f"step time, {device}", summary)


def _errors(name: str, summary: ErrorSummary) -> Errors:
    return Errors(
        name=name,
        rows=summary.rows,
        mean=summary.mean_absolute_error,
        median=summary.median_absolute_error,
        p90=summary.p90_absolute_error,
        bias=summary.bias,
    )


def _ranking(accuracy: Accuracy) -> RankingQuality:
    mean = RankingMean.of(accuracy.ranking)
    return RankingQuality(sets=mean.sets, spearman=mean.spearman, pairs_right=mean.pairwise, regret=mean.regret)


def planned(model: str, gpus: int, gpu: str, framework: str, precision: str) -> Planned:
    """The plan of one question."""
    try:
        plan = autopar.plan(model, gpus=gpus, gpu=gpu, framework=framework, precision=precision, top=1)
    except NoPlanError:
        plan = None
    told = None if plan is None else plan.estimate
    return Planned(
        model=model,
        gpus=gpus,
        gpu=gpu,
        framework=framework,
        precision=precision,
        strategy=None if plan is None else plan.strategy,
        step_time_seconds=0.0 if told is None else told.step_time_seconds,
        tokens_per_second_per_gpu=0.0 if told is None else told.tokens_per_second_per_gpu,
        mfu=0.0 if told is None else told.mfu,
        peak_memory_bytes=0.0 if told is None else told.peak_memory_bytes,
        fit_probability=None if told is None else told.fit_probability,
    )


def runtime_tables(folder: Path) -> Iterator[RuntimeTable]:
    """Result files of the runtime's benchmark: JSON documents that say their machine and have lists of rows, and CSV tables.

    A file that cannot be read has a table without rows that says why.
    """
    for path in sorted([*folder.rglob("*.json"), *folder.rglob("*.csv")]):
        try:
            if path.suffix == ".csv":
                yield from _of_csv(path)
            else:
                yield from _of_json(path)
        except (ValueError, OSError) as error:
            yield RuntimeTable(title=path.stem, columns=(), rows=(), note=f"cannot be read: {error}")


def _of_csv(path: Path) -> Iterator[RuntimeTable]:
    with path.open(newline="", encoding="utf-8") as file:
        columns, *rows = [tuple(row) for row in csv.reader(file)] or [()]
    if rows:
        yield RuntimeTable(title=path.stem, columns=columns, rows=tuple(rows))


def _of_json(path: Path) -> Iterator[RuntimeTable]:
    """One table for each list of objects in the document, its plain values as the note. What names no machine is no result."""
    document = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(document, dict):
        raise ValueError("a result is one JSON object")
    if "machine" not in document:
        return
    tables = {name: value for name, value in document.items() if isinstance(value, list) and value and isinstance(value[0], dict)}
    note = "; ".join(f"{_words(name)} {_cell(name, value)}" for name, value in _plain(document))
    for name, rows in tables.items():
        columns = tuple(dict.fromkeys(key for row in rows for key in row))
        cells = tuple(tuple(_cell(column, row.get(column, "")) for column in columns) for row in rows)
        yield RuntimeTable(title=f"{path.stem}: {_words(name)}", columns=tuple(map(_words, columns)), rows=cells, note=note)


def _plain(document: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    for name, value in document.items():
        if isinstance(value, dict):
            yield from _plain(value)
        elif isinstance(value, str | int | float) and name != "schema_version":
            yield name, value


SHARES: Sequence[str] = ("error", "spread", "overhead", "regret", "mean_error", "loss_difference")


def _cell(name: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, float):
        return "" if value is None else str(value)
    if name in SHARES:
        return f"{value:+.1%}" if name in ("error", "overhead") else f"{value:.2%}"
    return f"{value * 1e3:,.1f} ms" if name.endswith("_seconds") else f"{value:.4g}"


def _words(name: str) -> str:
    return name.removesuffix("_seconds").replace("_", " ")
