"""Seconds of a pipeline for strategies of one shape: the closed form, or the simulated schedule where that is only a bound."""

from __future__ import annotations

import numpy as np

from .columns import Bools, Floats
from .pipeline import makespan
from .pipeline_closed_form import closed_form_makespan
from .spec.strategy import PipelineSchedule

SPLIT_BACKWARD = (PipelineSchedule.ZERO_BUBBLE, PipelineSchedule.DUALPIPE)


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
    seconds, exact = closed_form_makespan(schedule, counts, forward, whole, p, v, weight_backward=weight if split else None)
    if simulate and not exact:
        parts = [weight[row] if split else None for row in range(rows)]
        seconds = np.array([makespan(schedule, p, v, int(counts[row]), forward[row], whole[row], parts[row]) for row in range(rows)])
    return seconds, np.full(rows, exact or simulate)
