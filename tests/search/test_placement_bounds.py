"""Bounds of placements against every placement there is, simulated, under every schedule and a memory that binds."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.costmodel.columns import StrategyColumns
from autopar.costmodel.inputs import Inputs
from autopar.costmodel.problem import Problem
from autopar.costmodel.spec.model import ModelSpec
from autopar.costmodel.spec.strategy import PipelineSchedule, Recompute, Strategy
from autopar.costmodel.step import evaluate
from autopar.request import build_problem
from autopar.search import Constraints, Stages, feasibility, search
from autopar.search.feasibility import PREFERENCES
from autopar.search.neighbours import splits
from autopar.search.progress import Watch
from autopar.search.refine import refine
from autopar.search.space import Space

from .test_refine import MIXED, WIDE, question

MTP = replace(MIXED, name="mtp", mtp_layers=1)
ALIKE = replace(WIDE, name="alike", num_layers=8, vocab_size=32_000)
SHAPES = [
    (PipelineSchedule.GPIPE, 4, 1),
    (PipelineSchedule.ONE_F_ONE_B, 2, 1),
    (PipelineSchedule.ONE_F_ONE_B, 4, 1),
    (PipelineSchedule.INTERLEAVED, 2, 2),
    (PipelineSchedule.INTERLEAVED, 2, 3),
    (PipelineSchedule.ZERO_BUBBLE, 4, 1),
    (PipelineSchedule.ZERO_BUBBLE, 2, 2),
    (PipelineSchedule.DUALPIPE, 2, 1),
    (PipelineSchedule.DUALPIPE, 4, 1),
]
Shape = tuple[PipelineSchedule, int, int]


def asked_of(model: ModelSpec, gigabytes: float, *, by_stage: bool, fused: bool, batch: int = 24) -> Problem:
    found = question(model, memory=gigabytes * 1e9, by_stage=by_stage)
    framework = replace(found.framework, schedules=tuple(PipelineSchedule), empty_end_stages=False, fused_attention=fused)
    return replace(found, framework=framework, training=replace(found.training, global_batch_size=batch))


def only(shape: Shape, zero_stage: int = 1) -> Constraints:
    kind, ranks, chunks = shape
    sizes = {"pipeline_parallel_size": ranks, "virtual_pipeline_stages": chunks, "tensor_parallel_size": 1, "context_parallel_size": 1}
    return Constraints(fixed={**sizes, "pipeline_schedule": kind, "zero_stage": zero_stage})


def placements(asked: Problem, space: Space) -> Iterator[Strategy]:
    """Every split of every strategy, with every number of layers recomputed on each stage, or alike on all."""
    shells = {replace(rows.strategy(row), pipeline_layers=()) for rows in space.slices() for row in range(len(rows))}
    for shell in sorted(shells, key=lambda each: each.describe()):
        for split in splits(asked.model.num_layers, shell.num_virtual_stages):
            placed = replace(shell, pipeline_layers=split)
            yield placed
            yield replace(placed, recompute=Recompute.SELECTIVE)
            if asked.framework.recompute_by_stage:
                few = itertools.islice(itertools.product(*({0, count // 2, count} for count in split)), 1, 40)
                yield from (replace(placed, recompute=Recompute.FULL, stage_recompute_layers=counts) for counts in few if any(counts))
            else:
                held = -(-asked.model.num_layers // shell.pipeline_parallel_size)
                yield from (replace(placed, recompute=Recompute.FULL, num_recompute_layers=count) for count in range(held))


@given(
    shape=st.sampled_from(SHAPES),
    model=st.sampled_from([WIDE, MIXED, MTP, ALIKE]),
    gigabytes=st.sampled_from([22, 26, 30, 36, 45, 60, 200]),
    by_stage=st.booleans(),
    fused=st.booleans(),
    batch=st.sampled_from([8, 16, 24, 48]),
    zero_stage=st.sampled_from([0, 1]),
)
@settings(max_examples=25)
def test_no_placement_that_fits_is_faster(
    shape: Shape, model: ModelSpec, gigabytes: float, by_stage: bool, fused: bool, batch: int, zero_stage: int
) -> None:
    asked, limits = asked_of(model, gigabytes, by_stage=by_stage, fused=fused, batch=batch), only(shape, zero_stage)
    every = feasibility.runnable(asked, list(placements(asked, Space.of(asked, limits, preferences=PREFERENCES))))
    if not every:
        return
    found = evaluate(Inputs.of(asked), StrategyColumns.of(every), simulate=True)
    least = float(np.min(found.step_time_seconds[found.fits], initial=np.inf))
    even = search(asked, limits)
    for best in {even.ranked[0].step_time_seconds if even.ranked else np.inf, np.inf}:
        result = refine(Space.of(asked, limits, preferences=PREFERENCES), best, top=1)
        assert result.bound_seconds <= least * (1 + 1e-9)
        assert all(each.step_time_seconds >= least * (1 - 1e-9) or by_stage for each in result.placed)


@pytest.mark.parametrize(
    ("shape", "closeness"),
    [
        ((PipelineSchedule.ONE_F_ONE_B, 4, 1), 1e-3),
        ((PipelineSchedule.GPIPE, 4, 1), 1e-3),
        ((PipelineSchedule.ZERO_BUBBLE, 4, 1), 0.01),
        ((PipelineSchedule.DUALPIPE, 4, 1), 0.06),
        ((PipelineSchedule.ZERO_BUBBLE, 2, 2), 0.06),
        ((PipelineSchedule.INTERLEAVED, 2, 2), 0.06),
    ],
    ids=lambda value: value[0].value if isinstance(value, tuple) else str(value),
)
def test_how_close_the_bound_is_to_the_best_of_all_placements(shape: Shape, closeness: float) -> None:
    """Eight layers on four stages are cut coarsely: with more layers the pieces that the game cuts are smaller."""
    asked, limits = asked_of(ALIKE, 200, by_stage=False, fused=True), only(shape)
    every = feasibility.runnable(asked, list(placements(asked, Space.of(asked, limits, preferences=PREFERENCES))))
    found = evaluate(Inputs.of(asked), StrategyColumns.of(every), simulate=True)
    least = float(np.min(found.step_time_seconds[found.fits]))
    result = search(asked, limits, stages=Stages.UNEVEN)
    assert result.summary.bound_seconds is not None
    assert least * (1 - closeness) <= result.summary.bound_seconds <= least * (1 + 1e-9)


def test_ten_thousand_gpus_are_bounded_to_within_a_percent() -> None:
    asked, _ = build_problem("gpt-175b", gpus=10_240, gpu="a100-sxm4-80gb")
    even, uneven = search(asked), search(asked, stages=Stages.UNEVEN)
    best, bound = uneven.ranked[0].step_time_seconds, uneven.summary.bound_seconds
    assert bound is not None
    assert 1 - bound / best < 0.01
    assert best < even.ranked[0].step_time_seconds * 0.99
    assert "bounded by 0." in uneven.summary.optimality


def test_dualpipe_places_its_pairs_of_stages() -> None:
    asked = asked_of(WIDE, 200, by_stage=False, fused=True)
    shape = only((PipelineSchedule.DUALPIPE, 4, 1))
    even, uneven = search(asked, shape), search(asked, shape, stages=Stages.UNEVEN)
    assert uneven.summary.bound_seconds is not None
    assert uneven.ranked[0].step_time_seconds <= even.ranked[0].step_time_seconds


def test_selective_recomputation_is_placed_and_bounded() -> None:
    asked = asked_of(replace(WIDE, vocab_size=32_000), 30, by_stage=False, fused=False)
    shape = Constraints(fixed={**only((PipelineSchedule.ONE_F_ONE_B, 4, 1)).fixed, "recompute": "selective"})
    result = search(asked, shape, stages=Stages.UNEVEN)
    assert result.best is not None
    assert result.best.recompute is Recompute.SELECTIVE
    assert result.summary.bound_seconds is not None
    assert result.summary.bound_seconds > 0.9 * result.ranked[0].step_time_seconds


def test_what_is_stopped_while_placing_is_bounded_all_the_same() -> None:
    asked, asks = question(WIDE, memory=30e9, by_stage=True), itertools.count(1)
    whole = search(asked, stages=Stages.UNEVEN, watch=Watch(interrupted=lambda: next(asks) < 0))
    last, again = next(asks) - 1, itertools.count(1)
    part = search(asked, stages=Stages.UNEVEN, watch=Watch(interrupted=lambda: next(again) >= last))
    assert part.summary.interrupted
    assert part.summary.optimality.startswith("interrupted: the best of the strategies evaluated so far; bounded by ")
    assert part.summary.bound_seconds is not None
    assert whole.summary.bound_seconds is not None
    assert part.summary.bound_seconds <= whole.ranked[0].step_time_seconds


def test_an_answer_without_a_pipeline_is_proven() -> None:
    asked = question(ALIKE, memory=200e9, by_stage=False)
    result = search(asked, Constraints(fixed={"pipeline_parallel_size": 1}), stages=Stages.UNEVEN)
    assert result.summary.optimality == "proven over the enumerated space, placed stage by stage too"
    assert result.summary.bound_seconds == result.ranked[0].step_time_seconds
