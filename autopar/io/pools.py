"""Pools of GPUs and the rate of what lies between them, as people write them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from autopar.costmodel.spec.errors import Fault, InvalidInputError, raise_if

Pools = Mapping[str, int] | Iterable[str]
"""``{"h100": 64, "a100-40gb": 64}`` or ``["h100=64", "a100-40gb=64"]``: devices or node types, and GPUs of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFile:
    """What a cluster file with ``[[pools]]`` says."""

    sizes: Mapping[str, int | None]
    """GPUs by device or node type; None where the pool's hosts say how many."""
    between: str | float | None = None
    """As :func:`parse_rate` takes it."""
    hosts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Of the pools that name theirs."""


_RATE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?(?:e[+]?[0-9]+)?)\s*([kmgt]?)(b(?:it)?)(?:/s|ps)\s*", re.IGNORECASE)
_SCALES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}


def read_pools(pools: Pools) -> dict[str, int]:
    """``{"h100": 64}`` from a mapping or from ``h100=64``.

    Raises:
        InvalidInputError: with all faults: no number, none above zero, a name twice, fewer than two pools.
    """
    faults: list[Fault] = []
    found: dict[str, int] = {}
    pairs = pools.items() if isinstance(pools, Mapping) else (_pair(text) for text in pools)
    for name, value in pairs:
        digits = re.sub("[,_]", "", str(value).strip())
        if not name or not digits.isascii() or not digits.isdigit() or int(digits) < 1:
            required = "a pool is a device or node type and a number of GPUs above zero"
            faults.append(Fault(field=f"--pool {name}".strip(), given=str(value), required=required, fix="for example h100=64"))
        elif name in found:
            faults.append(Fault(field=f"--pool {name}", given=str(value), required=f"was already given as {found[name]}"))
        else:
            found[name] = int(digits)
    if len(found) < 2 and not faults:
        one = next(iter(found.items()), None)
        fix = f"one kind of GPU is planned for with --gpu {one[0]} --gpus {one[1]}" if one else "for example --pool h100=64 a100=64"
        faults.append(Fault(field="--pool", given=f"{one[0]}={one[1]}" if one else "", required="two pools or more are needed", fix=fix))
    raise_if(faults)
    return found


def _pair(text: str) -> tuple[str, str]:
    name, _, value = str(text).rpartition("=")
    return name.strip(), value


def parse_rate(value: str | float, *, field: str = "--between") -> float:
    """Bytes a second of ``25GB/s``, ``200Gbit/s``, or a number.

    Raises:
        InvalidInputError: not a rate above zero.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        rate = float(value)
    else:
        match = _RATE.fullmatch(str(value))
        rate = 0.0 if match is None else float(match[1]) * _SCALES[match[2].lower()] / (8 if _is_bits(match[3]) else 1)
    if not 1e6 <= rate <= 1e15:
        required = "the rate of one GPU in one direction is needed, 1 MB/s or more"
        raise InvalidInputError(Fault(field=field, given=repr(value), required=required, fix="for example 25GB/s or 200Gbit/s"))
    return rate


def _is_bits(unit: str) -> bool:
    """``b`` and ``bit`` are bits, ``B`` is bytes, as people write them."""
    return unit == "b" or unit.lower() == "bit"
