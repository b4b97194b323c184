"""Figures as inline SVG that is as wide as its place: positions are percentages, so that text keeps its size on every screen."""

from __future__ import annotations

import math
from collections.abc import Sequence

from autopar.costmodel.spec.units import GIB, format_bytes, format_seconds

from .figure_data import Bar, Bars, Cloud, Lane, Lanes, Point
from .page import Markup, escape, legend, paragraph

BAR, LANE, PLOT = 18, 16, 320
"""Heights in pixels."""
NARROWEST_TEXT = 2.0
"""A pass wider than so many per cent has its micro-batch written on it."""


def bars(figure: Bars) -> Markup:
    """A table whose second column is drawn: every figure is there as text too."""
    drawing = 1
    heads = "".join(
        f'<th scope="col"{" class=figure" if index > drawing else ""}>{escape(name)}</th>' if name else "<td></td>"
        for index, name in enumerate(figure.columns)
    )
    rows = "".join(_bar_row(row, figure) for row in figure.rows)
    label = escape(figure.title)
    return Markup(
        f'<div class="chart">{legend(figure.legend) if figure.legend else ""}'
        f'<div class="scroll" role="region" tabindex="0" aria-label="{label}"><table><caption>{label}</caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>{paragraph(figure.note, 'note')}</div>"
    )


def _bar_row(row: Bar, figure: Bars) -> str:
    span = figure.high - figure.low or 1.0

    def place(value: float) -> float:
        return 100 * (value - figure.low) / span

    parts = "".join(
        f'<rect class="{part.mark} seam" x="{place(part.start):.2f}%" y="1" width="{100 * (part.finish - part.start) / span:.2f}%"'
        f' height="{BAR - 2}"><title>{escape(part.name)}</title></rect>'
        for part in row.segments
    )
    kind = "limit" if figure.limit else "grid"
    limit = (
        ""
        if figure.limit is None
        else f'<line class="{kind}" x1="{place(figure.limit):.2f}%" x2="{place(figure.limit):.2f}%" y1="-4" y2="{BAR + 4}"/>'
    )
    texts = "".join(f'<td class="figure">{escape(text)}</td>' for text in row.texts)
    return (
        f'<tr{" class=best" if row.strong else ""}><th scope="row">{escape(row.name)}</th>'
        f'<td class="draw"><svg width="100%" height="{BAR}" aria-hidden="true">{parts}{limit}</svg></td>{texts}</tr>'
    )


def lanes(figure: Lanes) -> Markup:
    """A lane for each pipeline rank, over one axis of time."""
    rows = "".join(_lane_row(row, figure) for row in figure.rows)
    ticks = _ticks(figure.start, figure.finish, 5)
    unit = _time_unit(figure.finish)
    span = figure.finish - figure.start
    axis = "".join(_tick(100 * (tick - figure.start) / span, f"{tick / unit[0]:g}") for tick in ticks)
    label = escape(figure.title)
    return Markup(
        f'<div class="chart"><div class="scroll" role="region" tabindex="0" aria-label="{label}"><table><caption>{label}</caption>'
        '<thead><tr><th scope="col">rank</th><td></td><th scope="col" class="figure">busy</th></tr></thead>'
        f'<tbody>{rows}<tr><th scope="row">{unit[1]}</th>'
        f'<td class="draw"><svg width="100%" height="18" aria-hidden="true">{axis}</svg></td><td></td></tr></tbody></table></div></div>'
    )


def _lane_row(row: Lane, figure: Lanes) -> str:
    span = figure.finish - figure.start
    parts = []
    for piece in row.pieces:
        x, width = 100 * (piece.start - figure.start) / span, 100 * (piece.finish - piece.start) / span
        title = f"<title>{escape(piece.tooltip)}</title>"
        parts.append(f'<rect class="{piece.mark} thin" x="{x:.3f}%" width="{width:.3f}%" height="{LANE}">{title}</rect>')
        if width > NARROWEST_TEXT and piece.text:
            parts.append(f'<text class="inside" x="{x + width / 2:.3f}%" y="{LANE - 4}" text-anchor="middle">{escape(piece.text)}</text>')
    return (
        f'<tr><th scope="row">{escape(row.name)}</th><td class="draw"><svg width="100%" height="{LANE}" aria-hidden="true">'
        f'<rect class="track" width="100%" height="{LANE}"/>{"".join(parts)}</svg></td><td class="figure">{escape(row.text)}</td></tr>'
    )


def _tick(x: float, text: str) -> str:
    anchor = "end" if x > 98 else "start" if x < 2 else "middle"
    return f'{_upright("grid", x, 0, 4)}<text class="small" x="{x:.2f}%" y="16" text-anchor="{anchor}">{text}</text>'


def _upright(kind: str, x: float, top: float, bottom: float) -> str:
    return f'<line class="{kind}" x1="{x:.2f}%" x2="{x:.2f}%" y1="{top}" y2="{bottom}"/>'


def scatter(figure: Cloud) -> Markup:
    """Step time over peak memory, the memory of a GPU, the front, and the chosen strategies by name."""
    everything = [*figure.points, *figure.chosen]
    if not everything:
        return Markup()
    low = 0.96 * min(point.seconds for point in everything)
    top = 1.03 * max(point.seconds for point in everything)
    right = 1.04 * max(figure.capacity, *(point.memory for point in everything))

    def at(point: Point) -> tuple[float, float]:
        return 100 * point.memory / right, PLOT - PLOT * (point.seconds - low) / (top - low)

    parts = [_plot_axes(low, top, right, figure.capacity)]
    for before, after in zip(figure.front, figure.front[1:], strict=False):
        (x1, y1), (x2, y2) = at(before), at(after)
        parts.append(f'<line class="front" x1="{x1:.2f}%" y1="{y1:.1f}" x2="{x2:.2f}%" y2="{y1:.1f}"/>')
        parts.append(f'<line class="front" x1="{x2:.2f}%" y1="{y1:.1f}" x2="{x2:.2f}%" y2="{y2:.1f}"/>')
    parts += [_dot(point, *at(point)) for point in figure.points]
    parts += [_ring(point, *at(point)) for point in figure.chosen]
    parts += [_name(point, *at(point)) for point in (figure.chosen if figure.all_named else figure.chosen[:1])]
    label = (
        f"Step time against peak memory of {len(everything)} strategies; {len(figure.front)} of them on the front of least time and memory"
    )
    return Markup(
        f'<div class="plot"><svg width="100%" height="{PLOT + 40}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg></div>'
    )


def _plot_axes(low: float, top: float, right: float, capacity: float) -> str:
    parts = []
    for tick in _ticks(low, top, 6):
        y = PLOT - PLOT * (tick - low) / (top - low)
        parts.append(f'<line class="grid" x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="small" x="0" y="{y - 4:.1f}">{format_seconds(tick)}</text>')
    for tick in _ticks(0.0, right / GIB, 6):
        x = 100 * tick * GIB / right
        parts.append(f'<g transform="translate(0 {PLOT})">{_tick(x, f"{tick:g}")}</g>')
    x = 100 * capacity / right
    parts.append(f'<line class="limit" x1="{x:.2f}%" x2="{x:.2f}%" y1="0" y2="{PLOT}"/>')
    anchor, shift = ("end", -6) if x > 60 else ("start", 6)
    parts.append(
        f'<text class="small" x="{x:.2f}%" y="12" dx="{shift}" text-anchor="{anchor}">memory of a GPU, {format_bytes(capacity)}</text>'
    )
    parts.append(f'<text class="small" x="100%" y="{PLOT + 34}" text-anchor="end">peak memory of the fullest GPU, GiB</text>')
    parts.append('<text class="small" x="0" y="-16">step time</text>')
    return "".join(parts)


def _dot(point: Point, x: float, y: float) -> str:
    kind = "blue" if point.efficient and point.fits else "hollow"
    title = f"{point.label}: {format_seconds(point.seconds)}, {format_bytes(point.memory)}"
    return f'<circle class="{kind}" cx="{x:.2f}%" cy="{y:.1f}" r="{4 if point.efficient else 3}"><title>{escape(title)}</title></circle>'


def _ring(point: Point, x: float, y: float) -> str:
    title = f"{point.label}: {format_seconds(point.seconds)}, {format_bytes(point.memory)}"
    return (
        f'<circle class="orange" cx="{x:.2f}%" cy="{y:.1f}" r="4"/><circle class="ring" cx="{x:.2f}%" cy="{y:.1f}" r="7">'
        f"<title>{escape(title)}</title></circle>"
    )


def _name(point: Point, x: float, y: float) -> str:
    anchor, shift = ("end", -12) if x > 50 else ("start", 12)
    return f'<text class="name" x="{x:.2f}%" y="{y + 18:.1f}" dx="{shift}" text-anchor="{anchor}">{escape(point.label)}</text>'


def _ticks(low: float, high: float, count: int) -> Sequence[float]:
    """Round numbers from ``low`` to ``high``, about ``count`` of them."""
    raw = (high - low) / count
    size = 10 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(step * place, 12) for place in range(first, math.floor(high / step + 1e-9) + 1)]


def _time_unit(seconds: float) -> tuple[float, str]:
    return (1.0, "s") if seconds >= 1 else (1e-3, "ms") if seconds >= 1e-3 else (1e-6, "us")
