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
        times = group.times
        ends = times.end_forward[:, 0] + times.end_backward[:, 0] + times.transfers[:, 0]
        bound[group.rows] = _step(group.inputs, balanced_bound(*asked), tail, balanced_bound(*asked, idle=1) - ends)
    return bound


def placed_bound_seconds(inputs: Inputs, budget: StageBudget, slowest: Floats) -> Floats:
    """Lower bound of each step of ``budget`` where no placement that fits has a busiest rank below ``slowest`` seconds.

    any schedule   m T; m T / 2 under DualPipe, where T is of a pair of ranks
    gpipe          W + (m - 1) T
    1f1b           W + (m - 1) T - (p - 1) phi T,   2 W + (m - p - 1) T where m > p

    The last: rank d, the busiest, is reached and left round all stages below it, and those above and d itself take (d + 1) T at most.
    """
    count, work, p = budget.num_microbatches, budget.work_seconds, budget.num_ranks
    slowest = np.where(np.isfinite(slowest), slowest, 1e6 * work)
    asked = (budget.schedule, p, count, work, budget.forward_share)
    floor = count / budget.directions * slowest
    if budget.schedule is PipelineSchedule.GPIPE:
        floor = work + (count - 1) * slowest
    elif budget.schedule is PipelineSchedule.ONE_F_ONE_B:
        floor = np.maximum(floor, work + (count - 1 - (p - 1) * budget.forward_share) * slowest)
        floor = np.maximum(floor, np.where(count > p, 2 * work + (count - p - 1) * slowest, 0.0))
    pipeline, without_first = (np.maximum(balanced_bound(*asked, idle=idle), floor) for idle in (0, 1))
    # with the others as slow as the busiest, the first rank may have as little as what they leave of W
    holders = budget.num_holders
    share = np.clip((work - (holders - 1) * slowest) * holders / work, 0, 1)
    embedding = budget.seconds.base[:, 0]
    tail = np.maximum(share * budget.tail_seconds - (1 - share) * embedding, 0)
    return _step(inputs, pipeline, tail, without_first - embedding)


def busy_limit(inputs: Inputs, step_seconds: float) -> float:
    """Seconds of pipeline and tail with which a step takes ``step_seconds``: :func:`~autopar.costmodel.step.overhead_seconds` taken off."""
    fixed, one = (float(overhead_seconds(inputs, np.array(busy))) for busy in (0.0, 1.0))
    return (step_seconds - fixed) / (1 + one - fixed)


def step_bound_seconds(inputs: Inputs, busy: float) -> float:
    """A step whose pipeline and tail take ``busy`` seconds."""
    return busy + float(overhead_seconds(inputs, np.array(busy))) if np.isfinite(busy) else np.inf


def _step(inputs: Inputs, pipeline: Floats, tail: Floats, without_first: Floats) -> Floats:
    """A step of at least ``pipeline`` seconds and the first rank's tail, or one whose first rank is given less to do.

    The tail is that of a rank with its share of the layers. Where it has fewer, its transfers and what they hide behind shrink in
    proportion, but for the embedding's passes, while the others' work grows in proportion: a line in its layers bounds the sum,
    hence its ends do. With none the others do all the work, and the line is below ``without_first`` by the embedding's seconds.
    """
    busy = np.minimum(pipeline + tail, without_first)
    return np.asarray(busy + overhead_seconds(inputs, busy))


def balanced_bound(
    schedule: PipelineSchedule, ranks: int, num_microbatches: Floats, work: Floats, forward_share: Floats, *, idle: int = 0
) -> Floats:
    """Lower bound of the pipeline's seconds over all splits of its work that leave the first ``idle`` ranks none.

        any schedule   m W / p
        gpipe          W + (m - 1) W / p
        1f1b           W + (m - 1) W / p where m > p, else
                       W + W / sum_d 1/c_d,   c_d = (m - 1) (1 - phi) + max(m - p + d, 0) phi

    1F1B: the paths that reach and leave rank d round all stages below it (:func:`~autopar.costmodel.pipeline_paths.ramps`) pass, in the
    mean over d, every stage equally often: the even split is the best there is. With few micro-batches: rank d runs its first
    backward only when a micro-batch has been all the way down and back to it, after at most p - d forwards; its other m - 1 backwards
    and m - p + d forwards follow, then the way out: W + (m - 1) b_d + (m - p + d) f_d. The slowest is least where all are equal.
    """
    count = np.broadcast_to(num_microbatches, work.shape)
    working = max(ranks - idle * (2 if schedule is PipelineSchedule.DUALPIPE else 1), 1)
    least = count * work / working
    if schedule is PipelineSchedule.GPIPE:
        return np.asarray(work + (count - 1) * work / working)
    if schedule is not PipelineSchedule.ONE_F_ONE_B or ranks == 1:
        return np.asarray(least)
    share, m = forward_share[:, None], count[:, None]
    weights = (m - 1) * (1 - share) + np.maximum(m - ranks + np.arange(idle, ranks), 0) * share
    spread = np.sum(1 / np.maximum(weights, 1e-300), axis=1)
    filled = np.where(count > ranks, work + (count - 1) * work / working, 0.0)
    return np.asarray(np.maximum(np.maximum(least, work + work / spread), filled))
