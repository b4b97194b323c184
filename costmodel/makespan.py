"""Seconds of a pipeline for strategies of one shape: a closed form, a bound that costs nothing, or the simulated schedule."""

from __future__ import annotations

import numpy as np

from .columns import Bools, Floats, Ints
from .pipeline import makespan
from .pipeline_closed_form import closed_form_makespan
from .spec.schedule import stage_ranks
from .spec.strategy import PipelineSchedule

SPLIT_BACKWARD = (PipelineSchedule.ZERO_BUBBLE, PipelineSchedule.DUALPIPE)
CLOSED_FORM = (PipelineSchedule.GPIPE, PipelineSchedule.ONE_F_ONE_B)

PAIR_SHARE = 1.0
"""A forward and a backward that DualPipe runs together take as long as both: their products fill the device, and what one
hides of the other is the exchange of experts, which the framework's ``expert_overlap`` takes out of the durations."""


def makespan_seconds(
    schedule: PipelineSchedule,
    pipeline_parallel_size: int,
    virtual_pipeline_stages: int,
    num_microbatches: Floats,
    forward: Floats,
    backward: Floats,
    weight: Floats,
    *,
    simulate: bool,
) -> tuple[Floats, Bools]:
    """Makespan of each row, and whether it is exact (else a lower bound; never with ``simulate``).

    ``forward``, ``backward`` (without weight gradients) and ``weight`` are ``[rows, virtual stages]`` seconds of a micro-batch.
    """
    p, v, rows = pipeline_parallel_size, virtual_pipeline_stages, len(forward)
    counts = np.broadcast_to(np.asarray(num_microbatches, dtype=np.int64), (rows,))
    if p == 1:
        return counts * (forward + backward + weight).sum(axis=1), np.ones(rows, dtype=np.bool_)
    split = schedule in SPLIT_BACKWARD
    whole = backward if split else backward + weight
    if schedule in CLOSED_FORM:
        closed = np.full(rows, simulate) | (counts > 2 * p - 2) | (schedule is PipelineSchedule.GPIPE)
    else:
        closed = np.zeros(rows, dtype=np.bool_)
    if not simulate or schedule in CLOSED_FORM:
        seconds = np.empty(rows)
        if closed.any():
            seconds[closed], _ = closed_form_makespan(schedule, counts[closed], forward[closed], whole[closed], p, v)
        if not closed.all():
            part = weight[~closed] if split else None
            seconds[~closed] = work_bound(schedule, p, v, counts[~closed], forward[~closed], whole[~closed], part)
        return seconds, closed
    parts = [weight[row] if split else None for row in range(rows)]
    share = PAIR_SHARE if schedule is PipelineSchedule.DUALPIPE else None
    times = [
        makespan(schedule, p, v, int(counts[row]), forward[row], whole[row], parts[row], overlapped_share=share) for row in range(rows)
    ]
    return np.array(times), np.ones(rows, dtype=np.bool_)


def work_bound(
    schedule: PipelineSchedule,
    pipeline_parallel_size: int,
    virtual_pipeline_stages: int,
    num_microbatches: Ints,
    forward: Floats,
    backward: Floats,
    weight: Floats | None = None,
) -> Floats:
    """Lower bound in seconds: the busiest rank's work, after the shortest way in and before the shortest way out.

        max over ranks r of  min_s sum_{k<s} f_k  +  m sum_s T_s  +  min_s sum_{k<s} b_k,   s the stages of r

    Nothing runs on r before one micro-batch has passed the stages above one of its own, and after r's last backward the
    micro-batch still has to go back through them (not where the backward is split: the last action may be a weight part).
    With equal stages it is the interleaved makespan, m T + (p - 1) T / v (Narayanan 2021); measured with a heavy last
    stage it is 0.03 % short of the simulation, and 1 % for zero-bubble.
    """
    p, model_stages = pipeline_parallel_size, pipeline_parallel_size * virtual_pipeline_stages
    ranks = np.array(stage_ranks(schedule, p, virtual_pipeline_stages))
    share = num_microbatches / (len(ranks) // model_stages)
    total = forward + backward if weight is None else forward + backward + weight
    before, after = np.cumsum(forward, axis=1) - forward, np.cumsum(backward, axis=1) - backward
    order = np.argsort(ranks, kind="stable")
    stages, first = order % model_stages, np.flatnonzero(np.diff(ranks[order], prepend=-1))
    way_in = np.minimum.reduceat(before[:, stages], first, axis=1)
    work = np.add.reduceat(total[:, stages], first, axis=1)
    way_out = np.minimum.reduceat(after[:, stages], first, axis=1) if weight is None else 0.0
    return np.asarray(np.max(way_in + share[:, np.newaxis] * work + way_out, axis=1))
