"""What the stages of a pipeline would take and hold with any layers on them: the coefficients a partition is chosen by.

Seconds of a micro-batch and bytes at the peak are linear in the dense and expert layers of a stage and in the share of them that is
recomputed. The coefficients are read off the cost model itself, asked about stages of one and of two layers: nothing is written twice.
Axes: N strategies of one pipeline shape, S virtual stages in model order, R holders of stages, 2 kinds of layers (dense, experts).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .columns import RECOMPUTES, Bools, Floats, Ints, StrategyColumns, column, distinct_rows, gather
from .holdings import Holdings, Tails, held_by_ranks, rank_parameters, rank_states, rank_tails
from .inputs import Inputs
from .layer_costs import LayerCosts
from .pipeline_shape import PipelineShape, expert_layers
from .rank_memory import RankMemory
from .spec.schedule import stage_holders
from .spec.strategy import PipelineSchedule, Recompute
from .stage_times import StageTimes
from .step import shared_layer_costs

_PIPELINE = ("pipeline_schedule", "pipeline_parallel_size", "virtual_pipeline_stages")


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """A quantity of a stage or of a holder of stages: ``base + layers of each kind . slope``."""

    base: Floats
    """``[N, S]`` or ``[N, R]``."""
    slope: Floats
    """The same with an axis of 2 at the end: for each dense layer and for each layer of experts."""

    def take(self, row: int) -> Linear:
        return Linear(base=self.base[row : row + 1], slope=self.slope[row : row + 1])


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBudget:
    """Strategies of one pipeline shape, their layers not yet placed."""

    rows: Ints
    """Which of the strategies asked about."""
    schedule: PipelineSchedule
    is_expert: Bools
    """``[layers]``, in model order."""
    holder: Ints
    """``[S]``: who runs each stage; a pair of ranks under DualPipe."""
    seconds: Linear
    """Of a micro-batch on a stage, forward and backward, nothing recomputed."""
    forward_seconds: Linear
    """Of that, the forward."""
    weight_seconds: Linear
    """And the weight gradients; what recomputation repeats belongs to neither."""
    recomputed_seconds: Linear
    """The same with every layer recomputed."""
    bytes: Linear
    """Peak of a holder; the slope is for one layer more on any one of its stages. Nothing recomputed."""
    recomputed_bytes: Linear
    """The same with every layer recomputed."""
    unfolded_bytes: Floats
    """``[N, R]``: of ``recomputed_bytes``, the working set that the first recomputed layer brings."""
    capacity_bytes: float
    num_microbatches: Floats
    """``[N]``."""
    work_seconds: Floats
    """``[N]``: of a micro-batch on all stages, nothing recomputed."""
    forward_share: Floats
    """``[N]``: largest share of the forward in a stage's seconds, nothing recomputed."""
    tail_seconds: Floats
    """``[N]``: :func:`least_tail_seconds`."""
    tails: Tails
    """``[N, R, X + 1]``: what follows the last backward on a rank of 0, 1, ... X layers, at least; the last entry is for all above.

    Of the first rank alone where ranks have several stages.
    """

    @property
    def num_stages(self) -> int:
        return len(self.holder)

    @property
    def num_holders(self) -> int:
        return int(self.holder.max()) + 1

    @property
    def num_ranks(self) -> int:
        """Two for each holder under DualPipe."""
        return self.num_holders * self.directions

    @property
    def directions(self) -> int:
        """Ends from which micro-batches enter; each holder's stages run on so many ranks."""
        return 2 if self.schedule is PipelineSchedule.DUALPIPE else 1

    @property
    def num_layers(self) -> int:
        return len(self.is_expert)

    def take(self, row: int) -> StageBudget:
        """One of the strategies."""
        names = ("seconds", "forward_seconds", "weight_seconds", "recomputed_seconds", "bytes", "recomputed_bytes")
        lines = {name: getattr(self, name).take(row) for name in names}
        columns = ("rows", "unfolded_bytes", "num_microbatches", "work_seconds", "forward_share", "tail_seconds")
        return replace(self, **lines, **{name: getattr(self, name)[row : row + 1] for name in columns}, tails=self.tails.take(row))

    @property
    def first_tails(self) -> Floats:
        """``[N, X + 1]``: what follows the last backward on the first rank, which has nothing to hide behind but its own passes."""
        return self.tails.seconds(np.zeros(1), np.zeros(1))[:, 0]

    @property
    def least_base_bytes(self) -> Floats:
        """``[N, R]``: what a holder without layers has at least; multi-token-prediction modules are recomputed with the layers."""
        return np.minimum(self.bytes.base, self.recomputed_bytes.base - self.unfolded_bytes)

    def kinds_before(self) -> Ints:
        """``[layers + 1, 2]``: dense and expert layers among the first n."""
        return _prefix_kinds(self.is_expert)

    def on_holders(self, stages: Floats) -> Floats:
        """A quantity of stages (axis 1) summed over those of each holder."""
        belongs = (self.holder[:, None] == np.arange(self.num_holders)).astype(np.float64)
        return np.asarray(np.tensordot(stages, belongs, axes=(1, 0)) if stages.ndim == 2 else np.einsum("nsk,sr->nrk", stages, belongs))


def stage_budgets(
    inputs: Inputs, strategies: StrategyColumns, *, plain: Recompute = Recompute.NONE, alone: bool = False
) -> Iterator[StageBudget]:
    """The budgets of strategies of one problem, grouped by pipeline shape; their own splits and recomputation do not matter.

    ``plain`` is how layers run that are not recomputed whole: what the fields say of nothing recomputed. ``alone`` leaves out what the
    stages say to each other and to their copies, transfers and tails: of pools that are still to be joined.
    """
    nothing = np.zeros(len(strategies), dtype=np.int64)
    bare = strategies.with_columns(layer_split=nothing, recompute_split=nothing, num_recompute_layers=nothing)
    _, shape = distinct_rows(bare, _PIPELINE)
    costs, index = shared_layer_costs(inputs, bare)
    for code in range(int(shape.max(initial=-1)) + 1):
        rows = np.flatnonzero(shape == code)
        yield _Probe(inputs, bare.take(rows), gather(costs, index[rows]), plain, alone=alone).budget(rows)


class _Probe:
    """Asks the cost model about pipelines whose stages all hold the same few layers of one kind."""

    def __init__(self, inputs: Inputs, strategies: StrategyColumns, costs: LayerCosts, plain: Recompute, *, alone: bool) -> None:
        self._inputs, self._strategies, self._plain, self._alone = inputs, strategies, plain, alone
        self._answers: dict[tuple[Recompute, int, int, int], tuple[tuple[Floats, ...], Floats]] = {}
        self._costs: LayerCosts = replace(costs, boundary=0 * costs.boundary) if alone else costs
        self._shape = PipelineShape.of(inputs, strategies)
        self._is_expert = expert_layers(inputs)

    def budget(self, rows: Ints) -> StageBudget:
        shape = self._shape
        passes, held = self._lines(self._plain)
        recomputed_passes, recomputed_held = self._lines(Recompute.FULL)
        usual = self._times(self._columns(self._plain), shape)
        stages = usual.forward + usual.backward + usual.weight
        sizes = (shape.pipeline_parallel_size, shape.virtual_pipeline_stages)
        return StageBudget(
            rows=rows,
            schedule=shape.schedule,
            is_expert=self._is_expert,
            holder=np.array(stage_holders(shape.schedule, *sizes), dtype=np.int64),
            seconds=_sum(passes),
            forward_seconds=passes[0],
            weight_seconds=passes[2],
            recomputed_seconds=_sum(recomputed_passes),
            bytes=held,
            recomputed_bytes=recomputed_held,
            unfolded_bytes=self._unfolded(),
            capacity_bytes=float(self._inputs.memory_bytes),
            num_microbatches=np.broadcast_to(self._costs.shard.num_microbatches, (len(rows),)).astype(np.float64),
            work_seconds=stages.sum(axis=1),
            forward_share=np.max(usual.forward / stages, axis=1),
            tail_seconds=np.zeros(len(rows)) if self._alone else self._least_tail(stages),
            tails=Tails.none(len(rows)) if self._alone else self._tails(passes[0], _sum(recomputed_passes)),
        )

    def _least_tail(self, stages: Floats) -> Floats:
        held_by = held_by_ranks(self._inputs, self._strategies, self._costs, self._shape)
        return least_tail_seconds(self._inputs, held_by, self._shape.on_ranks(stages))

    def _tails(self, forward: Linear, whole: Linear) -> Tails:
        """Of ranks with up to twice the layers of an even split.

        Which kinds they are is known of the first rank with one stage a rank; elsewhere the kinds are those with the shorter tail.
        """
        count, single = len(self._is_expert), bool(self._stages_of_rank[0] == 1)
        most = min(2 * -(-count // (self._shape.pipeline_parallel_size // self._shape.directions)), count)
        alike = np.sort(self._is_expert)
        mixed = bool(alike.any() and not alike.all())
        orders = [self._is_expert, alike, alike[::-1]] if mixed else [alike]
        found = [self._tails_of(_prefix_kinds(order)[: most + 1], (forward, whole), every=single) for order in orders]
        return Tails.shortest(found[1:], first=found[0] if single else None) if mixed else found[0]

    def _tails_of(self, kinds: Ints, lines: tuple[Linear, Linear], *, every: bool) -> Tails:
        """``[N, ranks, len(kinds)]``; the last is without what grows with the passes it hides behind."""
        local, shape, kind = self._costs.local, self._shape, int(self._is_expert.any())
        ranks = slice(None) if every else slice(1)
        ones = np.ones(shape.num_stages, dtype=np.int64)
        bare = replace(shape, dense_layers=(1 - kind) * ones, moe_layers=kind * ones)
        layers = [
            (column(local.dense_layer), column(0 * local.dense_layer)),
            (column(local.moe_layer_shared), column(local.moe_layer_expert)),
        ]
        one = rank_parameters(self._inputs, self._costs, bare)
        ends = [(held - self._stages_of_rank * each)[:, ranks] for held, each in zip(one, layers[kind], strict=True)]
        held = [
            each[..., None] + (kinds[:, 0] * layers[0][grid] + kinds[:, 1] * layers[1][grid])[:, None] for grid, each in enumerate(ends)
        ]

        def passes(line: Linear) -> Floats:
            own = shape.on_ranks(line.base)[:, ranks, None] + np.einsum("nk,xk->nx", line.slope[:, 0], kinds)[:, None]
            own[..., -1] = np.inf
            return np.asarray(own)

        forward, whole = lines
        own = passes(forward), passes(Linear(base=whole.base - forward.base, slope=whole.slope - forward.slope))
        return rank_tails(self._inputs, self._strategies, self._costs, (held[0], held[1]), own)

    def _lines(self, recompute: Recompute) -> tuple[tuple[Linear, ...], Linear]:
        """Seconds of stages (forward, backward, weight) and bytes of holders; the base is of the kind with the larger working set."""
        kinds = (0, 1) if self._is_expert.any() else (0, 0)
        one, two = ([self._ask(recompute, kind, count) for kind in kinds] for count in (1, 2))
        passes = [_line([times[part] for times, _ in one], [times[part] for times, _ in two], np.ones(1)) for part in range(3)]
        return tuple(passes), self._on_holders(_line([held for _, held in one], [held for _, held in two], self._stages_of_rank))

    @property
    def _stages_of_rank(self) -> Floats:
        return np.asarray(self._shape.on_rank.sum(axis=1))

    def _on_holders(self, bytes_: Linear) -> Linear:
        """Of ranks that hold the same stages, those of the first: DualPipe's pairs need the same."""
        holders = self._shape.pipeline_parallel_size // self._shape.directions
        return Linear(base=bytes_.base[:, :holders], slope=bytes_.slope[:, :holders])

    def _unfolded(self) -> Floats:
        """Bytes are linear in the share recomputed but for the step at the first layer: twice what half the layers need, less the ends."""
        kind = int(self._is_expert.any())
        none, full = (self._ask(recompute, kind, 2)[1] for recompute in (self._plain, Recompute.FULL))
        half = self._ask(Recompute.FULL, kind, 2, recomputed=self._shape.num_stages // self._shape.pipeline_parallel_size)[1]
        return np.maximum(2 * half - none - full, 0.0)[:, : self._shape.pipeline_parallel_size // self._shape.directions]

    def _ask(self, recompute: Recompute, kind: int, count: int, *, recomputed: int = 0) -> tuple[tuple[Floats, ...], Floats]:
        """Seconds of each stage by pass and bytes of each rank, ``count`` layers of ``kind`` on every stage, ``recomputed`` of a rank's."""
        key = (recompute, kind, count, recomputed)
        if key not in self._answers:
            self._answers[key] = self._answer(*key)
        return self._answers[key]

    def _answer(self, recompute: Recompute, kind: int, count: int, recomputed: int) -> tuple[tuple[Floats, ...], Floats]:
        layers = np.full(self._shape.num_stages, count, dtype=np.int64)
        dense, moe = (0 * layers, layers) if kind else (layers, 0 * layers)
        columns, shape = self._columns(recompute, recomputed), replace(self._shape, dense_layers=dense, moe_layers=moe)
        times = self._times(columns, shape)
        states = rank_states(self._inputs, columns, self._costs, shape)
        held = RankMemory.of(self._inputs, columns, self._costs, shape, times, states).total
        return (times.forward, times.backward, times.weight), held

    def _columns(self, recompute: Recompute, layers: int = 0) -> StrategyColumns:
        code = np.full(len(self._strategies), RECOMPUTES.index(recompute), dtype=np.int64)
        return self._strategies.with_columns(recompute=code, num_recompute_layers=np.full_like(code, layers))

    def _times(self, columns: StrategyColumns, shape: PipelineShape) -> StageTimes:
        return StageTimes.of(self._inputs, columns, self._costs, shape)


def least_tail_seconds(inputs: Inputs, held: Holdings, on_ranks: Floats) -> Floats:
    """What follows the last micro-batch on a first rank with its share of the layers, at least: ``[N]``.

    Its reduction and gather have nothing to hide behind but its own passes of one micro-batch, which take less than the busiest
    rank's forward and backward together (``on_ranks``, recomputation apart: it repeats a forward), and no more than the framework overlaps.
    """
    framework, own = inputs.framework, on_ranks.max(axis=1, keepdims=True)
    reduced = held.reduction_seconds - np.minimum(held.reduction_seconds * column(framework.data_overlap), own)
    gathered = held.gather_seconds - np.minimum(held.gather_seconds * column(framework.param_gather_overlap), own)
    return np.asarray((reduced + gathered + held.optimizer_seconds).min(axis=1))


def _prefix_kinds(is_expert: Bools) -> Ints:
    """Dense and expert layers among the first n, ``[layers + 1, 2]``."""
    kinds = np.stack([~is_expert, is_expert], axis=1).astype(np.int64)
    return np.concatenate([np.zeros((1, 2), dtype=np.int64), np.cumsum(kinds, axis=0)])


def _sum(lines: Sequence[Linear]) -> Linear:
    return Linear(base=sum_of([line.base for line in lines]), slope=sum_of([line.slope for line in lines]))


def sum_of(arrays: Sequence[Floats]) -> Floats:
    return np.asarray(sum(arrays[1:], start=arrays[0]))


def _line(one: list[Floats], two: list[Floats], stages: Floats) -> Linear:
    """From answers for one and for two layers on each of ``stages``, of dense layers and of layers of experts.

    Where the model has experts the base is theirs: multi-token-prediction layers, and the layer that recomputation unfolds.
    """
    slopes = [(more - less) / stages for less, more in zip(one, two, strict=True)]
    return Linear(base=2 * one[-1] - two[-1], slope=np.stack(slopes, axis=-1))
