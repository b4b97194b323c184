"""Importers: a framework's configuration becomes a plan that can be estimated, explained and improved."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from autopar.costmodel.spec.errors import Fault, InvalidInputError, UnknownNameError

if TYPE_CHECKING:
    from autopar.costmodel.spec.plan import Plan

    from .complete import Given
    from .imported import Importer, Source

_IMPORTERS = {
    "accelerate": "accelerate:Accelerate",
    "deepspeed": "deepspeed:DeepSpeed",
    "megatron-bridge": "megatron_bridge:MegatronBridge",
    "megatron-lm": "megatron_lm:MegatronLM",
    "nanotron": "nanotron:Nanotron",
    "torchtitan": "torchtitan:Torchtitan",
}

MAX_CONFIGURATION_BYTES = 2**17
"""Those of people have a few kilobytes, and the readers of shell and YAML take seconds for more than this."""


def importer_names() -> tuple[str, ...]:
    """What ``--from`` takes."""
    return tuple(sorted(_IMPORTERS))


def importer(name: str) -> Importer:
    """The importer called ``name``.

    Raises:
        UnknownNameError: there is none; names the close matches.
    """
    if name not in _IMPORTERS:
        raise UnknownNameError("configuration format", name, _IMPORTERS)
    module, _, kind = _IMPORTERS[name].partition(":")
    found: Importer = getattr(import_module(f"{__name__}.{module}"), kind)()
    return found


def import_configuration(given_source: str, framework: str, given: Given) -> Plan:
    """The plan that a configuration runs.

    Args:
        given_source: path of a file, or a command line.
        framework: whose configuration it is, see :func:`importer_names`.
        given: what the configuration leaves unsaid.

    Raises:
        InvalidInputError: it cannot be read, contradicts itself, or leaves something unsaid; all faults at once.
    """
    from .complete import complete

    return complete(importer(framework).read(source_of(given_source)), given)


def source_of(given: str) -> Source:
    """The text of a file, or the command line itself where ``given`` has blanks and is no file.

    Raises:
        InvalidInputError: it is neither, or the file cannot be read.
    """
    from autopar.io.files import read_bytes

    from .imported import Source

    if not _is_file(given) and any(char.isspace() for char in given.strip()):
        return Source(text=given, name="the command", folder=Path.cwd())
    content = read_bytes(given, field="configuration")
    if len(content) > MAX_CONFIGURATION_BYTES:
        required, fix = f"holds {len(content):,} bytes, more than any configuration", "name the script or the settings, not a log"
        raise InvalidInputError(Fault(field="configuration", given=repr(given), required=required, fix=fix))
    try:
        return Source(text=content.decode("utf-8-sig"), name=given, folder=Path(given).resolve().parent)
    except UnicodeDecodeError as error:
        raise InvalidInputError(Fault(field="configuration", given=repr(given), required=f"text in UTF-8 is needed: {error}")) from None


def _is_file(given: str) -> bool:
    try:
        return Path(given).is_file()
    except OSError:  # a command line is longer than a name may be
        return False
