"""Typed access to the keys of one Hugging Face config, gathering every fault before any is raised."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from autopar.costmodel.spec.errors import Fault
from autopar.costmodel.spec.model import MAX_WIDTH

_PRINTER = reprlib.Repr()
_PRINTER.maxlevel, _PRINTER.maxdict, _PRINTER.maxlist, _PRINTER.maxstring, _PRINTER.maxother = 2, 4, 4, 60, 60


def shown(value: object) -> str:
    """``value`` as short text, whatever it is: deep, endless or with more digits than Python prints."""
    try:
        return _PRINTER.repr(value)
    except (ValueError, RecursionError):
        return f"a {type(value).__name__} too large to print"


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(slots=True)
class Fields:
    """One JSON object of a config; remembers which keys were read and what was wrong with them.

    A reader asks for all its keys first and builds the model last: a key nobody asked for is unknown.
    A value at fault reads as the smallest one allowed, so that reading goes on to the next fault.
    """

    values: Mapping[str, object]
    path: str = "$"
    faults: list[Fault] = field(default_factory=list)
    read: set[str] = field(default_factory=set)

    def integer(self, *keys: str, default: int | None = None, minimum: int = 1, maximum: int = MAX_WIDTH) -> int:
        """The integer under the first of ``keys`` (other spellings of one key) that is present and not null.

        Without ``default`` the key is required.
        """
        found = self._given(keys)
        if len({value for value in found.values() if _is_integer(value)}) > 1:
            given = ", ".join(f"{key}={shown(value)}" for key, value in found.items())
            self._fault(keys[0], given, "two spellings of one key must agree", "remove one of them")
        if not found:
            if default is None:
                self._fault(keys[0], "", f"required: an integer from {minimum} to {maximum:,}", "add it")
                return minimum
            return default
        key, value = next(iter(found.items()))
        if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
            self._fault(key, shown(value), f"must be an integer from {minimum} to {maximum:,}")
            return minimum
        return value

    def optional_integer(self, *keys: str, minimum: int = 1, maximum: int = MAX_WIDTH) -> int | None:
        """The integer under one of ``keys``, or None where it is absent or null."""
        return self.integer(*keys, minimum=minimum, maximum=maximum) if self._given(keys) else None

    def number(self, *keys: str, default: float, maximum: float) -> float:
        """The number above 0 under the first of ``keys`` that is present and not null."""
        for key, value in self._given(keys).items():
            if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= maximum:
                return float(value)
            self._fault(key, shown(value), f"must be a number above 0, at most {maximum:g}")
        return default

    def flag(self, key: str, *, default: bool) -> bool:
        """The boolean under ``key``."""
        value = self._given((key,)).get(key, default)
        if not isinstance(value, bool):
            self._fault(key, shown(value), "must be true or false")
            return default
        return value

    def integers(self, key: str, *, limit: int) -> tuple[int, ...] | None:
        """The list of integers under ``key``, at most ``limit`` long, or None where it is absent or null."""
        value = self._given((key,)).get(key)
        if value is None:
            return None
        if isinstance(value, Sequence) and not isinstance(value, str) and len(value) <= limit and all(_is_integer(v) for v in value):
            return tuple(value)
        self._fault(key, shown(value), f"must be a list of at most {limit:,} integers")
        return None

    def words(self, key: str, *, allowed: tuple[str, ...], length: int) -> tuple[str, ...] | None:
        """The list of ``length`` words under ``key``, each one of ``allowed``, or None where it is absent or null."""
        value = self._given((key,)).get(key)
        if value is None:
            return None
        if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != length:
            self._fault(key, shown(value), f"must be a list of {length:,} words, one a layer")
            return None
        if strange := [word for word in value if not isinstance(word, str) or word not in allowed]:
            self._fault(key, shown(strange[0]), f"layers can be {', '.join(allowed)}")
            return None
        return tuple(value)

    def only(self, key: str, *, allowed: tuple[object, ...], default: object, why: str) -> None:
        """Refuse a value of ``key`` that changes the model in a way this release does not count."""
        value = self._given((key,)).get(key, default)
        if not any(type(value) is type(choice) and value == choice for choice in allowed):
            self._fault(key, shown(value), f"{why}; supported: {', '.join(map(repr, allowed))}")

    def nested(self, key: str, *, required: bool) -> Fields:
        """The object under ``key``; its faults count among this one's."""
        value = self._given((key,)).get(key)
        if value is None and required:
            self._fault(key, "", "required: the object that describes the text model", "add it")
        elif value is not None and not isinstance(value, Mapping):
            self._fault(key, shown(value), "must be an object")
            value = None
        return Fields(values=value if isinstance(value, Mapping) else {}, path=f"{self.path}.{key}", faults=self.faults)

    def refuse(self, key: str, given: object, required: str) -> None:
        """Record that the values read cannot mean a model, for a reason only the family knows."""
        self._fault(key, shown(given), required)

    def unknown(self, inert: frozenset[str]) -> None:
        """Record a fault for each key neither read nor in ``inert``."""
        for key in self.values:
            if key not in self.read and key not in inert:
                self._fault(
                    shown(key).strip("'\""), shown(self.values[key]), "unknown key: it may change the model's shape",
                    "remove it if it does not, or describe the model with the fields of a supported family",
                )  # fmt: skip

    def _given(self, keys: tuple[str, ...]) -> dict[str, object]:
        self.read.update(keys)
        return {key: self.values[key] for key in keys if self.values.get(key) is not None}

    def _fault(self, key: str, given: str, required: str, fix: str = "") -> None:
        self.faults.append(Fault(field=f"{self.path}.{key}", given=given, required=required, fix=fix))
