"""The frame that every HTML report shares: one file that stands alone, without script and without network.

It is light or dark as the reader's system is, prints on paper, is read in order by a screen reader, and at 400 px has tables
that scroll on their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape as _escape

import autopar

from .style import STYLE

_CODE = re.compile("`([^`]+)`")
SHORT = 14
"""A row's heading of at most so many characters is never wrapped."""


class Markup(str):
    """Text that is HTML already; all other text is escaped when it enters a page."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A titled part of a page; one without parts is left out."""

    id: str
    title: str
    parts: tuple[Markup, ...]


def escape(text: str) -> Markup:
    """``text`` as HTML; what is :class:`Markup` stays as it is."""
    return text if isinstance(text, Markup) else Markup(_escape(text))


def page(title: str, lead: Sequence[Markup], sections: Iterable[Section]) -> str:
    """The whole document. ``lead`` stands under the title, before the table of contents."""
    shown = [section for section in sections if any(section.parts)]
    links = "".join(f'<li><a href="#{section.id}">{escape(section.title)}</a></li>' for section in shown)
    contents = f'<nav aria-label="Contents"><ul>{links}</ul></nav>' if len(shown) > 2 else ""
    body = "\n".join(
        f'<section id="{section.id}" aria-labelledby="{section.id}-title"><h2 id="{section.id}-title">{escape(section.title)}</h2>\n'
        + "\n".join(part for part in section.parts if part)
        + "\n</section>"
        for section in shown
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f'<a class="skip" href="#main">Skip to the content</a>\n<header><h1>{escape(title)}</h1>\n{"".join(lead)}</header>\n{contents}\n'
        f'<main id="main">\n{body}\n</main>\n<footer><p>Made by autopar {escape(autopar.__version__)}.</p></footer>\n</body>\n</html>\n'
    )


def inline(text: str) -> Markup:
    """:func:`escape`, with what stands between backticks as code."""
    return Markup(_CODE.sub(r"<code>\1</code>", escape(text)))


def paragraph(text: str, kind: str = "") -> Markup:
    """A paragraph; ``kind`` is "note" (muted), "warning" or "verdict"."""
    return Markup(f'<p class="{kind}">{inline(text)}</p>' if kind else f"<p>{inline(text)}</p>") if text else Markup()


def bullets(texts: Iterable[str], kind: str = "") -> Markup:
    """A list; nothing where there is nothing to say."""
    items = "".join(f"<li>{inline(text)}</li>" for text in texts)
    return Markup(f'<ul class="{kind}">{items}</ul>' if items else "")


def facts(pairs: Iterable[tuple[str, str, str]]) -> Markup:
    """Figures in large type: what, the figure, and a line under it."""
    cards = "".join(
        f"<div><dt>{escape(name)}</dt><dd><b>{escape(value)}</b>{f'<small>{escape(aside)}</small>' if aside else ''}</dd></div>"
        for name, value, aside in pairs
    )
    return Markup(f'<dl class="facts">{cards}</dl>')


def table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, words: Sequence[int] = (0,), caption: str = "", last: bool = False
) -> Markup:
    """A table that scrolls on its own where the page is narrow.

    Args:
        columns: headings.
        rows: cells; the first one of a row is its heading.
        words: positions of columns that hold words; the others hold figures, aligned right.
        caption: what the table shows, read first by a screen reader.
        last: whether the last row is a sum.
    """

    def cell(index: int, text: str) -> str:
        kind = ' class="words"' if index in words else ' class="figure"'
        if index == 0 and len(text) <= SHORT:
            kind = ' class="short"'
        return f'<th scope="row"{kind}>{escape(text)}</th>' if index == 0 else f"<td{kind}>{escape(text)}</td>"

    head = "".join(f'<th scope="col"{"" if index in words else " class=figure"}>{escape(name)}</th>' for index, name in enumerate(columns))
    body = "".join("<tr>" + "".join(cell(index, text) for index, text in enumerate(row)) + "</tr>" for row in rows)
    label = escape(caption or next(filter(None, columns), "table"))
    named = f"<caption>{escape(caption)}</caption>" if caption else ""
    return Markup(
        f'<div class="scroll" role="region" tabindex="0" aria-label="{label}"><table{" class=sum" if last else ""}>{named}'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def details(summary: str, *parts: Markup) -> Markup:
    """Parts that are folded away on a screen."""
    return Markup(f"<details><summary>{escape(summary)}</summary>{''.join(parts)}</details>")


def legend(entries: Iterable[tuple[str, str]]) -> Markup:
    """Names with the swatch of their mark: ``(name, mark)``."""
    items = "".join(
        f'<li><svg width="12" height="12" aria-hidden="true"><rect width="12" height="12" rx="2" class="{mark}"/></svg>{escape(name)}</li>'
        for name, mark in entries
    )
    return Markup(f'<ul class="legend" aria-label="Legend">{items}</ul>')
