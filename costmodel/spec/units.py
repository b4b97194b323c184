"""Units: SI base units inside, and the one place that turns them into text and back."""

from __future__ import annotations

import re

from .errors import Fault, InvalidInputError

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40
KB, MB, GB, TB = 10**3, 10**6, 10**9, 10**12
TERA, PETA = 1e12, 1e15
MICROSECOND, MILLISECOND = 1e-6, 1e-3
GBIT_PER_SECOND = 1e9 / 8

_BYTE_UNITS = {
    "": 1, "b": 1, "k": KIB, "m": MIB, "g": GIB, "t": TIB,
    "kib": KIB, "mib": MIB, "gib": GIB, "tib": TIB, "kb": KB, "mb": MB, "gb": GB, "tb": TB,
}  # fmt: skip
_QUANTITY = re.compile(r"\s*([0-9]{1,18}(?:\.[0-9]{0,18})?)\s*([A-Za-z]*)\s*")


def parse_bytes(text: str, *, field: str = "bytes") -> int:
    """Read ``4GiB``, ``512MB`` or a bare number of bytes.

    Raises:
        InvalidInputError: the text is not a size.
    """
    match = _QUANTITY.fullmatch(text)
    unit = _BYTE_UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise InvalidInputError(Fault(field=field, given=repr(text), required="a size in bytes is needed", fix="for example 4GiB or 512MB"))
    return round(float(match[1]) * unit)


def format_bytes(value: float) -> str:
    """Bytes as a person reads them, binary: ``79.1 GiB``."""
    for unit, name in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(value) >= unit:
            return f"{value / unit:.{1 if abs(value) >= 100 * unit else 2}f} {name}"
    return f"{value:.0f} B"


def format_seconds(value: float) -> str:
    """Seconds as a person reads them: ``18.1 s``, ``4.20 ms``, ``910 us``."""
    if abs(value) >= 1:
        return f"{value:.3g} s" if abs(value) < 1000 else f"{value:,.0f} s"
    if abs(value) >= MILLISECOND:
        return f"{value / MILLISECOND:.3g} ms"
    return f"{value / MICROSECOND:.3g} us"


def format_count(value: float) -> str:
    """A count as a person reads it: ``175 B`` parameters is ``175.2e9`` written ``175.2B``."""
    for unit, name in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:.4g}{name}"
    return f"{value:.4g}"
