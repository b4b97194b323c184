"""Durations, token counts and prices as people type them, well and badly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar.costmodel.spec.economics import Price
from autopar.costmodel.spec.errors import InvalidInputError
from autopar.io.quantities import (
    DAY,
    HOUR,
    format_duration,
    format_money,
    parse_duration,
    parse_percent,
    parse_price,
    parse_prices,
    parse_tokens,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30d", 30 * DAY), ("30 days", 30 * DAY), ("12h", 12 * HOUR), ("45min", 2700), ("90 s", 90), ("2 weeks", 14 * DAY),
        ("1,000 h", 3.6e6), ("1.5e2 s", 150), (60, 60), (0.5, 0.5), ("1 year", 31_557_600), ("850ms", 0.85),
    ],
)  # fmt: skip
def test_durations(text: str | float, seconds: float) -> None:
    assert parse_duration(text, field="--deadline") == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("30", "did you mean 30d?"),
        ("30 dyas", "for example 30d, 12h"),
        ("5m", "write 5min"),
        ("-3d", "above zero"),
        ("0d", "above zero"),
        ("", "for example 30d"),
        ("30d 5h", "for example 30d"),
        (-1, "above zero"),
        (float("nan"), "above zero"),
        (float("inf"), "above zero"),
    ],
)
def test_what_is_no_duration_says_what_would_be(text: str | float, message: str) -> None:
    with pytest.raises(InvalidInputError, match=f"--deadline=.*({message})".replace("?", r"\?")):
        parse_duration(text, field="--deadline")


def test_seconds_may_be_bare_where_the_flag_says_seconds() -> None:
    assert parse_duration("60", field="--checkpoint-seconds", bare=True) == 60
    assert parse_duration("2 min", field="--checkpoint-seconds", bare=True) == 120


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("15T", 15e12),
        ("15 T", 15e12),
        ("15t tokens", 15e12),
        ("300B", 300e9),
        ("1.4e12", 1.4e12),
        ("2,000,000", 2e6),
        (10**12, 1e12),
        ("20M", 20e6),
    ],
)
def test_tokens(text: str | float, tokens: float) -> None:
    assert parse_tokens(text) == pytest.approx(tokens)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("15TB", "did you mean 15T?"),
        ("15 tons", "did you mean 15T?"),
        ("many", "for example 15T"),
        ("-1", "above zero"),
        ("0", "above zero"),
    ],
)
def test_what_is_no_number_of_tokens(text: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=f"--tokens=.*{message}".replace("?", r"\?")):
        parse_tokens(text)


@pytest.mark.parametrize(
    ("text", "amount", "currency"),
    [
        ("2.5", 2.5, ""),
        ("$2.5", 2.5, "USD"),
        ("2.5 USD", 2.5, "USD"),
        ("2.5usd", 2.5, "USD"),
        ("2.5 EUR/h", 2.5, "EUR"),
        ("€3", 3, "EUR"),
        (2, 2, ""),
    ],
)
def test_prices(text: str | float, amount: float, currency: str) -> None:
    assert parse_price(text) == Price(per_gpu_hour=amount, currency=currency)


@pytest.mark.parametrize("text", ["two", "2.5 dollars", "$2 USD", "0", "-2", "", "2.5 USD per GPU"])
def test_what_is_no_price(text: str) -> None:
    with pytest.raises(InvalidInputError, match=r"for example 2\.5|above zero"):
        parse_price(text)


def test_prices_by_name() -> None:
    found = parse_prices(["h100-sxm5-80gb=2.5 USD", "$1"])
    assert found == {"h100-sxm5-80gb": Price(per_gpu_hour=2.5, currency="USD"), "": Price(per_gpu_hour=1.0, currency="USD")}
    assert parse_prices({"a100": 1.5})["a100"].per_gpu_hour == 1.5
    assert parse_prices(2.5)[""].per_gpu_hour == 2.5
    assert parse_prices("b200=4")["b200"].per_gpu_hour == 4


def test_every_wrong_price_is_told_at_once() -> None:
    with pytest.raises(InvalidInputError) as raised:
        parse_prices(["a=0", "b=x", "c=2 USD", "d=2 EUR", "c=3 USD"])
    text = str(raised.value)
    for expected in ("--price a='0'", "--price b='x'", "one currency", "already given as 2"):
        assert expected in text


@given(st.floats(1e-3, 1e10))
def test_a_duration_reads_as_it_was_written(seconds: float) -> None:
    assert parse_duration(format_duration(seconds).replace(",", ""), field="x") == pytest.approx(seconds, rel=6e-3)


@pytest.mark.parametrize(
    ("amount", "text"), [(0.042137, "0.04214"), (2.5, "2.5"), (12_345.6, "12,346"), (1_234_567.0, "1.235M"), (2.0, "2")]
)
def test_money(amount: float, text: str) -> None:
    assert format_money(amount) == text
    assert format_money(amount, "USD") == f"{text} USD"


@pytest.mark.parametrize(("text", "share"), [("2%", 0.02), ("0.5 %", 0.005), ("100%", 1.0), ("0%", 0.0)])
def test_percentages(text: str, share: float) -> None:
    assert parse_percent(text, field="--fail-if-slower") == pytest.approx(share)


@pytest.mark.parametrize("text", ["2", "0.02", "two", "-1%", "%", "nan%", ""])
def test_a_percentage_has_its_sign(text: str) -> None:
    with pytest.raises(InvalidInputError, match="for example --fail-if-slower 2%"):
        parse_percent(text, field="--fail-if-slower")
