"""Dotted settings as nested tables, and as the YAML and JSON that frameworks read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from decimal import Decimal

from .settings import Settings, Value

Tree = dict[str, "Value | Tree | None"]
_PLAIN = re.compile(r"[A-Za-z_][\w./-]*")
_WORDS_OF_YAML = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})


def nested(settings: Mapping[str, Value | None]) -> Tree:
    """``{"a.b": 1}`` as ``{"a": {"b": 1}}``."""
    tree: Tree = {}
    for name, value in settings.items():
        *folders, last = name.split(".")
        place = tree
        for folder in folders:
            inner = place.setdefault(folder, {})
            assert isinstance(inner, dict), f"{folder} of {name} is a value and a table"
            place = inner
        place[last] = value
    return tree


def flattened(tree: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """``{"a": {"b": 1}}`` as ``{"a.b": 1}``."""
    flat: dict[str, object] = {}
    for name, value in tree.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping) and value:
            flat |= flattened(value, f"{path}.")
        else:
            flat[path] = value
    return flat


def json_text(settings: Settings) -> str:
    """The settings as a JSON document."""
    return json.dumps(nested(settings), indent=2) + "\n"


def yaml_text(settings: Mapping[str, Value | None], header: tuple[str, ...] = ()) -> str:
    """The settings as YAML, with comment lines first."""
    return "\n".join([*(f"# {line}".rstrip() for line in header), *_yaml_lines(nested(settings), 0)]) + "\n"


def _yaml_lines(tree: Mapping[str, object], depth: int) -> list[str]:
    lines: list[str] = []
    for name, value in tree.items():
        if isinstance(value, Mapping):
            lines += [f"{'  ' * depth}{name}:", *_yaml_lines(value, depth + 1)]
        else:
            lines.append(f"{'  ' * depth}{name}: {_scalar(value)}")
    return lines


def _scalar(value: object) -> str:
    if isinstance(value, str) and (not _PLAIN.fullmatch(value) or value.lower() in _WORDS_OF_YAML):
        return json.dumps(value)
    if isinstance(value, tuple):
        return f"[{', '.join(map(_scalar, value))}]"
    if isinstance(value, float):
        return format(Decimal(repr(value)), "f")  # YAML 1.1 reads 1e-08 as text
    return {True: "true", False: "false", None: "null"}[value] if value is None or isinstance(value, bool) else str(value)
