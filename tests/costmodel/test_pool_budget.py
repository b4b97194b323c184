"""Coefficients and bounds of stages over pools against the price of whole placements."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.costmodel.columns import StrategyColumns
from autopar.costmodel.mixed import Machine
from autopar.costmodel.pool_budget import pooled_bound_seconds, pooled_budgets
from autopar.costmodel.spec.strategy import PipelineSchedule, Recompute, Strategy

from .mixed_problems import by_stages, pools_of
from .problems import DENSE, EXPERTS, GPT, LATENT

BATCH = 64
MODELS = (DENSE, GPT, EXPERTS, LATENT)
SPLITS = ((5, 3), (1, 7), (2, 1, 3, 2), (1, 4, 2, 1))


def piped(split: tuple[int, ...], chunks: int = 1, schedule: PipelineSchedule = PipelineSchedule.ONE_F_ONE_B) -> Strategy:
    ranks = len(split) // chunks
    kind = PipelineSchedule.INTERLEAVED if chunks > 1 else schedule
    return Strategy(
        pipeline_parallel_size=ranks,
        virtual_pipeline_stages=chunks,
        pipeline_schedule=kind,
        data_parallel_size=32 // ranks,
        pipeline_layers=split,
    )


@given(
    model=st.sampled_from(MODELS), split=st.sampled_from(SPLITS), chunks=st.sampled_from([1, 2]), order=st.sampled_from([(0, 1), (1, 0)])
)
@settings(max_examples=20, deadline=None)
def test_seconds_and_bytes_of_any_split_follow_from_the_coefficients(
    model: type, split: tuple[int, ...], chunks: int, order: tuple[int, int]
) -> None:
    mixed = pools_of("h100", "a100-40gb", model=model, batch=BATCH)  # type: ignore[arg-type]
    chunks = chunks if len(split) == 4 else 1
    plain, machine = piped(split, chunks), Machine.of(mixed)
    half = plain.pipeline_parallel_size // 2
    (pooled,) = pooled_budgets(machine, StrategyColumns.of([plain]), {order: [0]})
    budget, capacities = pooled.budget, [pool.problem.cluster.device.memory_bytes for pool in mixed.pools]
    ends = np.cumsum(split)
    before = budget.kinds_before()
    layers = (before[ends] - before[ends - np.array(split)]).astype(np.float64)[None]
    for line, held, recompute in (
        (budget.seconds, budget.bytes, Recompute.NONE),
        (budget.recomputed_seconds, budget.recomputed_bytes, Recompute.FULL),
    ):
        placed = by_stages(replace(plain, recompute=recompute), BATCH, (half, half))
        names = tuple(mixed.pools[place].name for place in pooled.on)
        placed = replace(placed, lanes=(replace(placed.lanes[0], pools=names),))
        (lane,) = machine.costs(placed).lanes
        times = lane.times.forward + lane.times.backward + lane.times.weight
        np.testing.assert_allclose(line.base + (line.slope * layers).sum(axis=-1), times, rtol=1e-12)
        missing = max(capacities) - np.array([capacities[place] for place in pooled.on])
        expected = held.base + (held.slope * budget.on_holders(layers)).sum(axis=-1) - missing
        # a rank of dense layers alone unfolds a smaller one than the base counts
        assert (expected >= lane.memory.total * (1 - 1e-9)).all()
        if not (model is LATENT and recompute is Recompute.FULL):
            np.testing.assert_allclose(expected, lane.memory.total, rtol=1e-9)


@given(
    model=st.sampled_from(MODELS),
    split=st.sampled_from(SPLITS),
    schedule=st.sampled_from([PipelineSchedule.GPIPE, PipelineSchedule.ONE_F_ONE_B, PipelineSchedule.ZERO_BUBBLE]),
    chunks=st.sampled_from([1, 2]),
    batch=st.sampled_from([32, 64, 128]),
    recompute=st.sampled_from([Recompute.NONE, Recompute.FULL]),
    gpus=st.sampled_from([("h100", "a100"), ("l40s", "h100"), ("a100-40gb", "v100")]),
)
@settings(max_examples=40, deadline=None)
def test_no_placement_is_faster_than_the_bound_of_its_busiest_rank(
    model: type,
    split: tuple[int, ...],
    schedule: PipelineSchedule,
    chunks: int,
    batch: int,
    recompute: Recompute,
    gpus: tuple[str, str],
) -> None:
    mixed = pools_of(*gpus, model=model, batch=batch, precision="fp16", schedules=tuple(PipelineSchedule))  # type: ignore[arg-type]
    chunks = chunks if len(split) == 4 else 1
    plain, machine = piped(split, chunks, schedule), Machine.of(mixed)
    half = plain.pipeline_parallel_size // 2
    placed = by_stages(replace(plain, recompute=recompute), batch, (half, half))
    costs = machine.costs(placed, simulate=True)
    (pooled,) = pooled_budgets(machine, StrategyColumns.of([plain]), {(0, 1): [0]})
    times = costs.lanes[0].times
    busiest = costs.lanes[0].shape.on_ranks(times.forward + times.backward + times.weight).max(axis=1)
    assert pooled_bound_seconds(machine, pooled, busiest)[0] <= costs.step_seconds * (1 + 1e-9)
