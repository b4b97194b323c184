"""Layer splits against every composition of a few layers."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar.costmodel.spec.schedule import stage_holders, stage_ranks
from autopar.costmodel.spec.strategy import PipelineSchedule, Strategy, balanced_layers, heaviest_load, split_text, weighted_layers

WEIGHTS = st.floats(0, 9, allow_subnormal=False)
PIPELINES = st.tuples(st.sampled_from([2, 4]), st.integers(1, 3))


def _compositions(total: int, parts: int) -> list[tuple[int, ...]]:
    cuts = itertools.combinations(range(1, total), parts - 1)
    return [tuple(b - a for a, b in itertools.pairwise((0, *cut, total))) for cut in cuts]


@given(st.integers(1, 5), st.integers(0, 6), WEIGHTS, st.floats(0, 1))
def test_no_split_has_a_lighter_heaviest_stage(stages: int, spare: int, head: float, embedding: float) -> None:
    layers = stages + spare
    split = weighted_layers(layers, stages, head_layers=head, embedding_layers=embedding)
    best = min(heaviest_load(other, head_layers=head, embedding_layers=embedding) for other in _compositions(layers, stages))
    assert heaviest_load(split, head_layers=head, embedding_layers=embedding) == pytest.approx(best, abs=1e-9)
    assert min(split) >= 1
    assert sum(split) == layers


@given(PIPELINES, st.integers(0, 5), WEIGHTS)
def test_no_split_has_a_lighter_heaviest_rank(sizes: tuple[int, int], spare: int, head: float) -> None:
    p, v = sizes
    layers, holders = p * v + spare % 4, stage_ranks(PipelineSchedule.INTERLEAVED, p, v)
    split = weighted_layers(layers, p * v, head_layers=head, holders=holders)
    best = min(heaviest_load(other, head_layers=head, holders=holders) for other in _compositions(layers, p * v))
    assert heaviest_load(split, head_layers=head, holders=holders) == pytest.approx(best, abs=1e-9)


@given(st.sampled_from(PipelineSchedule), PIPELINES, st.integers(1, 6), WEIGHTS)
def test_the_weighted_split_is_never_heavier_than_the_even_one(
    kind: PipelineSchedule, sizes: tuple[int, int], each: int, head: float
) -> None:
    p, v = sizes
    v = {PipelineSchedule.INTERLEAVED: v, PipelineSchedule.ZERO_BUBBLE: min(v, 2)}.get(kind, 1)
    holders = stage_holders(kind, p, v)
    split = weighted_layers(each * p * v, p * v, head_layers=head, holders=holders)
    assert sum(split) == each * p * v
    assert (
        heaviest_load(split, head_layers=head, holders=holders) <= each * v * (2 if kind is PipelineSchedule.DUALPIPE else 1) + head + 1e-9
    )


def test_holders_of_the_mirrored_schedules() -> None:
    assert stage_holders(PipelineSchedule.DUALPIPE, 4, 1) == (0, 1, 1, 0)
    assert stage_holders(PipelineSchedule.ZERO_BUBBLE, 2, 2) == (0, 1, 1, 0)
    assert stage_holders(PipelineSchedule.INTERLEAVED, 2, 2) == (0, 1, 0, 1)


@given(st.integers(1, 100), st.integers(1, 16), st.floats(0, 3))
def test_balanced_layers_are_even_where_they_divide(layers: int, stages: int, head: float) -> None:
    split = balanced_layers(layers, stages, head_layers=head)
    assert sum(split) == layers
    assert len(split) == stages
    if layers % stages == 0:
        assert set(split) == {layers // stages}
    elif layers > stages:
        assert max(split[:-1]) - min(split[:-1]) <= 1


def test_known_splits() -> None:
    assert weighted_layers(80, 16, head_layers=1.2)[-1] == 4
    assert balanced_layers(30, 4) == (7, 8, 8, 7)
    assert split_text((6, 5, 5, 5, 4)) == "6,5*3,4"
    assert "layers=2*2,1" in Strategy(pipeline_parallel_size=3, pipeline_layers=(2, 2, 1)).describe()
    assert "layers=" not in Strategy(pipeline_parallel_size=3).describe()
