"""Strategies as columns: one numpy array a field, so that thousands are evaluated at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from .spec.strategy import ContextParallelKind, PipelineSchedule, RankOrder, Recompute, RecomputeModule, Strategy

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

SCHEDULES: tuple[PipelineSchedule, ...] = tuple(PipelineSchedule)
RECOMPUTES: tuple[Recompute, ...] = tuple(Recompute)
CONTEXT_KINDS: tuple[ContextParallelKind, ...] = tuple(ContextParallelKind)
RANK_ORDERS: tuple[RankOrder, ...] = tuple(RankOrder)
MODULES: tuple[RecomputeModule, ...] = tuple(RecomputeModule)


class Shared:
    """Part of a record of columns that all its rows share, and that is no column itself."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyColumns:
    """Columns of :class:`Strategy`, all of one length N.

    Enumerations are stored as their position in ``SCHEDULES``, ``RECOMPUTES``, ``CONTEXT_KINDS`` and ``RANK_ORDERS``.
    ``layer_split`` and ``recompute_split`` are places in ``splits``, the tuples of layers a virtual stage that occur: those of
    ``pipeline_layers`` and ``stage_recompute_layers``. Place 0 is the empty one, which asks for the balanced split.
    ``recompute_modules`` has a bit for each of ``MODULES``.
    """

    tensor_parallel_size: Ints
    sequence_parallel: Bools
    pipeline_parallel_size: Ints
    virtual_pipeline_stages: Ints
    pipeline_schedule: Ints
    context_parallel_size: Ints
    context_parallel_kind: Ints
    expert_parallel_size: Ints
    expert_tensor_parallel_size: Ints
    data_parallel_size: Ints
    micro_batch_size: Ints
    zero_stage: Ints
    shard_group_size: Ints
    recompute: Ints
    num_recompute_layers: Ints
    layer_split: Ints
    recompute_split: Ints
    rank_order: Ints
    recompute_modules: Ints
    splits: tuple[tuple[int, ...], ...] = ((),)

    def __len__(self) -> int:
        return len(self.tensor_parallel_size)

    @classmethod
    def of(cls, strategies: Iterable[Strategy]) -> StrategyColumns:
        """Columns of ``strategies``, in order."""
        rows = list(strategies)
        tuples = (split for row in rows for split in (row.pipeline_layers, row.stage_recompute_layers))
        splits = {split: code for code, split in enumerate(dict.fromkeys(((), *tuples)))}
        return cls(
            tensor_parallel_size=_integers(row.tensor_parallel_size for row in rows),
            sequence_parallel=np.fromiter((row.sequence_parallel for row in rows), np.bool_),
            pipeline_parallel_size=_integers(row.pipeline_parallel_size for row in rows),
            virtual_pipeline_stages=_integers(row.virtual_pipeline_stages for row in rows),
            pipeline_schedule=_integers(SCHEDULES.index(row.pipeline_schedule) for row in rows),
            context_parallel_size=_integers(row.context_parallel_size for row in rows),
            context_parallel_kind=_integers(CONTEXT_KINDS.index(row.context_parallel_kind) for row in rows),
            expert_parallel_size=_integers(row.expert_parallel_size for row in rows),
            expert_tensor_parallel_size=_integers(row.expert_tensor_parallel_size for row in rows),
            data_parallel_size=_integers(row.data_parallel_size for row in rows),
            micro_batch_size=_integers(row.micro_batch_size for row in rows),
            zero_stage=_integers(row.zero_stage for row in rows),
            shard_group_size=_integers(row.shard_group_size for row in rows),
            recompute=_integers(RECOMPUTES.index(row.recompute) for row in rows),
            num_recompute_layers=_integers(row.num_recompute_layers for row in rows),
            layer_split=_integers(splits[row.pipeline_layers] for row in rows),
            recompute_split=_integers(splits[row.stage_recompute_layers] for row in rows),
            rank_order=_integers(RANK_ORDERS.index(row.rank_order) for row in rows),
            recompute_modules=_integers(sum(1 << MODULES.index(module) for module in set(row.recompute_modules)) for row in rows),
            splits=tuple(splits),
        )

    def strategy(self, row: int) -> Strategy:
        """Row ``row`` as a :class:`Strategy`."""
        return Strategy(
            tensor_parallel_size=int(self.tensor_parallel_size[row]),
            sequence_parallel=bool(self.sequence_parallel[row]),
            pipeline_parallel_size=int(self.pipeline_parallel_size[row]),
            virtual_pipeline_stages=int(self.virtual_pipeline_stages[row]),
            pipeline_schedule=SCHEDULES[int(self.pipeline_schedule[row])],
            context_parallel_size=int(self.context_parallel_size[row]),
            context_parallel_kind=CONTEXT_KINDS[int(self.context_parallel_kind[row])],
            expert_parallel_size=int(self.expert_parallel_size[row]),
            expert_tensor_parallel_size=int(self.expert_tensor_parallel_size[row]),
            data_parallel_size=int(self.data_parallel_size[row]),
            micro_batch_size=int(self.micro_batch_size[row]),
            zero_stage=int(self.zero_stage[row]),
            shard_group_size=int(self.shard_group_size[row]),
            recompute=RECOMPUTES[int(self.recompute[row])],
            num_recompute_layers=int(self.num_recompute_layers[row]),
            pipeline_layers=self.splits[int(self.layer_split[row])],
            stage_recompute_layers=self.splits[int(self.recompute_split[row])],
            rank_order=RANK_ORDERS[int(self.rank_order[row])],
            recompute_modules=tuple(module for bit, module in enumerate(MODULES) if int(self.recompute_modules[row]) >> bit & 1),
        )

    def take(self, rows: npt.NDArray[np.bool_] | npt.NDArray[np.int64] | slice) -> StrategyColumns:
        """The rows chosen by a mask, an index array or a slice."""
        return StrategyColumns(**{name: getattr(self, name)[rows] for name in COLUMN_NAMES}, splits=self.splits)

    @classmethod
    def concatenate(cls, parts: Sequence[StrategyColumns]) -> StrategyColumns:
        """The rows of ``parts`` one after the other."""
        splits = parts[0].splits
        if any(part.splits is not splits for part in parts):
            splits = tuple(dict.fromkeys(split for part in parts for split in part.splits))
            codes = {split: code for code, split in enumerate(splits)}
            parts = [_recoded(part, np.array([codes[split] for split in part.splits])) for part in parts]
        return cls(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in COLUMN_NAMES}, splits=splits)

    def with_columns(self, **columns: Ints | Bools) -> StrategyColumns:
        """The same rows with some columns replaced."""
        return replace(self, **columns)  # type: ignore[arg-type]

    @property
    def pipeline_layers(self) -> tuple[tuple[int, ...], ...]:
        """The explicit split of each row, empty for the balanced one; left out where every row takes that."""
        if not self.layer_split.any():
            return ()
        return tuple(self.splits[code] for code in self.layer_split.tolist())

    @property
    def stage_copies(self) -> Ints:
        """Pipeline ranks that hold the same stage: 2 under DualPipe, else 1."""
        return np.where(self.is_schedule(PipelineSchedule.DUALPIPE), 2, 1)

    @property
    def stages_first(self) -> Bools:
        """Where the stages of a pipeline lie between its replicas: that order of ranks, and several of both."""
        several = (self.pipeline_parallel_size > 1) & (self.data_parallel_size > 1)
        return np.asarray(several & self.is_order(RankOrder.TP_CP_PP_DP))

    @property
    def stage_stride(self) -> Ints:
        """Ranks between neighbours of a pipeline: all of a stage, or its tensor and context ranks where replicas lie farther apart."""
        inner = self.tensor_parallel_size * self.context_parallel_size
        return np.where(self.stages_first, inner, inner * self.data_parallel_size)

    def is_order(self, order: RankOrder) -> Bools:
        return np.asarray(self.rank_order == RANK_ORDERS.index(order))

    def is_schedule(self, *kinds: PipelineSchedule) -> Bools:
        return np.isin(self.pipeline_schedule, [SCHEDULES.index(kind) for kind in kinds])

    def is_recompute(self, kind: Recompute) -> Bools:
        return np.asarray(self.recompute == RECOMPUTES.index(kind))


def _recoded(rows: StrategyColumns, places: Ints) -> StrategyColumns:
    """``rows`` with their places in another table of splits: ``places[place in their own]``."""
    return replace(rows, layer_split=places[rows.layer_split], recompute_split=places[rows.recompute_split])


def _integers(values: Iterable[int]) -> Ints:
    return np.fromiter(values, np.int64)


COLUMN_NAMES: tuple[str, ...] = tuple(f.name for f in fields(StrategyColumns) if f.name != "splits")


_ARRAYS: tuple[type[Any], ...] = (np.ndarray, np.generic)
Record = TypeVar("Record")
Scalar = TypeVar("Scalar", bound=np.generic)


def stack(rows: Sequence[Record]) -> Record:
    """One record of columns from records of scalars: field by field, recursing into records and tuples of records.

    Raises:
        ValueError: rows that do not share what a record shares (two measured profiles in one table).
    """
    first = rows[0]
    values: dict[str, Any] = {}
    for field in fields(first):  # type: ignore[arg-type]
        parts = [getattr(row, field.name) for row in rows]
        if is_shared(parts[0]):
            if any(part is not parts[0] for part in parts):
                raise ValueError(f"rows with different {field.name} cannot be evaluated together")
            values[field.name] = parts[0]
            continue
        if isinstance(parts[0], tuple):
            values[field.name] = tuple(stack(each) for each in zip(*parts, strict=True))
            continue
        values[field.name] = stack(parts) if is_dataclass(parts[0]) else np.stack([np.asarray(part) for part in parts])
    return type(first)(**values)


def is_shared(part: object) -> bool:
    """Whether a field of a record holds what its rows share, or nothing."""
    return part is None or isinstance(part, Shared)


def gather(record: Record, rows: npt.NDArray[np.bool_] | npt.NDArray[np.int64] | slice) -> Record:
    """The given rows of a record of columns; scalars (0-d arrays) stand for every row and stay as they are."""
    kind: Any = type(record)
    values: dict[str, Any] = {}
    for name in _names(kind):
        part: Any = getattr(record, name)
        if is_shared(part):
            values[name] = part
        elif isinstance(part, tuple):
            values[name] = tuple(gather(each, rows) for each in part)
        elif not isinstance(part, _ARRAYS):
            values[name] = gather(part, rows)
        else:
            values[name] = part[rows] if part.ndim else part
    return kind(**values)  # type: ignore[no-any-return]


def trailing(record: Record) -> Record:
    """A record of columns with one more axis at the end, to broadcast over ranks; scalars (0-d arrays) stay as they are."""
    kind: Any = type(record)
    values: dict[str, Any] = {}
    for name in _names(kind):
        part: Any = getattr(record, name)
        if is_shared(part):
            values[name] = part
        elif isinstance(part, tuple):
            values[name] = tuple(trailing(each) for each in part)
        elif not isinstance(part, _ARRAYS):
            values[name] = trailing(part)
        else:
            values[name] = part[..., np.newaxis] if part.ndim else part
    return kind(**values)  # type: ignore[no-any-return]


@cache
def _names(record_type: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(record_type))


def distinct_rows(strategies: StrategyColumns, names: tuple[str, ...]) -> tuple[Ints, Ints]:
    """A row for each distinct combination of the named columns, and for each strategy its place among them."""
    key = np.zeros(len(strategies), dtype=np.int64)
    for name in names:
        column = getattr(strategies, name)
        key = key * (int(column.max(initial=0)) + 1) + column
        if key.max(initial=0) > 2**31:
            _, key = np.unique(key, return_inverse=True)
    _, first, index = np.unique(key, return_index=True, return_inverse=True)
    return first, index


def distinct(values: Ints) -> list[int]:
    """The values that occur, ascending. Counting them too keeps numpy from loading its masked arrays."""
    found: list[int] = np.unique(values, return_counts=True)[0].tolist()
    return found


def column(values: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
    """A per-row value with a trailing axis, to broadcast over stages or ranks."""
    return np.asarray(values)[..., None]
