"""How a model is laid over a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from heapq import heapify, heappop, heappush, heappushpop
from itertools import groupby
from types import MappingProxyType

from .errors import Fault, raise_if

LEFT_OUT = MappingProxyType({"left_out_of_files": True})
"""Metadata of a field that a file leaves out at its default: it came later, and what does not use it reads as before."""


class Recompute(StrEnum):
    NONE = "none"
    SELECTIVE = "selective"
    """The attention core alone (Korthikanti 2022), unless modules are named; of it nothing to save where attention is fused."""
    FULL = "full"


class RecomputeModule(StrEnum):
    """A part of a layer that ``recompute=selective`` can repeat, by Megatron's name (``--recompute-modules``)."""

    CORE_ATTN = "core_attn"
    LAYERNORM = "layernorm"
    """Norms that are kernels of their own: before latent attention and before experts."""
    MLA_UP_PROJ = "mla_up_proj"
    """Latent attention's up projections and rotation."""
    MOE_ACT = "moe_act"
    """The activation between an expert's products."""
    MLP = "mlp"
    """The feed-forward of dense layers."""
    MOE = "moe"
    """Router, exchange, experts and shared experts."""
    SHARED_EXPERTS = "shared_experts"


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


class RankOrder(StrEnum):
    """How ranks are numbered: the axes of the rank grid, fastest first. The expert axes fold over the data and context ranks."""

    TP_CP_DP_PP = "tp-cp-dp-pp"
    """Stages are whole blocks of ranks (Megatron's ``tp-cp-ep-dp-pp``): replicas of a stage are neighbours, stages far apart."""
    TP_CP_PP_DP = "tp-cp-pp-dp"
    """Pipelines are whole blocks of ranks (``tp-cp-ep-pp-dp``): stages are neighbours, replicas far apart."""


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
    stage_recompute_layers: tuple[int, ...] = ()
    """Layers of each virtual stage that ``recompute=full`` covers, in model order; empty: ``num_recompute_layers`` on every rank."""
    rank_order: RankOrder = field(default=RankOrder.TP_CP_DP_PP, metadata=LEFT_OUT)
    recompute_modules: tuple[RecomputeModule, ...] = field(default=(), metadata=LEFT_OUT)
    """What ``recompute=selective`` repeats; empty: the attention core, or what the framework chooses by operator."""

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
        if self.pipeline_layers:
            parts.append(f"layers={split_text(self.pipeline_layers)}")
        if self.rank_order is not RankOrder.TP_CP_DP_PP:
            parts.append(f"order={self.rank_order.value}")
        recompute = self.recompute.value
        if self.recompute_modules and self.recompute is Recompute.SELECTIVE:
            recompute += f"({'+'.join(self.recompute_modules)})"
        elif self.stage_recompute_layers:
            recompute += f"(layers={split_text(self.stage_recompute_layers)})"
        elif self.recompute is Recompute.FULL and self.num_recompute_layers:
            recompute += f"({self.num_recompute_layers} layer{'' if self.num_recompute_layers == 1 else 's'})"
        return " ".join([*parts, f"recompute={recompute}"])


def split_text(layers: Sequence[int]) -> str:
    """Layers of the stages in model order, equal ones counted together: ``6,5*14,4``, as ``--pipeline-layers`` takes it."""
    runs = ((count, len(list(run))) for count, run in groupby(layers))
    return ",".join(f"{count}*{length}" if length > 1 else str(count) for count, length in runs)


def balanced_layers(num_layers: int, num_stages: int, *, head_layers: float = 0.0, holders: Sequence[int] | None = None) -> tuple[int, ...]:
    """Layers of each virtual stage: equal where they divide, as frameworks split unless told otherwise, else :func:`weighted_layers`.

    With one or two layers fewer than stages the last stage, or both ends, hold the head and the embedding alone.
    """
    base, spare = divmod(num_layers, num_stages)
    if not spare:
        return (base,) * num_stages
    if num_layers < num_stages <= num_layers + EMPTY_ENDS:
        first = num_stages - num_layers - 1
        return (0,) * first + (1,) * num_layers + (0,)
    return weighted_layers(
        num_layers, num_stages, head_layers=max(head_layers, 2 * EMBEDDING_LAYERS), embedding_layers=EMBEDDING_LAYERS, holders=holders
    )


def weighted_layers(
    num_layers: int, num_stages: int, *, head_layers: float, embedding_layers: float = 0.0, holders: Sequence[int] | None = None
) -> tuple[int, ...]:
    """Layers of each virtual stage such that the heaviest holder of stages is as light as whole layers allow.

    Every stage keeps a layer while there are enough. The last stage starts with ``head_layers`` (what the output matrix and
    loss weigh, in layers), the first with ``embedding_layers``; each further layer goes to the holder that carries least so
    far, there to its lightest stage, the middle first. Layers being equal, no other split has a lighter heaviest holder.

    Args:
        num_layers: decoder layers of the model.
        num_stages: virtual stages, in model order.
        head_layers: weight of the last stage's end, in layers.
        embedding_layers: weight of the first stage's end, in layers.
        holders: who runs each stage (:func:`~autopar.costmodel.spec.schedule.stage_holders`); None: each stage stands alone.
    """
    held_by = range(num_stages) if holders is None else holders
    layers = [1] * num_stages if num_layers >= num_stages else [0] * num_stages
    stage_load = [float(count) for count in layers]
    stage_load[0] += embedding_layers
    stage_load[-1] += head_layers
    holder_load = dict.fromkeys(held_by, 0.0)
    for stage, holder in enumerate(held_by):
        holder_load[holder] += stage_load[stage]
    order = sorted(range(num_stages), key=lambda stage: -min(stage, num_stages - 1 - stage))
    waiting = [(holder_load[held_by[stage]], stage_load[stage], place, stage) for place, stage in enumerate(order)]
    heapify(waiting)
    for _ in range(num_layers - sum(layers)):
        load, own, place, stage = heappop(waiting)
        while load < holder_load[held_by[stage]]:  # its holder got a layer on another stage since
            load, own, place, stage = heappushpop(waiting, (holder_load[held_by[stage]], own, place, stage))
        layers[stage] += 1
        holder_load[held_by[stage]] += 1
        heappush(waiting, (holder_load[held_by[stage]], own + 1, place, stage))
    return tuple(layers)


def heaviest_load(
    layers: Sequence[int], *, head_layers: float, embedding_layers: float = 0.0, holders: Sequence[int] | None = None
) -> float:
    """What the heaviest holder of stages carries, in layers; arguments as of :func:`weighted_layers`."""
    held_by = range(len(layers)) if holders is None else holders
    loads = dict.fromkeys(held_by, 0.0)
    for stage, (count, holder) in enumerate(zip(layers, held_by, strict=True)):
        loads[holder] += count + embedding_layers * (stage == 0) + head_layers * (stage == len(layers) - 1)
    return max(loads.values())


EMPTY_ENDS = 2
"""Stages that may hold no layer where a framework lets the embedding and the head stand alone."""
EMBEDDING_LAYERS = 0.01
"""Weight of the embedding lookup, in layers: enough to break a tie."""
