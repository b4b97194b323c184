"""What would tell two strategies apart."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from autopar.costmodel.separation import CONSTANT_BEHIND, dominating_difference, separating_measurement
from autopar.costmodel.spec.estimate import TimeBreakdown

BASE = TimeBreakdown(**{f.name: 1.0 for f in fields(TimeBreakdown)})


@pytest.mark.parametrize("term", [f.name for f in fields(TimeBreakdown)])
def test_the_largest_difference_decides_either_way(term: str) -> None:
    more = replace(BASE, overhead=1.01, optimizer=0.99) if term not in ("overhead", "optimizer") else BASE
    for seconds, word in ((1.5, "more"), (0.5, "less")):
        other = replace(more, **{term: seconds})
        name, difference = dominating_difference(BASE, other)
        assert (name, difference) == (term, pytest.approx(seconds - 1))
        said = separating_measurement(BASE, other)
        assert f"500 ms {word} {term.replace('_', ' ')}" in said
        assert CONSTANT_BEHIND[term] in said


def test_every_term_has_a_constant_behind_it() -> None:
    assert set(CONSTANT_BEHIND) == {f.name for f in fields(TimeBreakdown)}


def test_two_of_the_same() -> None:
    assert "no term in which they differ" in separating_measurement(BASE, BASE)


def test_no_term_is_named_that_speaks_against_the_whole_difference() -> None:
    """Busiest ranks differ: less bubble in the slower one, and more of several other terms."""
    slower = replace(BASE, pipeline_bubble=0.6, matrix_multiplication=1.3, attention=1.2, elementwise=1.1)
    assert dominating_difference(BASE, slower)[0] == "pipeline_bubble"
    said = separating_measurement(BASE, slower)
    assert "no one term accounts for the difference" in said
    assert "less" not in said
