"""Value types to JSON and back.

Writing is a plain walk over the dataclasses. Reading goes through pydantic, in strict mode: unknown
fields, numbers in quotes, NaN and infinities are refused, and every fault of a document comes back at once
with the path of its field.
"""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

from autopar.costmodel.spec.errors import AutoparError, Fault, InvalidInputError, raise_if
from autopar.costmodel.spec.strategy import LEFT_OUT

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_core import ErrorDetails

T = TypeVar("T")
JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]

UNKNOWN_FIELD_TYPES = ("unexpected_keyword_argument", "extra_forbidden")


def to_plain(value: object, path: str = "$") -> JsonValue:
    """``value`` as dictionaries, lists, text and numbers that JSON can hold.

    Raises:
        AutoparError: a number is NaN or infinite, which JSON has no word for; or a type is none of ours.
    """
    match value:
        case Enum():
            return cast(JsonValue, value.value)
        case None | bool() | int() | str():
            return value
        case float():
            if not math.isfinite(value):
                raise AutoparError(f"{path} is {value}: a result has to be a finite number")
            return value
        case Mapping():
            return {str(to_plain(key, path)): to_plain(item, f"{path}.{key}") for key, item in value.items()}
        case tuple() | list():
            return [to_plain(item, f"{path}[{index}]") for index, item in enumerate(value)]
    if is_dataclass(value):
        return {
            name: to_plain(_as_declared(value, name, kind), f"{path}.{name}")
            for name, kind, usual in _declared(cast(Any, type(value)))
            if usual is MISSING or getattr(value, name) != usual
        }
    raise AutoparError(f"{path} is a {type(value).__name__}, which has no form in JSON")


def to_json(value: object, *, indent: int | None = 2) -> str:
    """``value`` as a JSON document in ASCII that ends in a newline; the same value gives the same bytes."""
    return json.dumps(to_plain(value), indent=indent, allow_nan=False) + "\n"


def load_json(text: str | bytes) -> JsonValue:
    """Parse JSON without its extensions (NaN, Infinity) and without a depth that could exhaust the stack.

    Raises:
        InvalidInputError: the text is not JSON; says the line and column.
    """
    from pydantic_core import from_json

    try:
        return cast(JsonValue, from_json(text, allow_inf_nan=False))
    except ValueError as error:
        raise InvalidInputError(Fault(field="$", given="", required=f"not valid JSON: {error}")) from None


def from_json_as(kind: type[T], text: str | bytes) -> T:
    """Read a ``kind`` from JSON.

    Raises:
        InvalidInputError: with one fault a wrong field, each with its path, e.g. ``$.strategy.tensor_parallel_size``.
    """
    from pydantic import ValidationError

    load_json(text)
    # The adapter is of a one-element tuple, since pydantic takes a configuration for a container, not for a dataclass.
    boxed = text.strip()
    boxed = f"[{boxed}]" if isinstance(boxed, str) else b"[" + boxed + b"]"
    try:
        return cast(T, _adapter(cast(Any, kind)).validate_json(boxed)[0])
    except ValidationError as error:
        raise_if([fault for detail in error.errors(include_url=False) for fault in _faults(detail)])
        raise


def unknown_fields(error: InvalidInputError) -> tuple[Fault, ...]:
    """The faults of ``error`` that are fields this release does not know."""
    return tuple(fault for fault in error.faults if fault.required == _UNKNOWN)


def json_schema(kind: type) -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of documents that :func:`from_json_as` reads as ``kind``."""
    schema = _adapter(kind).json_schema()
    definitions = schema["$defs"]
    root = definitions.pop(kind.__name__)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **root, "$defs": definitions}


@cache
def _declared(kind: Hashable) -> tuple[tuple[str, object, object], ...]:
    """Fields of a dataclass, their annotations and the default at which they are left out, MISSING where they never are.

    The version of a document comes first, where a reader looks for it.
    """
    declared = ((f.name, f.type, f.default if f.metadata == LEFT_OUT else MISSING) for f in fields(cast(Any, kind)))
    return tuple(sorted(declared, key=lambda field: field[0] != "schema_version"))


def _as_declared(value: object, name: str, kind: object) -> object:
    """The field's value, a whole number as ``4.0`` where a float is declared, so that reading and writing again changes no byte."""
    inner = getattr(value, name)
    return float(inner) if isinstance(inner, int) and kind in ("float", "float | None") else inner


_UNKNOWN = "not a field of this format"


@cache
def _adapter(kind: Hashable) -> TypeAdapter[Any]:
    from pydantic import ConfigDict, TypeAdapter

    return TypeAdapter(tuple[kind], config=ConfigDict(extra="forbid", strict=True, allow_inf_nan=False))  # type: ignore[valid-type]


def _faults(detail: ErrorDetails) -> list[Fault]:
    path = "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in detail["loc"][1:])
    cause = detail.get("ctx", {}).get("error")
    if isinstance(cause, InvalidInputError):
        return [Fault(field=f"{path}.{f.field}", given=f.given, required=f.required, fix=f.fix) for f in cause.faults]
    if detail["type"] in UNKNOWN_FIELD_TYPES:
        return [Fault(field=path, given=_excerpt(detail["input"]), required=_UNKNOWN, fix="remove it")]
    if detail["type"] in ("missing", "missing_argument", "missing_keyword_only_argument"):
        return [Fault(field=path, given="", required="is missing")]
    message = detail["msg"]
    return [Fault(field=path, given=_excerpt(detail["input"]), required=message[0].lower() + message[1:])]


def _excerpt(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    text = repr(text) if isinstance(value, str) else text
    return text if len(text) <= 60 else text[:57] + "..."
