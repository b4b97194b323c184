"""Step times that no placement of layers on stages goes below, for many strategies at once.

Symbols: W seconds of a micro-batch on all stages, T on the busiest rank, m micro-batches, p ranks, phi the largest share of the
forward in a stage's seconds. Recomputation only adds to W and T, and only lowers phi.
"""

from __future__ import annotations

import numpy as np

from .columns import Floats, StrategyColumns
from .inputs import Inputs
from .spec.strategy import PipelineSchedule
from .stage_budget import StageBudget, least_tail_seconds
from .step import overhead_seconds, stage_groups


def partition_bound_seconds(inputs: Inputs, strategies: StrategyColumns) -> Floats:
    """Lower bound of each strategy's step over all layer splits and all recomputation, memory aside; its own split does not matter.

    The pipeline's (:func:`balanced_bound`), what follows it on the first rank, and the framework's overhead on both.
    """
    bound = np.empty(len(strategies))
    for group in stage_groups(inputs, strategies):
        stages = group.times.forward + group.times.backward + group.times.weight
        share = np.max(group.times.forward / stages, axis=1)
        shape = group.shape
        asked = (shape.schedule, shape.pipeline_parallel_size, group.num_microbatches, stages.sum(axis=1), share)
        tail = least_tail_seconds(group.inputs, group.held, shape.on_ranks(stages))
        bound[group.rows] = _step(group.inputs, balanced_bound(*asked), tail, balanced_bound(*asked, idle=1))
    return bound


def placed_bound_seconds(inputs: Inputs, budget: StageBudget, slowest: Floats) -> Floats:
    """Lower bound of each step of ``budget`` where no placement that fits has a busiest rank below ``slowest`` seconds.

    any schedule   m T
    gpipe          W + (m - 1) T
    1f1b           W + (m - 1) T - (p - 1) phi T
    """
    count, work, p = budget.num_microbatches, budget.work_seconds, budget.num_holders
    asked = (budget.schedule, p, count, work, budget.forward_share)
    floor = count * slowest
    if budget.schedule is PipelineSchedule.GPIPE:
        floor = work + (count - 1) * slowest
    elif budget.schedule is PipelineSchedule.ONE_F_ONE_B:
        floor = np.maximum(floor, work + (count - 1 - (p - 1) * budget.forward_share) * slowest)
    pipeline, without_first = (np.maximum(balanced_bound(*asked, idle=idle), floor) for idle in (0, 1))
    return _step(inputs, pipeline, budget.tail_seconds, without_first)


def _step(inputs: Inputs, pipeline: Floats, tail: Floats, without_first: Floats) -> Floats:
    """A step of at least ``pipeline`` seconds and the first rank's tail, or one whose first rank is given less to do.

    The tail is that of a rank with its share of the layers. Where it has fewer, its tail shrinks in proportion while the others' work
    grows in proportion: the sum is linear in its layers, hence least at one of the ends, and with none the others do all the work.
    """
    busy = np.minimum(pipeline + tail, without_first)
    return np.asarray(busy + overhead_seconds(inputs, busy))


def balanced_bound(
    schedule: PipelineSchedule, ranks: int, num_microbatches: Floats, work: Floats, forward_share: Floats, *, idle: int = 0
) -> Floats:
    """Lower bound of the pipeline's seconds over all splits of its work that leave the first ``idle`` ranks none.

        any schedule   m W / p
        gpipe          W + (m - 1) W / p
        1f1b           W + W / sum_d 1/c_d,   c_d = (m - 1) (1 - phi) + max(m - p + d, 0) phi

    1F1B: rank d runs its first backward only when a micro-batch has been all the way down and back to it, after at most p - d
    forwards; its other m - 1 backwards and m - p + d forwards follow, then the way out: W + (m - 1) b_d + (m - p + d) f_d. The slowest
    of these is least where all are equal.
    """
    count = np.broadcast_to(num_microbatches, work.shape)
    working = max(ranks - idle, 1)
    least = count * work / working
    if schedule is PipelineSchedule.GPIPE:
        return np.asarray(work + (count - 1) * work / working)
    if schedule is not PipelineSchedule.ONE_F_ONE_B or ranks == 1:
        return np.asarray(least)
    share, m = forward_share[:, None], count[:, None]
    weights = (m - 1) * (1 - share) + np.maximum(m - ranks + np.arange(idle, ranks), 0) * share
    spread = np.sum(1 / np.maximum(weights, 1e-300), axis=1)
    return np.asarray(np.maximum(least, work + work / spread))
