"""Seconds of one micro-batch on each virtual stage."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .columns import Floats, StrategyColumns, column
from .inputs import Inputs
from .layer_costs import LayerCosts
from .pipeline_shape import PipelineShape
from .spec.strategy import PipelineSchedule, Recompute


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """What recomputation repeats, rows x 1, or rows x virtual stages where some row says it stage by stage."""

    recomputed: Floats
    """Share of the layers that full recomputation repeats."""
    selective: Floats
    """1 where selective recomputation repeats its part."""

    @classmethod
    def by(cls, strategies: StrategyColumns, shape: PipelineShape) -> Repeated:
        """What ``strategies`` repeat on the stages of ``shape``."""
        selective = column(np.asarray(strategies.is_recompute(Recompute.SELECTIVE), dtype=np.float64))
        return Repeated(recomputed=recomputed_share(strategies, shape), selective=selective)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes(Repeated):
    """rows x virtual stages, seconds of one micro-batch; exposed transfers are folded into the passes."""

    forward: Floats
    backward: Floats
    """Without the weight gradients."""
    weight: Floats
    end_forward: Floats
    """Of that, embedding and head."""
    end_backward: Floats
    transfers: Floats
    """Exposed pipeline transfers, both directions."""

    @classmethod
    def of(cls, inputs: Inputs, strategies: StrategyColumns, costs: LayerCosts, shape: PipelineShape) -> StageTimes:
        """Layers times their cost, plus the ends where they live and the boundary to the next rank."""
        dense_count, moe_count = shape.layer_counts(inputs)

        def over_layers(of_dense: Floats, of_moe: Floats) -> Floats:
            return np.asarray(column(of_dense) * dense_count + column(of_moe) * moe_count)

        repeats = Repeated.by(strategies, shape)
        share, selective = repeats.recomputed, repeats.selective
        forward = over_layers(costs.dense.forward.total, costs.moe.forward.total)
        # One gather serves the repeated forward and the backward after it.
        gathered = over_layers(costs.dense.forward.sharded, costs.moe.forward.sharded)
        repeated = share * (forward - gathered) + selective * over_layers(costs.dense.selective.total, costs.moe.selective.total)
        backward = over_layers(costs.dense.backward.total, costs.moe.backward.total) + repeated
        weight = over_layers(costs.dense.weight_gradient, costs.moe.weight_gradient)
        first, last = shape.is_first, shape.is_last
        heads = 1 + inputs.model.mtp_layers
        end_forward = column(costs.ends.embedding_forward) * first + column(costs.ends.head_forward * heads) * last
        end_backward = column(costs.ends.embedding_backward) * first + column(costs.ends.head_backward * heads) * last
        hides = shape.schedule not in (PipelineSchedule.GPIPE, PipelineSchedule.ONE_F_ONE_B)
        boundary = column(costs.boundary * (1 - inputs.framework.pipeline_overlap * hides))
        sent, returned = boundary * (1 - last), boundary * (1 - first)
        return cls(
            forward=forward + end_forward + sent,
            backward=backward - weight + end_backward + returned,
            weight=weight,
            end_forward=end_forward,
            end_backward=end_backward,
            transfers=sent + returned,
            recomputed=share,
            selective=selective,
        )


def recomputed_share(strategies: StrategyColumns, shape: PipelineShape) -> Floats:
    """rows x 1: share of a rank's layers that full recomputation covers; rows x stages where a row counts them by stage."""
    asked = column(np.asarray(strategies.num_recompute_layers, dtype=np.float64))
    covered = np.where(asked > 0, np.minimum(asked / max(shape.layers_of_rank, 1), 1), 1.0)
    if strategies.recompute_split.any():
        counts = [strategies.splits[code] or (0,) * shape.num_stages for code in strategies.recompute_split.tolist()]
        layers = np.maximum(shape.dense_layers + shape.moe_layers, 1)
        by_stage = np.minimum(np.array(counts, dtype=np.float64) / layers, 1)
        covered = np.where(column(strategies.recompute_split > 0), by_stage, covered)
    return np.asarray(covered * column(strategies.is_recompute(Recompute.FULL)))
