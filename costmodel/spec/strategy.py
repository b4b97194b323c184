"""How a model is laid over a cluster."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum

from .errors import Fault, raise_if


class Recompute(StrEnum):
    NONE = "none"
    SELECTIVE = "selective"
    """The attention core alone (Korthikanti 2022); nothing to save where attention is fused."""
    FULL = "full"


class PipelineSchedule(StrEnum):
    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved_1f1b"
    ZERO_BUBBLE = "zero_bubble"
    """ZB-H1 with one virtual stage, ZBV with two (Qi 2023, 2024)."""
    DUALPIPE = "dualpipe"


class ContextParallelKind(StrEnum):
    RING = "ring"
    ALL_GATHER = "all_gather"
    ULYSSES = "ulysses"


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """One point of the search space.

    ``data_parallel_size`` counts replicas of the batch only; context-parallel ranks are apart.
    ``expert_parallel_size`` folds into the data, context and tensor ranks of a stage: it does not
    enlarge the world. ``pipeline_layers`` has the decoder layers of each virtual stage in model order
    (``pipeline_parallel_size x virtual_pipeline_stages`` entries); empty asks for the balanced split.
    """

    tensor_parallel_size: int = 1
    sequence_parallel: bool = False
    pipeline_parallel_size: int = 1
    virtual_pipeline_stages: int = 1
    pipeline_schedule: PipelineSchedule = PipelineSchedule.ONE_F_ONE_B
    context_parallel_size: int = 1
    context_parallel_kind: ContextParallelKind = ContextParallelKind.RING
    expert_parallel_size: int = 1
    expert_tensor_parallel_size: int = 1
    data_parallel_size: int = 1
    micro_batch_size: int = 1
    zero_stage: int = 1
    shard_group_size: int = 0
    """Ranks that share one copy of the sharded states; 0: all data- and context-parallel ranks."""
    recompute: Recompute = Recompute.NONE
    num_recompute_layers: int = 0
    """Layers of each pipeline rank that ``recompute=full`` covers; 0: all of them."""
    pipeline_layers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        at_least_one = [f.name for f in fields(self) if f.name.endswith("_size") or f.name == "virtual_pipeline_stages"]
        faults = [
            Fault(field=name, given=repr(getattr(self, name)), required="an integer of at least 1")
            for name in at_least_one
            if name != "shard_group_size" and (not isinstance(getattr(self, name), int) or getattr(self, name) < 1)
        ]
        if self.zero_stage not in (0, 1, 2, 3):
            faults.append(Fault(field="zero_stage", given=repr(self.zero_stage), required="0, 1, 2 or 3"))
        faults += [
            Fault(field=name, given=repr(getattr(self, name)), required="0 or more")
            for name in ("shard_group_size", "num_recompute_layers")
            if getattr(self, name) < 0
        ]
        raise_if(faults)

    @property
    def world_size(self) -> int:
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.context_parallel_size * self.data_parallel_size

    @property
    def num_virtual_stages(self) -> int:
        return self.pipeline_parallel_size * self.virtual_pipeline_stages

    def num_microbatches(self, global_batch_size: int) -> int:
        """Micro-batches of one data-parallel rank and step (floor; feasibility asks for an exact division)."""
        return global_batch_size // (self.data_parallel_size * self.micro_batch_size)

    def describe(self) -> str:
        """The strategy in the short forms of the command line: ``TP8 PP4 DP8 mbs2 1f1b``."""
        without_sequence = "-noSP" if self.tensor_parallel_size > 1 and not self.sequence_parallel else ""
        parts = [f"TP{self.tensor_parallel_size}{without_sequence}", f"PP{self.pipeline_parallel_size}"]
        optional = (("VPP", self.virtual_pipeline_stages), ("CP", self.context_parallel_size), ("EP", self.expert_parallel_size))
        parts += [f"{name}{value}" for name, value in optional if value > 1]
        if self.expert_parallel_size > 1 and self.expert_tensor_parallel_size > 1:
            parts.append(f"ETP{self.expert_tensor_parallel_size}")
        parts += [f"DP{self.data_parallel_size}", f"mbs{self.micro_batch_size}", f"ZeRO-{self.zero_stage}"]
        if self.pipeline_parallel_size > 1:
            parts.append(self.pipeline_schedule.value)
        recompute = self.recompute.value
        if self.recompute is Recompute.FULL and self.num_recompute_layers:
            recompute += f"({self.num_recompute_layers} layers)"
        return " ".join([*parts, f"recompute={recompute}"])


def balanced_layers(num_layers: int, num_stages: int, *, head_layers: float = 0.0) -> tuple[int, ...]:
    """Layers of each virtual stage: equal where they divide, else so that the heaviest stage is lightest.

    ``head_layers`` is what the output matrix and loss weigh, in layers: the last stage starts with that much, the first
    with the little the embedding takes, and each layer goes to the stage that carries least so far (the middle first).
    An even split is kept where there is one, as frameworks do unless told otherwise.
    """
    base, spare = divmod(num_layers, num_stages)
    if not spare:
        return (base,) * num_stages
    carried = [0.0] * num_stages
    carried[0] += EMBEDDING_LAYERS
    carried[-1] += max(head_layers, 2 * EMBEDDING_LAYERS)
    layers = [1] * num_stages if num_layers >= num_stages else [0] * num_stages
    middle_first = sorted(range(num_stages), key=lambda stage: (-min(stage, num_stages - 1 - stage), stage))
    for _ in range(num_layers - sum(layers)):
        lightest = min(middle_first, key=lambda stage: carried[stage] + layers[stage])
        layers[lightest] += 1
    return tuple(layers)


EMBEDDING_LAYERS = 0.01
"""Weight of the embedding lookup, in layers: enough to break a tie."""
