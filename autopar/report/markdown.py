"""A comparison in Markdown, for a pull request or an issue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from autopar.comparison import Comparison

from . import compare_view as view


def comparison_markdown(comparison: Comparison) -> str:
    """The tables of ``autopar compare`` in GitHub's Markdown."""
    same = view.one_question(comparison)
    parts = [
        f"**{escape(view.verdict(comparison))}**" + (f" ({escape(same)})" if same else ""),
        markdown_table(view.COLUMNS, (view.headline_row(comparison, plan) for plan in comparison.plans)),
        markdown_table(view.cost_columns(comparison), map(view.cost_row, comparison.plans)),
        "\n".join(f"- **{label}**: {escape(': '.join(filter(None, (name, told))))}" for label, name, told in view.legend(comparison)),
        "\n".join(f"> {escape(note)}  " for note in comparison.notes),
        _differences(comparison),
        *_moved(comparison),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, words: int = 1) -> str:
    """A table; the first ``words`` columns hold words, the others figures."""
    lines = [_line(columns), "|" + "|".join(" :-- " if index < words else " --: " for index in range(len(columns))) + "|"]
    return "\n".join([*lines, *map(_line, rows)])


def escape(text: str) -> str:
    """``text`` without what Markdown or its HTML would take for markup."""
    for mark in "\\`*_[]<>|":
        text = text.replace(mark, f"\\{mark}")
    return text.replace("\n", " ")


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(escape, cells)) + " |"


def _differences(comparison: Comparison) -> str:
    if not comparison.differences:
        return ""
    columns = ("what differs", *(plan.label for plan in comparison.plans))
    return markdown_table(columns, ((each.field, *each.values) for each in comparison.differences), words=len(columns))


def _moved(comparison: Comparison) -> list[str]:
    time, memory = view.moved(comparison.time), view.moved(comparison.memory)
    return [
        markdown_table(
            view.moved_columns(comparison, view.time_title(comparison)),
            [view.time_row(each) for each in (*time, view.total(comparison.time))],
        ),
        markdown_table(
            view.moved_columns(comparison, "where the memory moved (fullest rank)"),
            [view.memory_row(each) for each in (*memory, view.total(comparison.memory))],
        ),
    ]
