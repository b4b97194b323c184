"""What changes hands between layouts, against layouts drawn parameter by parameter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autopar.costmodel.columns import StrategyColumns
from autopar.costmodel.estimate import estimate
from autopar.costmodel.inputs import Inputs
from autopar.costmodel.pipeline_shape import PipelineShape
from autopar.costmodel.problem import Problem
from autopar.costmodel.reshard import _boundaries, node_load_bytes, resharding
from autopar.costmodel.spec.layout import RankLayout
from autopar.costmodel.spec.strategy import PipelineSchedule, RankOrder, Strategy
from autopar.request import resized
from tests.costmodel.problems import DENSE, EXPERTS, problem

GRID = 960
"""Cells of the axis of parameters; 32 across: every cut below falls on a cell's edge, or nearly."""
ACROSS = 32


def painted(asked: Problem, strategy: Strategy, sharded_from: int) -> np.ndarray:
    """ranks x cells x across: which dense cells each rank holds, found one by one."""
    inputs, layout = Inputs.of(asked), RankLayout.of(strategy)
    shape = PipelineShape.of(inputs, StrategyColumns.of([strategy]))
    ends, _ = _boundaries(inputs, shape)
    middles = (np.arange(GRID) + 0.5) / GRID * ends[-1]
    held = np.zeros((strategy.world_size, GRID, ACROSS), dtype=bool)
    for rank in range(strategy.world_size):
        at = layout.coordinates(rank)
        stages = np.flatnonzero(shape.on_rank[at["pp"]])
        mine = np.zeros(GRID, dtype=bool)
        for stage in stages:
            mine |= (middles > ends[stage]) & (middles < ends[stage + 1])
        if strategy.zero_stage >= sharded_from:
            cells, ranks = np.flatnonzero(mine), layout.dp * layout.cp
            place = at["dp"] * layout.cp + at["cp"]
            keep = cells[round(len(cells) * place / ranks) : round(len(cells) * (place + 1) / ranks)]
            mine = np.isin(np.arange(GRID), keep)
        across = np.arange(ACROSS) // (ACROSS // layout.tp) == at["tp"]
        held[rank] = mine[:, None] & across
    return held


def strategy(**sizes: int) -> Strategy:
    return Strategy(sequence_parallel=sizes.get("tensor_parallel_size", 1) > 1, **sizes)  # type: ignore[arg-type]


LAYOUTS = [
    strategy(tensor_parallel_size=2, pipeline_parallel_size=2, data_parallel_size=4),
    replace(strategy(tensor_parallel_size=2, pipeline_parallel_size=2, data_parallel_size=4), rank_order=RankOrder.TP_CP_PP_DP),
    strategy(tensor_parallel_size=4, data_parallel_size=4, zero_stage=3),
    strategy(tensor_parallel_size=1, pipeline_parallel_size=4, data_parallel_size=4, zero_stage=0),
    replace(
        strategy(pipeline_parallel_size=2, virtual_pipeline_stages=2, context_parallel_size=2, data_parallel_size=4),
        pipeline_schedule=PipelineSchedule.INTERLEAVED,
    ),
]


@pytest.mark.parametrize("before", LAYOUTS)
@pytest.mark.parametrize("after", LAYOUTS)
def test_bytes_are_those_of_the_painted_layouts(before: Strategy, after: Strategy) -> None:
    asked = problem(DENSE, gpus=16)
    found = resharding((asked, before), (asked, after))
    ends, _ = _boundaries(Inputs.of(asked), PipelineShape.of(Inputs.of(asked), StrategyColumns.of([before])))
    cell = ends[-1] / GRID / ACROSS
    loaded = kept = 0.0
    for bytes_each, sharded_from in ((2.0, 3), (12.0, 1)):
        old, new = painted(asked, before, sharded_from), painted(asked, after, sharded_from)
        loaded += bytes_each * cell * new.sum()
        kept += bytes_each * cell * (old & new).sum()
    assert found.loaded_bytes == pytest.approx(loaded, rel=0.02)
    assert found.moved_bytes == pytest.approx(loaded - kept, rel=0.03, abs=0.02 * loaded)


@pytest.mark.parametrize("model", [DENSE, EXPERTS])
def test_nothing_moves_where_nothing_changes(model: object) -> None:
    asked = problem(model, gpus=16)  # type: ignore[arg-type]
    same = strategy(
        tensor_parallel_size=2, pipeline_parallel_size=2, data_parallel_size=4, expert_parallel_size=4 if asked.model.moe else 1
    )
    found = resharding((asked, same), (asked, same))
    assert found.moved_bytes == pytest.approx(0, abs=1)
    assert found.changed == ()


@pytest.mark.parametrize("model", [DENSE, EXPERTS])
@pytest.mark.parametrize("zero", [0, 1, 3])
def test_what_is_loaded_is_what_the_estimate_holds(model: object, zero: int) -> None:
    """Parameters, master weights and optimizer states of all ranks, but for what is held whole beside the cuts."""
    asked = problem(model, gpus=16, framework="fsdp" if zero == 3 else "megatron-core")  # type: ignore[arg-type]
    chosen = strategy(data_parallel_size=8, tensor_parallel_size=2, zero_stage=zero, expert_parallel_size=4 if asked.model.moe else 1)
    found = resharding((asked, chosen), (asked, chosen))
    held = estimate(asked, chosen).stages[0].memory
    states = held.parameters + held.master_weights + held.optimizer_states
    assert found.loaded_bytes == pytest.approx(16 * states, rel=0.01)
    assert found.largest_load_bytes == pytest.approx(states, rel=0.01)
    assert node_load_bytes(asked, chosen) == pytest.approx(8 * states, rel=0.01)


def test_the_whole_state_is_loaded_once_where_everything_is_sharded() -> None:
    asked = problem(DENSE, gpus=16, framework="fsdp")
    chosen = strategy(data_parallel_size=16, zero_stage=3)
    found = resharding((asked, chosen), (asked, chosen))
    assert found.loaded_bytes == pytest.approx(found.state_bytes, rel=0.01)


def test_fewer_gpus_hold_more_each() -> None:
    asked = problem(DENSE, gpus=16)
    smaller = resized(asked, 8)
    assert smaller is not None
    before, after = strategy(tensor_parallel_size=2, data_parallel_size=8), strategy(tensor_parallel_size=2, data_parallel_size=4)
    found = resharding((asked, before), (smaller, after))
    assert 0 < found.moved_bytes < found.loaded_bytes
    assert [change.split(" ")[0] for change in found.changed] == ["sharded"]
