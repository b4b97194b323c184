"""One training step over pools of unlike devices: every stage as the pool has it that runs it.

A lane (replicas that run alike) is a pipeline whose stages come from several pools: seconds of a stage, bytes of a rank and reductions
inside a pool are those of the pool alone (:mod:`step`'s own parts, one pool's columns beside another's), and only what passes from one
pool to another is new (:mod:`pools`). The schedule of the stages that come out is simulated like any other.

    step = max over lanes of the makespan + max over ranks of (exposed reduction and gather + optimizer) + overhead

Lanes add up their gradients rank by rank: a ring over replicas of several pools goes at the pace of the slowest, so that a rank's
reduction is the largest of what it takes in each pool, and hides behind the last backward of the lane that ends last. With pools of one
device and one network it is :func:`~autopar.costmodel.estimate.estimate`, term by term.

Wrong when: a pool's part of a data-parallel group fills no whole nodes (it is placed as if the group were all in that pool), or when
replicas of unlike speed do not start the step together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, TypeVar

import numpy as np

from .columns import Floats, Ints, StrategyColumns, column
from .holdings import Holdings, exposed_transfer_seconds, held_by_ranks, tied_embedding_bytes, tied_embedding_seconds
from .inputs import Inputs
from .layer_communication import Groups
from .layer_costs import LayerCosts, layer_costs
from .makespan import CLOSED_FORM, makespan_seconds
from .pipeline_shape import PipelineShape
from .pools import MixedProblem, PoolInputs, between_seconds, hop_seconds, stage_pools
from .rank_memory import RankMemory
from .spec.mixed import Lane, MixedStrategy
from .spec.strategy import Recompute, Strategy
from .stage_times import StageTimes
from .step import StageCosts, overhead_seconds

Record = TypeVar("Record")
_KEPT = 64
"""Layer costs that a machine remembers; placements of one strategy come one after the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedCosts:
    """What the step of one mixed strategy is made of."""

    lanes: tuple[StageCosts, ...]
    pacing: int
    """The lane that ends last; its ``data_seconds`` are the step's."""
    on: tuple[tuple[int, ...], ...]
    """The pool of every pipeline rank, by lane."""
    capacity_bytes: tuple[tuple[float, ...], ...]
    """Of the GPU of every rank, by lane."""
    optimizer_seconds: Floats
    """Of every rank: the slowest lane's."""
    overhead: Floats

    @property
    def makespan_seconds(self) -> float:
        return float(self.lanes[self.pacing].makespan[0])

    @property
    def step_seconds(self) -> float:
        tail = np.max(self.lanes[self.pacing].data_seconds[0] + self.optimizer_seconds)
        return float(self.makespan_seconds + tail + self.overhead[0])

    @property
    def exact(self) -> bool:
        """Whether every schedule was simulated or has a closed form; else the step is a lower bound."""
        return all(bool(lane.exact[0]) for lane in self.lanes)

    @property
    def fullest(self) -> tuple[float, float]:
        """Peak bytes of the GPU with the largest share of its memory taken, and what it has."""
        ranks = [
            (used, room)
            for lane, capacity in zip(self.lanes, self.capacity_bytes, strict=True)
            for used, room in zip(lane.memory.total[0].tolist(), capacity, strict=True)
        ]
        return max(ranks, key=lambda rank: rank[0] / rank[1])

    @property
    def fits(self) -> bool:
        used, room = self.fullest
        return used <= room


@dataclass(slots=True)
class Machine:
    """The constants of every pool of one problem; layers that were asked about are kept, so that placements of one strategy share them."""

    problem: MixedProblem
    pools: tuple[PoolInputs, ...]
    _layers: dict[tuple[object, ...], LayerCosts] = field(default_factory=dict)

    @classmethod
    def of(cls, problem: MixedProblem) -> Machine:
        return cls(problem, tuple(PoolInputs.of(pool, problem.between) for pool in problem.pools))

    def costs(self, mixed: MixedStrategy, *, simulate: bool = False) -> MixedCosts:
        """The step of ``mixed``, which must be feasible; a lower bound unless ``simulate`` where the schedule has no closed form."""
        on = tuple(tuple(self.problem.place(name) for name in lane.pools) for lane in mixed.lanes)
        found = [self._lane(mixed, lane, places, simulate=simulate) for lane, places in zip(mixed.lanes, on, strict=True)]
        return self._whole(mixed, on, found)

    def simulated(self, mixed: MixedStrategy, costs: MixedCosts) -> MixedCosts:
        """``costs`` of ``mixed`` with its schedules simulated: as :meth:`costs` with ``simulate``, of which only that is left to do."""
        return self._whole(mixed, costs.on, [_with_makespan(lane, simulate=True) for lane in costs.lanes])

    def _whole(self, mixed: MixedStrategy, on: tuple[tuple[int, ...], ...], found: Sequence[StageCosts]) -> MixedCosts:
        """The lanes with what they do together at the end of the step."""
        held = found[0].held if len(found) == 1 else _slowest_held([lane.held for lane in found])
        pacing = int(np.argmax([lane.makespan[0] for lane in found]))
        lanes = tuple(self._with_data(lane, places, held) for lane, places in zip(found, on, strict=True))
        optimizer = held.optimizer_seconds[0]
        gpus = {place: mixed.ranks_of(self.problem.pools[place].name) for place in sorted({place for places in on for place in places})}
        busy = lanes[pacing].makespan + np.max(lanes[pacing].data_seconds + held.optimizer_seconds, axis=1)
        return MixedCosts(
            lanes=lanes,
            pacing=pacing,
            on=on,
            capacity_bytes=tuple(tuple(float(self.pools[place].own.memory_bytes) for place in places) for places in on),
            optimizer_seconds=optimizer,
            overhead=overhead_seconds(self.overhead_inputs(gpus, gpus), busy),
        )

    def lane_seconds(self, mixed: MixedStrategy, lane: Lane, counts: Ints, *, simulate: bool = False) -> Floats:
        """Makespan of a replica of ``lane`` for each of ``counts`` micro-batches (1, 2, ... of some step), growing.

        Past 2p micro-batches every one more takes the busiest rank's seconds; a bound where the schedule has no closed form. Below that
        a bound too, unless ``simulate``.
        """
        on = tuple(self.problem.place(name) for name in lane.pools)
        asked = self._asked(mixed, lane, on)
        shape, times = asked.shape, asked.times
        known = counts[: 2 * shape.pipeline_parallel_size + 2]
        stages = [np.broadcast_to(each, (len(known), shape.num_stages)) for each in (times.forward, times.backward, times.weight)]
        sizes = (shape.schedule, shape.pipeline_parallel_size, shape.virtual_pipeline_stages, known.astype(np.float64))
        seconds, _ = makespan_seconds(*sizes, *stages, simulate=simulate and shape.schedule in CLOSED_FORM)
        if len(counts) > len(known):
            further = np.arange(1, len(counts) - len(known) + 1)
            seconds = np.concatenate([seconds, seconds[-1] + further * (seconds[-1] - seconds[-2])])
        return np.maximum.accumulate(seconds)

    def overhead_inputs(self, used: Iterable[int], gpus: Mapping[int, int] | None = None) -> Inputs:
        """Constants whose number of nodes is that of the pools in use, as the framework's overhead counts them.

        Args:
            used: the pools.
            gpus: how many GPUs of each; all of them where it does not say.
        """
        pools = [(self.problem.pools[place], (gpus or {}).get(place)) for place in used]
        nodes = sum((pool.num_gpus if count is None else count) / pool.problem.cluster.gpus_per_node for pool, count in pools)
        return replace(self.pools[0].own, num_gpus=np.asarray(nodes), gpus_per_node=np.asarray(1.0))

    def _lane(self, mixed: MixedStrategy, lane: Lane, on: tuple[int, ...], *, simulate: bool) -> StageCosts:
        """The lane's pipeline, its stages from their pools; what follows the last backward is not in yet."""
        asked = self._asked(mixed, lane, on)
        shape, times, used = asked.shape, asked.times, asked.used
        parts = [_Part.of(asked, place, spans=len(mixed.lanes) > 1) for place in range(len(used))]
        ranks = np.array([used.index(place) for place in on])
        busiest = used.index(on[int(np.argmax(shape.on_ranks(times.forward + times.backward + times.weight)[0]))])
        costs = StageCosts(
            rows=np.zeros(1, dtype=np.int64),
            inputs=asked.pools[busiest].own,
            shape=shape,
            layer=asked.layers[busiest],
            times=times,
            held=_chosen([part.held for part in parts], ranks),
            memory=_chosen([part.memory for part in parts], ranks),
            num_microbatches=np.broadcast_to(asked.layers[0].shard.num_microbatches, (1,)),
            makespan=np.zeros(1),
            exact=np.zeros(1, dtype=np.bool_),
            data_seconds=np.zeros((1, len(on))),
            overhead=np.zeros(1),
        )
        return _with_makespan(costs, simulate=simulate)

    def _asked(self, mixed: MixedStrategy, lane: Lane, on: tuple[int, ...]) -> _Asked:
        """What the stages of ``lane`` take."""
        strategy = lane_strategy(mixed.strategy, lane)
        columns, batch = StrategyColumns.of([strategy]), lane.num_microbatches * strategy.data_parallel_size * strategy.micro_batch_size
        used = sorted(set(on))
        pools = [self.pools[place].with_batch(batch) for place in used]
        layers = [self._layer_costs(place, pool.own, strategy, batch) for place, pool in zip(used, pools, strict=True)]
        shape = PipelineShape.of(pools[0].own, columns)
        alone = [
            StageTimes.of(pool.own, columns, replace(costs, boundary=0 * costs.boundary), shape)
            for pool, costs in zip(pools, layers, strict=True)
        ]
        stages = np.array([used.index(place) for place in stage_pools(shape, on)])
        stride = np.asarray(strategy.tensor_parallel_size * strategy.context_parallel_size * lane.data_parallel_size)
        hops = hop_seconds(self.pools, layers[0].shard, shape, on, stride)
        times = _with_hops(_chosen(alone, stages), hops)
        return _Asked(columns=columns, used=used, pools=pools, layers=layers, shape=shape, alone=alone, times=times)

    def _layer_costs(self, place: int, inputs: Inputs, strategy: Strategy, batch: int) -> LayerCosts:
        """Once for all placements of one strategy and, where their number tells no layers apart, for all shares of the micro-batches.

        FP8 casts weights once for all of them, and the first one's gradients may have nothing to be added to. Only the latest are kept.
        """
        plain = replace(strategy, pipeline_layers=(), stage_recompute_layers=(), num_recompute_layers=0)
        size = strategy.data_parallel_size * strategy.micro_batch_size
        told = batch if np.any(inputs.training.low_precision_linear) else int(batch > size)
        key = (place, told, replace(plain, recompute=Recompute.NONE))
        if key not in self._layers:
            if len(self._layers) >= _KEPT:
                self._layers.clear()
            self._layers[key] = layer_costs(inputs, StrategyColumns.of([strategy]))
        found = self._layers[key]
        return replace(found, shard=replace(found.shard, num_microbatches=inputs.training.global_batch_size / np.array([float(size)])))

    def _with_data(self, lane: StageCosts, on: tuple[int, ...], held: Holdings) -> StageCosts:
        """``lane`` with what its reductions and gathers leave exposed, which are those of all lanes together."""
        shape, times = lane.shape, lane.times
        forward, backward = shape.on_ranks(times.forward), shape.on_ranks(times.backward + times.weight)
        data = exposed_transfer_seconds(lane.inputs, held, forward, backward)
        return replace(lane, data_seconds=data + column(self._tied_seconds(lane, on)) * np.isin(np.arange(len(on)), [0, len(on) - 1]))

    def _tied_seconds(self, lane: StageCosts, on: tuple[int, ...]) -> Floats:
        """First and last pipeline rank add up their gradients of a tied embedding, across pools where they sit in two."""
        if on[0] == on[-1]:
            return tied_embedding_seconds(self.pools[on[0]].own, lane.layer)
        return between_seconds((self.pools[on[0]], self.pools[on[-1]]), tied_embedding_bytes(lane.inputs, lane.layer))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """The stages of one lane."""

    columns: StrategyColumns
    used: list[int]
    """The pools that they sit in."""
    pools: list[PoolInputs]
    """Of each of those, asked about the lane's micro-batches."""
    layers: list[LayerCosts]
    shape: PipelineShape
    alone: list[StageTimes]
    """As if the whole pipeline were on each, without the transfers between its stages."""
    times: StageTimes
    """Each stage where it is, with them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """What ranks hold, and do at the end of a step, as if the whole pipeline were on one pool."""

    held: Holdings
    memory: RankMemory

    @classmethod
    def of(cls, asked: _Asked, place: int, *, spans: bool) -> _Part:
        """Where lanes of other pools ``spans`` the groups that reduce, they go at the pace of the slowest network."""
        pool, columns, costs, shape = asked.pools[place], asked.columns, asked.layers[place], asked.shape
        held = held_by_ranks(pool.own, columns, costs, shape)
        if spans:
            through = replace(costs, groups=Groups.of(pool.across, costs.shard))
            held = _slowest_held([held, held_by_ranks(pool.across, columns, through, shape)])
        memory = RankMemory.of(pool.own, columns, costs, shape, asked.alone[place], held.states)
        return cls(held=held, memory=memory)


def _with_makespan(lane: StageCosts, *, simulate: bool) -> StageCosts:
    shape, times = lane.shape, lane.times
    sizes = (shape.schedule, shape.pipeline_parallel_size, shape.virtual_pipeline_stages, lane.num_microbatches)
    makespan, exact = makespan_seconds(*sizes, times.forward, times.backward, times.weight, simulate=simulate)
    return replace(lane, makespan=makespan, exact=exact)


def lane_strategy(strategy: Strategy, lane: Lane) -> Strategy:
    """``strategy`` as the replicas of ``lane`` run it: with its own recomputation."""
    if not lane.stage_recompute_layers:
        return strategy
    return replace(strategy, stage_recompute_layers=lane.stage_recompute_layers, num_recompute_layers=0)


def _with_hops(times: StageTimes, hops: Floats) -> StageTimes:
    """``times`` with the transfer to the next stage in the forward pass and that to the one before in the backward one."""
    sent, returned = np.pad(hops, ((0, 0), (0, 1))), np.pad(hops, ((0, 0), (1, 0)))
    return replace(times, forward=times.forward + sent, backward=times.backward + returned, transfers=sent + returned)


def _chosen(parts: Sequence[Record], places: Ints) -> Record:
    """Column by column from one of ``parts``: the columns of a record whose arrays are rows x ranks or rows x stages."""
    if len(parts) == 1:
        return parts[0]
    first: Any = parts[0]
    values: dict[str, Any] = {}
    for each in fields(first):
        found = [getattr(part, each.name) for part in parts]
        if is_dataclass(found[0]):
            values[each.name] = _chosen(found, places)
        else:
            whole = [np.broadcast_to(part, (1, len(places))) if np.shape(part)[-1] != len(places) else part for part in found]
            values[each.name] = np.choose(places, whole)
    return type(first)(**values)  # type: ignore[no-any-return]


def _slowest_held(lanes: Sequence[Holdings]) -> Holdings:
    """What the parameters of a rank cost where several lanes, or networks, do it together: the slowest of them sets the pace."""
    names = ("reduction_seconds", "gather_seconds", "optimizer_seconds")
    return replace(lanes[0], **{name: np.maximum.reduce([getattr(lane, name) for lane in lanes]) for name in names})
