"""Prices, token counts and percentages as people write them, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar.costmodel.spec.errors import InvalidInputError
from autopar.io.quantities import parse_percent, parse_price, parse_tokens


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("15T", 15e12),
        ("300B", 300e9),
        ("300 b", 300e9),
        ("3.2e12", 3.2e12),
        ("1,000,000", 1e6),
        ("1_000", 1e3),
        ("2.5M", 2.5e6),
        ("7k", 7e3),
    ],
)
def test_tokens(text: str, tokens: float) -> None:
    assert parse_tokens(text) == pytest.approx(tokens)


@pytest.mark.parametrize("text", ["", "many", "-1", "0", "15 TB", "nan", "inf", "1e30", "T", "1.2.3", "٣"])
def test_no_number_of_tokens(text: str) -> None:
    with pytest.raises(InvalidInputError, match="a number of tokens is needed; for example 15T"):
        parse_tokens(text)


@given(value=st.floats(0, 1e6))
def test_a_price_is_read_as_it_is_printed(value: float) -> None:
    assert parse_price(repr(value)) == value


@pytest.mark.parametrize("text", ["", "$2", "2,50", "free", "nan", "inf", "-1", "2.5 EUR"])
def test_no_price(text: str) -> None:
    with pytest.raises(InvalidInputError, match=r"a price of one GPU for one hour is needed.*for example --price-per-gpu-hour 2\.50"):
        parse_price(text)


@pytest.mark.parametrize(("text", "share"), [("2%", 0.02), ("0.5 %", 0.005), ("0%", 0.0), ("150%", 1.5)])
def test_percentages(text: str, share: float) -> None:
    assert parse_percent(text, field="--fail-if-slower") == pytest.approx(share)


@pytest.mark.parametrize("text", ["2", "0.02", "two", "-1%", "%", "nan%", ""])
def test_a_percentage_has_its_sign(text: str) -> None:
    with pytest.raises(InvalidInputError, match="for example --fail-if-slower 2%"):
        parse_percent(text, field="--fail-if-slower")
