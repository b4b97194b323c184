"""Reads the shape of a model from a Hugging Face ``config.json``: offline, and without transformers.

A key that could change the shape and is not understood is an error, never ignored. Sizes that a config
must state are required; flags and derived sizes take the reference implementation's defaults.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from autopar.costmodel.spec.errors import Fault, InvalidInputError, raise_if
from autopar.costmodel.spec.model import ModelSpec, PositionEmbedding

from ._hf_common import INERT, Family
from ._hf_dense import DENSE
from ._hf_fields import Fields, shown
from ._hf_gpt import GPT
from ._hf_moe import MOE

MAX_CONFIG_BYTES = 10 * 1024**2
"""Published configs have a few kilobytes; one larger than this is another file."""
MAX_DIGITS = 100

FAMILIES: dict[str, Family] = {**DENSE, **MOE, **GPT}


def supported_model_types() -> tuple[str, ...]:
    """The values of ``model_type`` that can be read."""
    return tuple(sorted(FAMILIES))


def read_model(path: Path) -> ModelSpec:
    """Read a ``config.json``, or the one in a folder; the model takes the folder's name.

    Raises:
        InvalidInputError: with every fault found, each naming the file and the key.
    """
    file = path
    try:
        if path.is_dir():
            file = path / "config.json"
        config = _load(file)
        name = file.resolve().parent.name if file.name == "config.json" else file.stem
        return model_from_config(config, name=name or "model")
    except InvalidInputError as error:
        faults = error.faults
    except (OSError, ValueError) as error:
        faults = (Fault(field="$", given="", required=f"cannot be read: {getattr(error, 'strerror', None) or error}"),)
    raise InvalidInputError([_in_file(file, fault) for fault in faults])


def _in_file(file: Path, fault: Fault) -> Fault:
    where = _short(file)
    if fault.field != "$":
        return replace(fault, field=f"{where}: {fault.field}")
    return replace(fault, field=where, given="", required=f"{fault.given}: {fault.required}" if fault.given else fault.required)


def model_from_config(config: Mapping[str, object], *, name: str) -> ModelSpec:
    """The model that a parsed config describes.

    Raises:
        InvalidInputError: with every fault found, each naming the key as ``$.key``.
    """
    fields = Fields(values=config)
    model_type = config.get("model_type")
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None:
        given = "" if model_type is None else shown(model_type)
        raise InvalidInputError(Fault(field="$.model_type", given=given, required=f"must be one of {', '.join(supported_model_types())}"))
    for key in ("add_cross_attention", "is_encoder_decoder"):
        fields.only(key, allowed=(False,), default=False, why="only decoder-only models are read")
    fields.only("pruned_heads", allowed=({},), default={}, why="a model with heads pruned is not counted")
    spec, faults = None, list[Fault]()
    try:
        spec = family.read(fields, name)
    except InvalidInputError as error:
        faults = [replace(fault, field=f"$ ({fault.field})") for fault in error.faults]
    fields.unknown(INERT | family.inert)
    raise_if(fields.faults or faults)
    if spec is None:
        raise InvalidInputError("the config describes no model")
    if spec.position_embedding is not PositionEmbedding.ROTARY:
        spec = replace(spec, rotary_base=0.0, rotary_scaling="")
    return replace(spec, source=f"Hugging Face config, model_type {model_type}")


def _load(file: Path) -> Mapping[str, object]:
    """The JSON object in ``file``."""
    text = _read_text(file)
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_int=_integer, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise _fault(f"line {error.lineno} column {error.colno}", f"not JSON: {error.msg}") from None
    except RecursionError:
        raise _fault("", "nested too deeply for a model's config") from None
    if not isinstance(value, dict):
        raise _fault(shown(value), "must be a JSON object")
    return value


def _read_text(file: Path) -> str:
    if not file.is_file():
        raise _fault("", "no such file", "name a config.json, or a folder that holds one")
    with file.open("rb") as stream:
        raw = stream.read(MAX_CONFIG_BYTES + 1)
    if len(raw) > MAX_CONFIG_BYTES:
        raise _fault(f"more than {MAX_CONFIG_BYTES:,} bytes", "too large for a model's config", "name the config.json, not the weights")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _fault("bytes that are not UTF-8", "must be JSON text", "name the config.json, not the weights") from None


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    twice: dict[str, object] = {}
    for key, value in pairs:
        (twice if key in found else found)[key] = value
    raise_if(
        [
            Fault(field=f"$.{shown(key)[1:-1]}", given=shown(value), required="given more than once", fix="keep one")
            for key, value in twice.items()
        ]
    )
    return found


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise _fault(f"{digits[:10]}…", f"no number of a config has more than {MAX_DIGITS} digits")
    return int(digits)


def _short(file: Path) -> str:
    """The path as text that a message can hold: without line breaks or unprintable characters, and not endless."""
    text = "".join(character if character.isprintable() else "?" for character in str(file))
    return text if len(text) <= 300 else f"…{text[-300:]}"


def _refuse_constant(constant: str) -> NoReturn:
    raise _fault(constant, "not a JSON number")


def _fault(given: str, required: str, fix: str = "") -> InvalidInputError:
    return InvalidInputError(Fault(field="$", given=given, required=required, fix=fix))
