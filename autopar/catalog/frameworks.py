"""Execution profiles of the training frameworks, from ``autopar/catalog/frameworks/*.toml``."""

from __future__ import annotations

import tomllib
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

from autopar.costmodel.spec.errors import UnknownNameError
from autopar.costmodel.spec.framework import ExecutionProfile, RecomputeCount
from autopar.costmodel.spec.strategy import ContextParallelKind, PipelineSchedule, RankOrder, RecomputeModule

FOLDER = Path(__file__).parent / "frameworks"


@cache
def framework_names() -> tuple[str, ...]:
    """Every profile's id, sorted."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml") if not path.stem.startswith("_")))


@cache
def framework(name: str) -> ExecutionProfile:
    """The profile called ``name``.

    Raises:
        UnknownNameError: the catalog has none; names the close matches.
    """
    key = name.lower()
    if key not in framework_names():
        raise UnknownNameError("framework", name, framework_names())
    table = _table(key)
    table["schedules"] = tuple(PipelineSchedule(kind) for kind in table["schedules"])
    table["context_parallel_kinds"] = tuple(ContextParallelKind(kind) for kind in table["context_parallel_kinds"])
    table["rank_orders"] = tuple(RankOrder(order) for order in table["rank_orders"])
    table["recompute_modules"] = tuple(RecomputeModule(module) for module in table["recompute_modules"])
    table["recompute_count"] = RecomputeCount(table["recompute_count"])
    for stages in ("zero_stages", "zero_stages_with_pipeline", "zero_bubble_virtual_stages"):
        table[stages] = tuple(table[stages])
    numbers = {f.name for f in fields(ExecutionProfile) if f.type == "float"}
    values: dict[str, Any] = {field: float(value) if field in numbers else value for field, value in table.items()}
    return ExecutionProfile(id=key, **values)


def _table(name: str) -> dict[str, Any]:
    """The file of ``name`` laid over the profile it extends."""
    with (FOLDER / f"{name}.toml").open("rb") as file:
        table = tomllib.load(file)
    base = table.pop("extends", None)
    return table if base is None else _table(base) | table


def base_table(name: str) -> dict[str, Any]:
    """The values of the profile that ``name`` extends: documented, never fitted."""
    with (FOLDER / f"{name}.toml").open("rb") as file:
        return _table(tomllib.load(file)["extends"])
