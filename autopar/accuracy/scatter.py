"""Scatter plots of predicted against measured as SVG text: no library, no network, the same bytes for the same points."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from autopar.report.palette import SERIES

Point = tuple[float, float]
WIDTH, HEIGHT, MARGIN, LEGEND = 620, 460, 62, 210
BAND = 0.1
"""The dotted lines lie this share above and below equality."""


def scatter(series: Mapping[str, Sequence[Point]], *, title: str, unit: str) -> str:
    """One SVG drawing: ``(measured, predicted)`` points on logarithmic axes, one colour a series, and the line of equality."""
    points = [point for each in series.values() for point in each]
    low, high = _bounds(points)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH + LEGEND} {HEIGHT}" width="{WIDTH + LEGEND}" height="{HEIGHT}"'
        ' font-family="sans-serif" font-size="12" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH + LEGEND}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{MARGIN}" y="20" font-size="14" font-weight="bold">{escape(title)}</text>',
    ]
    parts += _axes(low, high, unit)
    for index, (name, members) in enumerate(series.items()):
        colour = SERIES[index % len(SERIES)]
        dots = "".join(f'<circle cx="{_x(x, low, high):.1f}" cy="{_y(y, low, high):.1f}" r="2.6"/>' for x, y in members)
        parts.append(f'<g fill="{colour}" fill-opacity="0.65">{dots}</g>')
        row = 42 + 17 * index
        parts.append(f'<circle cx="{WIDTH + 8}" cy="{row - 4}" r="4.5" fill="{colour}"/>')
        parts.append(f'<text x="{WIDTH + 18}" y="{row}">{escape(name)} ({len(members)})</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _bounds(points: Sequence[Point]) -> Point:
    """Powers of ten around all coordinates, as exponents."""
    values = [value for point in points for value in point] or [1.0]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return float(low), float(max(high, low + 1))


def _x(value: float, low: float, high: float) -> float:
    return MARGIN + (math.log10(value) - low) / (high - low) * (WIDTH - MARGIN - 20)


def _y(value: float, low: float, high: float) -> float:
    return HEIGHT - MARGIN - (math.log10(value) - low) / (high - low) * (HEIGHT - MARGIN - 32)


def _axes(low: float, high: float, unit: str) -> list[str]:
    """Grid lines at powers of ten, labels, the line of equality and its band."""
    left, right, bottom, top = MARGIN, WIDTH - 20, HEIGHT - MARGIN, 32
    parts = []
    for exponent in range(int(low), int(high) + 1):
        x, y = _x(10.0**exponent, low, high), _y(10.0**exponent, low, high)
        parts.append(f'<path d="M{x:.1f} {top}V{bottom}M{left} {y:.1f}H{right}" stroke="#ddd"/>')
        label = f"{10.0**exponent:g}"
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{label}</text>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    for factor, dash in ((1.0, ""), (1 + BAND, "3 3"), (1 - BAND, "3 3")):
        start, end = 10.0 ** max(low, low - math.log10(factor)), 10.0 ** min(high, high - math.log10(factor))
        line = f"M{_x(start, low, high):.1f} {_y(start * factor, low, high):.1f}L{_x(end, low, high):.1f} {_y(end * factor, low, high):.1f}"
        parts.append(f'<path d="{line}" stroke="#555" stroke-dasharray="{dash}" fill="none"/>')
    parts.append(f'<rect x="{left}" y="{top}" width="{right - left}" height="{bottom - top}" fill="none" stroke="#555"/>')
    parts.append(f'<text x="{(left + right) / 2:.0f}" y="{HEIGHT - 18}" text-anchor="middle">measured, {escape(unit)}</text>')
    middle = (top + bottom) / 2
    parts.append(
        f'<text x="14" y="{middle:.0f}" text-anchor="middle" transform="rotate(-90 14 {middle:.0f})">predicted, {escape(unit)}'
        f" (dotted: {BAND:.0%} off)</text>"
    )
    return parts


def by_size(series: Mapping[str, Sequence[Point]], *, limit: int = 15) -> dict[str, Sequence[Point]]:
    """The largest ``limit`` series, the others as one."""
    ordered = sorted(series.items(), key=lambda item: (-len(item[1]), item[0]))
    shown: dict[str, Sequence[Point]] = dict(ordered[:limit])
    if rest := [point for _, points in ordered[limit:] for point in points]:
        shown["others"] = rest
    return shown
