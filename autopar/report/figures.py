"""The figures of a report as SVG and PNG for papers, through matplotlib.

Nothing of matplotlib's global state is touched: figures are made and saved on their own, with the same metadata every time.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from autopar.costmodel.spec.errors import UnavailableError
from autopar.costmodel.spec.units import GIB

from . import figure_data, palette
from .figure_data import Bars, Cloud, Lanes
from .subject import Subject

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from autopar.comparison import Comparison

WIDTH = 7.0
"""Inches: the text width of a paper of one column, or of both columns."""
DPI = 200
SETTINGS: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "autopar",
    "svg.fonttype": "none",
}


Drawable = Bars | Cloud | tuple[Lanes, ...]


def subject_figures(subject: Subject) -> Iterator[tuple[str, bytes]]:
    """``(file name, content)`` of every figure of a report on one strategy."""
    estimate = subject.estimate
    yield from _files("time_terms", figure_data.time_terms(estimate))
    yield from _files("memory_waterfall", figure_data.memory_waterfall(estimate))
    yield from _files("memory_of_ranks", figure_data.memory_of_ranks(estimate))
    if subject.timeline is not None:
        yield from _files("timeline", figure_data.lanes(subject.timeline))
    if subject.landscape.spots:
        name = "this plan" if subject.plan is not None else "this strategy"
        chosen = [(name, subject.strategy, estimate.step_time_seconds, estimate.peak_memory_bytes)]
        yield from _files("landscape", figure_data.cloud(subject.landscape, chosen, estimate.memory_capacity_bytes))


def comparison_figures(comparison: Comparison) -> Iterator[tuple[str, bytes]]:
    """The same of a comparison."""
    yield from _files("time_of_plans", figure_data.time_of_plans(comparison))
    yield from _files("plans", figure_data.plans_cloud(comparison))
    for index, plan in enumerate(comparison.plans[1:], 1):
        for name, movements in (("time", comparison.time), ("memory", comparison.memory)):
            figure = figure_data.moved(movements, index, title=f"{plan.label} against A", of_bytes=name == "memory")
            if figure.rows:
                yield from _files(f"{name}_moved_{plan.label}", figure)


def require_matplotlib() -> None:
    """Raises:
    UnavailableError: matplotlib is not installed; says how to install it.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UnavailableError("--figures needs matplotlib: `pip install 'autopar[report]'`") from None


def _files(name: str, data: Drawable) -> Iterator[tuple[str, bytes]]:
    import matplotlib

    with matplotlib.rc_context(SETTINGS):
        match data:
            case Bars():
                figure = _draw_bars(data)
            case Cloud():
                figure = _draw_cloud(data)
            case _:
                figure = _draw_lanes(data)
        for kind, metadata in (("svg", {"Date": None, "Creator": "autopar"}), ("png", {"Software": "autopar"})):
            stream = io.BytesIO()
            figure.savefig(stream, format=kind, metadata=metadata, dpi=DPI, bbox_inches="tight")
            yield f"{name}.{kind}", stream.getvalue()


def _figure(height: float, rows: int = 1) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, [row[0] for row in figure.subplots(rows, 1, squeeze=False)]


def _draw_bars(data: Bars) -> Figure:
    figure, (axes,) = _figure(0.7 + 0.24 * len(data.rows))
    size = GIB if data.of_bytes else 1.0
    for place, row in enumerate(data.rows):
        for part in row.segments:
            width, colour = (part.finish - part.start) / size, palette.light(part.mark)
            axes.barh(place, width, left=part.start / size, color=colour, height=0.72, edgecolor="white", linewidth=0.4)
    axes.set_yticks(range(len(data.rows)), [row.name for row in data.rows])
    axes.invert_yaxis()
    axes.set_xlim(data.low / size, data.high / size * 1.02)
    axes.set_xlabel("GiB" if data.of_bytes else "seconds")
    axes.set_title(data.title, loc="left")
    if data.limit:
        axes.axvline(data.limit / size, color=palette.INK["bad"][0], linewidth=1, linestyle="--")
    elif data.limit is not None:
        axes.axvline(0.0, color="black", linewidth=0.8)
    _legend(figure, data.legend)
    return figure


def _draw_lanes(windows: Sequence[Lanes]) -> Figure:
    figure, places = _figure(0.6 + sum(0.5 + 0.16 * len(window.rows) for window in windows), len(windows))
    for axes, window in zip(places, windows, strict=True):
        for place, row in enumerate(window.rows):
            for mark in dict.fromkeys(piece.mark for piece in row.pieces):
                spans = [(piece.start, piece.finish - piece.start) for piece in row.pieces if piece.mark == mark]
                axes.broken_barh(spans, (place - 0.4, 0.8), facecolors=palette.light(mark), edgecolor="white", linewidth=0.15)
        axes.set_yticks(range(len(window.rows)), [row.name for row in window.rows])
        axes.invert_yaxis()
        axes.set_xlim(window.start, window.finish)
        axes.set_title(window.title, loc="left")
        axes.set_ylabel("rank")
    places[-1].set_xlabel("seconds")
    _legend(figure, tuple(dict.fromkeys(entry for window in windows for entry in window.legend)))
    return figure


def _draw_cloud(data: Cloud) -> Figure:
    figure, (axes,) = _figure(3.2)
    front = data.front
    others = [point for point in data.points if not point.efficient]
    axes.scatter(*_places(others), s=9, facecolors="none", edgecolors=palette.light("grey"), linewidths=0.7)
    if front:
        axes.step(*_places(front), where="post", color=palette.light("blue"), linewidth=1)
        axes.scatter(*_places(front), s=12, color=palette.light("blue"))
    axes.scatter(*_places(data.chosen), s=40, color=palette.light("orange"), edgecolors="black", linewidths=1, zorder=3)
    for point in data.chosen if data.all_named else data.chosen[:1]:
        axes.annotate(point.label, (point.memory / GIB, point.seconds), textcoords="offset points", xytext=(6, -11), weight="bold")
    axes.axvline(data.capacity / GIB, color=palette.INK["bad"][0], linewidth=1, linestyle="--")
    axes.set_xlim(left=0)
    axes.set_xlabel("peak memory of the fullest GPU, GiB (dashed: what it has)")
    axes.set_ylabel("seconds")
    return figure


def _places(points: Iterable[figure_data.Point]) -> tuple[list[float], list[float]]:
    found = list(points)
    return [point.memory / GIB for point in found], [point.seconds for point in found]


def _legend(figure: Figure, entries: Sequence[tuple[str, str]]) -> None:
    from matplotlib.patches import Patch

    if entries:
        handles = [Patch(color=palette.light(mark), label=name) for name, mark in entries]
        figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
