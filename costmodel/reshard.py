"""What changes hands when a model's state moves from one layout to another.

State lies on an axis in parameters: the embedding, the layers in order, the head. A pipeline rank holds the intervals of its virtual
stages, a tensor-parallel rank a slice of their width, an expert rank its experts, and a sharding rank a part of the intervals laid end
to end. So what a GPU holds is a set of boxes, and what it already held is their overlap with its old ones: no rank is asked twice.

Exact for even cuts. What is held whole beside its cut (norms, routers, the second copy of a tied table) counts as cut; a ZeRO shard is
taken in the order of the layers, as flat buffers have it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .columns import Bools, Floats, Ints, StrategyColumns
from .inputs import Inputs
from .memory import least_state_bytes
from .pipeline_shape import PipelineShape
from .problem import Problem
from .sharding import LocalParameters, Shard
from .spec.goodput import Resharding
from .spec.layout import RankLayout
from .spec.strategy import Strategy, split_text


@dataclass(frozen=True, slots=True)
class _Boxes:
    """ranks x stages: intervals on the axis of parameters; and for each rank its slices of the width, as (low, high) fractions."""

    start: Floats
    end: Floats
    slices: tuple[tuple[Floats, Floats], ...]

    @property
    def volume(self) -> Floats:
        """Parameters of each rank."""
        return self.overlap(self)

    def overlap(self, other: _Boxes) -> Floats:
        """Parameters that each rank of one has in common with the same rank of the other."""
        first = np.maximum(self.start[:, :, None], other.start[:, None, :])
        last = np.minimum(self.end[:, :, None], other.end[:, None, :])
        length = np.maximum(last - first, 0).sum(axis=(1, 2))
        for (low, high), (other_low, other_high) in zip(self.slices, other.slices, strict=True):
            length = length * np.maximum(np.minimum(high, other_high) - np.maximum(low, other_low), 0)
        return np.asarray(length)

    def of_ranks(self, ranks: Ints) -> _Boxes:
        return _Boxes(self.start[ranks], self.end[ranks], tuple((low[ranks], high[ranks]) for low, high in self.slices))


def resharding(before: tuple[Problem, Strategy], after: tuple[Problem, Strategy], *, survivors: Ints | None = None) -> Resharding:
    """What the GPUs of ``after`` load and move when they take over the state that those of ``before`` held.

    Args:
        before: the old layout, with its problem.
        after: the new one, of the same model.
        survivors: old rank of each new rank; None: rank for rank, the last ones are those that are gone.
    """
    ranks = np.arange(after[1].world_size) if survivors is None else survivors
    inputs = Inputs.of(after[0])
    loaded, kept = np.zeros(len(ranks)), np.zeros(len(ranks))
    for bytes_each, sharded_from in _parts(inputs, after[1]):
        new = _boxes(Inputs.of(after[0]), after[1], sharded_from)
        old = _boxes(Inputs.of(before[0]), before[1], sharded_from)
        for name, boxes in new.items():
            loaded += bytes_each * boxes.volume
            kept += bytes_each * boxes.overlap(old[name].of_ranks(ranks))
    return Resharding(
        state_bytes=float(least_state_bytes(inputs)),
        loaded_bytes=float(loaded.sum()),
        moved_bytes=float(np.maximum(loaded - kept, 0).sum()),
        largest_load_bytes=float(loaded.max()),
        changed=tuple(_changes(before[1], after[1])),
    )


def node_load_bytes(problem: Problem, strategy: Strategy) -> float:
    """What one node of the layout holds, the fullest: read by a spare that takes its place."""
    inputs, per_node = Inputs.of(problem), min(problem.cluster.gpus_per_node, strategy.world_size)
    held = np.zeros(strategy.world_size)
    for bytes_each, sharded_from in _parts(inputs, strategy):
        held += bytes_each * sum(boxes.volume for boxes in _boxes(inputs, strategy, sharded_from).values())
    whole = len(held) // per_node * per_node
    return float(held[:whole].reshape(-1, per_node).sum(axis=1).max())


def _parts(inputs: Inputs, strategy: Strategy) -> tuple[tuple[float, int], ...]:
    """Bytes a parameter of the parameters and of the optimizer's states, each with the ZeRO stage from which it is shared out."""
    training = inputs.training
    master, moments = float(training.master_weight_bytes), float(training.optimizer_state_bytes)
    alone = bool(inputs.framework.sharded_master_alone) and master > 0 and strategy.zero_stage >= 3
    return ((0.0 if alone else float(training.parameter_bytes), 3), (master + moments, 1))


def _boxes(inputs: Inputs, strategy: Strategy, sharded_from: int) -> dict[str, _Boxes]:
    """What every rank holds of the dense parameters and of the experts; shared out from ZeRO stage ``sharded_from`` on."""
    layout, ranks = RankLayout.of(strategy), np.arange(strategy.world_size)
    shape = PipelineShape.of(inputs, StrategyColumns.of([strategy]))
    dense, expert = _boundaries(inputs, shape)
    grid, folded = (layout.coordinates(ranks, expert=expert) for expert in (False, True))
    share = strategy.zero_stage >= sharded_from
    group = strategy.shard_group_size or layout.world_size
    held = shape.on_rank[grid["pp"]] > 0
    boxes = {
        "dense": _box(
            dense, held, _shard(grid["dp"] * layout.cp + grid["cp"], layout.dp * layout.cp, group, share), [_slice(grid["tp"], layout.tp)]
        )
    }
    if expert[-1] > 0:
        cut = [_slice(folded["ep"], layout.ep), _slice(folded["etp"], layout.etp)]
        boxes["expert"] = _box(expert, held, _shard(folded["edp"], layout.edp, group, share), cut)
    return boxes


def _boundaries(inputs: Inputs, shape: PipelineShape) -> tuple[Floats, Floats]:
    """Where the virtual stages begin and end on the axes of dense parameters and of expert parameters."""
    whole = LocalParameters.of(inputs, Shard.of(inputs, StrategyColumns.of([Strategy()])))
    sizes = {name: float(np.ravel(getattr(whole, name))[0]) for name in whole.__slots__}
    dense_layers, moe_layers = (np.atleast_2d(counts)[0] for counts in shape.layer_counts(inputs))
    dense = dense_layers * sizes["dense_layer"] + moe_layers * sizes["moe_layer_shared"]
    dense = dense + sizes["embedding"] * shape.is_first + sizes["head"] * shape.is_last
    return _ends(dense), _ends(moe_layers * sizes["moe_layer_expert"])


def _ends(lengths: Floats) -> Floats:
    return np.concatenate([[0.0], np.cumsum(lengths)])


def _slice(index: Ints, size: int) -> tuple[Floats, Floats]:
    return index / size, (index + 1) / size


def _shard(index: Ints, ranks: int, group: int, share: bool) -> tuple[Floats, Floats]:
    """The part of its intervals that each rank keeps, as fractions."""
    size = min(ranks, group)
    return _slice(index % size, size) if share else _slice(0 * index, 1)


def _box(ends: Floats, held: Bools, shard: tuple[Floats, Floats], slices: list[tuple[Floats, Floats]]) -> _Boxes:
    """Intervals of the stages that each rank runs (``held``: ranks x stages), cut down to its shard of them laid end to end."""
    order = np.argsort(~held, axis=1, kind="stable")[:, : int(held.sum(axis=1).max())]
    start, end = ends[order], ends[order + 1]
    length = end - start
    offset = np.cumsum(length, axis=1) - length
    total = length.sum(axis=1)
    low, high = ((total * bound)[:, None] - offset for bound in shard)
    return _Boxes(start + np.clip(low, 0, length), start + np.clip(high, 0, length), tuple(slices))


def _changes(before: Strategy, after: Strategy) -> list[str]:
    """What cuts the state differently, and what that means for it."""

    def differs(*names: str) -> bool:
        return any(getattr(before, name) != getattr(after, name) for name in names)

    def both(name: str) -> str:
        return f"{getattr(before, name)} -> {getattr(after, name)}"

    found = []
    if differs("tensor_parallel_size"):
        found.append(f"tensor parallel {both('tensor_parallel_size')}: every matrix is cut anew")
    if differs("pipeline_parallel_size", "virtual_pipeline_stages", "pipeline_schedule", "pipeline_layers"):
        stages = (
            f"{each.pipeline_parallel_size} x {each.virtual_pipeline_stages}"
            + (f" ({split_text(each.pipeline_layers)})" if each.pipeline_layers else "")
            for each in (before, after)
        )
        found.append(f"pipeline stages {' -> '.join(stages)}: layers change ranks")
    if differs("rank_order"):
        found.append(f"order of ranks {both('rank_order')}: stages and replicas change ranks")
    if differs("expert_parallel_size", "expert_tensor_parallel_size"):
        sizes = (f"{each.expert_parallel_size} x {each.expert_tensor_parallel_size}" for each in (before, after))
        found.append(f"expert parallel {' -> '.join(sizes)}: experts change ranks")
    if differs("data_parallel_size", "context_parallel_size", "zero_stage", "shard_group_size"):
        ranks = (f"{each.data_parallel_size * each.context_parallel_size} ranks, ZeRO stage {each.zero_stage}" for each in (before, after))
        found.append(f"sharded over {' -> '.join(ranks)}: optimizer states are shared out anew")
    return found
