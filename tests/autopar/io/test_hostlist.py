"""Nodelist expressions."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar.costmodel.spec.errors import InvalidInputError
from autopar.io.hostlist import expand_hosts, fold_hosts, read_hosts, several

names = st.from_regex(r"[a-z]{1,3}[0-9]{0,3}(-[a-z]{1,2}[0-9]{1,2})?", fullmatch=True)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node[001-003]", ("node001", "node002", "node003")),
        ("n[1-2,9],login", ("n1", "n2", "n9", "login")),
        ("r[1-2]n[08-09]x", ("r1n08x", "r1n09x", "r2n08x", "r2n09x")),
        ("a b,c\n", ("a", "b", "c")),
        ("", ()),
        ("n[8-10]", ("n8", "n9", "n10")),
    ],
)
def test_expressions(text: str, hosts: tuple[str, ...]) -> None:
    assert expand_hosts(text) == hosts


@given(st.lists(names, unique=True, max_size=20))
def test_folded_lists_unfold_again(hosts: list[str]) -> None:
    assert expand_hosts(fold_hosts(hosts)) == tuple(hosts)


def test_runs_are_folded_in_their_order() -> None:
    assert fold_hosts(["n09", "n10", "n11", "n01", "login", "m1"]) == "n[09-11,01],login,m1"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("n[1-", "brackets that close"),
        ("n1]", "brackets that close"),
        ("n[a]", "ranges of numbers"),
        ("n[3-1]", "from the lower to the higher"),
        ("n[1-99999999]", "of at most 1,000,000"),
        ("a[1-1000]b[1-1001]", "at most 1,000,000 hosts"),
    ],
)
def test_bad_expressions(text: str, said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        expand_hosts(text)


def test_hosts_come_from_files_lists_and_words(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# the job's\nn[1-2]  # two\n\nn7\n")
    assert read_hosts(str(file)) == read_hosts(file) == read_hosts(["n1", "n2", "n7"]) == read_hosts("n[1-2],n7")
    with pytest.raises(InvalidInputError, match="hosts=n1: each host once"):
        read_hosts("n1,n2,n1")
    with pytest.raises(InvalidInputError, match="at least one host"):
        read_hosts("")


def test_messages_count_what_they_do_not_name() -> None:
    assert several(["a", "b", "c"]) == "a, b, c"
    assert several(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"
