"""Prices, budgets and shares as a person writes them on the command line."""

from __future__ import annotations

import math
import re

from autopar.costmodel.spec.errors import Fault, InvalidInputError

_UNITS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}
_COUNT = re.compile(r"([0-9][0-9_,]{0,24}(?:\.[0-9]{1,12})?(?:e[0-9]{1,2})?)\s*([KMBGT]?)", re.IGNORECASE)
_PERCENT = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,9})?)\s*%")
MOST_TOKENS = 1e18


def parse_tokens(text: str, *, field: str = "--tokens") -> float:
    """Tokens from ``15T``, ``300B``, ``3.2e12`` or ``1,000,000``.

    Raises:
        InvalidInputError: the text is no number of tokens, or below one.
    """
    match = _COUNT.fullmatch(text.strip())
    value = float(re.sub("[,_]", "", match[1])) * _UNITS[match[2].upper()] if match else 0.0
    if not 1 <= value <= MOST_TOKENS:
        required = "a number of tokens is needed"
        raise InvalidInputError(Fault(field=field, given=repr(text), required=required, fix="for example 15T or 300B"))
    return value


def parse_price(text: str, *, field: str = "--price-per-gpu-hour") -> float:
    """A price of one GPU for one hour, in any currency: a plain number.

    Raises:
        InvalidInputError: the text is no number, negative, or not finite.
    """
    try:
        value = float(text.strip().replace("_", ""))
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        required = "a price of one GPU for one hour is needed, a number without a currency"
        raise InvalidInputError(Fault(field=field, given=repr(text), required=required, fix=f"for example {field} 2.50"))
    return value


def parse_percent(text: str, *, field: str) -> float:
    """A share from ``2%`` or ``0.5%``.

    Raises:
        InvalidInputError: the text is no percentage; one without the sign could mean two things and is refused.
    """
    match = _PERCENT.fullmatch(text.strip())
    if match is None:
        raise InvalidInputError(Fault(field=field, given=repr(text), required="a percentage is needed", fix=f"for example {field} 2%"))
    return float(match[1]) / 100
