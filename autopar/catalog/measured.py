"""Measured profiles that are shipped, ``autopar/catalog/profiles/*.json``."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from autopar.costmodel.spec.errors import UnknownNameError
from autopar.costmodel.spec.measured import MeasuredProfile

FOLDER = Path(__file__).parent / "profiles"


@cache
def measured_names() -> tuple[str, ...]:
    """Every shipped profile's name, sorted."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


@cache
def measured_profile(name: str) -> MeasuredProfile:
    """The shipped profile called ``name``.

    Raises:
        UnknownNameError: there is none of that name.
    """
    from autopar.io.measured_file import read_measured

    if name not in measured_names():
        raise UnknownNameError("profile", name, measured_names())
    return read_measured(FOLDER / f"{name}.json")
