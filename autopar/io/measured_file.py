"""Measured profiles as files: written by ``autopar profile``, read by ``--profile``.

JSON with one point a line, read without pydantic, since the machine that measures need not have it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NoReturn, cast

from autopar.costmodel.spec.errors import Fault, InvalidInputError, UnsupportedVersionError, raise_if
from autopar.costmodel.spec.measured import (
    MAX_REPORTED_FAULTS,
    MEASURED_KIND,
    MEASURED_SCHEMA_VERSION,
    Kind,
    Machine,
    MeasuredProfile,
    Point,
    Series,
)

from .codec import JsonValue, to_plain
from .files import content_of, read_bytes, write_text

Document = Mapping[str, JsonValue]


def dump_measured(profile: MeasuredProfile) -> str:
    """``profile`` as the text of a profile file; the same profile gives the same bytes."""
    document = cast(dict[str, JsonValue], to_plain(profile))
    series = cast(list[dict[str, JsonValue]], document.pop("series"))
    head = json.dumps(document, indent=2, allow_nan=False).removesuffix("\n}")
    return f'{head},\n  "series": [{",".join(_series_text(one) for one in series)}\n  ]\n}}\n'


def _series_text(series: dict[str, JsonValue]) -> str:
    points = cast(list[JsonValue], series.pop("points"))
    head = ", ".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in series.items())
    lines = ",".join(f"\n      {json.dumps(point, allow_nan=False)}" for point in points)
    return f'\n    {{{head}, "points": [{lines}\n    ]}}'


def parse_measured(text: str | bytes) -> MeasuredProfile:
    """The profile in the text of a profile file; the inverse of :func:`dump_measured`.

    Raises:
        UnsupportedVersionError: another major version of the format.
        InvalidInputError: not such a file, or one with times that cannot be; every fault with its path.
    """
    document = _load(text)
    if document.get("kind") != MEASURED_KIND:
        fix = "`autopar profile -o profile.json` writes one"
        raise InvalidInputError(Fault(field="$.kind", given="", required=f'a measured profile says "kind": "{MEASURED_KIND}"', fix=fix))
    _check_version(document.get("schema_version"))
    faults: list[Fault] = []
    reader = _Reader(faults)
    try:
        found = reader.profile(document)
    except InvalidInputError as error:  # sizes and times that cannot be, told beside what else is wrong
        faults += (replace(fault, field=f"$.{fault.field}") for fault in error.faults)
        found = None
    raise_if(faults[:MAX_REPORTED_FAULTS])
    assert found is not None, "without faults there is a profile"
    return found


def read_measured(path: str | Path) -> MeasuredProfile:
    """The profile in the file ``path``; raises as :func:`parse_measured`, or InvalidInputError when it cannot be read."""
    text = read_bytes(path, field="profile")
    with content_of(path):
        return parse_measured(text)


def write_measured(profile: MeasuredProfile, path: str | Path) -> None:
    """Write ``profile`` to ``path``, whole or not at all."""
    write_text(path, dump_measured(profile))


def _load(text: str | bytes) -> Document:
    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not a number")

    try:
        document = json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(Fault(field="$", given="", required=f"not valid JSON: {error}")) from None
    if not isinstance(document, dict):
        raise InvalidInputError(Fault(field="$", given=type(document).__name__, required="a profile file holds one JSON object"))
    return document


def _check_version(given: JsonValue) -> None:
    match = re.fullmatch(r"([0-9]{1,4})\.([0-9]{1,4})", given) if isinstance(given, str) else None
    if match is None:
        required = f"a profile file says its version as major.minor, for example {MEASURED_SCHEMA_VERSION!r}"
        raise InvalidInputError(Fault(field="$.schema_version", given="" if given is None else repr(given), required=required))
    if match[1] != MEASURED_SCHEMA_VERSION.split(".", maxsplit=1)[0]:
        required = f"this release of autopar reads measured profiles of version {MEASURED_SCHEMA_VERSION}"
        raise UnsupportedVersionError(Fault(field="$.schema_version", given=str(given), required=required, fix="measure again"))


class _Reader:
    """Walks a document and keeps every fault with its path; where something is wrong it goes on with a stand-in."""

    def __init__(self, faults: list[Fault]) -> None:
        self._faults = faults

    def profile(self, document: Document) -> MeasuredProfile:
        path = "$"
        self._only(document, path, MeasuredProfile.__slots__)
        failures = self._list(document, "failures", path)
        return MeasuredProfile(
            device=self._text(document, "device", path),
            machine=self._machine(self._object(document, "machine", path)),
            failures=tuple(str(line) for line in failures),
            autopar_version=self._text(document, "autopar_version", path),
            schema_version=self._text(document, "schema_version", path),
            series=tuple(
                self._series(self._as_object(each, f"$.series[{place}]"), f"$.series[{place}]")
                for place, each in enumerate(self._list(document, "series", path))
            ),
        )

    def _machine(self, document: Document) -> Machine:
        path = "$.machine"
        self._only(document, path, Machine.__slots__)
        libraries = self._object(document, "libraries", path)
        return Machine(
            device_name=self._text(document, "device_name", path),
            host=self._text(document, "host", path),
            date=self._text(document, "date", path),
            driver=self._text(document, "driver", path),
            clocks=self._text(document, "clocks", path),
            world_size=self._count(document, "world_size", path),
            ranks_per_node=self._count(document, "ranks_per_node", path),
            threads_per_rank=self._count(document, "threads_per_rank", path),
            libraries={name: str(version) for name, version in libraries.items()},
        )

    def _series(self, document: Document, path: str) -> Series:
        self._only(document, path, Series.__slots__)
        kind = document.get("kind")
        if kind not in tuple(Kind):
            self._fault(f"{path}.kind", kind, f"one of {', '.join(Kind)}")
            kind = Kind.GEMM
        return Series(
            kind=Kind(kind),
            variant=self._text(document, "variant", path),
            dtype=self._text(document, "dtype", path),
            library=self._text(document, "library", path),
            source=self._text(document, "source", path),
            points=tuple(
                self._point(self._as_object(each, f"{path}.points[{place}]"), f"{path}.points[{place}]")
                for place, each in enumerate(self._list(document, "points", path))
            ),
        )

    def _point(self, document: Document, path: str) -> Point:
        self._only(document, path, Point.__slots__)
        shape = tuple(self._number(size, f"{path}.shape") for size in self._list(document, "shape", path))
        return Point(
            shape=shape,
            seconds=self._number(document.get("seconds"), f"{path}.seconds"),
            repeats=self._count(document, "repeats", path),
            spread=self._number(document.get("spread"), f"{path}.spread"),
        )

    def _only(self, document: Document, path: str, known: tuple[str, ...]) -> None:
        for name in document:
            if name not in known:
                self._faults.append(Fault(field=f"{path}.{name}", given="", required="not a field of this format", fix="remove it"))

    def _fault(self, path: str, given: object, required: str) -> None:
        text = "" if given is None else repr(given)
        text = text if len(text) <= 60 else f"{text[:57]}..."
        self._faults.append(Fault(field=path, given=text, required=required if text else f"is missing: {required}"))

    def _text(self, document: Document, name: str, path: str) -> str:
        value = document.get(name)
        if isinstance(value, str):
            return value
        self._fault(f"{path}.{name}", value, "text is needed")
        return ""

    def _count(self, document: Document, name: str, path: str) -> int:
        value = document.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
            return value
        self._fault(f"{path}.{name}", value, "a whole number of 1 or more is needed")
        return 1

    def _number(self, value: JsonValue, path: str) -> float:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        self._fault(path, value, "a number is needed")
        return 1.0

    def _list(self, document: Document, name: str, path: str) -> list[JsonValue]:
        value = document.get(name)
        if isinstance(value, list):
            return value
        self._fault(f"{path}.{name}", value, "a list is needed")
        return []

    def _object(self, document: Document, name: str, path: str) -> Document:
        return self._as_object(document.get(name), f"{path}.{name}")

    def _as_object(self, value: JsonValue, path: str) -> Document:
        if isinstance(value, dict):
            return value
        self._fault(path, value, "an object is needed")
        return {}
