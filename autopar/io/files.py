"""Files in and out: bounded reads, and writes that leave the whole file or none."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from autopar.costmodel.spec.errors import Fault, InvalidInputError, UnsupportedVersionError, raise_if

MAX_FILE_BYTES = 64 * 2**20


def read_bytes(path: str | Path, *, field: str = "file") -> bytes:
    """The content of a regular file of at most 64 MiB.

    Raises:
        InvalidInputError: it is absent, not a file, not readable or too large.
    """
    path = Path(path)
    try:
        if not path.is_file():
            required = "is a folder, a file is needed" if path.is_dir() else "no such file"
            raise InvalidInputError(Fault(field=field, given=repr(str(path)), required=required))
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            required = f"holds {size:,} bytes, more than the {MAX_FILE_BYTES:,} that are read"
            raise InvalidInputError(Fault(field=field, given=repr(str(path)), required=required))
        return path.read_bytes()
    except OSError as error:
        raise InvalidInputError(_unusable(field, path, "cannot be read", error)) from None


@contextmanager
def content_of(path: str | Path) -> Iterator[None]:
    """Faults of a file's content name the file: a command may have read several."""
    try:
        yield
    except InvalidInputError as error:
        kind = UnsupportedVersionError if isinstance(error, UnsupportedVersionError) else InvalidInputError
        raise kind([replace(fault, field=f"{path}: {fault.field}") for fault in error.faults]) from None


def write_folder(folder: str | Path, files: Iterable[tuple[str, bytes]], *, field: str) -> tuple[str, ...]:
    """Write ``(name, content)`` files into ``folder``, which is made where it is absent; returns their names.

    All contents are there before the first file is written, and each replaces an old one whole.

    Raises:
        InvalidInputError: the folder cannot be made or written to.
    """
    path = Path(folder)
    contents = list(files)
    raise_if(folder_faults(path, field=field))
    try:
        path.mkdir(exist_ok=True)
        for name, content in contents:
            _replace(path / name, content)
    except OSError as error:
        raise InvalidInputError(_unusable(field, path, "cannot be written", error)) from None
    return tuple(name for name, _ in contents)


def folder_faults(path: str | Path, *, field: str) -> list[Fault]:
    """What keeps ``path`` from being a folder to write into."""
    path = Path(path)
    if path.exists() and not path.is_dir():
        return [Fault(field=field, given=repr(str(path)), required="is a file, a folder is needed")]
    return [] if path.is_dir() else _parent_faults(path, field)


def write_text(path: str | Path, text: str, *, field: str = "output") -> None:
    """Write ``text`` to ``path`` by way of a temporary file beside it: a reader sees the old file or the new one.

    Raises:
        InvalidInputError: the folder is absent or not writable, or ``path`` is a folder.
    """
    path = Path(path)
    try:
        raise_if(target_faults(path, field=field))
        if path.exists() and not path.is_file():  # /dev/stdout, a pipe: nothing to replace
            path.write_text(text, encoding="utf-8")
        else:
            _replace(path, text.encode("utf-8"))
    except OSError as error:
        raise InvalidInputError(_unusable(field, path, "cannot be written", error)) from None


def target_faults(path: str | Path, *, field: str) -> list[Fault]:
    """What keeps a file from being written at ``path``, as far as can be told without writing."""
    path = Path(path)
    if path.is_dir():
        return [Fault(field=field, given=repr(str(path)), required="is a folder, a file name is needed")]
    return _parent_faults(path, field)


def _parent_faults(path: Path, field: str) -> list[Fault]:
    if not path.parent.is_dir():
        required, fix = f"the folder {path.parent} does not exist", f"`mkdir -p {path.parent}` makes it"
        return [Fault(field=field, given=repr(str(path)), required=required, fix=fix)]
    return []


def _replace(path: Path, content: bytes) -> None:
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name[:64]}.", suffix=".tmp", dir=path.parent)
    try:
        with open(handle, "wb") as stream:  # noqa: PTH123 - a descriptor, not a path
            stream.write(content)
            stream.flush()
            os.fsync(handle)
            os.fchmod(handle, _mode(path))
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _mode(path: Path) -> int:
    """Permissions of the file that is replaced, or those a new file would get."""
    if path.exists():
        return path.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _unusable(field: str, path: Path, what: str, error: OSError) -> Fault:
    return Fault(field=field, given=repr(str(path)), required=f"{what}: {error.strerror or error}")
