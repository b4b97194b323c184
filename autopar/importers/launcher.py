"""Which program a command starts, on how many processes, and with which flags."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autopar.costmodel.spec.errors import Fault, InvalidInputError

from .shell import Command, batch_directives, read_commands

_LAUNCHERS = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate", "deepspeed", "srun", "mpirun")
_NODES = ("nnodes", "num-nodes", "num-machines", "nodes")
_PER_NODE = ("nproc-per-node", "num-gpus", "gpus-per-node", "ntasks-per-node")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A program with its words. ``world_size`` and ``gpus_per_node`` are 0 where the command does not say them."""

    program: str
    words: tuple[str, ...]
    launcher_flags: Mapping[str, str]
    environment: Mapping[str, str]
    world_size: int = 0
    gpus_per_node: int = 0


def read_launch(text: str) -> Launch:
    """The training command in a script or command line: of several, the one with most flags.

    Raises:
        InvalidInputError: there is none, or a quotation does not end.
    """
    commands = [command for command in read_commands(text) if any(word.startswith("-") for word in command.words)]
    if not commands:
        required = "no command with flags is in it"
        raise InvalidInputError(
            Fault(field="command", given=repr(text[:60]), required=required, fix="give the command or script that trains")
        )
    return _launch(max(commands, key=lambda command: sum(word.startswith("--") for word in command.words)), batch_directives(text))


def _launch(command: Command, directives: Mapping[str, str]) -> Launch:
    words = list(command.words)
    start = next((index for index, word in enumerate(words) if word.endswith(".py") and not word.startswith("-")), None)
    if start is None:
        start = _module(words)
    launched = any(word.rsplit("/", 1)[-1] in _LAUNCHERS for word in words[:start])
    before = words[:start] if start is not None else words if launched else []
    flags = dict(directives) | _pairs(before)
    environment = command.environment
    nodes = _count(flags, _NODES) or _number(environment.get("NNODES", ""))
    each = _count(flags, _PER_NODE) or _number(environment.get("GPUS_PER_NODE", "") or environment.get("NGPU", ""))
    total = _count(flags, ("num-processes",))
    world = total or (each * max(nodes, 1) if each and (launched or nodes) else 0)
    if start is None:
        program, rest = "", [word for word in words if not _is_launcher(word)]
    else:
        program, rest = words[start], words[start + 1 :]
    return Launch(
        program=program,
        words=tuple(rest),
        launcher_flags=flags,
        environment=environment,
        world_size=world,
        gpus_per_node=each or (total // nodes if total and nodes else 0),
    )


def _module(words: Sequence[str]) -> int | None:
    """The place of the module that ``-m`` runs, launchers' own aside."""
    places = [index + 1 for index, word in enumerate(words) if word == "-m" and index + 1 < len(words)]
    return next((place for place in places if words[place] not in _LAUNCHERS), None)


def _is_launcher(word: str) -> bool:
    return word.rsplit("/", 1)[-1] in (*_LAUNCHERS, "python", "python3")


def _pairs(words: Sequence[str]) -> dict[str, str]:
    """``--name value`` and ``--name=value`` of a launcher, underscores as hyphens."""
    found: dict[str, str] = {}
    for index, word in enumerate(words):
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            following = words[index + 1] if index + 1 < len(words) and not words[index + 1].startswith("--") else ""
            found[name.replace("_", "-")] = value if equals else following
    return found


def _count(flags: Mapping[str, str], names: Sequence[str]) -> int:
    return next((number for name in names if (number := _number(flags.get(name, "")))), 0)


def _number(text: str) -> int:
    """The last number of ``8``, ``1:4`` or ``gpu:8``; 0 where there is none."""
    found = re.findall(r"\d{1,9}", text)
    return int(found[-1]) if found else 0


def flag_values(words: Sequence[str], taking: Mapping[str, str]) -> tuple[dict[str, object], list[str], list[Fault]]:
    """The flags among ``words`` by name without dashes, the words that belong to none, and what is wrong.

    Args:
        words: after the program's name.
        taking: how many words a known flag takes, ``0``, ``1``, a number, ``?``, ``+`` or ``*``; an unknown one takes those up
            to the next flag.
    """
    values: dict[str, object] = {}
    stray: list[str] = []
    faults: list[Fault] = []
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if not word.startswith("--") or len(word) < 3:
            stray.append(word)
            continue
        name, equals, inline = word[2:].partition("=")
        count = taking.get(name, "*")
        parts: list[str] = [inline] if equals else []
        most = 0 if equals or count == "0" else int(count) if count.isdecimal() else 1 if count == "?" else len(words)
        while len(parts) < most and index < len(words) and not words[index].startswith("--"):
            parts.append(words[index])
            index += 1
        if count.isdecimal() and count != "0" and (len(parts) < int(count) or parts == [""]):
            faults.append(
                Fault(field=f"--{name}", given="", required="its value is missing, or is a variable that the script does not set")
            )
            continue
        value: object = True if not parts else parts[0] if len(parts) == 1 and count not in ("+", "*") else tuple(parts)
        value = value[0] if isinstance(value, tuple) and len(value) == 1 and name not in taking else value
        if name in values and values[name] != value and count != "0":
            faults.append(Fault(field=f"--{name}", given=_text(value), required=f"was already given as {_text(values[name])}"))
        values[name] = value
    return values, stray, faults


def _text(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
