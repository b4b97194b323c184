"""temporary"""
from __future__ import annotations
import numpy as np
from .pipeline import simulate_rows
from .spec.schedule import stage_ranks
from .spec.strategy import PipelineSchedule

def rank_of_stage(kind, p, v):
    return stage_ranks(kind, p, v)

def in_flight_microbatches(kind, p, v, m):
    r = np.arange(p)
    m = np.asarray(m)[:, None]
    if kind is PipelineSchedule.ONE_F_ONE_B: return np.minimum(m, p - r)
    if kind is PipelineSchedule.GPIPE: return m + 0 * r
    return np.minimum(m * v, 2 * (p - r - 1) + (v - 1) * p + 1)

def makespan_seconds(kind, p, v, m, f, b, w, *, simulate=False):
    b = b + w
    if p == 1: return m * (f + b)[:, 0], np.ones(len(f), bool)
    out = np.empty(len(f))
    mm = np.broadcast_to(m, (len(f),))
    for value in np.unique(mm):
        rows = mm == value
        out[rows] = simulate_rows(kind, p, v, int(value), f[rows], b[rows])
    return out, np.ones(len(f), bool)
