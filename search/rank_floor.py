"""Which strategies could beat a step time at all, asked of all of a space at once: the filter before layers are placed.

The ranks of all pipelines lie one after the other in flat arrays (``Pipelines``), so that a space of fifty pipeline shapes costs as many
numpy calls as one. What a rank takes and holds comes from :mod:`~autopar.costmodel.layer_floor`.

Symbols: a rank with x layers of which y are recomputed takes t_0 + t x + a y seconds of a micro-batch and holds b_0 + b x - s y bytes of C.
W seconds of a micro-batch on all stages, T on the busiest rank, m micro-batches, p ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from autopar.costmodel.columns import SCHEDULES, Bools, Floats, Ints, StrategyColumns, distinct_rows
from autopar.costmodel.layer_floor import LayerFloor
from autopar.costmodel.pipeline_closed_form import in_flight_microbatches
from autopar.costmodel.spec.schedule import stage_ranks
from autopar.costmodel.spec.strategy import PipelineSchedule

HAIR = 1e-9
"""Relative difference of a bound and a step time that is no difference."""
ROUNDS = 3
"""Times that the least work and the longest rank are fed into each other: each time both only get tighter."""
_RANGE = 1e-15
"""From the most to the least that a bound may be."""
_HALVINGS = 24
"""Of that range's exponent."""


SHAPE = ("pipeline_schedule", "pipeline_parallel_size", "virtual_pipeline_stages")


def alike(rows: StrategyColumns, names: tuple[str, ...]) -> list[Ints]:
    """The places of ``rows`` in groups that agree in the named columns."""
    if not len(rows):
        return []
    _, code = distinct_rows(rows, names)
    order = np.argsort(code, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(code[order])) + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipelines:
    """The ranks of N pipelines one after the other, R in all."""

    row: Ints
    """``[R]``: the strategy that the rank belongs to."""
    rank: Ints
    """``[R]``: from 0 in every pipeline."""
    start: Ints
    """``[N]``: where a pipeline's ranks begin."""
    first: Bools
    """``[R]``: whether the rank runs the embedding."""
    last: Bools
    """And the head; in a V-shaped pipeline that is the first rank too."""
    in_flight: Floats
    """``[R]``: micro-batches whose activations of one virtual stage are held at the peak."""

    @classmethod
    def of(cls, rows: StrategyColumns, num_microbatches: Floats) -> Pipelines:
        """Those of ``rows``. DualPipe's ranks are said to hold nothing, which is less than they do."""
        size = rows.pipeline_parallel_size
        start = np.cumsum(size) - size
        row = np.repeat(np.arange(len(rows)), size)
        in_flight, ends = np.zeros(len(row)), np.zeros((2, len(row)), dtype=np.bool_)
        counts = num_microbatches.astype(np.int64)
        for chosen in alike(rows, SHAPE):
            one = int(chosen[0])
            kind, p, v = SCHEDULES[int(rows.pipeline_schedule[one])], int(size[one]), int(rows.virtual_pipeline_stages[one])
            places, holders = start[chosen][:, None] + np.arange(p), np.array(stage_ranks(kind, p, v))
            stages = np.arange(len(holders)) % (p * v)
            ends[:, places] = [np.isin(np.arange(p), holders[stages == end])[None] for end in (0, p * v - 1)]
            if kind is not PipelineSchedule.DUALPIPE:
                in_flight[places] = in_flight_microbatches(kind, p, v, counts[chosen])
        return cls(row=row, rank=np.arange(len(row)) - start[row], start=start, first=ends[0], last=ends[1], in_flight=in_flight)

    def before(self, seconds: Floats) -> Floats:
        """``[R]``: the sum of ``seconds`` over the ranks of the same pipeline before each one."""
        whole = np.cumsum(seconds) - seconds
        return np.asarray(whole - whole[self.start][self.row])

    def take(self, rows: Ints) -> tuple[Pipelines, Ints]:
        """Some of the pipelines, and the places of their ranks."""
        ends = np.append(self.start[1:], len(self.row))
        size = (ends - self.start)[rows]
        start = np.cumsum(size) - size
        row = np.repeat(np.arange(len(rows)), size)
        rank = np.arange(len(row)) - start[row]
        places = self.start[rows][row] + rank
        own = {name: getattr(self, name)[places] for name in ("first", "last", "in_flight")}
        return Pipelines(row=row, rank=rank, start=start, **own), places


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedules:
    """What bounds need of the schedule of N strategies."""

    ranks: Floats
    num_microbatches: Floats
    gpipe: Bools
    one_f_one_b: Bools
    in_turn: Bools
    """Backwards are whole, and a rank's first stage is as far from the first one as the rank: what passes it passes the ranks before."""

    @classmethod
    def of(cls, rows: StrategyColumns, num_microbatches: Floats) -> Schedules:
        gpipe, plain = rows.is_schedule(PipelineSchedule.GPIPE), rows.is_schedule(PipelineSchedule.ONE_F_ONE_B)
        return cls(
            ranks=rows.pipeline_parallel_size.astype(np.float64),
            num_microbatches=np.asarray(num_microbatches, dtype=np.float64),
            gpipe=gpipe,
            one_f_one_b=plain,
            in_turn=gpipe | plain | rows.is_schedule(PipelineSchedule.INTERLEAVED),
        )

    def take(self, rows: Ints | Bools) -> Schedules:
        names = ("ranks", "num_microbatches", "gpipe", "one_f_one_b", "in_turn")
        return Schedules(**{name: getattr(self, name)[rows] for name in names})

    def longest_seconds(self, busy: Floats, work: Floats) -> Floats:
        """The most that the busiest rank may take of a micro-batch in a pipeline that ends within ``busy`` seconds: ``[N]``.

            any schedule   m T
            gpipe          W + (m - 1) T
            1f1b           W + (m - 1) T - (p - 1) T / 2,   2 W + (m - p - 1) T where m > p

        1F1B: micro-batches enter and leave the busiest rank d through the stages above it, and one goes on through those below. Of d
        itself the path then has m - 1 more forwards and m - p + d more backwards, or as many the other way round, and the shorter of
        the two passes is half of T at most. With m > p a path may go round the stages below d twice, before and after all that d
        does in between: 2 W less what the stages up to d take, (d + 1) T at most, and m - p + d times T.
        """
        m, p = self.num_microbatches, self.ranks
        longest = np.where(~self.in_turn | (work <= busy * (1 + HAIR)), busy / m, -np.inf)
        longest = _within(longest, busy - work, m - 1, self.gpipe)
        longest = _within(longest, busy - work, m - 1 - (p - 1) / 2, self.one_f_one_b)
        return _within(longest, busy - 2 * work, m - p - 1, self.one_f_one_b & (m > p))


def _within(longest: Floats, left: Floats, times: Floats, where: Bools) -> Floats:
    """``longest`` that, ``where`` it is asked, has to go into ``left`` so many ``times``."""
    most = np.divide(left, times, out=np.where((times < 0) | (left >= 0), np.inf, -np.inf), where=times > 0)
    return np.asarray(np.where(where, np.minimum(longest, most), longest))


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFloor:
    """Coefficients of the ranks of N pipelines: ``[R]``."""

    base_seconds: Floats
    seconds: Floats
    repeated_seconds: Floats
    room_bytes: Floats
    """What a rank without layers has left."""
    bytes: Floats
    saved_bytes: Floats
    """By recomputing a layer."""
    working_bytes: Floats
    """What the first recomputed layer unfolds."""

    @classmethod
    def of(cls, floors: tuple[LayerFloor, ...], pool: Ints, pipes: Pipelines, chunks: Floats) -> RankFloor:
        """Of ranks of which each is in one of the pools: ``pool`` says which, ``chunks`` the virtual stages of a rank (``[N]``)."""
        first, last = pipes.first, pipes.last

        def column(name: str) -> Floats:
            return np.asarray(np.stack([getattr(floor, name) for floor in floors])[pool, pipes.row])

        held = pipes.in_flight / chunks[pipes.row]
        kept, checkpoint = column("kept_bytes"), column("checkpoint_bytes")
        taken = column("fixed_bytes") + first * column("first_bytes") + last * column("last_bytes")
        taken = taken + np.where(last, column("last_running_bytes"), column("running_bytes"))
        return cls(
            base_seconds=first * column("first_seconds") + last * column("last_seconds"),
            seconds=column("seconds"),
            repeated_seconds=column("repeated_seconds"),
            room_bytes=column("capacity_bytes") - taken - pipes.in_flight * column("boundary_bytes"),
            bytes=column("layer_bytes") + held * kept,
            saved_bytes=held * (kept - checkpoint),
            working_bytes=np.where(last, column("last_working_bytes"), column("working_bytes")),
        )

    def take(self, places: Ints) -> RankFloor:
        return RankFloor(**{name: getattr(self, name)[places] for name in _RANK_NAMES})

    def most_layers(self, longest: Floats, *, recomputes: bool) -> Floats:
        """Layers that a rank can run within ``longest`` seconds and its memory, at most: ``[R]``, not rounded.

        Where plain ones do not fit, either fewer do, or some are recomputed: x with b_0 + b x - s y <= C less the working set and
        t_0 + t x + a y <= T, or all of them.
        """
        time, room = np.maximum(longest - self.base_seconds, 0), np.maximum(self.room_bytes, 0)
        plain = time / self.seconds
        most = np.minimum(plain, room / self.bytes)
        if recomputes:
            left = np.maximum(self.room_bytes - self.working_bytes, 0)
            both = time * self.saved_bytes + left * self.repeated_seconds
            some = both / (self.seconds * self.saved_bytes + self.bytes * self.repeated_seconds)
            all_bytes = self.bytes - self.saved_bytes
            whole = np.minimum(time / (self.seconds + self.repeated_seconds), left / all_bytes)
            # recomputing some is possible where it needs no more layers than there are
            some = np.where(self.bytes * some - left <= self.saved_bytes * some, some, whole)
            most = np.where(plain * self.bytes <= room, plain, np.maximum(most, some))
        return np.asarray(np.where(self.room_bytes < 0, 0.0, most))

    def fits(self, layers: Floats) -> Bools:
        """Whether so many layers fit as they are."""
        return np.asarray(layers * self.bytes - self.room_bytes <= HAIR * np.abs(self.room_bytes))

    def fewest_repeated(self, layers: Floats) -> Floats:
        """Of so many layers on each rank those that have to be recomputed, not rounded; infinite where memory never suffices."""
        over = layers * self.bytes - self.room_bytes
        needed = np.divide(over + self.working_bytes, self.saved_bytes, out=np.full_like(over, np.inf), where=self.saved_bytes > 0)
        needed = np.where(needed <= layers * (1 + HAIR), np.minimum(needed, layers), np.inf)
        return np.asarray(np.where(self.fits(layers), 0.0, needed))


_RANK_NAMES = ("base_seconds", "seconds", "repeated_seconds", "room_bytes", "bytes", "saved_bytes", "working_bytes")


def least_that_could(could: Callable[[Floats], Bools], most: Floats) -> Floats:
    """The limits below ``most`` up to which ``could`` says no: bounds, to a few millionths; 0 where it never does."""
    low, high, said = most * _RANGE, most, np.zeros(len(most), dtype=np.bool_)
    for _ in range(_HALVINGS):
        middle = np.sqrt(low * high)
        yes = could(middle)
        low, high, said = np.where(yes, low, middle), np.where(yes, middle, high), said | ~yes
    return np.where(said, low, 0.0)
