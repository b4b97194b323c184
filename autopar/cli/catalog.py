"""``autopar catalog``."""

from __future__ import annotations

import click

from .options import json_option

KINDS = ("devices", "clusters", "models", "frameworks")
CATALOG_SCHEMA_VERSION = "1.0"

LIST_EPILOG = """\b
Examples:
  autopar catalog list
  autopar catalog list models
  autopar catalog list devices --json
"""
SHOW_EPILOG = """\b
Examples:
  autopar catalog show models gpt-175b
  autopar catalog show h100-sxm5-80gb
"""


@click.group("catalog")
def command() -> None:
    """The devices, clusters, models and frameworks that autopar knows, with the source of every number."""


@command.command("list", epilog=LIST_EPILOG)
@click.argument("kind", type=click.Choice(KINDS), required=False)
@json_option
def list_entries(kind: str | None, as_json: bool) -> None:
    """List the entries of one kind, or of all."""
    from autopar.catalog_view import listing, names

    from .output import print_json, print_report

    kinds = (kind,) if kind else KINDS
    if as_json:
        print_json({"schema_version": CATALOG_SCHEMA_VERSION, **{each: names(each) for each in kinds}})
        return
    from autopar.report.catalog import listing_report

    print_report(part for each in kinds for part in listing_report(listing(each)))


@command.command("show", epilog=SHOW_EPILOG)
@click.argument("words", nargs=-1, metavar="[KIND] NAME", required=True)
@json_option
def show(words: tuple[str, ...], as_json: bool) -> None:
    """Show one entry: all its numbers, and where they come from."""
    from autopar.catalog_view import entry, find, names
    from autopar.costmodel.spec.errors import UnknownNameError

    from .output import print_json, print_report

    if len(words) == 2:
        kind = f"{words[0]}s" if f"{words[0]}s" in KINDS else words[0]
        found = [(kind, entry(kind, words[1]))]
    elif len(words) == 1 and words[0] not in KINDS:
        found = list(find(words[0]))
        if not found:
            raise UnknownNameError("catalog entry", words[0], {name for kind in KINDS for name in names(kind)})
    else:
        raise click.UsageError("one entry is shown at a time: autopar catalog show [KIND] NAME")
    if as_json:
        print_json({"schema_version": CATALOG_SCHEMA_VERSION, **dict(found)})
        return
    from autopar.report.catalog import entry_report

    print_report(part for kind, each in found for part in entry_report(kind, each))
