"""Lists of hosts as Slurm writes them: ``node[001-016,020],gpu7``."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from autopar.costmodel.spec.errors import Fault, InvalidInputError, raise_if

from .files import read_bytes

MAX_HOSTS = 1_000_000
SHOWN = 3
"""Hosts that a message names before it counts the others."""

_PART = re.compile(r"(?:[^,\[\]\s]|\[[^\[\]]*\])+")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_NUMBERED = re.compile(r"(.*?)([0-9]{1,9})")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


def expand_hosts(text: str, *, field: str = "hosts") -> tuple[str, ...]:
    """The hosts of a nodelist expression, in order.

    Raises:
        InvalidInputError: brackets that do not close or hold no ranges; more than a million hosts.

    >>> expand_hosts("node[08-10],login")
    ('node08', 'node09', 'node10', 'login')
    """
    parts = _PART.findall(text)
    if re.sub(r"[,\s]+", "", _PART.sub("", text)):
        raise _fault(field, text, "brackets that close, with ranges in them")
    hosts = tuple(itertools.islice(itertools.chain.from_iterable(_of_part(part, field) for part in parts), MAX_HOSTS + 1))
    if len(hosts) > MAX_HOSTS:
        raise _fault(field, text, f"at most {MAX_HOSTS:,} hosts")
    return hosts


def fold_hosts(names: Sequence[str]) -> str:
    """``names`` as one expression, ranges folded: the inverse of :func:`expand_hosts`.

    >>> fold_hosts(["node08", "node09", "node10", "login"])
    'node[08-10],login'
    """
    runs: list[tuple[str, list[str]]] = []  # a prefix and the numbers that follow each other; no number, no run
    for name in names:
        match = _NUMBERED.fullmatch(name)
        prefix, number = (match[1], match[2]) if match else (name, "")
        if number and runs and runs[-1][0] == prefix and runs[-1][1] and _next(runs[-1][1][-1]) == number:
            runs[-1][1].append(number)
        else:
            runs.append((prefix, [number] if number else []))
    parts: list[str] = []
    for (prefix, _), same in itertools.groupby(runs, key=lambda run: (run[0], bool(run[1]))):
        ranges = [run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for _, run in same if run]
        parts.append(f"{prefix}[{','.join(ranges)}]" if len(ranges) > 1 or "-" in "".join(ranges) else prefix + "".join(ranges))
    return ",".join(parts)


def _next(number: str) -> str:
    return str(int(number) + 1).zfill(len(number))


def read_hosts(given: str | Path | Sequence[str]) -> tuple[str, ...]:
    """The hosts of a job: a file with a host or an expression a line (``#`` begins a comment), an expression, or a sequence of names.

    Raises:
        InvalidInputError: an expression that is none, a host twice, or no host at all.
    """
    if not isinstance(given, str | Path):
        hosts = tuple(given)
    elif isinstance(given, Path) or _is_file(given):
        lines = read_bytes(given, field="hosts").decode("utf-8", "replace").splitlines()
        hosts = tuple(host for line in lines for host in expand_hosts(line.partition("#")[0]))
    else:
        hosts = expand_hosts(given)
    shown = str(given) if isinstance(given, str | Path) else f"{len(hosts)} names"
    twice = [host for host, count in _counted(hosts) if count > 1]
    faults = [Fault(field="hosts", given=several(twice), required="each host once")] if twice else []
    faults += [] if hosts else [Fault(field="hosts", given=repr(shown), required="at least one host", fix="for example node[001-016]")]
    raise_if(faults)
    return hosts


def several(names: Sequence[str]) -> str:
    """``a, b, c and 13 more``."""
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _counted(hosts: Sequence[str]) -> Iterator[tuple[str, int]]:
    counts: dict[str, int] = {}
    for host in hosts:
        counts[host] = counts.get(host, 0) + 1
    yield from counts.items()


def _is_file(text: str) -> bool:
    try:
        return "[" not in text and Path(text).is_file()
    except (OSError, ValueError):
        return False


def _of_part(part: str, field: str) -> Iterator[str]:
    """``rack[1-2]n[01-04]``: every combination, the last bracket fastest."""
    pieces = _BRACKETS.split(part)
    choices = [[piece] if place % 2 == 0 else _numbers(piece, field) for place, piece in enumerate(pieces)]
    return ("".join(combination) for combination in itertools.product(*choices))


def _numbers(inside: str, field: str) -> list[str]:
    found: list[str] = []
    for item in inside.split(","):
        match = _RANGE.fullmatch(item.strip())
        if match is None:
            raise _fault(field, f"[{inside}]", "ranges of numbers, for example [001-016,020]")
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first) or int(last) - int(first) >= MAX_HOSTS:
            raise _fault(field, f"[{inside}]", f"ranges from the lower to the higher number, of at most {MAX_HOSTS:,}")
        found += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return found


def _fault(field: str, given: str, required: str) -> InvalidInputError:
    return InvalidInputError(Fault(field=field, given=repr(given if len(given) <= 60 else given[:57] + "..."), required=required))
