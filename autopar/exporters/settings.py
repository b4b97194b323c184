"""A framework's settings as flat names and values, and tables that say which of them are one field of a plan each.

The same table writes a plan's fields and reads them back, so that what is one-to-one makes a round trip by construction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import TYPE_CHECKING

from autopar.costmodel.spec.errors import Fault

if TYPE_CHECKING:
    from .question import Question

Value = bool | int | float | str | tuple[int | str, ...]
Settings = Mapping[str, Value]


class Kind(StrEnum):
    """What a setting holds."""

    SWITCH = "switch"
    INTEGER = "integer"
    NUMBER = "number"
    TEXT = "text"
    WORDS = "words"
    """Several words, as ``--cp-comm-type p2p a2a``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting of a framework.

    Args:
        name: as the framework spells it.
        kind: what it holds.
        field: the plan's field it is the same as, ``strategy.tensor_parallel_size``; empty where several settings together
            mean a field, which code then handles.
        default: what the framework takes where it is absent; None where it has no default.
        always: written also where the value is the framework's default.
    """

    name: str
    kind: Kind = Kind.INTEGER
    field: str = ""
    default: Value | None = None
    always: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The settings of one framework that autopar understands."""

    settings: tuple[Setting, ...]
    prefix: str = ""
    """What a person types before a name: ``--``."""

    def __getitem__(self, name: str) -> Setting | None:
        return next((setting for setting in self.settings if setting.name == name), None)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(setting.name for setting in self.settings)

    def write(self, question: Question) -> dict[str, Value]:
        """The settings that are one field of the plan each; those at the framework's default are left out unless ``always``."""
        written: dict[str, Value] = {}
        for setting in self.settings:
            if not setting.field:
                continue
            value = attrgetter(setting.field)(question)
            value = str(value) if isinstance(value, StrEnum) else value
            if value is not None and (setting.always or value != setting.default):
                written[setting.name] = value
        return written

    def read(self, settings: Settings) -> dict[str, Value]:
        """The plan's fields that ``settings`` give, the framework's defaults included, by their dotted names."""
        found = {s.field: settings.get(s.name, s.default) for s in self.settings if s.field}
        return {field: value for field, value in found.items() if value is not None}

    def typed(self, given: Mapping[str, object]) -> tuple[dict[str, Value], list[Fault]]:
        """``given`` with each known setting in its own type, and a fault for every one that has another."""
        values: dict[str, Value] = {}
        faults: list[Fault] = []
        for name, raw in given.items():
            setting = self[name]
            value = _plain(raw) if setting is None else _converted(setting.kind, raw)
            if value is None:
                kind = "a value" if setting is None else _WANTED[setting.kind]
                faults.append(Fault(field=f"{self.prefix}{name}", given=repr(raw), required=f"{kind} is needed"))
            else:
                values[name] = value
        return values, faults


_WANTED = {
    Kind.SWITCH: "true or false", Kind.INTEGER: "a whole number", Kind.NUMBER: "a number", Kind.TEXT: "one word",
    Kind.WORDS: "one or more words",
}  # fmt: skip
_TRUE, _FALSE = ("true", "yes", "on"), ("false", "no", "off")


def _plain(raw: object) -> Value | None:
    if isinstance(raw, bool | int | float | str):
        return raw
    if isinstance(raw, tuple | list):
        return tuple(item if isinstance(item, int | str) else str(item) for item in raw)
    return None


def _converted(kind: Kind, raw: object) -> Value | None:
    match kind:
        case Kind.SWITCH:
            return _switch(raw)
        case Kind.INTEGER:
            return _integer(raw)
        case Kind.NUMBER:
            return _number(raw)
        case Kind.TEXT:
            return raw if isinstance(raw, str) else str(raw) if isinstance(raw, int | float) else None
        case Kind.WORDS:
            return (raw,) if isinstance(raw, str) else _plain(raw) if isinstance(raw, tuple | list) else None


def _switch(raw: object) -> bool | None:
    if isinstance(raw, bool):
        return raw
    lowered = raw.lower() if isinstance(raw, str) else ""
    return True if lowered in _TRUE else False if lowered in _FALSE else None


def _integer(raw: object) -> int | None:
    if isinstance(raw, bool):
        return None
    if isinstance(raw, int):
        return raw
    text = raw.strip().replace("_", "") if isinstance(raw, str) else ""
    return int(text) if len(text) <= 18 and text.removeprefix("-").isdecimal() and text.isascii() else None


def _number(raw: object) -> int | float | None:
    if isinstance(raw, int | float) and not isinstance(raw, bool):
        return raw
    try:
        return float(raw) if isinstance(raw, str) else None
    except ValueError:
        return None


def integer(settings: Settings, name: str, default: int) -> int:
    """The whole number under ``name``; ``default`` where it is absent or something else."""
    value = settings.get(name, default)
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def number(settings: Settings, name: str) -> float:
    """The number under ``name``; 0 where it is absent or something else."""
    value = settings.get(name, 0.0)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0


def text(settings: Settings, name: str, default: str = "") -> str:
    """The word under ``name``; ``default`` where it is absent."""
    value = settings.get(name, default)
    return value if isinstance(value, str) else default


def is_on(settings: Settings, name: str) -> bool:
    """Whether the switch ``name`` is set."""
    return settings.get(name) is True


def words(settings: Settings, name: str) -> tuple[str, ...]:
    """The words under ``name``."""
    value = settings.get(name, ())
    return tuple(map(str, value)) if isinstance(value, tuple) else (str(value),)


def in_order(settings: Settings, names: Iterable[str]) -> dict[str, Value]:
    """``settings`` with those of ``names`` first, in that order."""
    first = {name: settings[name] for name in names if name in settings}
    return {**first, **{name: value for name, value in settings.items() if name not in first}}
