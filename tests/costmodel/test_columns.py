"""Strategies and records as columns."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from autopar.costmodel.columns import Floats, StrategyColumns, column, distinct_rows, gather, stack, trailing
from autopar.costmodel.spec.strategy import ContextParallelKind, PipelineSchedule, Recompute, Strategy

SIZES = st.sampled_from([1, 2, 4, 8, 16])
STRATEGIES = st.builds(
    Strategy,
    tensor_parallel_size=SIZES,
    sequence_parallel=st.booleans(),
    pipeline_parallel_size=SIZES,
    virtual_pipeline_stages=st.integers(1, 4),
    pipeline_schedule=st.sampled_from(PipelineSchedule),
    context_parallel_size=SIZES,
    context_parallel_kind=st.sampled_from(ContextParallelKind),
    expert_parallel_size=SIZES,
    expert_tensor_parallel_size=SIZES,
    data_parallel_size=SIZES,
    micro_batch_size=st.integers(1, 64),
    zero_stage=st.integers(0, 3),
    shard_group_size=st.sampled_from([0, 8]),
    recompute=st.sampled_from(Recompute),
    num_recompute_layers=st.integers(0, 3),
    pipeline_layers=st.sampled_from([(), (1, 2), (2, 1)]),
)
ROWS = st.lists(STRATEGIES, min_size=1, max_size=8)


@given(rows=ROWS)
def test_rows_come_back_as_they_were(rows: list[Strategy]) -> None:
    columns = StrategyColumns.of(rows)
    assert len(columns) == len(rows)
    assert [columns.strategy(row) for row in range(len(rows))] == rows


@given(rows=ROWS, more=ROWS, data=st.data())
def test_taking_and_joining(rows: list[Strategy], more: list[Strategy], data: st.DataObject) -> None:
    joined = StrategyColumns.concatenate([StrategyColumns.of(rows), StrategyColumns.of(more)])
    both = [*rows, *more]
    assert [joined.strategy(row) for row in range(len(both))] == both
    picked = data.draw(st.lists(st.integers(0, len(both) - 1), max_size=5))
    taken = joined.take(np.array(picked, dtype=np.int64))
    assert [taken.strategy(row) for row in range(len(picked))] == [both[row] for row in picked]
    mask = np.array([row in picked for row in range(len(both))])
    assert len(joined.take(mask)) == len(set(picked))


@given(rows=ROWS)
def test_distinct_rows_stand_for_the_others(rows: list[Strategy]) -> None:
    names = ("tensor_parallel_size", "micro_batch_size", "recompute", "zero_stage")
    columns = StrategyColumns.of(rows)
    first, index = distinct_rows(columns, names)
    keys = [tuple(getattr(row, name) for name in names) for row in rows]
    assert len(first) == len(set(keys))
    assert [keys[first[place]] for place in index] == keys


def test_masks_by_name() -> None:
    columns = StrategyColumns.of([Strategy(), Strategy(pipeline_schedule=PipelineSchedule.GPIPE, recompute=Recompute.FULL)])
    assert columns.is_schedule(PipelineSchedule.GPIPE).tolist() == [False, True]
    assert columns.is_schedule(*PipelineSchedule).tolist() == [True, True]
    assert columns.is_recompute(Recompute.FULL).tolist() == [False, True]
    changed = columns.with_columns(zero_stage=np.array([3, 2]))
    assert changed.strategy(1) == replace(columns.strategy(1), zero_stage=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    value: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    inner: Inner
    other: Floats


def record(value: float) -> Outer:
    return Outer(inner=Inner(value=np.asarray(value)), other=np.asarray(-value))


def test_records_of_columns() -> None:
    stacked = stack([record(1.0), record(2.0), record(3.0)])
    assert stacked.inner.value.tolist() == [1, 2, 3]
    taken = gather(stacked, np.array([2, 0]))
    assert taken.other.tolist() == [-3, -1]
    assert trailing(stacked).inner.value.shape == (3, 1)
    # one problem stands for every row
    assert gather(record(5.0), np.array([0, 0, 0])).other.shape == ()
    assert trailing(record(5.0)).inner.value.shape == ()
    assert column(np.array([1.0, 2.0])).shape == (2, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    value: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    parts: tuple[Level, ...]


def test_records_in_a_tuple_are_stacked_and_taken_too() -> None:
    rows = [Levels(parts=(Level(value=np.array(first)), Level(value=np.array(first * 10.0)))) for first in (1.0, 2.0, 3.0)]
    table = stack(rows)
    assert [part.value.tolist() for part in table.parts] == [[1, 2, 3], [10, 20, 30]]
    assert [part.value.tolist() for part in gather(table, np.array([2, 0])).parts] == [[3, 1], [30, 10]]
    assert [part.value.shape for part in trailing(table).parts] == [(3, 1), (3, 1)]
