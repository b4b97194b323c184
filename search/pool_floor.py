"""Stages and replicas by pool, before anything is placed: which strategies could beat a step time, and what none of them goes below.

A yes says little; a no is proven, from what single ranks can do at most within a step time (:mod:`rank_floor`) and what all layers or all
micro-batches then add up to. Transfers between stages and what follows the last backward are left out, and only add.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autopar.costmodel.columns import Bools, Floats, Ints, StrategyColumns
from autopar.costmodel.inputs import Inputs
from autopar.costmodel.layer_floor import LayerFloor, layer_floor
from autopar.costmodel.mixed import Machine
from autopar.costmodel.pipeline_shape import PipelineShape
from autopar.costmodel.pool_budget import filling_batch
from autopar.costmodel.spec.strategy import PipelineSchedule
from autopar.costmodel.step import overhead_seconds

from .pool_space import Manner
from .rank_floor import HAIR, ROUNDS, SHAPE, Pipelines, RankFloor, Schedules, alike
from .space import RecomputeChoices

_NEVER = 1e15
"""Layers of which to recompute some that would not be enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """The framework's overhead as a straight line in the rest of the step: a share and a fixed part."""

    share: float
    fixed_seconds: float

    @classmethod
    def of(cls, inputs: Inputs) -> Overhead:
        fixed, one = (float(overhead_seconds(inputs, np.array(busy))) for busy in (0.0, 1.0))
        return cls(share=one - fixed, fixed_seconds=fixed)

    def busy(self, step_seconds: Floats) -> Floats:
        """What a step of ``step_seconds`` leaves for the pipeline."""
        return np.asarray((step_seconds - self.fixed_seconds) / (1 + self.share))

    def step(self, busy: Floats) -> Floats:
        """The step of a pipeline that takes ``busy`` seconds."""
        return np.asarray(busy * (1 + self.share) + self.fixed_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """N strategies with what a layer takes and holds in each pool that they use."""

    machine: Machine
    rows: StrategyColumns
    pools: tuple[int, ...]
    floors: tuple[LayerFloor, ...]
    """Of each of ``pools``."""
    pipes: Pipelines
    recomputes: bool

    @classmethod
    def of(cls, machine: Machine, rows: StrategyColumns, pools: tuple[int, ...], recompute: RecomputeChoices, manner: Manner) -> Asked:
        inputs = [machine.pools[place] for place in pools]
        if manner is Manner.REPLICAS:
            batch = filling_batch(rows)
            inputs = [each.with_batch(batch) for each in inputs]
        floors = tuple(layer_floor(each.own, rows) for each in inputs)
        pipes = Pipelines.of(rows, floors[0].num_microbatches)
        return cls(machine=machine, rows=rows, pools=pools, floors=floors, pipes=pipes, recomputes=recompute.full)

    @property
    def overhead(self) -> Overhead:
        return Overhead.of(self.machine.overhead_inputs(self.pools))

    def free_stages(self, order: tuple[int, ...]) -> FreeStages:
        """All of them as pipelines through the pools in ``order``."""
        rows, pipes, model = self.rows, self.pipes, self.machine.pools[0].own.model
        floors = tuple(self.floors[self.pools.index(place)] for place in order)
        gpus = [self.machine.problem.pools[place].num_gpus for place in order]
        chunks = rows.virtual_pipeline_stages.astype(np.float64)
        schedules = Schedules.of(rows, floors[0].num_microbatches)
        ends = np.cumsum([rows.pipeline_parallel_size * each // sum(gpus) for each in gpus], axis=0)
        on = (pipes.rank >= ends[:, pipes.row]).sum(axis=0)
        ranks = RankFloor.of(floors, on, pipes, chunks)
        ahead = np.stack([floor.least_seconds for floor in floors])[on, pipes.row] + ranks.base_seconds
        experts = float(np.max(model.num_moe_layers))
        return FreeStages(
            schedules=schedules,
            pipes=pipes,
            ranks=ranks,
            segment=(pipes.start + np.concatenate([0 * ends[:1], ends[:-1]])).T,
            pool_seconds=np.stack([floor.seconds for floor in floors], axis=1),
            lead_seconds=pipes.before(ahead) * schedules.in_turn[pipes.row],
            fewest=0 * chunks if experts else chunks,
            base_work=np.add.reduceat(ranks.base_seconds, pipes.start),
            num_layers=experts or float(np.max(model.num_layers)),
            recomputes=self.recomputes,
            overhead=self.overhead,
        )

    def shared_batch(self) -> SharedBatch:
        """All of them as replicas, in every pool some."""
        rows, question = self.rows, self.machine.problem.question
        by_stage = question.framework.recompute_by_stage
        lanes = tuple(
            FixedStages.of(self.machine.pools[place].own, floor, rows, self.pipes, same_share=not by_stage, recomputes=self.recomputes)
            for place, floor in zip(self.pools, self.floors, strict=True)
        )
        ranks = rows.tensor_parallel_size * rows.context_parallel_size * rows.pipeline_parallel_size
        return SharedBatch(
            lanes=lanes,
            replicas=np.stack([self.machine.problem.pools[place].num_gpus // ranks for place in self.pools]).astype(np.float64),
            rounds=question.training.global_batch_size / (rows.micro_batch_size * lanes[0].round_size),
            overhead=self.overhead,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeStages:
    """N pipelines through k pools, whose layers are still free to be anywhere."""

    schedules: Schedules
    pipes: Pipelines
    ranks: RankFloor
    segment: Ints
    """``[N, k]``: where each pool's ranks begin."""
    pool_seconds: Floats
    """``[N, k]``: of a layer in each pool, in their order."""
    lead_seconds: Floats
    """``[R]``: what a micro-batch takes at least on the ranks before, both ways."""
    fewest: Floats
    """``[N]``: layers that every rank holds at least."""
    base_work: Floats
    """``[N]``: of the ends."""
    num_layers: float
    recomputes: bool
    overhead: Overhead

    def __len__(self) -> int:
        return len(self.fewest)

    def could_beat(self, step_seconds: Floats | float) -> Bools:
        """Which could take less than ``step_seconds``: ``[N]``.

        Within a step S a rank has time for so many whole layers and no more, and all ranks together must have all layers. With the
        most of them on the quicker ranks, W is no less than some number, which the schedule's ramps then take off the time of
        the busiest rank; and so on.
        """
        busy = self.overhead.busy(np.broadcast_to(np.asarray(step_seconds, dtype=np.float64), (len(self),)))
        most = (busy[self.pipes.row] - self.lead_seconds) / self.schedules.num_microbatches[self.pipes.row]
        longest = busy / self.schedules.num_microbatches
        for _ in range(ROUNDS):
            work = self._least_work(np.minimum(most, longest[self.pipes.row]))
            longest = np.minimum(longest, self.schedules.longest_seconds(busy, work))
        return np.isfinite(self._least_work(np.minimum(most, longest[self.pipes.row])))

    def _least_work(self, longest: Floats) -> Floats:
        """Seconds of a micro-batch on all stages, at least, where each rank takes ``longest`` at most; infinite where layers are left."""
        layers = np.floor(self.ranks.most_layers(longest, recomputes=self.recomputes) * (1 + HAIR) + HAIR)
        enough = np.minimum.reduceat(layers - self.fewest[self.pipes.row], self.pipes.start) >= 0
        held = np.add.reduceat(layers, self.segment.ravel()).reshape(self.segment.shape)
        left, work = np.full(len(self), self.num_layers), self.base_work.copy()
        for quicker in np.argsort(self.pool_seconds, axis=1).T:
            place = np.arange(len(self)), quicker
            taken = np.minimum(held[place], left)
            left, work = left - taken, work + taken * self.pool_seconds[place]
        return np.where(enough & (left <= 0), work, np.inf)

    def take(self, chosen: Ints) -> FreeStages:
        """Some of the pipelines."""
        pipes, places = self.pipes.take(chosen)
        shift = (pipes.start - self.pipes.start[chosen])[:, None]
        return FreeStages(
            schedules=self.schedules.take(chosen),
            pipes=pipes,
            ranks=self.ranks.take(places),
            segment=self.segment[chosen] + shift,
            pool_seconds=self.pool_seconds[chosen],
            lead_seconds=self.lead_seconds[places],
            fewest=self.fewest[chosen],
            base_work=self.base_work[chosen],
            num_layers=self.num_layers,
            recomputes=self.recomputes,
            overhead=self.overhead,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedStages:
    """N pipelines on one kind of GPU whose stages have the layers that they have: each recomputes what its memory makes it."""

    schedules: Schedules
    pipes: Pipelines
    round_size: Floats
    """``[N]``: micro-batches that are run together."""
    lead_seconds: Floats
    """``[R]``: what a micro-batch takes at least on the ranks before, both ways."""
    rank_seconds: Floats
    """``[R]``: of a micro-batch, at least; infinite where the memory never suffices."""

    @classmethod
    def of(
        cls, inputs: Inputs, floor: LayerFloor, rows: StrategyColumns, pipes: Pipelines, *, same_share: bool, recomputes: bool
    ) -> FixedStages:
        """Of ``rows`` with their splits.

        Args:
            inputs: the constants of the kind of GPU.
            floor: what a layer takes and holds there.
            rows: with their splits.
            pipes: their ranks.
            same_share: whether all ranks recompute the same share of their layers, hence what the fullest must.
            recomputes: whether any may.
        """
        schedules = Schedules.of(rows, floor.num_microbatches)
        chunks = rows.virtual_pipeline_stages
        halves = np.where(rows.is_schedule(PipelineSchedule.DUALPIPE), 0.5, 1.0)[pipes.row]
        ranks = RankFloor.of((floor,), np.zeros(len(pipes.row), dtype=np.int64), pipes, chunks.astype(np.float64))
        whole, first = _layers_on_ranks(inputs, rows, pipes)
        repeated = ranks.fewest_repeated(whole[:, 0]) if recomputes else np.where(ranks.fits(whole[:, 0]), 0.0, np.inf)
        if same_share:
            share = np.divide(repeated, whole[:, 0], out=np.zeros_like(repeated), where=whole[:, 0] > 0)
            repeated = whole[:, 0] * np.minimum(np.maximum.reduceat(share, pipes.start), _NEVER)[pipes.row] if len(rows) else repeated
        base = np.where(halves < 1, 0.0, ranks.base_seconds)
        other = floor.least_seconds[pipes.row]
        ahead = first[:, 0] * ranks.seconds + first[:, 1] * other + pipes.first * floor.first_seconds[pipes.row]
        never = repeated > _NEVER / 2
        again = np.where(never, 0, repeated) * ranks.repeated_seconds
        seconds = np.where(never, np.inf, halves * (whole[:, 0] * ranks.seconds + whole[:, 1] * other + again))
        return cls(
            schedules=schedules,
            pipes=pipes,
            round_size=np.where(chunks > 1, rows.pipeline_parallel_size, 1).astype(np.float64),
            lead_seconds=pipes.before(ahead) * schedules.in_turn[pipes.row],
            rank_seconds=base + seconds,
        )

    def most_rounds(self, busy: Floats) -> Floats:
        """Whole rounds that a pipeline can run within ``busy`` seconds, at most: ``[N]``; :meth:`Schedules.longest_seconds` turned round.

        A rank has what the way in and out through those before it leaves. (1F1B's second bound is one of more than p micro-batches.)
        """
        schedules, start = self.schedules, self.pipes.start
        slowest, work = np.maximum.reduceat(self.rank_seconds, start), np.add.reduceat(self.rank_seconds, start)
        count = np.minimum.reduceat((busy[self.pipes.row] - self.lead_seconds) / self.rank_seconds, start)
        p = schedules.ranks
        possible = np.isfinite(slowest)
        left = np.divide(busy - work, slowest, out=np.full_like(busy, -1.0), where=possible)
        twice = np.divide(busy - 2 * work, slowest, out=np.full_like(busy, -1.0), where=possible)
        ramp = np.minimum(left + 1 + (p - 1) / 2, np.maximum(twice + p + 1, p))
        count = np.minimum(count, np.where(schedules.gpipe, left + 1, np.where(schedules.one_f_one_b, ramp, np.inf)))
        return np.asarray(np.where(possible, np.floor(np.maximum(count, 0) / self.round_size * (1 + HAIR) + HAIR), 0))

    def busy_seconds(self) -> Floats:
        """What the pipeline takes with its own number of micro-batches, at least: ``[N]``."""
        schedules, start, m, p = self.schedules, self.pipes.start, self.schedules.num_microbatches, self.schedules.ranks
        least = np.maximum.reduceat(self.lead_seconds + m[self.pipes.row] * self.rank_seconds, start)
        slowest, work = np.maximum.reduceat(self.rank_seconds, start), np.add.reduceat(self.rank_seconds, start)
        with np.errstate(invalid="ignore"):
            ramp = np.maximum(work + (m - 1 - (p - 1) / 2) * slowest, np.where(m > p, 2 * work + (m - p - 1) * slowest, 0))
            ramp = np.where(schedules.gpipe, work + (m - 1) * slowest, np.where(schedules.one_f_one_b, ramp, 0))
        return np.where(np.isfinite(slowest), np.fmax(least, ramp), np.inf)

    def take(self, chosen: Ints) -> FixedStages:
        """Some of the pipelines."""
        pipes, places = self.pipes.take(chosen)
        return FixedStages(
            schedules=self.schedules.take(chosen),
            pipes=pipes,
            round_size=self.round_size[chosen],
            lead_seconds=self.lead_seconds[places],
            rank_seconds=self.rank_seconds[places],
        )


def _layers_on_ranks(inputs: Inputs, rows: StrategyColumns, pipes: Pipelines) -> tuple[Floats, Floats]:
    """Layers of each rank, and those of the first stage it runs: ``[R, 2]``, of the kind that is counted and of the other one."""
    whole, first = np.zeros((len(pipes.row), 2)), np.zeros((len(pipes.row), 2))
    for chosen in alike(rows, (*SHAPE, "layer_split")):
        shape = PipelineShape.of(inputs, rows.take(chosen[:1]))
        kinds = [shape.moe_layers, shape.dense_layers]
        stages = np.stack(kinds if np.any(inputs.model.num_moe_layers > 0) else kinds[::-1], axis=1).astype(np.float64)
        places = pipes.start[chosen][:, None] + np.arange(shape.pipeline_parallel_size)
        whole[places], first[places] = shape.on_rank @ stages, stages[: shape.pipeline_parallel_size]
    return whole, first


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedBatch:
    """Strategies whose replicas sit in several pools and share the batch."""

    lanes: tuple[FixedStages, ...]
    """Of each pool."""
    replicas: Floats
    """``[pools, N]``."""
    rounds: Floats
    """``[N]``: to be run in all, in whole rounds."""
    overhead: Overhead

    def __len__(self) -> int:
        return len(self.rounds)

    def could_beat(self, step_seconds: Floats | float) -> Bools:
        """Which could take less than ``step_seconds``: those whose replicas can together run the batch within it."""
        busy = self.overhead.busy(np.broadcast_to(np.asarray(step_seconds, dtype=np.float64), (len(self),)))
        most = np.stack([lane.most_rounds(busy) for lane in self.lanes])
        return np.asarray((most >= 1).all(axis=0) & ((most * self.replicas).sum(axis=0) >= self.rounds * (1 - HAIR)))

    def take(self, chosen: Ints) -> SharedBatch:
        """Some of the strategies."""
        return SharedBatch(
            lanes=tuple(lane.take(chosen) for lane in self.lanes),
            replicas=self.replicas[:, chosen],
            rounds=self.rounds[chosen],
            overhead=self.overhead,
        )
