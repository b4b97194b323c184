"""Rank layout: which process sits where, and which processes form each group.

Axes run fastest to slowest in ``RANK_ORDER`` (Megatron's default): tensor, context, data, pipeline for
the dense grid, and expert-tensor, expert, expert-data, pipeline for the expert grid, which folds over the
same ranks of a stage. Placement cost and process groups both come from here.
"""

from __future__ import annotations

from dataclasses import dataclass

from .strategy import Strategy

RANK_ORDER = ("tp", "cp", "ep", "dp", "pp")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLayout:
    """The dense and the expert grid of a strategy over ranks 0..world_size-1."""

    tp: int
    cp: int
    dp: int
    pp: int
    ep: int
    etp: int

    @classmethod
    def of(cls, strategy: Strategy) -> RankLayout:
        return cls(
            tp=strategy.tensor_parallel_size,
            cp=strategy.context_parallel_size,
            dp=strategy.data_parallel_size,
            pp=strategy.pipeline_parallel_size,
            ep=strategy.expert_parallel_size,
            etp=strategy.expert_tensor_parallel_size,
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

    def axes(self, *, expert: bool = False) -> dict[str, tuple[int, int]]:
        """``{axis: (size, stride)}`` of a grid, fastest axis first."""
        sizes = {"etp": self.etp, "ep": self.ep, "edp": self.edp} if expert else {"tp": self.tp, "cp": self.cp, "dp": self.dp}
        sizes["pp"] = self.pp
        table, stride = {}, 1
        for axis, size in sizes.items():
            table[axis] = (size, stride)
            stride *= size
        return table

    def coordinates(self, rank: int, *, expert: bool = False) -> dict[str, int]:
        """The coordinate of ``rank`` on each axis of a grid."""
        return {axis: rank // stride % size for axis, (size, stride) in self.axes(expert=expert).items()}

    def rank(self, coordinates: dict[str, int], *, expert: bool = False) -> int:
        """The rank at ``coordinates``: the inverse of :meth:`coordinates`."""
        return sum(coordinates[axis] * stride for axis, (_, stride) in self.axes(expert=expert).items())

    def group(self, rank: int, axis: str, *, expert: bool = False) -> tuple[int, ...]:
        """The ranks that differ from ``rank`` on ``axis`` alone, in axis order."""
        size, stride = self.axes(expert=expert)[axis]
        base = rank - self.coordinates(rank, expert=expert)[axis] * stride
        return tuple(base + index * stride for index in range(size))
