"""Profile files, versioned JSON documents: what ``autopar calibrate`` or ``autopar profile`` writes and ``--profile`` reads."""

from __future__ import annotations

import math
import re
from pathlib import Path

from autopar.costmodel.constants import unknown_constants
from autopar.costmodel.spec.calibration import CALIBRATION_SCHEMA_VERSION, Calibration
from autopar.costmodel.spec.errors import Fault, InvalidInputError, UnsupportedVersionError, raise_if
from autopar.costmodel.spec.measured import MEASURED_KIND, MeasuredProfile

from .codec import from_json_as, load_json, to_json
from .files import content_of, read_bytes, write_text
from .measured_file import parse_measured

KIND = "calibration"


def dump_calibration(calibration: Calibration) -> str:
    """``calibration`` as the text of a profile file."""
    return to_json(calibration)


def parse_calibration(text: str | bytes) -> Calibration:
    """The calibration in the text of a profile file; the inverse of :func:`dump_calibration`.

    Raises:
        UnsupportedVersionError: another major version of the format.
        InvalidInputError: not such a file; has every fault with its path.
    """
    document = load_json(text)
    if not isinstance(document, dict) or document.get("kind") != KIND:
        fix = "`autopar calibrate … -o profile.json` writes one"
        raise InvalidInputError(Fault(field="$.kind", given="", required=f'a profile file says "kind": "{KIND}"', fix=fix))
    _check_version(document.get("schema_version"))
    found = from_json_as(Calibration, text)
    wrong = [
        Fault(
            field=f"$.constants[{found.constants.index(constant)}]",
            given=f"{constant.owner.value} {constant.field} = {constant.value:g}",
            required="not a constant that is fitted, or out of its range",
            fix="calibrate again with this release",
        )
        for constant in unknown_constants(found.constants)
    ]
    raise_if(wrong)
    if found.rows < 1 or not all(math.isfinite(error) and error >= 0 for error in (found.error_before, found.error_after)):
        raise InvalidInputError(
            Fault(field="$.rows", given=str(found.rows), required="a calibration rests on rows, with errors of 0 or more")
        )
    return found


def read_calibration(path: str | Path) -> Calibration:
    """The calibration in the file ``path``; raises as :func:`parse_calibration`, or InvalidInputError when it cannot be read."""
    text = read_bytes(path, field="profile")
    with content_of(path):
        return parse_calibration(text)


def read_profile(path: str | Path) -> Calibration | MeasuredProfile:
    """The profile in the file ``path``, of the kind that it says it is.

    Raises:
        InvalidInputError: neither kind, or not readable; has every fault with its path.
    """
    text = read_bytes(path, field="profile")
    with content_of(path):
        return _parsed(text)


def _parsed(text: bytes) -> Calibration | MeasuredProfile:
    document = load_json(text)
    kind = document.get("kind") if isinstance(document, dict) else None
    if kind not in (KIND, MEASURED_KIND):
        required = f'a profile file says "kind": "{KIND}" or "{MEASURED_KIND}"'
        fix = "`autopar calibrate … -o profile.json` and `autopar profile -o profile.json` write them"
        raise InvalidInputError(Fault(field="$.kind", given="" if kind is None else repr(kind)[:60], required=required, fix=fix))
    return parse_measured(text) if kind == MEASURED_KIND else parse_calibration(text)


def write_calibration(calibration: Calibration, path: str | Path) -> None:
    """Write ``calibration`` to ``path``, whole or not at all."""
    write_text(path, dump_calibration(calibration))


def _check_version(given: object) -> None:
    match = re.fullmatch(r"([0-9]{1,4})\.([0-9]{1,4})", given) if isinstance(given, str) else None
    if match is None:
        required = f"a profile file says its version as major.minor, for example {CALIBRATION_SCHEMA_VERSION!r}"
        raise InvalidInputError(Fault(field="$.schema_version", given="" if given is None else repr(given), required=required))
    if match[1] != CALIBRATION_SCHEMA_VERSION.split(".")[0]:
        required = f"this release of autopar reads profile files of version {CALIBRATION_SCHEMA_VERSION}"
        raise UnsupportedVersionError(Fault(field="$.schema_version", given=str(given), required=required, fix="calibrate again"))
