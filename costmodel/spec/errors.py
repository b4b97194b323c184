"""Every error autopar raises on purpose, and the faults they carry.

An error says what was given, what is required and the smallest change that works. All faults of one
input are gathered and raised together, so that a person mends them in one go.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing wrong with an input.

    Args:
        field: the field, flag or path at fault, e.g. ``tensor_parallel_size`` or ``$.stages[2].layers``.
        given: the value found there, as text.
        required: what would be accepted.
        fix: the smallest change that works; empty where none is known.
    """

    field: str
    given: str
    required: str
    fix: str = ""

    def __str__(self) -> str:
        text = f"{self.field}={self.given}: {self.required}" if self.given else f"{self.field}: {self.required}"
        return f"{text}; {self.fix}" if self.fix else text


class AutoparError(Exception):
    """Root of the tree. ``exit_code`` is what the command line returns for it."""

    exit_code = 4


class InvalidInputError(AutoparError, ValueError):
    """The input cannot mean anything: a bad flag, file, model or strategy (exit code 2)."""

    exit_code = 2

    def __init__(self, faults: Sequence[Fault] | Fault | str) -> None:
        if isinstance(faults, str):
            faults = Fault(field="input", given="", required=faults)
        self.faults: tuple[Fault, ...] = (faults,) if isinstance(faults, Fault) else tuple(faults)
        super().__init__("\n".join(str(fault) for fault in self.faults))


class UnknownNameError(InvalidInputError):
    """A device, cluster, model or framework that the catalog does not hold; names the close matches.

    Where there are none, it names the command that lists what there is, or, of other kinds, all that is known.
    """

    def __init__(self, kind: str, given: str, known: Iterable[str]) -> None:
        names = sorted(known)
        lowered = {name.lower(): name for name in names}
        close = difflib.get_close_matches(given.lower(), list(lowered), n=5, cutoff=0.5)
        holding = [name for low, name in lowered.items() if given and given.lower() in low]
        self.matches: tuple[str, ...] = tuple(dict.fromkeys([*holding, *(lowered[c] for c in close)]))[:5]
        listed = {"catalog entry": "", **{each: f" {each}s" for each in ("device", "cluster", "model", "framework")}}
        all_of_them = f"`autopar catalog list{listed[kind]}` names them" if kind in listed else f"known: {', '.join(names)}"
        hint = f"did you mean {', '.join(self.matches)}?" if self.matches else all_of_them
        super().__init__(Fault(field=kind, given=repr(given), required=f"not a known {kind}", fix=hint))


class UnsupportedVersionError(InvalidInputError):
    """A file written by a version of the format that this release does not read."""


class NoPlanError(AutoparError):
    """The question is sound and the answer is no: nothing fits, or the strategy is refused (exit code 1).

    ``answer`` is the same as data, which ``--json`` prints: an :class:`autopar.no_plan.NoPlan`, or None where there is no more
    to say than the message.
    """

    exit_code = 1

    def __init__(self, message: str, answer: object = None) -> None:
        super().__init__(message)
        self.answer = answer


class UnavailableError(AutoparError):
    """Hardware, a package or data that the command needs is absent (exit code 3)."""

    exit_code = 3


def raise_if(faults: Sequence[Fault]) -> None:
    """Raise :class:`InvalidInputError` with all ``faults``, if there are any."""
    if faults:
        raise InvalidInputError(faults)
