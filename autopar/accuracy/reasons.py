"""Why a row cannot be scored."""

from __future__ import annotations


class UnscorableError(Exception):
    """The reason why a row cannot be scored."""


def known(value: int | None) -> int:
    if value is None:
        raise UnscorableError("a size is not stated")
    return value
