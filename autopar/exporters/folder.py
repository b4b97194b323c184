"""Writes the files of an export: all of them or none."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from autopar.costmodel.spec.errors import Fault, InvalidInputError, raise_if

from .exporter import ExportedFile


def write_files(files: Sequence[ExportedFile], folder: str | Path) -> tuple[Path, ...]:
    """Write ``files`` into ``folder``, which is made where it is absent.

    Everything is written beside the folder first and moved in when it is whole; where a move fails, files that were
    replaced are put back and new ones taken away.

    Raises:
        InvalidInputError: the folder cannot be written to, or something other than a file is in the way.
    """
    target = Path(folder)
    faults = [
        Fault(field="output", given=repr(str(target / file.path)), required="is a folder, a file goes there")
        for file in files
        if (target / file.path).is_dir()
    ]
    if target.exists() and not target.is_dir():
        faults.append(Fault(field="output", given=repr(str(target)), required="is a file, a folder is needed"))
    elif not target.parent.is_dir():
        fix = f"`mkdir -p {target.parent}` makes it"
        faults.append(Fault(field="output", given=repr(str(target)), required=f"the folder {target.parent} does not exist", fix=fix))
    raise_if(faults)
    try:
        return _write(files, target)
    except OSError as error:
        required = f"cannot be written: {error.strerror or error}"
        raise InvalidInputError(Fault(field="output", given=repr(str(target)), required=required)) from None


def _write(files: Sequence[ExportedFile], target: Path) -> tuple[Path, ...]:
    made = not target.exists()
    target.mkdir(exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".autopar-", dir=target))
    try:
        for file in files:
            _stage(file, staging / "new")
        _move(files, staging, target)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        if made:
            target.rmdir()
        raise
    shutil.rmtree(staging, ignore_errors=True)
    return tuple(target / file.path for file in files)


def _stage(file: ExportedFile, folder: Path) -> None:
    path = folder / file.path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(file.text, encoding="utf-8", newline="\n")
    path.chmod(0o755 if file.executable else 0o644)


def _move(files: Sequence[ExportedFile], staging: Path, target: Path) -> None:
    old = staging / "old"
    done: list[tuple[Path, Path]] = []
    try:
        for file in files:
            place, kept = target / file.path, old / file.path
            place.parent.mkdir(parents=True, exist_ok=True)
            kept.parent.mkdir(parents=True, exist_ok=True)
            if place.exists():
                os.replace(place, kept)  # noqa: PTH105 - the counterpart of the move back
            done.append((place, kept))
            os.replace(staging / "new" / file.path, place)  # noqa: PTH105
    except BaseException:
        for place, kept in reversed(done):
            place.unlink(missing_ok=True)
            if kept.exists():
                os.replace(kept, place)  # noqa: PTH105
        raise
