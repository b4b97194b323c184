"""The looks of a report, in one place."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text


class Titled(Table):
    """A table under a title that may be wider than it: rich itself folds a title at the table's edge, within words."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        title, self.title = self.title, None
        try:
            if title:
                yield Text(str(title), style=self.title_style or "")
            yield from super().__rich_console__(console, options)
        finally:
            self.title = title


def plain_table(title: str, *columns: str, left: int = 1) -> Table:
    """A table with a header rule; the columns after the first ``left`` hold figures and are aligned right."""
    table = Titled(title=title, title_style="bold", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1))
    for index, column in enumerate(columns):
        table.add_column(column, overflow="fold", no_wrap=index == 0, justify="left" if index < left else "right")
    return table


def wrapped_table(title: str, *columns: str) -> Table:
    """:func:`plain_table` whose long first column continues on the next line, at a blank, and whose figures never do."""
    table = plain_table(title, *columns)
    for index, column in enumerate(table.columns):
        column.no_wrap = index > 0
    return table


def field_table(title: str) -> Table:
    """Two columns, names and values, without a header."""
    table = Titled(title=title, title_style="bold", box=None, show_header=False, pad_edge=False, padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def share_bar(share: float, width: int = 20) -> str:
    """A bar of ``width`` characters for a share of the whole."""
    return "█" * round(max(0.0, min(1.0, share)) * width)


def bullet_list(title: str, texts: Sequence[str], *, style: str = "") -> Table:
    """A titled list; long items continue under their own first word."""
    table = Titled.grid(padding=(0, 1))
    table.title, table.title_style = title, f"bold {style}".strip()
    table.add_column(width=1)
    table.add_column(overflow="fold")
    for text in texts:
        table.add_row("-", Text(text, style=style))
    return table
