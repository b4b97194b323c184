"""The joint space: every combination of sizes, schedule, batch and sharding, built as columns a slice at a time.

An axis is a list of values (or of pairs that belong together); the space is their product, with the data-parallel size the
quotient. Axes are expanded one after the other and each rule is applied as soon as the columns it reads are there, so that
the bulk of the product is never built; a row that falls early counts for all the strategies it stands for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from autopar.costmodel.columns import CONTEXT_KINDS, RANK_ORDERS, SCHEDULES, Bools, Ints, StrategyColumns
from autopar.costmodel.inputs import Inputs
from autopar.costmodel.pipeline_shape import lighter_split
from autopar.costmodel.problem import Problem
from autopar.costmodel.spec.framework import RecomputeCount
from autopar.costmodel.spec.strategy import ContextParallelKind, PipelineSchedule, RankOrder, Recompute, Strategy

from .constraints import Constraints
from .feasibility import CONSTRAINTS, PREFERENCES, RULES, Preference
from .rule import Mask, Rule, divisors
from .rules_pipeline import most_stages

ROWS_PER_SLICE = 16_384
MAX_CONTEXT_PARALLEL = 256
"""Above it a ring's blocks are shorter than its latency, and sequences of millions of tokens would be needed."""
MAX_MICRO_BATCH = 16
MICRO_BATCH_TOKENS = 32_768
"""Short sequences go in larger micro-batches, up to this many tokens: beyond it matrix products no longer gain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Columns that vary together, and their values: ``[number of values, columns]``."""

    names: tuple[str, ...]
    values: Ints

    @classmethod
    def of(cls, names: str, values: Sequence[int] | Sequence[tuple[int, ...]]) -> Axis:
        width = len(names.split())
        return cls(names=tuple(names.split()), values=np.array(values, dtype=np.int64).reshape(len(values), width))

    def __len__(self) -> int:
        return len(self.values)


_WHOLE = 10**9
"""Fewest layers where all are recomputed or none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputeChoices:
    """The recomputation axis: what the constraints leave of none, selective, and full on ``fewest`` to ``most`` layers a rank.

    It is not expanded here: :mod:`autopar.search.exhaustive` finds the fewest layers that fit.
    """

    none: bool
    selective: bool
    full: bool
    fewest: int
    most: int | None
    """None: all the layers of the fullest rank."""
    by_virtual_stage: bool
    """Whole layers on each virtual stage alone."""

    @classmethod
    def of(cls, constraints: Constraints, count: RecomputeCount = RecomputeCount.ANY) -> RecomputeChoices:
        """What ``constraints`` and the framework leave; ``num_recompute_layers=0`` is full recomputation of every layer."""
        asked = constraints.fixed.get("num_recompute_layers")
        whole = asked == 0 or "num_recompute_layers" in constraints.forbidden
        fewest = int(asked) if asked else max(1, constraints.minimum.get("num_recompute_layers", 1))
        limit = int(asked) if asked else constraints.maximum.get("num_recompute_layers")
        counted = bool(asked) or constraints.minimum.get("num_recompute_layers", 0) > 0
        return cls(
            none=constraints.allows("recompute", Recompute.NONE) and not counted,
            selective=constraints.allows("recompute", Recompute.SELECTIVE) and not counted,
            full=constraints.allows("recompute", Recompute.FULL) and limit != 0,
            fewest=_WHOLE if whole or count is RecomputeCount.ALL else fewest,
            most=None if whole or not limit else limit,
            by_virtual_stage=count is RecomputeCount.VIRTUAL_STAGES,
        )

    def layer_range(self, problem: Problem, pipeline_parallel_size: Ints) -> tuple[Ints, Ints]:
        """Fewest and most layers that full recomputation may cover on each row's ranks; the range may be empty."""
        held = -(-problem.model.num_layers // pipeline_parallel_size)
        most = held if self.most is None else np.minimum(held, self.most)
        whole = self.fewest >= _WHOLE
        return (held if whole else np.full_like(held, self.fewest)), np.asarray(most)

    def step(self, rows: StrategyColumns) -> Ints:
        """Layers that a rank of each row recomputes more at a time."""
        return rows.virtual_pipeline_stages if self.by_virtual_stage else np.ones_like(rows.virtual_pipeline_stages)

    def step_range(self, problem: Problem, rows: StrategyColumns) -> tuple[Ints, Ints]:
        """:meth:`layer_range` in steps: the last one covers what is left of a rank that holds no whole number of them."""
        fewest, most = self.layer_range(problem, rows.pipeline_parallel_size)
        step, is_whole = self.step(rows), most >= -(-problem.model.num_layers // rows.pipeline_parallel_size)
        last = np.where(is_whole, -(-most // step), most // step)
        return -(-fewest // step), np.where(fewest <= most, last, 0)

    def of_rank(self, held: int, virtual_stages: int) -> range:
        """Counts of full recomputation on a rank of ``held`` layers, the last of which may be more than it holds."""
        step = virtual_stages if self.by_virtual_stage else 1
        most = held if self.most is None else min(self.most, held)
        first = -(-min(self.fewest, held) // step) * step
        return range(first, (-(-most // step) * step if most == held else most) + 1, step) if self.full else range(0)

    def count(self, problem: Problem, pipeline_parallel_size: Ints) -> Ints:
        """Choices of each row."""
        fewest, most = self.layer_range(problem, pipeline_parallel_size)
        return np.asarray(int(self.none) + int(self.selective) + self.full * np.maximum(most - fewest + 1, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSplits:
    """The explicit layer splits worth trying: see :func:`~autopar.costmodel.pipeline_shape.lighter_split`.

    ``code[schedule, p, v]`` is the place in ``splits`` of a pipeline's own one, 0 where the even split is as light as any.
    """

    num_layers: int
    splits: tuple[tuple[int, ...], ...]
    code: Ints

    @classmethod
    def of(cls, problem: Problem, pipeline: Sequence[int], schedules: Sequence[tuple[int, int]]) -> LayerSplits:
        """The splits of every pipeline that these sizes, schedules and virtual stages make."""
        inputs, layers = Inputs.of(problem), problem.model.num_layers
        placed = pipeline if problem.framework.places_layers else ()
        shapes = [(kind, p, v) for p in placed for kind, v in schedules if p > 1 and p * v <= most_stages(problem)]
        found = {shape: split for shape in shapes if (split := lighter_split(inputs, SCHEDULES[shape[0]], *shape[1:]))}
        places = {split: place for place, split in enumerate(dict.fromkeys(((), *found.values())))}
        most = most_stages(problem) + 1
        code = np.zeros((len(SCHEDULES), most, most), dtype=np.int64)
        for shape, split in found.items():
            code[shape] = places[split]
        return cls(num_layers=layers, splits=tuple(places), code=code)

    def added(self, rows: StrategyColumns) -> StrategyColumns:
        """``rows``, and again with the lighter split where there is one; where no even one exists, with it alone."""
        codes = self.code[rows.pipeline_schedule, rows.pipeline_parallel_size, rows.virtual_pipeline_stages]
        rows = replace(rows, splits=self.splits)
        if not codes.any():
            return rows
        even = self.num_layers % (rows.pipeline_parallel_size * rows.virtual_pipeline_stages) == 0
        again = np.flatnonzero((codes > 0) & even)
        whole = rows.with_columns(layer_split=np.where(even, 0, codes))
        return StrategyColumns.concatenate([whole, whole.take(again).with_columns(layer_split=codes[again])])


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """The axes of one problem under constraints, and the rules that thin them out."""

    problem: Problem
    constraints: Constraints
    axes: tuple[Axis, ...]
    base: Strategy
    recompute: RecomputeChoices
    splits: LayerSplits
    rules: tuple[tuple[str, frozenset[str], Mask], ...]
    rejected: Counter[str] = field(default_factory=Counter)
    last_refused: list[Strategy] = field(default_factory=list)
    """The strategy that got past the most rules before one refused it; for a message when none is left."""

    @classmethod
    def of(cls, problem: Problem, constraints: Constraints, *, preferences: Sequence[Preference] = PREFERENCES) -> Space:
        """The space of ``problem``; preferences that the constraints speak about give way."""
        taste = [(p.name, p.reads, p.mask) for p in preferences if not constraints.is_asked(p.yields_to) and "recompute" not in p.reads]
        hard = [(rule.name, rule.reads, rule.mask) for rule in RULES if not _is_settled(rule)]
        shard_group = constraints.fixed.get("shard_group_size", 0)
        axes = _axes(problem, constraints)
        values = {axis.names[0]: axis.values.tolist() for axis in axes}
        return cls(
            problem=problem,
            constraints=constraints,
            axes=axes,
            splits=LayerSplits.of(problem, [p for (p,) in values["pipeline_parallel_size"]], values["pipeline_schedule"]),
            base=Strategy(shard_group_size=int(shard_group)),
            recompute=RecomputeChoices.of(constraints, problem.framework.recompute_count),
            rules=(*hard, *taste),
        )

    @property
    def size(self) -> int:
        """Strategies before any rule, one for each combination; explicit layer splits are not counted."""
        rest = 1
        for axis in self.axes:
            rest *= len(axis)
        if not rest:
            return 0
        pipeline = next(axis for axis in self.axes if axis.names == ("pipeline_parallel_size",))
        choices = self.recompute.count(self.problem, pipeline.values[:, 0])
        return rest // len(pipeline) * int(choices.sum())

    def slices(self) -> Iterator[StrategyColumns]:
        """The strategies that all rules accept, explicit layer splits included, recomputation left at none, a few thousand at a time."""
        if all(len(axis) for axis in self.axes):
            start = StrategyColumns.of([self.base])
            yield from self._expand(start, 0, frozenset())

    def _expand(self, rows: StrategyColumns, depth: int, known: frozenset[str]) -> Iterator[StrategyColumns]:
        """Expand axis ``depth`` over ``rows`` and go on; wide results continue in slices."""
        if depth == len(self.axes):
            yield self.splits.added(rows)
            return
        axis = self.axes[depth]
        step = max(1, ROWS_PER_SLICE // len(axis))
        names = known | set(axis.names)
        if depth == _GRID_AXES - 1:
            names |= {"data_parallel_size", "shard_group_size"}
        for first in range(0, len(rows), step):
            part = _product(rows.take(slice(first, first + step)), axis)
            if depth == _GRID_AXES - 1:
                part = self._with_data_parallel(part)
            part = self._thinned(part, depth, known, names)
            if len(part):
                yield from self._expand(part, depth + 1, names)

    def _with_data_parallel(self, rows: StrategyColumns) -> StrategyColumns:
        """The quotient as data-parallel size; where it is not whole the world-size rule refuses the row."""
        ranks = rows.tensor_parallel_size * rows.pipeline_parallel_size * rows.context_parallel_size
        rows = rows.with_columns(data_parallel_size=np.maximum(self.problem.cluster.num_gpus // ranks, 1))
        size = rows.data_parallel_size
        allowed = np.array([self.constraints.allows("data_parallel_size", int(value)) for value in size.tolist()], dtype=np.bool_)
        return self._filtered(rows, allowed, _GRID_AXES - 1, CONSTRAINTS)

    def _thinned(self, rows: StrategyColumns, depth: int, known: frozenset[str], names: frozenset[str]) -> StrategyColumns:
        """``rows`` without those that a rule refuses whose columns have just become complete."""
        for name, reads, mask in self.rules:
            if reads <= names and not reads <= known and len(rows):
                rows = self._filtered(rows, mask(self.problem, rows), depth, name)
        return rows

    def _filtered(self, rows: StrategyColumns, accepted: Bools, depth: int, name: str) -> StrategyColumns:
        if accepted.all():
            return rows
        refused = np.flatnonzero(~accepted)
        self.rejected[name] += self._weight(rows.pipeline_parallel_size[refused], depth)
        self.last_refused[:] = [rows.strategy(int(refused[0]))]
        return rows.take(accepted)

    def _weight(self, pipeline_parallel_size: Ints, depth: int) -> int:
        """Strategies that rows at ``depth`` stand for: the axes still to come, and the choices of recomputation."""
        rest = 1
        for axis in self.axes[depth + 1 :]:
            rest *= len(axis)
        return rest * int(self.recompute.count(self.problem, pipeline_parallel_size).sum())


_GRID_AXES = 3
"""The first axes make the rank grid; after them the data-parallel size is known."""


def _is_settled(rule: Rule) -> bool:
    """Rules about what the space never varies."""
    return rule.name in ("pipeline_layers", "recomputed_layers", "recomputed_modules", "recomputed_stages")


def _product(rows: StrategyColumns, axis: Axis) -> StrategyColumns:
    """Every row with every value of ``axis``."""
    count = len(axis)
    repeated = rows.take(np.repeat(np.arange(len(rows)), count))
    columns: dict[str, Ints | Bools] = {}
    for position, name in enumerate(axis.names):
        values = np.tile(axis.values[:, position], len(rows))
        columns[name] = values.astype(np.bool_) if name == "sequence_parallel" else values
    return repeated.with_columns(**columns)


def _axes(problem: Problem, constraints: Constraints) -> tuple[Axis, ...]:
    """The axes in the order in which rules can use them; the first three are the rank grid."""
    gpus, model = problem.cluster.num_gpus, problem.model
    pipeline = constraints.choose("pipeline_parallel_size", divisors(gpus, limit=most_stages(problem)))
    tensor = constraints.choose("tensor_parallel_size", divisors(gpus, limit=model.num_attention_heads))
    return (
        Axis.of("pipeline_parallel_size", pipeline),
        Axis.of("tensor_parallel_size sequence_parallel", _tensor_pairs(tensor, constraints)),
        Axis.of("context_parallel_size context_parallel_kind", _context_pairs(problem, constraints)),
        Axis.of("pipeline_schedule virtual_pipeline_stages", _schedule_pairs(problem, constraints, pipeline)),
        Axis.of("expert_parallel_size expert_tensor_parallel_size", _expert_pairs(problem, constraints, tensor)),
        Axis.of("rank_order", _rank_orders(problem, constraints)),
        Axis.of("micro_batch_size", micro_batches(problem, constraints)),
        Axis.of("zero_stage", constraints.choose("zero_stage", _zero_stages(problem))),
    )


def _zero_stages(problem: Problem) -> list[int]:
    """With a pipeline or without one."""
    return sorted({*problem.framework.zero_stages, *problem.framework.zero_stages_with_pipeline})


def _tensor_pairs(sizes: Sequence[int], constraints: Constraints) -> list[tuple[int, int]]:
    if "sequence_parallel" in constraints.fixed:
        return [(size, int(constraints.fixed["sequence_parallel"])) for size in sizes]
    split = (0, 1) if constraints.allows("sequence_parallel", True) else (0,)
    return [(size, on) for size in sizes for on in (split if size > 1 else (0,))]


def _context_pairs(problem: Problem, constraints: Constraints) -> list[tuple[int, int]]:
    """Sizes with the kind: the framework's own default unless another is fixed."""
    length = problem.training.sequence_length
    limit = min(MAX_CONTEXT_PARALLEL, length)
    sizes = constraints.choose("context_parallel_size", divisors(problem.cluster.num_gpus, limit=limit))
    usual = next(iter(problem.framework.context_parallel_kinds), ContextParallelKind.RING)
    kind = CONTEXT_KINDS.index(ContextParallelKind(str(constraints.fixed.get("context_parallel_kind", usual))))
    ring = CONTEXT_KINDS.index(ContextParallelKind.RING)
    return [(size, kind if size > 1 else ring) for size in sizes]


def _schedule_pairs(problem: Problem, constraints: Constraints, pipeline: Sequence[int]) -> list[tuple[int, int]]:
    """Schedules with the virtual stages each can have.

    1f1b is always there, as the name of no schedule at all (a single stage). Interleaved: the divisors of a rank's layers
    where those divide evenly, and powers of two elsewhere (uneven stages, written out as a layout). Where the ends may stand alone,
    a rank's share of the layers and the ends too, one a stage.
    """
    layers, most = problem.model.num_layers, most_stages(problem)
    piped = [size for size in pipeline if 1 < size <= most]
    even = {chunks for size in piped if layers % size == 0 for chunks in divisors(layers // size)}
    even |= {count // size for size in piped for count in range(layers + 1, most + 1) if count % size == 0}
    uneven = {2**power for size in piped for power in range((most // size).bit_length())}
    chunks = constraints.choose("virtual_pipeline_stages", sorted(even | uneven | {1, 2}))
    pairs = []
    for kind in SCHEDULES:
        if kind not in (*problem.framework.schedules, PipelineSchedule.ONE_F_ONE_B) or not constraints.allows("pipeline_schedule", kind):
            continue
        wanted = [v for v in chunks if (v >= 2 if kind is PipelineSchedule.INTERLEAVED else v <= _most_chunks(kind))]
        pairs += [(SCHEDULES.index(kind), v) for v in wanted or chunks]
    return pairs


def _most_chunks(kind: PipelineSchedule) -> int:
    return 2 if kind is PipelineSchedule.ZERO_BUBBLE else 1


def _expert_pairs(problem: Problem, constraints: Constraints, tensor: Sequence[int]) -> list[tuple[int, int]]:
    moe, whole = problem.model.moe, (1,)
    sizes = constraints.choose("expert_parallel_size", divisors(moe.num_experts) if moe else whole)
    cuts = (*whole, *tensor) if moe and problem.framework.expert_tensor_parallel else whole
    return [(size, cut) for size in sizes for cut in constraints.choose("expert_tensor_parallel_size", sorted(set(cuts)))]


def _rank_orders(problem: Problem, constraints: Constraints) -> list[int]:
    """The framework's orders of ranks; its own default alone where the job is within one fast domain and all placements are alike."""
    orders = problem.framework.rank_orders
    if "rank_order" in constraints.fixed:
        return [RANK_ORDERS.index(RankOrder(str(constraints.fixed["rank_order"])))]
    if problem.cluster.num_gpus <= problem.cluster.fast_domain_size:
        orders = orders[:1]
    return [RANK_ORDERS.index(order) for order in orders if constraints.allows("rank_order", order)]


def micro_batches(problem: Problem, constraints: Constraints) -> tuple[int, ...]:
    """The micro-batch sizes of the space: divisors of the batch up to the largest that is worth trying."""
    training = problem.training
    limit = max(MAX_MICRO_BATCH, MICRO_BATCH_TOKENS // training.sequence_length)
    return constraints.choose("micro_batch_size", divisors(training.global_batch_size, limit=limit))


def enumerate_space(problem: Problem, constraints: Constraints) -> Iterator[StrategyColumns]:
    """Slices of the space that every rule and preference accepts, before recomputation is chosen and memory is asked."""
    return Space.of(problem, constraints).slices()


__all__ = ["Axis", "RecomputeChoices", "Space", "enumerate_space"]
