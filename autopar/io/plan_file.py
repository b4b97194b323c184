"""Plan files: a versioned JSON document that stands alone.

``schema_version`` is ``major.minor``. A release reads its own major version; a file of a newer minor one is read
as long as it holds no field that this release does not know.
"""

from __future__ import annotations

import re
from pathlib import Path

from autopar.costmodel.spec.errors import Fault, InvalidInputError, UnsupportedVersionError
from autopar.costmodel.spec.plan import PLAN_SCHEMA_VERSION, Plan

from .codec import from_json_as, load_json, to_json, unknown_fields
from .files import content_of, read_bytes, write_text

_VERSION = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})")


def dump_plan(plan: Plan) -> str:
    """``plan`` as the text of a plan file."""
    return to_json(plan)


def parse_plan(text: str | bytes) -> Plan:
    """The plan in the text of a plan file; the inverse of :func:`dump_plan`.

    Raises:
        UnsupportedVersionError: another major version of the format, or a newer minor one with fields unknown here.
        InvalidInputError: not a plan; has every fault with its path.
    """
    given = _version(text)
    try:
        return from_json_as(Plan, text)
    except InvalidInputError as error:
        if given > _parts(PLAN_SCHEMA_VERSION) and (unknown := unknown_fields(error)):
            raise _unsupported(given, f"; it has {', '.join(fault.field for fault in unknown)}, unknown here") from None
        raise


def read_plan(path: str | Path) -> Plan:
    """The plan in the file ``path``; raises as :func:`parse_plan`, or InvalidInputError when it cannot be read."""
    text = read_bytes(path, field="plan")
    with content_of(path):
        return parse_plan(text)


def write_plan(plan: Plan, path: str | Path) -> None:
    """Write ``plan`` to ``path``, whole or not at all."""
    write_text(path, dump_plan(plan))


def _version(text: str | bytes) -> tuple[int, int]:
    document = load_json(text)
    if not isinstance(document, dict):
        raise InvalidInputError(Fault(field="$", given=type(document).__name__, required="a plan file holds one JSON object"))
    given = document.get("schema_version")
    match = _VERSION.fullmatch(given) if isinstance(given, str) else None
    if match is None:
        required = f"a plan file says its version as major.minor, for example {PLAN_SCHEMA_VERSION!r}"
        raise InvalidInputError(Fault(field="$.schema_version", given="" if given is None else repr(given), required=required))
    version = int(match[1]), int(match[2])
    if version[0] != _parts(PLAN_SCHEMA_VERSION)[0]:
        raise _unsupported(version, "")
    return version


def _parts(version: str) -> tuple[int, int]:
    major, minor = version.split(".")
    return int(major), int(minor)


def _unsupported(given: tuple[int, int], detail: str) -> UnsupportedVersionError:
    major, minor = _parts(PLAN_SCHEMA_VERSION)
    newer = given > (major, minor)
    return UnsupportedVersionError(
        Fault(
            field="$.schema_version",
            given=f"{given[0]}.{given[1]}",
            required=f"this release of autopar reads plan files of version {major}.0 to {major}.{minor}{detail}",
            fix="upgrade autopar, or plan again" if newer else "plan again with this release",
        )
    )
