"""The search and the accuracy table are one oracle, on every set of measured strategies."""

from __future__ import annotations

import pytest

from benchmarks.search.published import measured_sets, verdict

PARTS = 8


@pytest.fixture(scope="module")
def sets():
    return list(measured_sets())


def test_the_sets_are_those_of_the_table(sets):
    assert len(sets) > 120
    assert sum(len(each.measured) for each in sets) > 1_000


@pytest.mark.parametrize("part", range(PARTS))
def test_search_chooses_what_the_accuracy_table_puts_first_and_everything_is_no_slower(sets, part):
    for members in sets[part::PARTS]:
        found = verdict(members)
        assert found is not None, members.name
        assert found.agrees, members.name
        slower = f"{members.name}: {found.found.describe()} is predicted slower than {found.best.describe()}, which was measured"
        assert found.gain >= -1e-9, slower
