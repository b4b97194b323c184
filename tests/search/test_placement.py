"""The order of hosts, against every order there is."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.search import placement
from autopar.search.placement import fewest_switches, nested_units, order_hosts, straddles, tree_order, units_of

PODS = {"a": "x", "b": "x", "c": "y", "d": "y"}
leaves = st.lists(st.sampled_from("abcd"), min_size=1, max_size=6)
units = st.sampled_from([(2,), (3,), (2, 4), (4,), (5,), (2, 6)])


def least(rows: Sequence[Sequence[str]], sizes: Sequence[int]) -> int:
    return min(straddles(rows, order, sizes) for order in permutations(range(len(rows[0]))))


@settings(max_examples=60, deadline=None)
@given(row=leaves, sizes=units, pods=st.booleans())
def test_small_orders_are_the_best_there_are(row: list[str], sizes: tuple[int, ...], pods: bool) -> None:
    rows = [row, [PODS[leaf] for leaf in row]] if pods else [row]
    inside = [size for size in sizes if size < len(row)]
    found = order_hosts(rows, sizes)
    assert sorted(found) == list(range(len(row)))
    assert straddles(rows, found, inside) == least(rows, inside)


@given(row=st.lists(st.sampled_from("abcdefgh"), min_size=2, max_size=60), sizes=st.sampled_from([(2, 4, 8, 16), (3, 6), (4, 12)]))
def test_larger_orders_are_no_worse_than_listed_or_by_switch(row: list[str], sizes: tuple[int, ...]) -> None:
    inside = [size for size in sizes if size < len(row)]
    found = order_hosts([row], sizes)
    assert sorted(found) == list(range(len(row)))
    cost = straddles([row], found, inside)
    assert cost <= min(straddles([row], order, inside) for order in (range(len(row)), tree_order([row])))


def test_the_greedy_order_packs_what_is_left_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "EXACT_STATES", 0)
    rows = [list("aaacccbd")]
    word = "".join(rows[0][host] for host in order_hosts(rows, (4,)))
    assert {"".join(sorted(word[:4])), "".join(sorted(word[4:]))} in ({"aaab", "cccd"}, {"aaad", "bccc"})
    assert straddles(rows, tree_order(rows), (4,)) == 3


def test_units_that_do_not_nest_are_left_out() -> None:
    assert order_hosts([list("abbbb")], (2, 3)) == order_hosts([list("abbbb")], (2,))


def test_listed_order_stays_where_nothing_is_better() -> None:
    assert order_hosts([["b", "b", "a", "a"]], (2,)) == (0, 1, 2, 3)
    assert order_hosts([["a", "b", "a", "b"]], (2,)) == (0, 2, 1, 3)
    assert order_hosts([], (2,)) == ()


def test_straddles_counts_every_level() -> None:
    rows = [["a", "b", "c", "d"], ["x", "x", "y", "y"]]
    assert straddles(rows, (0, 1, 2, 3), (2,)) == 2  # two leaves in each block, one pod
    assert straddles(rows, (0, 2, 1, 3), (2,)) == 4


@pytest.mark.parametrize(
    ("row", "wanted", "taken"),
    [("aaabbbbb", 4, "bbbb"), ("aaabbbbb", 3, "aaa"), ("aaabbbbb", 7, "aabbbbb"), ("abcabc", 2, "aa"), ("abc", 3, "abc")],
)
def test_a_part_of_the_hosts_is_under_few_switches(row: str, wanted: int, taken: str) -> None:
    chosen = fewest_switches([list(row)], wanted, len(row))
    assert "".join(sorted(row[host] for host in chosen)) == taken
    assert list(chosen) == sorted(chosen)


def test_pods_are_filled_before_leaves_of_others() -> None:
    row = list("aabbccdd")
    chosen = fewest_switches([row, [PODS[leaf] for leaf in row]], 4, 8)
    assert {PODS[row[host]] for host in chosen} == {"x"}


def test_units() -> None:
    assert nested_units(32) == (2, 4, 8, 16)
    assert nested_units(20) == (2, 4, 8, 16)
    assert nested_units(1) == nested_units(2) == ()
    assert units_of([4, 8, 16, 24, 64], 8) == (2, 3, 8)
