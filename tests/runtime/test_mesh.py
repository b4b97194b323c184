"""The mesh is the plan's rank layout, the data axis cut in two."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from autopar.costmodel.spec.errors import InvalidInputError
from autopar.costmodel.spec.layout import RankLayout
from autopar.costmodel.spec.strategy import RankOrder, Strategy
from autopar.runtime.mesh import build_mesh

from .processes import run_ranks

CPU = torch.device("cpu")
STRATEGY = Strategy(tensor_parallel_size=2, pipeline_parallel_size=2, data_parallel_size=2, zero_stage=3, shard_group_size=1)


@pytest.mark.parametrize("order", RankOrder)
def test_groups_and_places_are_those_of_the_rank_layout(order: RankOrder) -> None:
    strategy = replace(STRATEGY, rank_order=order)
    layout = RankLayout.of(strategy)

    def places(rank: int) -> dict[str, Any]:
        mesh = build_mesh(strategy, CPU)
        return {
            "tp": tuple(dist.get_process_group_ranks(mesh.group("tp"))),
            "pp": tuple(dist.get_process_group_ranks(mesh.group("pp"))),
            "pipeline": mesh.pipeline_ranks,
            "data": mesh.data_parallel_rank,
            "ends": sorted(dist.get_process_group_ranks(mesh.pipeline_groups([(0, 1)])[0, 1])),
            "sizes": (mesh.size("dp_replicate"), mesh.size("dp_shard"), mesh.rank == rank),
        }

    for rank, found in enumerate(run_ranks(8, places)):
        assert found["tp"] == layout.group(rank, "tp")
        assert found["pp"] == found["pipeline"] == layout.group(rank, "pp")
        assert found["ends"] == sorted(layout.group(rank, "pp"))
        assert found["data"] == layout.coordinates(rank)["dp"]
        assert found["sizes"] == (2, 1, True)


def test_shard_groups_are_neighbours_on_the_data_axis() -> None:
    def group(_: int) -> list[int]:
        mesh = build_mesh(Strategy(data_parallel_size=4, zero_stage=2, shard_group_size=2), CPU)
        return list(dist.get_process_group_ranks(mesh.group("dp_shard")))

    assert run_ranks(4, group) == [[0, 1], [0, 1], [2, 3], [2, 3]]


def test_shard_groups_keep_to_the_replicas_of_their_stage() -> None:
    plan = Strategy(
        pipeline_parallel_size=2, data_parallel_size=4, zero_stage=3, shard_group_size=2, rank_order=RankOrder.TP_CP_PP_DP
    )  # fmt: skip

    def group(_: int) -> list[int]:
        return list(dist.get_process_group_ranks(build_mesh(plan, CPU).group("dp_shard")))

    assert run_ranks(8, group) == [[0, 2], [1, 3], [0, 2], [1, 3], [4, 6], [5, 7], [4, 6], [5, 7]]


def test_a_job_of_another_size_is_refused_with_the_plan() -> None:
    def build(_: int) -> str:
        with pytest.raises(InvalidInputError) as caught:
            build_mesh(Strategy(data_parallel_size=4, shard_group_size=3), CPU)
        return str(caught.value)

    for text in run_ranks(2, build):
        assert "world_size=2: the plan needs 4 ranks (TP1 PP1 DP4 mbs1 ZeRO-1 recompute=none); start the job with 4 processes" in text
        assert "shard_group_size=3: a divisor of data_parallel_size=4; nearest valid: 1, 2, 4" in text
