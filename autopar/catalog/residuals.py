"""Residuals of the cost model on public measured runs, from ``residuals.json``, which ``benchmarks/calibration/residuals.py`` writes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from autopar.costmodel.spec.residuals import Regime, ResidualGroup, ResidualTable

FILE = Path(__file__).parent / "residuals.json"
DIGITS = 4
"""Decimals of a residual: a hundredth of a per cent."""


@cache
def residual_table() -> ResidualTable:
    """The shipped residuals."""
    document = json.loads(FILE.read_text(encoding="utf-8"))
    return ResidualTable(
        step_time=_groups(document["step_time"]),
        memory=_groups(document["memory"]),
        resolvable_gap=document["resolvable_gap"],
        left_out=document["left_out"],
        schema_version=document["schema_version"],
    )


def dump_residuals(table: ResidualTable) -> str:
    """The text of ``residuals.json``: one group a line, so that a change shows in a diff."""
    parts = [f'"schema_version": {json.dumps(table.schema_version)}', f'"left_out": {json.dumps(table.left_out)}']
    parts.append(f'"resolvable_gap": {round(table.resolvable_gap, DIGITS)}')
    for name in ("step_time", "memory"):
        lines = ",\n".join(f"    {json.dumps(_plain(group))}" for group in getattr(table, name))
        parts.append(f'"{name}": [\n{lines}\n  ]')
    return "{\n  " + ",\n  ".join(parts) + "\n}\n"


def _groups(raw: Sequence[Mapping[str, Any]]) -> tuple[ResidualGroup, ...]:
    return tuple(
        ResidualGroup(
            family=group["family"],
            regime=Regime(**{name: name in group["regime"] for name in Regime.__dataclass_fields__}),
            values=tuple(map(float, group["values"])),
        )
        for group in raw
    )


def _plain(group: ResidualGroup) -> dict[str, object]:
    """The regime as the list of the properties it has."""
    held = [name for name in Regime.__dataclass_fields__ if getattr(group.regime, name)]
    return {"family": group.family, "regime": held, "values": [round(value, DIGITS) for value in sorted(group.values)]}
