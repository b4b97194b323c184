"""Durations, token counts, prices and shares as people write them; what is mistyped says what would be read."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

from autopar.costmodel.spec.economics import Price
from autopar.costmodel.spec.errors import Fault, InvalidInputError, raise_if

MINUTE, HOUR, DAY, WEEK, YEAR = 60.0, 3600.0, 86_400.0, 604_800.0, 31_557_600.0
_DURATIONS = {
    "us": 1e-6,
    "ms": 1e-3,
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), MINUTE),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), HOUR),
    **dict.fromkeys(("d", "day", "days"), DAY),
    **dict.fromkeys(("w", "week", "weeks"), WEEK),
    **dict.fromkeys(("y", "yr", "year", "years"), YEAR),
}
_COUNTS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
_NUMBER = r"(?:[0-9]{1,3}(?:[,_][0-9]{3})+|[0-9]{1,18})(?:\.[0-9]{1,18})?(?:e[+]?[0-9]{1,2})?"
_MEASURED = re.compile(rf"([-+]?)\s*({_NUMBER})\s*([a-z/$€£]*)", re.IGNORECASE | re.ASCII)
_MONEY, _AN_HOUR = r"([a-z]{3}|[$€£])?", r"(?:/\s*(?:gpu[-\s]?)?(?:h|hr|hour))?"
_PRICED = re.compile(rf"{_MONEY}\s*([-+]?)\s*({_NUMBER})\s*{_MONEY}\s*{_AN_HOUR}", re.IGNORECASE)
_PERCENT = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,9})?)\s*%")
_SIGNS = {"$": "USD", "€": "EUR", "£": "GBP"}


def parse_duration(value: str | float, *, field: str, bare: bool = False) -> float:
    """Seconds of ``30d``, ``30 days``, ``12h``, ``45min`` or ``90 s``.

    Args:
        value: the text; a number is taken as seconds.
        field: the flag, for the message.
        bare: whether a text without a unit means seconds too.

    Raises:
        InvalidInputError: not a duration, without a unit, zero or negative.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _positive(float(value), f"{value:g}", field, "a time")
    text = str(value).strip()
    match = _MEASURED.fullmatch(text)
    unit = match[3].lower() if match else ""
    scale = 1.0 if bare and not unit else _DURATIONS.get(unit)
    if match is None or scale is None:
        required = "a time without a unit" if match is not None and not unit else "not a time that is understood"
        fix = f"did you mean {text}d?" if match is not None and not unit else "for example 30d, 12h, 45min or 90s"
        if unit == "m":
            required, fix = "m is a month to some and a minute to others", "write 5min for minutes, and months in days"
        raise InvalidInputError(Fault(field=field, given=repr(text), required=required, fix=fix))
    return _positive(_number(match) * scale, repr(text), field, "a time")


def parse_tokens(value: str | float, *, field: str = "--tokens") -> float:
    """Tokens of ``15T``, ``300B``, ``1.4e12`` or ``2,000,000``.

    Raises:
        InvalidInputError: not a count, below one.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _positive(float(value), f"{value:g}", field, "a number of tokens")
    text = str(value).strip()
    match = _MEASURED.fullmatch(re.sub(r"\s*tokens?$", "", text, flags=re.IGNORECASE))
    scale = _COUNTS.get(match[3].lower()) if match else None
    if match is None or scale is None:
        close = match[2] + match[3][0].upper() if match is not None and match[3][:1].lower() in _COUNTS and match[3] else ""
        fix = f"did you mean {close}?" if close else "for example 15T, 300B or 1.4e12"
        raise InvalidInputError(Fault(field=field, given=repr(text), required="not a number of tokens that is understood", fix=fix))
    return _positive(_number(match) * scale, repr(text), field, "a number of tokens")


def parse_price(value: str | float, *, field: str = "--price") -> Price:
    """The price of a GPU-hour of ``2.5``, ``$2.50``, ``2.5 USD`` or ``2.5 EUR/h``.

    Raises:
        InvalidInputError: not a price, zero or negative.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Price(per_gpu_hour=_positive(float(value), f"{value:g}", field, "a price"))
    text = str(value).strip()
    match = _PRICED.fullmatch(text)
    if match is None or (match[1] and match[4]):
        fix = "a price of one GPU for one hour, for example 2.5 or '2.5 USD'"
        raise InvalidInputError(Fault(field=field, given=repr(text), required="not a price that is understood", fix=fix))
    sign = match[1] or match[4] or ""
    amount = float(re.sub("[,_]", "", match[3])) * (-1 if match[2] == "-" else 1)
    return Price(per_gpu_hour=_positive(amount, repr(text), field, "a price"), currency=_SIGNS.get(sign, sign.upper()))


def parse_prices(texts: Iterable[str] | Mapping[str, str | float] | str | float, *, field: str = "--price") -> dict[str, Price]:
    """``{device or cluster: price}`` of ``h100-sxm5-80gb=2.5``; a bare price is for all, under the empty name.

    Raises:
        InvalidInputError: with every fault; two currencies, which nobody told how to convert, or two prices for one name.
    """
    faults: list[Fault] = []
    prices: dict[str, Price] = {}
    for name, value in _named(texts):
        where = f"{field} {name}".strip()
        try:
            price = parse_price(value, field=where)
        except InvalidInputError as error:
            faults += error.faults
            continue
        if prices.get(name, price) != price:
            faults.append(Fault(field=where, given=repr(value), required=f"was already given as {prices[name].per_gpu_hour:g}"))
        prices[name] = price
    currencies = sorted({price.currency for price in prices.values()})
    if len(currencies) > 1:
        given = ", ".join(each or "none" for each in currencies)
        required = "prices are compared in one currency"
        faults.append(Fault(field=field, given=given, required=required, fix="give all of them in the same one"))
    raise_if(faults)
    return prices


def _named(texts: Iterable[str] | Mapping[str, str | float] | str | float) -> list[tuple[str, str | float]]:
    if isinstance(texts, Mapping):
        return list(texts.items())
    if isinstance(texts, str | int | float):
        texts = [str(texts)]
    found: list[tuple[str, str | float]] = []
    for text in texts:
        name, equals, value = text.rpartition("=")
        found.append((name.strip() if equals else "", value))
    return found


def parse_percent(text: str, *, field: str) -> float:
    """A share from ``2%`` or ``0.5%``.

    Raises:
        InvalidInputError: the text is no percentage; one without the sign could mean two things and is refused.
    """
    match = _PERCENT.fullmatch(text.strip())
    if match is None:
        raise InvalidInputError(Fault(field=field, given=repr(text), required="a percentage is needed", fix=f"for example {field} 2%"))
    return float(match[1]) / 100


def format_duration(seconds: float) -> str:
    """A duration as a person reads it: ``29.4 days``, ``7.5 hours``, ``12 min``."""
    for unit, name in ((DAY, "days"), (HOUR, "hours"), (MINUTE, "min")):
        if seconds >= (unit if unit == MINUTE else 2 * unit):
            amount = seconds / unit
            return f"{amount:,.0f} {name}" if amount >= 1000 else f"{amount:.3g} {name}"
    return f"{seconds:.3g} s"


def format_money(amount: float, currency: str = "") -> str:
    """An amount as a person reads it: ``1.24M USD``, ``3,140``, ``0.0421``."""
    whole = f"{amount / 1e6:,.3f}M" if amount >= 1e6 else f"{amount:,.0f}"
    return f"{whole if amount >= 1000 else f'{amount:.4g}'} {currency}".strip()


def _number(match: re.Match[str]) -> float:
    return float(re.sub("[,_]", "", match[2])) * (-1 if match[1] == "-" else 1)


def _positive(value: float, given: str, field: str, what: str) -> float:
    if not value > 0 or not math.isfinite(value):
        raise InvalidInputError(Fault(field=field, given=given, required=f"{what} above zero is needed"))
    return value
