"""What commands print: one JSON document, or text for a person."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from io import StringIO
from typing import TYPE_CHECKING

import click

from autopar.costmodel.spec.errors import NoPlanError

if TYPE_CHECKING:
    from rich.console import RenderableType

PLAIN_WIDTH = 100
"""Columns of a report that is not read on a terminal."""


def print_json(value: object) -> None:
    """``value`` as one JSON document on standard output."""
    from autopar.io.codec import to_json

    click.echo(to_json(value), nl=False)


@contextlib.contextmanager
def answering(as_json: bool) -> Iterator[None]:
    """Where the answer is no and a program asked, it gets the reasons as a document too; the message and exit code stay."""
    try:
        yield
    except NoPlanError as error:
        if as_json and error.answer is not None:
            print_json(error.answer)
        raise


def print_report(parts: Iterable[RenderableType]) -> None:
    """Tables and lists on standard output, with an empty line between them.

    On a terminal in its width and colours (none under NO_COLOR); elsewhere plain, 100 columns wide, no blanks at line ends.
    """
    from rich.console import Console

    terminal = sys.stdout.isatty()
    out = Console(
        file=sys.stdout if terminal else StringIO(), width=None if terminal else PLAIN_WIDTH, highlight=False, emoji=False, markup=False
    )
    for index, part in enumerate(parts):
        if index:
            out.print()
        out.print(part)
    if isinstance(out.file, StringIO):
        text = "\n".join(line.rstrip() for line in out.file.getvalue().splitlines())
        click.echo(text)


def note(message: str) -> None:
    """A remark beside the result, on standard error."""
    click.echo(message, err=True)
