"""The shape of a pipeline: which layers each virtual stage has, and which rank runs it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .columns import SCHEDULES, Bools, Floats, Ints, StrategyColumns
from .inputs import Inputs
from .spec.schedule import stage_holders, stage_ranks
from .spec.strategy import EMBEDDING_LAYERS, PipelineSchedule, balanced_layers, heaviest_load, weighted_layers


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineShape:
    """What a group of strategies shares: the schedule, its sizes and the layers of each virtual stage."""

    schedule: PipelineSchedule
    pipeline_parallel_size: int
    virtual_pipeline_stages: int
    dense_layers: Ints
    moe_layers: Ints
    on_rank: Floats
    """ranks x virtual stages: 1 where the rank runs the stage."""

    @classmethod
    def of(cls, inputs: Inputs, strategies: StrategyColumns) -> PipelineShape:
        """The shape of strategies that all have the same one."""
        p, v = int(strategies.pipeline_parallel_size[0]), int(strategies.virtual_pipeline_stages[0])
        schedule = SCHEDULES[int(strategies.pipeline_schedule[0])]
        ranks = stage_ranks(schedule, p, v)
        on_rank = np.zeros((p, p * v))
        on_rank[list(ranks), np.arange(len(ranks)) % (p * v)] = 1
        explicit = strategies.splits[int(strategies.layer_split[0])]
        dense, moe = _layers_by_kind(inputs, explicit or _balanced(inputs, schedule, p, v))
        return cls(
            schedule=schedule, pipeline_parallel_size=p, virtual_pipeline_stages=v, dense_layers=dense, moe_layers=moe, on_rank=on_rank
        )

    @property
    def num_stages(self) -> int:
        return len(self.dense_layers)

    @property
    def directions(self) -> int:
        """Ends from which micro-batches enter: 2 for DualPipe."""
        return 2 if self.schedule is PipelineSchedule.DUALPIPE else 1

    @property
    def is_first(self) -> Floats:
        """1 for the virtual stage with the embedding."""
        return np.asarray(np.arange(self.num_stages) == 0, dtype=np.float64)

    @property
    def is_last(self) -> Floats:
        """1 for the virtual stage with the head."""
        return np.asarray(np.arange(self.num_stages) == self.num_stages - 1, dtype=np.float64)

    @property
    def layers_of_rank(self) -> float:
        """Mean decoder layers of a pipeline rank."""
        return float(self.dense_layers.sum() + self.moe_layers.sum()) / self.pipeline_parallel_size

    def on_ranks(self, stages: Floats) -> Floats:
        """A per-virtual-stage quantity summed over the stages of each rank."""
        return np.asarray(stages @ self.on_rank.T)

    def layer_counts(self, inputs: Inputs) -> tuple[Floats, Floats]:
        """Dense and expert layers of each virtual stage, multi-token-prediction layers on the last one included.

        One row a strategy where the problem differs by row, else one for all.
        """
        extra = np.asarray(inputs.model.mtp_layers)[..., None] * self.is_last
        has_experts = bool(self.moe_layers.sum() > 0)
        return self.dense_layers + extra * (not has_experts), self.moe_layers + extra * has_experts


def head_layers(inputs: Inputs) -> Floats:
    """What follows the decoder layers on the last stage weighs, in layers of the model: by the parameters a token passes through.

    The output matrix once, and once more with a layer for each multi-token-prediction module.
    """
    model = inputs.model
    table = model.vocab * model.hidden
    in_layers = np.maximum(model.num_active_parameters - table * (2 - model.tied), table * 0.01)
    return np.asarray(table * model.num_layers / in_layers * (1 + model.mtp_layers) + model.mtp_layers)


def lighter_split(inputs: Inputs, schedule: PipelineSchedule, pipeline_parallel_size: int, virtual_pipeline_stages: int) -> tuple[int, ...]:
    """The explicit split worth trying beside the balanced one: with a lighter heaviest rank; empty where there is none.

    Of a model whose layers do not divide it is the balanced split itself, which no framework has without being told.
    """
    p, v = pipeline_parallel_size, virtual_pipeline_stages
    layers, weight = _num_layers(inputs), _head_weight(inputs)
    if layers % (p * v):
        return _balanced(inputs, schedule, p, v)
    if weight <= 1 or p * v == layers:  # a layer moved weighs as much where it arrives
        return ()
    holders = stage_holders(schedule, p, v)
    weighted = weighted_layers(layers, p * v, head_layers=weight, embedding_layers=EMBEDDING_LAYERS, holders=holders)
    even = (layers // (p * v),) * (p * v)
    loads = [heaviest_load(split, head_layers=weight, embedding_layers=EMBEDDING_LAYERS, holders=holders) for split in (weighted, even)]
    return weighted if loads[0] < loads[1] * (1 - 1e-9) else ()


def _balanced(inputs: Inputs, schedule: PipelineSchedule, p: int, v: int) -> tuple[int, ...]:
    return balanced_layers(_num_layers(inputs), p * v, head_layers=_head_weight(inputs), holders=stage_holders(schedule, p, v))


def _num_layers(inputs: Inputs) -> int:
    return int(np.ravel(inputs.model.num_layers)[0])


def _head_weight(inputs: Inputs) -> float:
    return float(np.ravel(head_layers(inputs))[0])


def expert_layers(inputs: Inputs) -> Bools:
    """Which layers have experts, in model order."""
    model = inputs.model
    num_moe, first_dense, frequency = (
        int(np.ravel(c)[0]) for c in (model.num_moe_layers, model.first_dense_layers, model.moe_layer_frequency)
    )
    index = np.arange(_num_layers(inputs))
    return np.asarray((index >= first_dense) & ((index - first_dense + 1) % frequency == 0) & (num_moe > 0))


def _layers_by_kind(inputs: Inputs, split: tuple[int, ...]) -> tuple[Ints, Ints]:
    """Dense and expert layers of each virtual stage of ``split``."""
    layers = np.array(split)
    ends = np.cumsum(layers)
    counts = np.concatenate([[0], np.cumsum(expert_layers(inputs))])
    moe = counts[ends] - counts[ends - layers]
    return layers - moe, moe
