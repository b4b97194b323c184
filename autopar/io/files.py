"""Files in and out: bounded reads, and writes that leave the whole file or none."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from autopar.costmodel.spec.errors import Fault, InvalidInputError, raise_if

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


def write_text(path: str | Path, text: str, *, field: str = "output") -> None:
    """Write ``text`` to ``path`` by way of a temporary file beside it: a reader sees the old file or the new one.

    Raises:
        InvalidInputError: the folder is absent or not writable, or ``path`` is a folder.
    """
    path = Path(path)
    try:
        raise_if(target_faults(path, field))
        if path.exists() and not path.is_file():  # /dev/stdout, a pipe: nothing to replace
            path.write_text(text, encoding="utf-8")
        else:
            _replace(path, text)
    except OSError as error:
        raise InvalidInputError(_unusable(field, path, "cannot be written", error)) from None


def target_faults(path: Path, field: str) -> list[Fault]:
    """Why no file can be written at ``path``: it is a folder, or there is none to hold it."""
    if path.is_dir():
        return [Fault(field=field, given=repr(str(path)), required="is a folder, a file name is needed")]
    if not path.parent.is_dir():
        required, fix = f"the folder {path.parent} does not exist", f"`mkdir -p {path.parent}` makes it"
        return [Fault(field=field, given=repr(str(path)), required=required, fix=fix)]
    return []


def _replace(path: Path, text: str) -> None:
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name[:64]}.", suffix=".tmp", dir=path.parent)
    try:
        with open(handle, "w", encoding="utf-8", newline="\n") as stream:  # noqa: PTH123 - a descriptor, not a path
            stream.write(text)
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
