"""Titles of tables on a console."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO

import pytest
from rich.console import Console, RenderableType

from autopar.report.tables import bullet_list, field_table, plain_table, wrapped_table

MAKERS: tuple[Callable[[str], RenderableType], ...] = (
    lambda title: bullet_list(title, ["x"]),
    field_table,
    lambda title: plain_table(title, "a", "b"),
    lambda title: wrapped_table(title, "a", "b"),
)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(("title", "printed"), [("constraints", ["constraints"]), ("a title of two lines", ["a title of", "two lines"])])
def test_a_title_is_as_wide_as_the_console_and_not_as_its_table(
    make: Callable[[str], RenderableType], title: str, printed: list[str]
) -> None:
    """Rich folded "constraints" into "constr" and "aints" over a list of short items."""
    console = Console(file=StringIO(), width=12)
    table = make(title)
    for _ in range(2):  # printing leaves it as it was
        console.print(table)
    assert isinstance(console.file, StringIO)
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]
    assert lines[: len(printed)] == printed
    assert lines.count(printed[0]) == 2
