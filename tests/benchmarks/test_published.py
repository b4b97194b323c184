"""The search and the accuracy table are one oracle, on every set of measured strategies."""

from __future__ import annotations

import pytest

from benchmarks.search.published import measured_sets, verdict

SETS = list(measured_sets())


def test_the_sets_are_those_of_the_table():
    assert len(SETS) > 120
    assert sum(len(each.measured) for each in SETS) > 1_000


@pytest.mark.parametrize("members", SETS, ids=lambda each: each.name)
def test_search_chooses_what_the_accuracy_table_puts_first_and_everything_is_no_slower(members):
    found = verdict(members)
    assert found is not None
    assert found.agrees
    assert found.gain >= -1e-9, f"{found.found.describe()} is predicted slower than {found.best.describe()}, which was measured"
