"""Catalog entries as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING

from rich.table import Table

from autopar.costmodel.spec.model import ModelSpec
from autopar.costmodel.spec.units import GB, TERA, format_bytes, format_count, format_seconds

from .tables import bullet_list, field_table, plain_table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from autopar.catalog_view import Entry, Listing

_FORMATS: dict[str, Callable[[float], str]] = {
    "memory_bytes": format_bytes,
    "l2_cache_bytes": format_bytes,
    "memory_reserve_bytes": format_bytes,
    "memory_bandwidth": lambda value: f"{value / GB:,.4g} GB/s",
    "bandwidth": lambda value: f"{value / GB:,.4g} GB/s per GPU, one direction",
    "latency_seconds": format_seconds,
    "power_watts": lambda value: f"{value:,.0f} W",
}


def listing_report(found: Listing) -> Iterator[RenderableType]:
    """One table of a kind."""
    table = plain_table(f"{found.kind} ({len(found.rows)})", *found.columns, left=len(found.columns))
    for row in found.rows:
        table.add_row(*row)
    yield table


def entry_report(kind: str, found: Entry) -> Iterator[RenderableType]:
    """Every field of one entry, nested ones indented; sources last."""
    name = found.name if isinstance(found, ModelSpec) else found.id
    table = field_table(f"{kind.removesuffix('s')} {name}")
    _add(table, found, "")
    if isinstance(found, ModelSpec):
        table.add_row("parameters", f"{found.num_parameters:,} ({format_count(found.num_parameters)})")
        if found.moe:
            table.add_row("active parameters", f"{found.num_active_parameters:,} ({format_count(found.num_active_parameters)})")
    yield table
    sources = getattr(found, "sources", None) or {}
    if sources:
        yield bullet_list("sources", [f"{field}: {text}" for field, text in sources.items()])


def _add(table: Table, value: object, prefix: str) -> None:
    if not is_dataclass(value):
        return
    for field in fields(value):
        inner = getattr(value, field.name)
        label = f"{prefix}{field.name}"
        if field.name == "sources" or inner in ("", None):
            continue
        if is_dataclass(inner):
            table.add_row(label, str(getattr(inner, "id", "")))
            _add(table, inner, f"{prefix}  ")
        elif field.name == "peak_flops" and isinstance(inner, Mapping):
            table.add_row(label, ", ".join(f"{kind} {rate / TERA:,.4g} TFLOP/s" for kind, rate in inner.items()))
        elif isinstance(inner, tuple) and inner and is_dataclass(inner[0]):
            for each in inner:
                table.add_row(label, "")
                _add(table, each, f"{prefix}  ")
        else:
            table.add_row(label, _text(field.name, inner))


def _text(name: str, value: object) -> str:
    if name in _FORMATS and isinstance(value, int | float):
        return _FORMATS[name](value)
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, tuple):
        return ", ".join(_text("", each) for each in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)
