"""Writes the table of rules in docs/frameworks.md from the rules themselves: ``python docs/exporters_page.py``."""

from __future__ import annotations

from pathlib import Path

from autopar.exporters.rule_table import rule_entries

PAGE = Path(__file__).with_name("frameworks.md")
START, END = "<!-- rules -->", "<!-- end of rules -->"


def table() -> str:
    """The rows, one rule each."""
    rows = ["| rule | what it says | the framework | an export or import |", "|---|---|---|---|"]
    rows += [f"| {entry.id} | {entry.summary} | {entry.enforcement} | {entry.action.value} |" for entry in rule_entries()]
    return "\n".join(rows)


def page() -> str:
    """The whole page with its table as the rules are now."""
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.split(START)[0], text.split(END)[1]
    return f"{before}{START}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
