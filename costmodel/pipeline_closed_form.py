"""Makespan and activations in flight of pipeline schedules, in closed form over columns of strategies.

Symbols: p pipeline ranks, r one of them, v virtual stages a rank, m micro-batches, f_k and b_k the seconds
of a micro-batch's forward and backward on stage k, T_k = f_k + b_k.
"""

from __future__ import annotations

import numpy as np

from .columns import Floats, Ints, distinct
from .pipeline_rows import RowDurations, dwelling_bound, simulate_rows
from .spec.errors import Fault, InvalidInputError, raise_if
from .spec.schedule import schedule_faults
from .spec.strategy import PipelineSchedule


def closed_form_makespan(
    kind: PipelineSchedule,
    num_microbatches: Ints,
    forward: Floats,
    backward: Floats,
    pipeline_parallel_size: int,
    virtual_pipeline_stages: int = 1,
    *,
    weight_backward: Floats | None = None,
    transfer_seconds: Floats | None = None,
    overlapped_share: Floats | None = None,
) -> tuple[Floats, bool]:
    """Makespan in seconds of N strategies of one schedule, p and v, and whether all N are exact.

    gpipe and 1f1b: exact for any stage times (:func:`gpipe_makespan`, :func:`one_f_one_b_makespan`).
    The others, and 1f1b with transfer delays: exact up to :func:`simulated_microbatches` (the schedule is
    simulated) and where all stages take the same time and transfers none; elsewhere a lower bound
    (:func:`~autopar.costmodel.pipeline_rows.dwelling_bound`), usually the makespan itself.

    Args:
        num_microbatches: ``[N]``.
        forward, backward, weight_backward: ``[N, p*v]`` seconds of a micro-batch on each model stage in
            model order; ``backward`` is the input part where ``weight_backward`` is given.
        transfer_seconds: ``[N, p*v - 1]`` delay of a tensor from each stage to the next, ranks free meanwhile.
        overlapped_share: ``[N]`` share of its two durations that a pair of dualpipe takes; None: no overlap.
    """
    p, v = pipeline_parallel_size, virtual_pipeline_stages
    rows = RowDurations(
        forward=forward,
        backward=backward,
        weight_backward=weight_backward,
        transfer=transfer_seconds,
        overlapped_share=overlapped_share,
    )
    _check(kind, p, v, num_microbatches, rows)
    if kind is PipelineSchedule.GPIPE:
        return gpipe_makespan(num_microbatches, rows), True
    if kind is PipelineSchedule.ONE_F_ONE_B and transfer_seconds is None:
        return one_f_one_b_makespan(num_microbatches, rows), True
    limit = simulated_microbatches(p)
    makespans = np.empty(len(rows))
    _simulate_short(kind, (p, v), num_microbatches, rows, limit, makespans)
    long = num_microbatches > limit
    if long.any():
        makespans[long] = dwelling_bound(kind, p, v, limit, num_microbatches[long], rows.take(long))
    return makespans, not long.any() or _is_uniform(rows.take(long))


def simulated_microbatches(pipeline_parallel_size: int) -> int:
    """Micro-batches that :func:`closed_form_makespan` simulates at most: enough to fill, run steady and drain."""
    return 3 * pipeline_parallel_size


def _check(kind: PipelineSchedule, p: int, v: int, num_microbatches: Ints, rows: RowDurations) -> None:
    faults = [fault for m in distinct(num_microbatches) for fault in schedule_faults(kind, p, v, m)]
    raise_if(list(dict.fromkeys(faults)))
    if kind in (PipelineSchedule.ZERO_BUBBLE, PipelineSchedule.DUALPIPE) and rows.weight_backward is None:
        required = f"the weight part of the backward, which {kind.value} runs apart"
        raise InvalidInputError(Fault(field="weight_backward", given="None", required=required))
    count, stages = len(num_microbatches), p * v
    named = (
        ("forward", rows.forward, stages),
        ("backward", rows.backward, stages),
        ("weight_backward", rows.weight_backward, stages),
        ("transfer_seconds", rows.transfer, stages - 1),
    )
    raise_if(
        [
            Fault(field=name, given=f"an array of shape {array.shape}", required=f"shape {(count, width)}, one row a strategy")
            for name, array, width in named
            if array is not None and array.shape != (count, width)
        ]
    )


def _is_uniform(rows: RowDurations) -> bool:
    columns = [array for array in (rows.forward, rows.backward, rows.weight_backward) if array is not None]
    equal = all(bool((array == array[:, :1]).all()) for array in columns)
    return equal and (rows.transfer is None or not rows.transfer.any())


def _simulate_short(
    kind: PipelineSchedule, sizes: tuple[int, int], num_microbatches: Ints, rows: RowDurations, limit: int, makespans: Floats
) -> None:
    """Fill in the makespans of the rows with at most ``limit`` micro-batches, one simulation for each count."""
    for m in distinct(num_microbatches[num_microbatches <= limit]):
        chosen = num_microbatches == m
        makespans[chosen] = simulate_rows(kind, *sizes, m, rows.take(chosen))


def gpipe_makespan(num_microbatches: Ints, rows: RowDurations) -> Floats:
    """Seconds of GPipe, exact: sum f + (m-1) max f + sum b + (m-1) max b, and every boundary crossed twice.

    The forwards are a flow shop that ends on the last rank at sum f + (m-1) max f; the backwards are the
    same one in reverse and start there.
    """
    backward = rows.totals - rows.forward
    total: Floats = rows.totals.sum(axis=1) + (num_microbatches - 1) * (rows.forward.max(axis=1) + backward.max(axis=1))
    return total if rows.transfer is None else total + 2 * rows.transfer.sum(axis=1)


def one_f_one_b_makespan(num_microbatches: Ints, rows: RowDurations) -> Floats:
    """Seconds of 1F1B without transfer delays, exact for any stage times.

    Derivation. Give F_j on stage k the level j - (p-1-k) and B_i the level i. A longest path goes through
    forwards alone up to level 0, which it reaches on some stage q after p forwards on stages 0..q; it
    leaves through backwards alone, from stage e, symmetrically. In between every cycle of the graph is
    worth a T_k for each level it climbs, so the path dwells on one stage d. With F_k and B_k the prefix
    sums of f and b, and M(x)_k the largest of x_0..x_k, and for m >= 2p - 1:

        makespan = max over d of (entry_d + exit_d + (m - p + d) T_d)
        entry_d = max( max_{q<=d} F_d + (p-1-q) M(f)_q - (d-q) T_d,   max_{q>d} F_q + (p-1-q) M(f)_q + B_q - B_d )
        exit_d  = max( max_{e<=d} B_d + (p-1-e) M(b)_e - (d-e) T_d,   max_{e>d} B_e + (p-1-e) M(b)_e + F_e - F_d )

    Fewer micro-batches leave no room to dwell: those rows are simulated. With equal stages all of it is
    (m + p - 1) T (Narayanan 2021).
    """
    p = rows.forward.shape[1]
    makespans = np.empty(len(rows))
    _simulate_short(PipelineSchedule.ONE_F_ONE_B, (p, 1), num_microbatches, rows, 2 * p - 2, makespans)
    long = num_microbatches > 2 * p - 2
    if long.any():
        chosen = rows.take(long)
        forward, total = chosen.forward, chosen.totals
        backward = total - forward
        dwell = (num_microbatches[long, np.newaxis] - p + np.arange(p)) * total
        makespans[long] = (_way_in(forward, backward) + _way_in(backward, forward) + dwell).max(axis=1)
    return makespans


def _way_in(there: Floats, back: Floats) -> Floats:
    """``entry_d`` of :func:`one_f_one_b_makespan` for every stage d, ``[N, p]``; with the arguments swapped, ``exit_d``."""
    p = there.shape[1]
    total = there + back
    sums, back_sums = np.cumsum(there, axis=1), np.cumsum(back, axis=1)
    ramp = (p - 1 - np.arange(p)) * np.maximum.accumulate(there, axis=1)
    best = np.full_like(there, -np.inf)
    for q in range(p):
        # From stage q on down to d >= q, one level a stage.
        reached = sums[:, q:] + ramp[:, q : q + 1] - np.arange(p - q) * total[:, q:]
        np.maximum(best[:, q:], reached, out=best[:, q:])
    from_below = np.maximum.accumulate((sums + ramp + back_sums)[:, :0:-1], axis=1)[:, ::-1]
    np.maximum(best[:, :-1], from_below - back_sums[:, :-1], out=best[:, :-1])
    return best


def in_flight_microbatches(
    kind: PipelineSchedule, pipeline_parallel_size: int, virtual_pipeline_stages: int, num_microbatches: Ints
) -> Floats:
    """Most passes (one micro-batch on one virtual stage) each rank holds at once, ``[N, p]``; exact.

    gpipe: m. 1f1b: min(m, p-r) (Narayanan 2021). interleaved_1f1b: min(mv, 2(p-r-1) + (v-1)p + 1), the warm-up
    and one (Korthikanti 2022, section 4.2.3, has it for rank 0). ZB-H1: min(m, p) on every rank (Qi 2023).
    ZBV: min(2m, 2p, m+r+1) half stages (Qi 2024 gives p whole ones). DualPipe: p+1 (DeepSeek-V3, table 2).
    With a split backward a pass counts until its weight part ends.
    """
    p, v = pipeline_parallel_size, virtual_pipeline_stages
    raise_if(list(dict.fromkeys(fault for m in distinct(num_microbatches) for fault in schedule_faults(kind, p, v, m))))
    m, rank = num_microbatches[:, np.newaxis], np.arange(p)
    match kind:
        case PipelineSchedule.GPIPE:
            held = m + 0 * rank
        case PipelineSchedule.ONE_F_ONE_B:
            held = np.minimum(m, p - rank)
        case PipelineSchedule.INTERLEAVED:
            held = np.minimum(m * v, 2 * (p - rank - 1) + (v - 1) * p + 1)
        case PipelineSchedule.ZERO_BUBBLE if v == 1:
            held = np.minimum(m, p) + 0 * rank
        case PipelineSchedule.ZERO_BUBBLE:
            held = np.minimum(np.minimum(2 * m, 2 * p), m + rank + 1)
        case PipelineSchedule.DUALPIPE:
            held = np.full((len(num_microbatches), p), p + 1)
    return held.astype(np.float64)
