"""A Pareto front as a person reads it: a table, and a plot in characters or as a drawing."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from autopar.costmodel.spec.errors import Fault, InvalidInputError, UnavailableError
from autopar.costmodel.spec.units import GIB, format_bytes, format_seconds
from autopar.frontier import Axis
from autopar.io.quantities import format_money

from .goodput import KWH
from .tables import wrapped_table
from .text import lines

if TYPE_CHECKING:
    from rich.console import RenderableType

    from autopar.frontier import ParetoFront, ParetoPoint

MAX_ROWS = 24
PLOT_COLUMNS, PLOT_ROWS = 64, 16
FORMATS = (".svg", ".png", ".pdf")


def pareto_report(front: ParetoFront) -> Iterator[RenderableType]:
    """The question, the front as a table and as a plot, and what was looked at."""
    yield _headline(front)
    yield front_table(front)
    if len(front.points) > 1:
        yield character_plot(front)
    yield from lines("assumed", front.assumptions)
    yield from lines("constraints", front.constraints)
    yield _looked_at(front)


def front_table(front: ParetoFront) -> RenderableType:
    """A row a point, fastest first; a long front shows points spread over it evenly, and the least of each axis."""
    title = f"Pareto front of {', '.join(front.axes)}"
    shown = shown_points(front)
    kept = any(point.expected_step_seconds > point.step_time_seconds for point in front.points)
    columns = ["strategy", *(["GPUs"] if _varies(front) else []), "kept step" if kept else "step", "memory"]
    columns += ["cost/Mtok"] * (Axis.COST in front.axes) + ["kWh/step"] * (Axis.ENERGY in front.axes)
    table = wrapped_table(title, *columns)
    least = {axis: min(point.value(axis) for point in front.points) for axis in front.axes}
    for point in shown:
        cells = [f"{point.num_gpus:,}"] if _varies(front) else []
        cells += [format_seconds(point.expected_step_seconds), format_bytes(point.peak_memory_bytes)]
        if Axis.COST in front.axes:
            cells.append(format_money(point.cost_per_million_tokens or 0.0))
        if Axis.ENERGY in front.axes:
            cells.append(f"{(point.energy_joules_per_step or 0.0) / KWH:.3g}")
        best = any(point.value(axis) == least[axis] for axis in front.axes)
        table.add_row(point.strategy.describe(), *cells, style="bold" if best else "")
    captions = [f"{len(shown)} of the {len(front.points)} points; --json has them all"] if len(shown) < len(front.points) else []
    captions += [f"cost of a million tokens in {front.currency}"] if Axis.COST in front.axes and front.currency else []
    if captions:
        table.caption, table.caption_justify = "; ".join(captions), "left"
    return table


def shown_points(front: ParetoFront) -> list[ParetoPoint]:
    """At most 24 points: the least of each axis, and between them every so many."""
    points = list(front.points)
    if len(points) <= MAX_ROWS:
        return points
    ends = {min(range(len(points)), key=lambda row, axis=axis: points[row].value(axis)) for axis in front.axes}  # type: ignore[misc]
    count = MAX_ROWS - len(ends)
    spread = {round(place * (len(points) - 1) / (count - 1)) for place in range(count)}
    return [points[row] for row in sorted(ends | spread)]


def character_plot(front: ParetoFront) -> Text:
    """The first axis to the right, the second upwards, both linear; ``o`` is a point, ``@`` several."""
    across, up = front.axes[:2]
    xs, ys = ([point.value(axis) for point in front.points] for axis in (across, up))
    grid = [[" "] * PLOT_COLUMNS for _ in range(PLOT_ROWS)]
    for x, y in zip(xs, ys, strict=True):
        column = _place(x, min(xs), max(xs), PLOT_COLUMNS)
        row = PLOT_ROWS - 1 - _place(y, min(ys), max(ys), PLOT_ROWS)
        grid[row][column] = "o" if grid[row][column] == " " else "@"
    high, low = (figure(up, value, front) for value in (max(ys), min(ys)))
    margin = max(len(high), len(low))
    labels = [high, *[""] * (PLOT_ROWS - 2), low]
    body = [f"{label:>{margin}} │{''.join(row).rstrip()}" for label, row in zip(labels, grid, strict=True)]
    left, right = (figure(across, value, front) for value in (min(xs), max(xs)))
    foot = [f"{'':>{margin}} └{'─' * PLOT_COLUMNS}", f"{'':>{margin}}  {left}{right:>{PLOT_COLUMNS - len(left)}}"]
    text = Text(f"{LABELS[up]} (up) over {LABELS[across]} (to the right)\n", style="bold")
    return text.append("\n".join([*body, *foot]), style="not bold")


LABELS = {
    Axis.TIME: "step time",
    Axis.GPUS: "GPUs",
    Axis.MEMORY: "peak memory",
    Axis.COST: "cost of a step",
    Axis.ENERGY: "energy of a step",
}


def figure(axis: Axis, value: float, front: ParetoFront) -> str:
    """A value of an axis, with its unit."""
    if axis is Axis.TIME:
        return format_seconds(value)
    if axis is Axis.GPUS:
        return f"{value:,.0f}"
    if axis is Axis.MEMORY:
        return format_bytes(value)
    return format_money(value, front.currency) if axis is Axis.COST else f"{value / KWH:.3g} kWh"


_SCALES = {
    Axis.TIME: (1.0, "step time, s"),
    Axis.GPUS: (1.0, "GPUs"),
    Axis.MEMORY: (1.0 / GIB, "peak memory of a GPU, GiB"),
    Axis.COST: (1.0, "cost of a step"),
    Axis.ENERGY: (1.0 / KWH, "energy of a step by rated power, kWh"),
}


def drawing(front: ParetoFront, suffix: str) -> bytes:
    """The front drawn by matplotlib: the first axis against each other one, coloured by the number of GPUs.

    Raises:
        UnavailableError: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise UnavailableError("--plot draws with matplotlib, which is not installed; `pip install 'autopar[report]'` brings it") from None
    others = front.axes[1:]
    picture = Figure(figsize=(5.6 * len(others), 4.4), layout="constrained")
    panels = picture.subplots(1, len(others), squeeze=False)[0]
    for panel, axis in zip(panels, others, strict=True):
        _draw(panel, front, front.axes[0], axis)
    many = "" if _varies(front) else f" on {front.looked_at[-1]:,} GPUs"
    picture.suptitle(f"{front.model}, {front.device}{many}\nPareto front of {', '.join(front.axes)}", fontsize="medium")
    out = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "autopar"}):
        stamp = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(suffix)
        picture.savefig(out, format=suffix.removeprefix("."), metadata=stamp, dpi=150)
    return out.getvalue()


def _draw(panel: object, front: ParetoFront, across: Axis, up: Axis) -> None:
    """One panel: a series for each number of GPUs, so that its legend tells them apart."""
    sizes = sorted({point.num_gpus for point in front.points})
    for size in sizes:
        points = [point for point in front.points if point.num_gpus == size]
        xs, ys = ([point.value(axis) * _SCALES[axis][0] for point in points] for axis in (across, up))
        panel.plot(xs, ys, "o", markersize=4, label=f"{size:,} GPUs")  # type: ignore[attr-defined]
    for axis, name in ((across, "x"), (up, "y")):
        unit = f" ({front.currency})" if axis is Axis.COST and front.currency else ""
        getattr(panel, f"set_{name}label")(f"{_SCALES[axis][1]}{unit}")
    panel.grid(alpha=0.3)  # type: ignore[attr-defined]
    if len(sizes) > 1:
        panel.legend(fontsize="x-small", ncols=1 + len(sizes) // 9)  # type: ignore[attr-defined]


def write_drawing(front: ParetoFront, path: str) -> None:
    """Draw ``front`` into ``path``, as its ending says.

    Raises:
        InvalidInputError: another ending than .svg, .png or .pdf, or a path that cannot be written.
        UnavailableError: matplotlib is not installed.
    """
    plot_format(path)
    content = drawing(front, Path(path).suffix.lower())
    try:
        Path(path).write_bytes(content)
    except OSError as error:
        raise InvalidInputError(Fault(field="--plot", given=repr(path), required=f"cannot be written: {error.strerror or error}")) from None


def plot_format(path: str) -> str:
    """The ending of a drawing.

    Raises:
        InvalidInputError: no picture has it.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in FORMATS:
        raise InvalidInputError(Fault(field="--plot", given=repr(path), required=f"a drawing ends in {', '.join(FORMATS)}"))
    return suffix


def _place(value: float, low: float, high: float, size: int) -> int:
    return round((value - low) / (high - low) * (size - 1)) if high > low else 0


def _varies(front: ParetoFront) -> bool:
    return len(front.looked_at) > 1


def _headline(front: ParetoFront) -> Text:
    batch = f"{front.global_batch_size:,} sequence{'s' * (front.global_batch_size > 1)} of {front.sequence_length:,} tokens a step"
    text = Text(front.model, style="bold")
    upto = "up to " if _varies(front) else ""
    return text.append(f" on {upto}{front.looked_at[-1]:,} x {front.device} ({front.cluster}), {batch}", style="not bold")


def _looked_at(front: ParetoFront) -> Text:
    text = f"evaluated {front.evaluated:,} strategies ({front.optimality})"
    if _varies(front):
        text += f"; numbers of GPUs: {_counts(front.looked_at)}"
    if front.nothing_fits:
        text += f"; nothing fits on {_counts(front.nothing_fits)}"
    return Text(text, style="dim")


def _counts(counts: Sequence[int]) -> str:
    return ", ".join(f"{count:,}" for count in counts)
