"""Rank layout: which process sits where, and which processes form each group.

Axes run fastest to slowest in the strategy's :class:`~autopar.costmodel.spec.strategy.RankOrder`: tensor, context, data, pipeline for
the dense grid (Megatron's default), and expert-tensor, expert, expert-data, pipeline for the expert grid; or with the pipeline
before the data-parallel axis in both. The expert grid folds over the same ranks of a stage: whatever the order, a rank has
one stage. Placement cost and process groups both come from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from .strategy import RankOrder, Strategy


class _Whole(Protocol):
    """A whole number, or an array of them."""

    def __mod__(self, other: int, /) -> Any: ...
    def __floordiv__(self, other: int, /) -> Any: ...


Rank = TypeVar("Rank", bound=_Whole)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLayout:
    """The dense and the expert grid of a strategy over ranks 0..world_size-1."""

    tp: int
    cp: int
    dp: int
    pp: int
    ep: int
    etp: int
    order: RankOrder = RankOrder.TP_CP_DP_PP

    @classmethod
    def of(cls, strategy: Strategy) -> RankLayout:
        return cls(
            tp=strategy.tensor_parallel_size,
            cp=strategy.context_parallel_size,
            dp=strategy.data_parallel_size,
            pp=strategy.pipeline_parallel_size,
            ep=strategy.expert_parallel_size,
            etp=strategy.expert_tensor_parallel_size,
            order=strategy.rank_order,
        )

    @property
    def world_size(self) -> int:
        return self.tp * self.cp * self.dp * self.pp

    @property
    def ranks_per_stage(self) -> int:
        return self.tp * self.cp * self.dp

    @property
    def edp(self) -> int:
        """Expert data parallel size: copies of each expert shard within a stage."""
        return self.ranks_per_stage // (self.ep * self.etp)

    @property
    def stage_stride(self) -> int:
        """Consecutive ranks of one stage, and ranks between neighbours of a pipeline."""
        return self.ranks_per_stage if self.order is RankOrder.TP_CP_DP_PP else self.tp * self.cp

    @property
    def expert_grid_has_strides(self) -> bool:
        """Whether every expert axis is one stride wide, as frameworks build it.

        Not so where stages lie between replicas and an expert axis begins among the ranks before them and ends behind.
        """
        contiguous = self.order is RankOrder.TP_CP_DP_PP
        return contiguous or all(self._is_even(size, local) for size, local in self._local_axes(expert=True).values())

    def axes(self, *, expert: bool = False) -> dict[str, tuple[int, int]]:
        """``{axis: (size, stride)}`` of a grid, fastest axis first.

        Raises:
            ValueError: of an expert grid that has no strides (:attr:`expert_grid_has_strides`).
        """
        if expert and not self.expert_grid_has_strides:
            raise ValueError(f"ep x etp = {self.ep * self.etp} does not fold over tp x cp = {self.tp * self.cp} in the order {self.order}")
        table = {
            axis: (size, local if size == 1 else self._spread(local)) for axis, (size, local) in self._local_axes(expert=expert).items()
        }
        stages = {"pp": (self.pp, self.stage_stride)}
        if self.order is RankOrder.TP_CP_DP_PP:
            return table | stages
        replicas = dict([table.popitem()])
        return dict(sorted((table | stages | replicas).items(), key=lambda axis: axis[1][1]))

    def coordinates(self, rank: Rank, *, expert: bool = False) -> dict[str, Rank]:
        """The coordinate of ``rank`` on each axis of a grid; an array of ranks gives arrays."""
        inner, outer = rank % self.stage_stride, rank // (self.stage_stride * self.pp)
        local = inner + outer * self.stage_stride
        places = {axis: local // stride % size for axis, (size, stride) in self._local_axes(expert=expert).items()}
        return places | {"pp": rank // self.stage_stride % self.pp}

    def rank(self, coordinates: dict[str, int], *, expert: bool = False) -> int:
        """The rank at ``coordinates``: the inverse of :meth:`coordinates`."""
        local = sum(coordinates[axis] * stride for axis, (_, stride) in self._local_axes(expert=expert).items())
        outer, inner = divmod(local, self.stage_stride)
        return inner + self.stage_stride * (coordinates["pp"] + self.pp * outer)

    def group(self, rank: int, axis: str, *, expert: bool = False) -> tuple[int, ...]:
        """The ranks that differ from ``rank`` on ``axis`` alone, in axis order."""
        place = self.coordinates(rank, expert=expert)
        size = self.pp if axis == "pp" else self._local_axes(expert=expert)[axis][0]
        return tuple(self.rank({**place, axis: index}, expert=expert) for index in range(size))

    def stage_ranks(self, stage: int) -> tuple[int, ...]:
        """The ranks of one pipeline stage, ascending."""
        return tuple(rank for rank in range(self.world_size) if rank // self.stage_stride % self.pp == stage)

    def _local_axes(self, *, expert: bool) -> dict[str, tuple[int, int]]:
        """``{axis: (size, stride)}`` among the ranks of one stage, counted from 0, fastest axis first."""
        sizes = {"etp": self.etp, "ep": self.ep, "edp": self.edp} if expert else {"tp": self.tp, "cp": self.cp, "dp": self.dp}
        table, stride = {}, 1
        for axis, size in sizes.items():
            table[axis] = (size, stride)
            stride *= size
        return table

    def _is_even(self, size: int, local: int) -> bool:
        """Whether ``size`` ranks of a stage, ``local`` apart, lie on one side of the ranks of the other stages."""
        return size == 1 or local % self.stage_stride == 0 or self.stage_stride % (local * size) == 0

    def _spread(self, local: int) -> int:
        """The stride among all ranks of ``local`` ranks of one stage."""
        return local if local < self.stage_stride else local * self.pp
