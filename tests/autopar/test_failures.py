"""Numbers of GPUs to plan for after a loss, and what is asked about prices and failures."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar.aims import read_aims
from autopar.costmodel.spec.economics import Objective
from autopar.costmodel.spec.errors import InvalidInputError
from autopar.costmodel.spec.strategy import Strategy
from autopar.failures import best_within, expected_step_seconds, sizes_within
from autopar.request import build_problem, resized
from autopar.search import Constraints, search

powers = st.sampled_from((1, 2, 4, 8))


@given(st.integers(1, 400), powers, powers, powers, st.integers(1, 4096))
def test_sizes_are_whole_nodes_within_what_is_left(nodes: int, tensor: int, pipeline: int, data: int, batch: int) -> None:
    strategy = Strategy(tensor_parallel_size=tensor, pipeline_parallel_size=pipeline, data_parallel_size=data)
    sizes = sizes_within(8 * nodes, 8, strategy, batch)
    assert sizes == tuple(sorted(sizes, reverse=True))
    assert sizes[0] == 8 * nodes
    assert all(size % 8 == 0 and 0 < size <= 8 * nodes for size in sizes)
    assert len(sizes) <= 10


@pytest.mark.parametrize(("nodes", "among"), [(31, (31, 30, 28, 24)), (127, (127, 120, 112, 96)), (1, (1,)), (64, (64,))])
def test_sizes_that_divide_well_are_among_them(nodes: int, among: tuple[int, ...]) -> None:
    strategy = Strategy(tensor_parallel_size=8, data_parallel_size=nodes)
    assert set(sizes_within(8 * nodes, 8, strategy, 1536)) >= {8 * count for count in among}


def test_the_same_shape_with_fewer_replicas_is_among_them() -> None:
    strategy = Strategy(tensor_parallel_size=8, pipeline_parallel_size=5, data_parallel_size=8)
    assert 5 * 6 * 8 in sizes_within(39 * 8, 8, strategy, 12)


def test_fewer_gpus_can_be_faster_than_all_that_are_left() -> None:
    problem, _ = build_problem("gpt-1.2b", gpus=64, global_batch_size=64)
    plan = search(problem, top=1).ranked[0].strategy
    found, looked_at = best_within(problem, 56, plan, Constraints())
    assert found is not None
    on, strategy, seconds = found
    assert looked_at[0] == 56
    assert strategy.world_size == on.cluster.num_gpus
    alone = search(resized(problem, 56) or problem, top=1).ranked
    assert seconds <= alone[0].step_time_seconds


def test_without_failures_a_step_takes_a_step() -> None:
    problem, _ = build_problem("gpt-1.2b", gpus=16)
    assert expected_step_seconds(problem, 2.0, None) == 2.0
    aims = read_aims(failures={"mtbf_node": "1000h", "checkpoint_seconds": 60})
    assert expected_step_seconds(problem, 2.0, aims.reliability) > 2.0


def test_what_is_not_said_of_failures_is_assumed_aloud() -> None:
    aims = read_aims(failures={"mtbf_node": "1000h", "checkpoint_seconds": "2 min"})
    assert aims.reliability is not None
    assert (aims.reliability.restart_seconds, aims.reliability.repair_seconds) == (120, 86_400)
    assert [note.split(":")[0] for note in aims.assumptions] == ["restart after a failure", "repair of a node"]
    said = read_aims(failures={"mtbf_node": 3.6e6, "checkpoint_seconds": 60, "restart_seconds": 0, "repair_time": "4h"})
    assert said.assumptions == ()
    assert said.reliability is not None
    assert said.reliability.restart_seconds == 0


def test_a_price_is_the_clusters_or_its_devices_or_the_one_for_all() -> None:
    cluster = build_problem("gpt-1.2b", gpus=8)[0].cluster
    prices = {"dgx-h100": 1.0, "h100": 2.0}
    assert read_aims(price=prices).price_of(cluster).per_gpu_hour == 1.0  # type: ignore[union-attr]
    assert read_aims(price={"h100": 2.0}).price_of(cluster).per_gpu_hour == 2.0  # type: ignore[union-attr]
    assert read_aims(price=3).price_of(cluster).per_gpu_hour == 3.0  # type: ignore[union-attr]
    assert read_aims(price={"a100": 3}).price_of(cluster) is None
    own = replace(cluster, id="ours")
    assert read_aims(price={"ours": 4}, own=("ours",)).price_of(own).per_gpu_hour == 4.0  # type: ignore[union-attr]
    with pytest.raises(InvalidInputError, match="'ours'"):
        read_aims(price={"ours": 4})


def test_an_objective_is_read_as_it_is_written() -> None:
    assert read_aims("step_time").objective is Objective.STEP_TIME
    assert read_aims(" Memory ").objective is Objective.MEMORY
