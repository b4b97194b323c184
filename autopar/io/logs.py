"""Training logs of Megatron-LM, torchtitan and DeepSpeed as measured runs.

A log has one configuration. What it says of it comes back as ``facts``, named as the columns of a table of runs; what
it does not say (often the device, the model) stays absent. The step time is the median of the logged steps after warm-up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from autopar.costmodel.spec.errors import Fault, InvalidInputError

from .files import read_bytes

Fact = str | int | float | bool

WARM_UP_SHARE = 0.1
WARM_UP_STEPS = 3
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_LONGEST_STEP_SECONDS = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one line says: the iteration (or step) it was printed after, and seconds of one step."""

    number: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """What a format's reader found."""

    facts: Mapping[str, Fact]
    steps: tuple[Step, ...]
    peak_memory_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRun:
    """One log: its configuration as far as it says it, and its step time in seconds."""

    path: str
    kind: str
    """``megatron``, ``torchtitan`` or ``deepspeed``."""
    facts: Mapping[str, Fact]
    step_time_seconds: float
    steps_logged: int
    steps_used: int
    """After warm-up."""
    peak_memory_bytes: float | None


def read_log(path: str | Path) -> LoggedRun:
    """The run in the log file ``path``.

    Raises:
        InvalidInputError: it cannot be read, is no log of the three frameworks, or has too few steps after warm-up.
    """
    return parse_log(read_bytes(path, field="log").decode("utf-8", errors="replace"), name=str(path))


def parse_log(text: str, *, name: str = "log") -> LoggedRun:
    """The run in the text of a log; see :func:`read_log`.

    Warm-up is the first tenth of the logged lines and at least 3 of them: compilation, allocator growth, first touch of data.
    """
    from . import _log_deepspeed, _log_megatron, _log_torchtitan

    lines = [_COLOUR.sub("", line) for line in text.splitlines()]
    for kind, read in (("megatron", _log_megatron.read), ("torchtitan", _log_torchtitan.read), ("deepspeed", _log_deepspeed.read)):
        found = read(lines)
        if found is not None:
            used = _after_warm_up(found.steps, name)
            return LoggedRun(
                path=name,
                kind=kind,
                facts=found.facts,
                step_time_seconds=median(step.seconds for step in used),
                steps_logged=len(found.steps),
                steps_used=len(used),
                peak_memory_bytes=found.peak_memory_bytes,
            )
    required = "no steps in the form that Megatron-LM, torchtitan or DeepSpeed print them"
    raise InvalidInputError(Fault(field="log", given=repr(name), required=required))


def _after_warm_up(steps: Sequence[Step], name: str) -> Sequence[Step]:
    """The steps after warm-up; a job that restarted within its log warms up again."""
    runs: list[list[Step]] = [[]]
    for step in steps:
        if runs[-1] and step.number <= runs[-1][-1].number:
            runs.append([])
        runs[-1].append(step)
    used = [step for run in runs for step in run[max(WARM_UP_STEPS, -int(-len(run) * WARM_UP_SHARE // 1)) :]]
    used = [step for step in used if 0 < step.seconds < _LONGEST_STEP_SECONDS]
    if not used:
        required = f"more than {WARM_UP_STEPS} logged steps are needed, since the first {WARM_UP_STEPS} are warm-up"
        raise InvalidInputError(Fault(field="log", given=repr(name), required=f"{len(steps)} logged; {required}"))
    return used


# -- what the readers share ---------------------------------------------------------------------------------


def dotted_settings(lines: Iterable[str]) -> dict[str, str]:
    """``name ........ value`` lines, as argument dumps print them; the last one of a name counts.

    One dot is enough: the dots fill a column, and a name that nearly fills it leaves few.
    """
    found = {}
    for line in lines:
        if match := _DOTTED.search(line):
            found[match[1]] = match[2].strip()
    return found


_DOTTED = re.compile(r"(?:^|\s)([a-z][a-z0-9_]*) \.+ (.+)$")


def whole(text: str | None) -> int | None:
    """``text`` as a whole number; None where it is none (``None``, a list, blank)."""
    if text is None or not re.fullmatch(r"[0-9]{1,15}(\.0*)?", text.replace(",", "").strip()):
        return None
    return int(float(text.replace(",", "")))


def flag(text: str | None) -> bool | None:
    """``True`` or ``False`` as Python and JSON print them."""
    return {"true": True, "false": False}.get((text or "").strip().lower())


def known(**facts: Fact | None) -> dict[str, Fact]:
    """The facts that are known."""
    return {name: value for name, value in facts.items() if value is not None}
