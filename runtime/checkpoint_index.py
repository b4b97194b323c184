"""The index of a checkpoint, ``checkpoint.json``: what it holds, in a form that needs no torch to read."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from autopar.costmodel.spec.errors import Fault, InvalidInputError

INDEX_FILE = "checkpoint.json"
INDEX_SCHEMA_VERSION = "1.0"
MAX_NAMES = 8
"""Differing names told of each kind; the rest are counted."""

Shape = tuple[tuple[int, ...], str]
"""Shape of the whole tensor, and its type (``float32``)."""
Plain = float | int | bool | str | None | tuple["Plain", ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One group of an optimizer: its settings, and the parameters that have them."""

    settings: Mapping[str, Plain]
    parameters: tuple[str, ...]

    @staticmethod
    def merged(groups: Iterable[Settings]) -> tuple[Settings, ...]:
        """Groups with the same settings made one, as ranks hold parts of each."""
        names: dict[str, set[str]] = {}
        settings: dict[str, Mapping[str, Plain]] = {}
        for group in groups:
            key = json.dumps(group.settings, sort_keys=True)
            settings[key] = group.settings
            names.setdefault(key, set()).update(group.parameters)
        return tuple(Settings(settings=settings[key], parameters=tuple(sorted(names[key]))) for key in settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """Everything about a checkpoint but its numbers."""

    step: int
    seed: int
    layout: str
    optimizer: str
    torch_version: str
    tensors: Mapping[str, Shape]
    settings: tuple[Settings, ...]
    values: Mapping[str, Mapping[str, Plain]]
    """Parameter name -> the optimizer's states that are no tensors."""
    files: Mapping[str, FileSeal]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSeal:
    """What tells a file that was damaged."""

    size: int
    crc32: int

    @classmethod
    def of(cls, path: Path) -> FileSeal:
        size, crc = 0, 0
        with path.open("rb") as stream:
            while block := stream.read(_BLOCK):
                size, crc = size + len(block), zlib.crc32(block, crc)
        return cls(size=size, crc32=crc)


_BLOCK = 2**22


def write_index(folder: Path, index: Index) -> None:
    """Write the index and flush it to the disk."""
    document = {"schema_version": INDEX_SCHEMA_VERSION, **asdict(index)}
    with (folder / INDEX_FILE).open("w", encoding="utf-8") as stream:
        json.dump(document, stream, indent=1)
        stream.write("\n")
        stream.flush()
        os.fsync(stream.fileno())


def read_index(folder: Path) -> Index:
    """The index of the checkpoint ``folder``.

    Raises:
        InvalidInputError: no index, or not one of this version.
    """
    try:
        document = json.loads((folder / INDEX_FILE).read_text(encoding="utf-8"))
        version = str(document.pop("schema_version"))
        if version.split(".")[0] != INDEX_SCHEMA_VERSION.split(".")[0]:
            raise InvalidInputError(_fault(folder, f"is of version {version}; this release reads {INDEX_SCHEMA_VERSION}"))
        return _index(document)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, InvalidInputError):
            raise
        raise InvalidInputError(_fault(folder, f"{INDEX_FILE} cannot be read: {error or type(error).__name__}")) from None


def data_files(folder: Path) -> tuple[Path, ...]:
    """The files of the checkpoint beside its index, in order of name."""
    return tuple(path for path in sorted(folder.iterdir()) if path.is_file() and path.name != INDEX_FILE)


def damage(folder: Path, files: Mapping[str, FileSeal]) -> tuple[Fault, ...]:
    """Of ``files``, those that are missing, cut short or changed."""
    faults = []
    for name, seal in files.items():
        path = folder / name
        found = FileSeal.of(path) if path.is_file() else None
        if found is None:
            faults.append(_fault(path, "is missing"))
        elif found.size != seal.size:
            faults.append(_fault(path, f"is damaged: it holds {found.size:,} bytes, {seal.size:,} were written"))
        elif found != seal:
            faults.append(_fault(path, "is damaged: its content is not what was written"))
    return tuple(faults)


def differences(index: Index, expected: Mapping[str, Shape]) -> tuple[Fault, ...]:
    """What keeps the checkpoint from being that of a model and optimizer with the tensors ``expected``, all at once."""
    missing = sorted(set(expected) - set(index.tensors))
    unexpected = sorted(set(index.tensors) - set(expected))
    both = sorted(set(expected) & set(index.tensors))
    shapes = [f"{name} {_shape(index.tensors[name])}, needed {_shape(expected[name])}" for name in both if _differs(index, expected, name)]
    told = (
        (missing, "are needed and not in it"),
        (unexpected, "are in it and not needed"),
        (shapes, "have another shape"),
    )
    return tuple(
        Fault(field="checkpoint", given="", required=f"{len(names)} tensors {what}: {_few(names)}", fix=_fix(names, what))
        for names, what in told
        if names
    )


def _differs(index: Index, expected: Mapping[str, Shape], name: str) -> bool:
    return index.tensors[name][0] != expected[name][0]


def _fix(names: list[str], what: str) -> str:
    if "shape" not in what and all(name.startswith("optimizer.") for name in names):
        return "the optimizer is of another kind, or trains other parameters"
    return ""


def _few(names: list[str]) -> str:
    more = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")


def _shape(shape: Shape) -> str:
    return f"{'x'.join(map(str, shape[0])) or 'scalar'} {shape[1]}"


def _index(document: dict[str, object]) -> Index:
    tensors, settings, files = document.pop("tensors"), document.pop("settings"), document.pop("files")
    if not isinstance(tensors, dict) or not isinstance(settings, list) or not isinstance(files, dict):
        raise TypeError("tensors, settings and files are needed")
    return Index(
        tensors={name: (tuple(int(n) for n in shape), str(kind)) for name, (shape, kind) in tensors.items()},
        settings=tuple(Settings(settings=dict(group["settings"]), parameters=tuple(group["parameters"])) for group in settings),
        files={name: FileSeal(**seal) for name, seal in files.items()},
        **document,  # type: ignore[arg-type]
    )


def _fault(path: Path, required: str) -> Fault:
    return Fault(field="checkpoint", given=repr(str(path)), required=required)
