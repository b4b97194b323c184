"""Placement of layers on stages against every placement there is, and against OR-Tools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.costmodel.holdings import Tails
from autopar.costmodel.spec.strategy import PipelineSchedule
from autopar.costmodel.stage_budget import Linear, StageBudget
from autopar.search.neighbours import splits
from autopar.search.partition import Partition, filled, least_slowest, pareto_partitions, placed, segments, segments_alike
from autopar.search.relaxation import relaxed_slowest_seconds

GB = 1e9


def budget(
    *,
    kinds: Sequence[int],
    ranks: int,
    chunks: int = 1,
    capacity: float = 40 * GB,
    microbatches: int = 16,
    head_seconds: float = 0.5,
    expert_seconds: float = 2.0,
    falling: bool = True,
) -> StageBudget:
    """A pipeline whose first ranks hold most micro-batches: layers of 1 second (of experts: more), recomputing one adds a third."""
    stages = ranks * chunks
    held = (np.arange(ranks, 0, -1) if falling else np.ones(ranks)) * GB
    base = np.zeros((1, stages))
    base[0, 0], base[0, -1] = 0.1, head_seconds
    seconds = np.tile(np.array([1.0, expert_seconds]), (1, stages, 1))
    plain = np.stack([held + 2 * GB, 1.5 * held + 4 * GB], axis=-1)[None] / chunks
    least = np.stack([0.1 * held + 2 * GB, 0.1 * held + 4 * GB], axis=-1)[None] / chunks
    unfolded = np.full((1, ranks), 1.0 * GB)
    states = np.full((1, ranks), 5 * GB)
    return StageBudget(
        rows=np.array([0]),
        schedule=PipelineSchedule.INTERLEAVED if chunks > 1 else PipelineSchedule.ONE_F_ONE_B,
        is_expert=np.array(kinds, dtype=np.bool_),
        holder=np.tile(np.arange(ranks), chunks),
        seconds=Linear(base=base, slope=seconds),
        forward_seconds=Linear(base=base / 3, slope=seconds / 3),
        weight_seconds=Linear(base=base / 3, slope=seconds / 3),
        recomputed_seconds=Linear(base=base, slope=seconds * 4 / 3),
        bytes=Linear(base=states, slope=plain),
        recomputed_bytes=Linear(base=states + unfolded, slope=least),
        unfolded_bytes=unfolded,
        capacity_bytes=capacity,
        num_microbatches=np.array([float(microbatches)]),
        work_seconds=np.array([float(np.sum(seconds[0, 0, np.array(kinds, dtype=int)]) + base.sum())]),
        forward_share=np.array([1 / 3]),
        tail_seconds=np.zeros(1),
        tails=Tails(**{name: np.zeros((1, ranks, 2)) for name in ("reduction_seconds", "gather_seconds", "rest_seconds")}),
    )


def every_placement(asked: StageBudget, alike: int | None = None) -> list[Partition]:
    """All splits, each with the fewest layers recomputed that fit (or the same everywhere)."""
    found = (placed(asked, split, alike) for split in splits(asked.num_layers, asked.num_stages))
    return [each for each in found if np.isfinite(each.slowest_seconds)]


budgets = st.builds(
    budget,
    kinds=st.lists(st.integers(0, 1), min_size=4, max_size=8),
    ranks=st.integers(2, 4),
    capacity=st.sampled_from([16 * GB, 20 * GB, 26 * GB, 60 * GB]),
    microbatches=st.integers(2, 40),
    head_seconds=st.sampled_from([0.0, 0.5, 3.0]),
    falling=st.booleans(),
)


@given(asked=budgets)
@settings(max_examples=150)
def test_the_dynamic_programme_finds_the_best_of_all_placements(asked: StageBudget) -> None:
    every = every_placement(asked)
    found = list(pareto_partitions(asked, segments(asked)))
    assert bool(every) == bool(found)
    if every:
        count = float(asked.num_microbatches[0])
        assert min(each.weighted(count) for each in found) == pytest.approx(min(each.weighted(count) for each in every))
        assert least_slowest(segments(asked).seconds) == pytest.approx(min(each.slowest_seconds for each in every))
        for each in found:
            assert placed(asked, each.layers, None) == replace(each, total_seconds=pytest.approx(each.total_seconds))


@given(asked=budgets, alike=st.integers(0, 3))
@settings(max_examples=100)
def test_and_with_the_same_share_recomputed_everywhere(asked: StageBudget, alike: int) -> None:
    every = every_placement(asked, alike)
    found = next(pareto_partitions(asked, segments_alike(asked, alike)), None)
    assert bool(every) == (found is not None)
    if found is not None:
        assert found.slowest_seconds == pytest.approx(min(each.slowest_seconds for each in every))
        assert set(found.recomputed) == {alike}


alike_budgets = st.builds(
    budget,
    kinds=st.integers(4, 9).map(lambda count: [0] * count),
    ranks=st.just(2),
    chunks=st.just(2),
    capacity=st.sampled_from([16 * GB, 20 * GB, 26 * GB, 60 * GB]),
    head_seconds=st.sampled_from([0.0, 0.5, 3.0]),
)


@given(asked=alike_budgets, alike=st.sampled_from([None, 0, 1, 2]))
@settings(max_examples=100)
def test_filling_ranks_one_layer_at_a_time_is_exact_where_layers_are_alike(asked: StageBudget, alike: int | None) -> None:
    every = every_placement(asked, alike)
    found = filled(asked, alike)
    assert bool(every) == (found is not None)
    if found is not None:
        assert found.slowest_seconds == pytest.approx(min(each.slowest_seconds for each in every))


@given(asked=st.one_of(budgets, alike_budgets))
@settings(max_examples=100)
def test_cut_in_pieces_layers_are_never_slower(asked: StageBudget) -> None:
    slowest = min((each.slowest_seconds for each in every_placement(asked)), default=np.inf)
    assert float(relaxed_slowest_seconds(asked)[0]) <= slowest * (1 + 1e-9)


def test_the_relaxation_is_tight_where_layers_are_small() -> None:
    asked = budget(kinds=[0] * 200, ranks=4, capacity=300 * GB, head_seconds=0.0)
    assert float(relaxed_slowest_seconds(asked)[0]) == pytest.approx(least_slowest(segments(asked).seconds), rel=0.02)


@pytest.mark.parametrize("chunks", [1, 2])
@pytest.mark.parametrize("capacity", [16 * GB, 20 * GB, 26 * GB, 60 * GB, 1 * GB])
def test_or_tools_agrees(chunks: int, capacity: float) -> None:
    pytest.importorskip("ortools")
    from autopar.search.partition_cp_sat import least_busy

    asked = budget(kinds=[0] * 8, ranks=4 // chunks, chunks=chunks, capacity=capacity)
    every = every_placement(asked)
    answer = least_busy(asked)
    assert answer.proven
    slowest = min((each.slowest_seconds for each in every), default=np.inf)
    # the solver sees no working set and whole units
    assert answer.bound_seconds <= slowest * (1 + 1e-9)
    relaxed = replace(
        asked, unfolded_bytes=0 * asked.unfolded_bytes, recomputed_bytes=replace(asked.recomputed_bytes, base=asked.bytes.base)
    )
    least = min((each.slowest_seconds for each in every_placement(relaxed)), default=np.inf)
    assert answer.slowest_seconds == pytest.approx(least, rel=1e-4)
