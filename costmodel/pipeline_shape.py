"""The shape of a pipeline: which layers each virtual stage has, and which rank runs it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .columns import SCHEDULES, Floats, Ints, StrategyColumns
from .inputs import Inputs
from .spec.schedule import stage_ranks
from .spec.strategy import PipelineSchedule, balanced_layers


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
        dense, moe = _layer_split(inputs, strategies.pipeline_layers[0] if strategies.pipeline_layers else (), p * v)
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
    """What the output matrix weighs, in layers of the model: by the parameters a token passes through."""
    model = inputs.model
    table = model.vocab * model.hidden
    in_layers = np.maximum(model.num_active_parameters - table * (2 - model.tied), table * 0.01)
    return np.asarray(table * model.num_layers / in_layers)


def _layer_split(inputs: Inputs, explicit: tuple[int, ...], stages: int) -> tuple[Ints, Ints]:
    """Dense and expert layers of each virtual stage: the explicit split, else the balanced one."""
    model = inputs.model
    num_layers, num_moe, first_dense, frequency = (
        int(np.ravel(c)[0]) for c in (model.num_layers, model.num_moe_layers, model.first_dense_layers, model.moe_layer_frequency)
    )
    layers = np.array(explicit or balanced_layers(num_layers, stages, head_layers=float(np.ravel(head_layers(inputs))[0])))
    index = np.arange(num_layers)
    is_moe = (index >= first_dense) & ((index - first_dense + 1) % frequency == 0) & (num_moe > 0)
    ends = np.cumsum(layers)
    counts = np.concatenate([[0], np.cumsum(is_moe)])
    moe = counts[ends] - counts[ends - layers]
    return layers - moe, moe
