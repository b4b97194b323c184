"""What each figure shows, before anything is drawn: :mod:`.svg` draws it into a page, :mod:`.figures` for a paper."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from autopar.costmodel.spec.estimate import Estimate, StageEstimate, StageMemory
from autopar.costmodel.spec.schedule_action import ActionKind
from autopar.costmodel.spec.units import GIB, format_bytes, format_seconds

from . import palette

if TYPE_CHECKING:
    from autopar.comparison import Comparison, Movement
    from autopar.costmodel.spec.strategy import Strategy
    from autopar.costmodel.step_timeline import RankActions, StepTimeline
    from autopar.landscape import Landscape

MAX_RANKS = 16
"""Pipeline ranks of a figure: the fullest of them, or the first."""
MAX_PIECES = 4_500
"""Passes that a timeline draws; a longer step is drawn at its start and at its end."""
WINDOW_PASSES = 120
"""Passes of a rank in each of the two."""
SHOWN_SHARE = 0.0005
MARK_OF_KIND = {
    ActionKind.FORWARD: palette.PASSES["forward"],
    ActionKind.BACKWARD: palette.PASSES["backward"],
    ActionKind.BACKWARD_INPUT: palette.PASSES["backward"],
    ActionKind.BACKWARD_WEIGHT: palette.PASSES["weight part"],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A part of a bar, in the bar's unit."""

    name: str
    start: float
    finish: float
    mark: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A row: its name, its parts, and what is written beside it."""

    name: str
    segments: tuple[Segment, ...]
    texts: tuple[str, ...]
    strong: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """Rows of bars on one scale from ``low`` to ``high``."""

    title: str
    columns: tuple[str, ...]
    """Headings: of the names, of the drawing, and of each text."""
    rows: tuple[Bar, ...]
    low: float
    high: float
    legend: tuple[tuple[str, str], ...] = ()
    limit: float | None = None
    note: str = ""
    of_bytes: bool = False
    """The scale is in bytes, else in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A pass, or what a rank does at the end of a step."""

    start: float
    finish: float
    mark: str
    text: str
    tooltip: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One pipeline rank."""

    name: str
    pieces: tuple[Piece, ...]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes:
    """The ranks from ``start`` to ``finish`` seconds."""

    title: str
    start: float
    finish: float
    rows: tuple[Lane, ...]
    legend: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A strategy in the plane of memory (bytes) and time (seconds)."""

    memory: float
    seconds: float
    label: str
    efficient: bool = False
    fits: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloud:
    """Strategies by memory and time; ``chosen`` have a ring and a name."""

    points: tuple[Point, ...]
    chosen: tuple[Point, ...]
    capacity: float
    all_named: bool = False
    """Whether every chosen one has its name beside it, or the first alone."""

    @property
    def front(self) -> tuple[Point, ...]:
        """The efficient ones, least memory first."""
        return tuple(sorted((point for point in self.points if point.efficient), key=lambda point: point.memory))


def memory_waterfall(estimate: Estimate) -> Bars:
    """What the fullest pipeline rank holds at its peak, one kind on top of the other."""
    stage = max(estimate.stages, key=lambda each: each.peak_memory_bytes)
    rows, level = [], 0.0
    for kind, value in _kinds(stage):
        segment = Segment(name=_words(kind), start=level, finish=level + value, mark=palette.MEMORY[kind])
        rows.append(Bar(name=_words(kind), segments=(segment,), texts=(_gib(value), f"{value / stage.peak_memory_bytes:.0%}")))
        level += value
    total = Segment(name="peak", start=0.0, finish=level, mark="red" if not estimate.fits else "grey")
    rows.append(Bar(name="peak", segments=(total,), texts=(_gib(level), ""), strong=True))
    return Bars(
        title=f"Pipeline rank {stage.pipeline_rank}, the fullest, at its peak",
        columns=("kind", "", "GiB", "share"),
        rows=tuple(rows),
        low=0.0,
        high=1.03 * max(level, estimate.memory_capacity_bytes),
        limit=estimate.memory_capacity_bytes,
        of_bytes=True,
        note=f"Dashed: the memory of a GPU, {format_bytes(estimate.memory_capacity_bytes)}.",
    )


def memory_of_ranks(estimate: Estimate) -> Bars:
    """Every pipeline rank's peak by kind; of a long pipeline the fullest ranks."""
    fullest = sorted(estimate.stages, key=lambda stage: -stage.peak_memory_bytes)[:MAX_RANKS]
    shown = sorted(fullest, key=lambda stage: stage.pipeline_rank)
    left = f" The {len(shown)} fullest of {len(estimate.stages)} ranks." if len(shown) < len(estimate.stages) else ""
    used = [f.name for f in fields(StageMemory) if any(getattr(stage.memory, f.name) > 0 for stage in shown)]
    return Bars(
        title="Peak memory of the pipeline ranks",
        columns=("rank", "", "GiB"),
        rows=tuple(Bar(name=str(stage.pipeline_rank), segments=_stacked(stage), texts=(_gib(stage.peak_memory_bytes),)) for stage in shown),
        low=0.0,
        high=1.03 * max(estimate.peak_memory_bytes, estimate.memory_capacity_bytes),
        legend=tuple((_words(kind), palette.MEMORY[kind]) for kind in used),
        limit=estimate.memory_capacity_bytes,
        of_bytes=True,
        note=f"Dashed: the memory of a GPU, {format_bytes(estimate.memory_capacity_bytes)}.{left}",
    )


def time_terms(estimate: Estimate) -> Bars:
    """The terms of the step time, largest first."""
    terms = sorted(((f.name, getattr(estimate.time, f.name)) for f in fields(estimate.time)), key=lambda term: -term[1])
    shown = [(name, seconds) for name, seconds in terms if seconds >= SHOWN_SHARE * estimate.step_time_seconds]
    groups = [group for group in palette.GROUPS if any(palette.time_group(name) == group for name, _ in shown)]
    return Bars(
        title="Time of a step by term",
        columns=("term", "", "time", "share"),
        rows=tuple(
            Bar(
                name=_words(name),
                segments=(Segment(name=_words(name), start=0.0, finish=seconds, mark=palette.GROUPS[palette.time_group(name)]),),
                texts=(format_seconds(seconds), f"{seconds / estimate.step_time_seconds:.1%}"),
            )
            for name, seconds in shown
        ),
        low=0.0,
        high=shown[0][1] if shown else 1.0,
        legend=tuple((group, palette.GROUPS[group]) for group in groups),
    )


def time_of_plans(comparison: Comparison) -> Bars:
    """Each plan's time for the same tokens, in three parts."""
    rows = []
    for index, plan in enumerate(comparison.plans):
        level, segments = 0.0, []
        for group, mark in palette.GROUPS.items():
            seconds = sum(one.values[index] for one in comparison.time if palette.time_group(one.term) == group)
            segments.append(Segment(name=group, start=level, finish=level + seconds, mark=mark))
            level += seconds
        rows.append(Bar(name=plan.label, segments=tuple(segments), texts=(format_seconds(level),)))
    return Bars(
        title=f"Time of a step, {len(rows)} plans" if comparison.time_per == "step" else "Time for a million tokens",
        columns=("plan", "", "time"),
        rows=tuple(rows),
        low=0.0,
        high=max((row.segments[-1].finish for row in rows), default=1.0),
        legend=tuple(palette.GROUPS.items()),
    )


def moved(movements: Sequence[Movement], plan: int, *, title: str, of_bytes: bool) -> Bars:
    """How much more (right) or less (left) of each term a plan has than the first."""
    from . import compare_view as view

    write = view.signed_bytes if of_bytes else view.signed_seconds
    changes = {one.term: one.changes[plan] for one in view.moved(movements) if one.changes[plan]}
    reach = max(map(abs, changes.values()), default=1.0)

    def row(term: str, value: float) -> Bar:
        mark = "orange" if value > 0 else "teal"
        segment = Segment(name=_words(term), start=min(value, 0.0), finish=max(value, 0.0), mark=mark)
        return Bar(name=_words(term), segments=(segment,), texts=(write(value),))

    return Bars(
        title=title,
        columns=("kind" if of_bytes else "term", "", "change"),
        rows=tuple(row(term, value) for term, value in sorted(changes.items(), key=lambda item: -abs(item[1]))),
        low=-reach,
        high=reach,
        limit=0.0,
        of_bytes=of_bytes,
        legend=(("more than A", "orange"), ("less than A", "teal")),
    )


def cloud(found: Landscape, chosen: Sequence[tuple[str, Strategy, float, float]], capacity: float) -> Cloud:
    """The landscape's strategies, and ``(name, strategy, seconds, bytes)`` of those to point out."""
    taken = {strategy for _, strategy, _, _ in chosen}
    points = tuple(
        Point(
            memory=spot.peak_memory_bytes,
            seconds=spot.step_time_seconds,
            label=spot.strategy.describe(),
            efficient=spot.efficient,
            fits=spot.fits,
        )
        for spot in found.spots
        if spot.strategy not in taken or spot.efficient
    )
    named = tuple(Point(memory=memory, seconds=seconds, label=name, fits=memory <= capacity) for name, _, seconds, memory in chosen)
    return Cloud(points=points, chosen=named, capacity=capacity)


def plans_cloud(comparison: Comparison) -> Cloud:
    """The compared plans by peak memory and by time for the same tokens."""
    seconds = [sum(one.values[index] for one in comparison.time) for index in range(len(comparison.plans))]
    points = tuple(
        Point(memory=plan.estimate.peak_memory_bytes, seconds=each, label=plan.label, fits=plan.estimate.fits)
        for plan, each in zip(comparison.plans, seconds, strict=True)
    )
    return Cloud(points=(), chosen=points, capacity=min(plan.estimate.memory_capacity_bytes for plan in comparison.plans), all_named=True)


def lanes(drawn: StepTimeline) -> tuple[Lanes, ...]:
    """The whole step; or, where it has too many passes, its start and its end."""
    shown = drawn.ranks[:MAX_RANKS]
    total = sum(map(len, shown))
    if total <= MAX_PIECES:
        return (_window(drawn, "The whole step", 0.0, drawn.step_time_seconds),)
    each = min(MAX_PIECES // 2 // len(shown), WINDOW_PASSES)
    until = min(float(rank.finish_seconds[min(each, len(rank)) - 1]) for rank in shown)
    since = max(float(rank.start_seconds[-min(each, len(rank))]) for rank in shown)
    return (
        _window(drawn, f"The first {format_seconds(until)}", 0.0, until),
        _window(drawn, f"The last {format_seconds(drawn.step_time_seconds - since)}", since, drawn.step_time_seconds),
    )


def _window(drawn: StepTimeline, title: str, start: float, finish: float) -> Lanes:
    idle = drawn.idle_seconds()
    rows = []
    for number, rank in enumerate(drawn.ranks[:MAX_RANKS]):
        pieces = [*_passes(rank, start, finish), *_end(drawn, number, start, finish)]
        busy = 1 - idle[number] / drawn.makespan_seconds if drawn.makespan_seconds else 1.0
        name = f"{number} {drawn.pools[number]}" if drawn.pools else str(number)
        rows.append(Lane(name=name, pieces=tuple(pieces), text=f"{busy:.1%}"))
    marks = {piece.mark for row in rows for piece in row.pieces}
    return Lanes(
        title=title,
        start=start,
        finish=finish,
        rows=tuple(rows),
        legend=tuple((name, mark) for name, mark in palette.PASSES.items() if mark in marks),
    )


def _passes(rank: RankActions, start: float, finish: float) -> Iterator[Piece]:
    columns = (rank.stage, rank.microbatch, rank.start_seconds, rank.finish_seconds)
    for kind, stage, microbatch, begins, ends in zip(rank.kinds(), *(column.tolist() for column in columns), strict=True):
        if ends > start and begins < finish and ends > begins:
            what = kind.name.replace("_", " ").lower()
            yield Piece(
                start=max(begins, start),
                finish=min(ends, finish),
                mark=MARK_OF_KIND[kind],
                text=str(microbatch),
                tooltip=f"{what} of micro-batch {microbatch}, stage {stage}, {format_seconds(ends - begins)}",
            )


def _end(drawn: StepTimeline, number: int, start: float, finish: float) -> Iterator[Piece]:
    end, at = drawn.ends[number], drawn.makespan_seconds
    parts = (
        ("gradients", at, at + end.communication_seconds),
        ("optimizer", at + end.communication_seconds, at + end.communication_seconds + end.optimizer_seconds),
        ("overhead", drawn.step_time_seconds - drawn.overhead_seconds, drawn.step_time_seconds),
    )
    for name, begins, ends in parts:
        if ends > start and begins < finish and ends > begins:
            tooltip = f"{name}, {format_seconds(ends - begins)}"
            yield Piece(start=max(begins, start), finish=min(ends, finish), mark=palette.PASSES[name], text="", tooltip=tooltip)


def _stacked(stage: StageEstimate) -> tuple[Segment, ...]:
    segments, level = [], 0.0
    for kind, value in _kinds(stage):
        segments.append(Segment(name=_words(kind), start=level, finish=level + value, mark=palette.MEMORY[kind]))
        level += value
    return tuple(segments)


def _kinds(stage: StageEstimate) -> list[tuple[str, float]]:
    return [(f.name, value) for f in fields(StageMemory) if (value := getattr(stage.memory, f.name)) > 0]


def _words(name: str) -> str:
    return name.replace("_", " ")


def _gib(value: float) -> str:
    return f"{value / GIB:.2f}"
