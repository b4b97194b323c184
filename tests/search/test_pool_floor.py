"""What is said of all strategies at once against what the cost model says of one: no strategy is refused that it prices below the limit."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from autopar.costmodel.columns import Floats, StrategyColumns
from autopar.costmodel.inputs import Inputs
from autopar.costmodel.layer_floor import layer_floor
from autopar.costmodel.mixed import Machine
from autopar.costmodel.pools import MixedProblem
from autopar.costmodel.problem import Problem
from autopar.costmodel.spec.mixed import MixedStrategy
from autopar.costmodel.spec.model import ModelSpec
from autopar.costmodel.spec.strategy import PipelineSchedule, Recompute, Strategy
from autopar.costmodel.spec.training import PRECISIONS
from autopar.costmodel.stage_budget import stage_budgets
from autopar.costmodel.step import evaluate
from autopar.search import Constraints
from autopar.search.feasibility import runnable
from autopar.search.pool_floor import Asked, FixedStages, Overhead
from autopar.search.pool_space import Manner
from autopar.search.rank_floor import Pipelines, RankFloor, least_that_could
from autopar.search.space import RecomputeChoices
from tests.costmodel.mixed_problems import by_replicas, by_stages, pools_of
from tests.costmodel.problems import DENSE, EXPERTS, GROUPED, LATENT, MODELS, feasible

ANY = RecomputeChoices.of(Constraints())
SHAPES = [
    (PipelineSchedule.GPIPE, 2, 1),
    (PipelineSchedule.GPIPE, 4, 1),
    (PipelineSchedule.ONE_F_ONE_B, 2, 1),
    (PipelineSchedule.ONE_F_ONE_B, 4, 1),
    (PipelineSchedule.INTERLEAVED, 2, 2),
    (PipelineSchedule.INTERLEAVED, 2, 3),
    (PipelineSchedule.INTERLEAVED, 4, 2),
    (PipelineSchedule.ZERO_BUBBLE, 4, 1),
    (PipelineSchedule.ZERO_BUBBLE, 2, 2),
]


def with_memory(problem: Problem, gigabytes: float) -> Problem:
    return replace(problem, cluster=replace(problem.cluster, device=replace(problem.cluster.device, memory_bytes=int(gigabytes * 1e9))))


def floors_of(problem: Problem, rows: StrategyColumns) -> Floats:
    """Least seconds of a step with any recomputation that every layer may have alike."""
    inputs = Inputs.of(problem)
    floor = layer_floor(inputs, rows, selective=True)
    pipes = Pipelines.of(rows, floor.num_microbatches)
    stages = FixedStages.of(inputs, floor, rows, pipes, same_share=True, recomputes=True)
    return Overhead.of(inputs).step(stages.busy_seconds())


@cache
def priced(name: str) -> tuple[Problem, StrategyColumns, Floats, Floats]:
    """A draw of the feasible strategies of a model, over all axes, with their simulated step time and their peak memory."""
    problem, strategies = feasible(name)
    chosen = np.random.default_rng(7).choice(len(strategies), 250, replace=False)
    rows = StrategyColumns.of([strategies[place] for place in chosen.tolist()])
    found = evaluate(Inputs.of(problem), rows, simulate=True)
    return problem, rows, found.step_time_seconds, found.peak_memory_bytes


@pytest.mark.parametrize("name", MODELS)
def test_no_strategy_that_fits_is_faster_than_its_floor(name: str) -> None:
    problem, rows, seconds, peak = priced(name)
    for gigabytes in (12.0, 24.0, 80.0):
        fits = peak <= gigabytes * 1e9
        floors = floors_of(with_memory(problem, gigabytes), rows)
        assert fits.any() or gigabytes < 24
        assert (floors[fits] <= seconds[fits] * (1 + 1e-9)).all()
        if gigabytes == 80:  # and it says something: a pipeline is mostly its layers
            assert np.median(floors[fits] / seconds[fits]) > 0.7


@pytest.mark.parametrize("precision", ["fp8", "amp-bf16"])
@pytest.mark.parametrize("name", MODELS)
def test_copies_of_weights_are_counted_where_they_are_kept(name: str, precision: str) -> None:
    """Not of the token table, and in FP8 not of the output matrix: at the very memory that a strategy needs, none is refused."""
    bf16, strategies = feasible(name)
    problem = replace(bf16, training=replace(bf16.training, precision=PRECISIONS[precision]))
    rows = StrategyColumns.of(runnable(problem, strategies)[::7][:250])
    found = evaluate(Inputs.of(problem), rows, simulate=True)
    for peak in np.quantile(found.peak_memory_bytes, [0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8]):
        fits = found.peak_memory_bytes <= peak
        floors = floors_of(with_memory(problem, peak * (1 + 1e-7) / 1e9), rows)
        assert fits.any()
        assert (floors[fits] <= found.step_time_seconds[fits] * (1 + 1e-9)).all()


@pytest.mark.parametrize("model", [DENSE, GROUPED], ids=lambda model: model.name)
def test_ranks_take_and_hold_what_the_cost_model_reads_off_stages(model: ModelSpec) -> None:
    problem, strategies = feasible(model.name)
    inputs = Inputs.of(problem)
    chosen = [each for each in strategies if each.pipeline_schedule is not PipelineSchedule.DUALPIPE and each.recompute is Recompute.NONE]
    several = inputs.training.global_batch_size > np.array([each.data_parallel_size * each.micro_batch_size for each in chosen])
    rows = StrategyColumns.of([each for each, more in zip(chosen, several.tolist(), strict=True) if more][::5])
    floor = layer_floor(inputs, rows)
    pipes = Pipelines.of(rows, floor.num_microbatches)
    chunks = rows.virtual_pipeline_stages.astype(np.float64)
    ranks = RankFloor.of((floor,), np.zeros(len(pipes.row), dtype=np.int64), pipes, chunks)
    for budget in stage_budgets(inputs, rows, alone=True):
        places = pipes.start[budget.rows][:, None] + np.arange(budget.num_holders)
        per_rank = budget.on_holders(budget.seconds.slope[..., 0]) / np.bincount(budget.holder)
        again = budget.on_holders(budget.recomputed_seconds.slope[..., 0]) / np.bincount(budget.holder)
        saved = budget.bytes.slope[..., 0] - budget.recomputed_bytes.slope[..., 0]
        expected = {
            "base_seconds": budget.on_holders(budget.seconds.base),
            "seconds": per_rank,
            "repeated_seconds": again - per_rank,
            "room_bytes": budget.capacity_bytes - budget.bytes.base,
            "bytes": budget.bytes.slope[..., 0],
            "saved_bytes": saved,
            "working_bytes": budget.unfolded_bytes,
        }
        for name, each in expected.items():
            own = getattr(ranks, name)[places]
            assert own == pytest.approx(each, rel=1e-8, abs=1e-9 * (1.0 if "seconds" in name else budget.capacity_bytes)), name


@st.composite
def placements(draw: st.DrawFn, layers: int) -> tuple[Strategy, tuple[int, ...]]:
    """A strategy over 32 GPUs whose stages have some layers and recompute some of them, and the ranks in each of two pools."""
    kind, ranks, chunks = draw(st.sampled_from(SHAPES))
    tp = draw(st.sampled_from([1, 2, 4]))
    stages = ranks * chunks
    cuts = sorted(draw(st.lists(st.integers(1, layers - 1), min_size=stages - 1, max_size=stages - 1, unique=True)))
    split = tuple(after - before for before, after in zip((0, *cuts), (*cuts, layers), strict=True))
    again = tuple(draw(st.integers(0, own)) for own in split) if draw(st.booleans()) else ()
    strategy = Strategy(
        tensor_parallel_size=tp,
        sequence_parallel=tp > 1 and draw(st.booleans()),
        pipeline_parallel_size=ranks,
        virtual_pipeline_stages=chunks,
        pipeline_schedule=kind,
        data_parallel_size=32 // (tp * ranks),
        micro_batch_size=draw(st.sampled_from([1, 2])),
        zero_stage=draw(st.integers(0, 1)),
        pipeline_layers=split,
        recompute=Recompute.FULL if any(again) else Recompute.NONE,
        stage_recompute_layers=again if any(again) else (),
    )
    return strategy, (ranks // 2, ranks // 2)


@cache
def two_pools(name: str, memory: tuple[float, float], order: tuple[str, str]) -> tuple[MixedProblem, Machine]:
    problem = pools_of(*order, model=MODELS[name], batch=128)
    pools = tuple(replace(pool, problem=with_memory(pool.problem, each)) for pool, each in zip(problem.pools, memory, strict=True))
    whole = replace(problem, pools=pools)
    return whole, Machine.of(whole)


MEMORY = st.sampled_from([(80.0, 40.0), (12.0, 30.0), (30.0, 12.0), (9.0, 9.0)])
ORDER = st.sampled_from([("h100", "a100"), ("a100", "h100")])


def runs(strategy: Strategy, batch: int, parts: int) -> bool:
    count, rest = divmod(batch, strategy.data_parallel_size * strategy.micro_batch_size)
    whole = strategy.virtual_pipeline_stages == 1 or count % strategy.pipeline_parallel_size == 0
    return not rest and count >= parts and whole


@given(data=st.data(), name=st.sampled_from([DENSE.name, EXPERTS.name, LATENT.name]), memory=MEMORY, order=ORDER)
@settings(max_examples=60, deadline=None)
def test_no_placement_by_stages_is_refused_that_is_priced_below_the_limit(
    data: st.DataObject, name: str, memory: tuple[float, float], order: tuple[str, str]
) -> None:
    _, machine = two_pools(name, memory, order)
    strategy, ranks = data.draw(placements(MODELS[name].num_layers))
    assume(runs(strategy, 128, 1))
    costs = machine.costs(by_stages(strategy, 128, ranks), simulate=True)
    assume(costs.fits)
    rows = StrategyColumns.of([replace(strategy, pipeline_layers=(), stage_recompute_layers=(), recompute=Recompute.NONE)])
    free = Asked.of(machine, rows, (0, 1), ANY, Manner.STAGES).free_stages((0, 1))
    assert free.could_beat(costs.step_seconds * (1 + 1e-9)).all()
    bound = least_that_could(free.could_beat, np.array([costs.step_seconds]))
    assert 0 < bound[0] <= costs.step_seconds
    assert not free.could_beat(bound).any()


@given(data=st.data(), name=st.sampled_from([DENSE.name, EXPERTS.name]), memory=MEMORY, counts=st.tuples(*[st.integers(1, 6)] * 2))
@settings(max_examples=40, deadline=None)
def test_no_share_of_the_batch_is_refused_that_is_priced_below_the_limit(
    data: st.DataObject, name: str, memory: tuple[float, float], counts: tuple[int, int]
) -> None:
    kind, ranks, chunks = data.draw(st.sampled_from([shape for shape in SHAPES if 8 % (shape[1] * shape[2]) == 0]))
    own = 8 // ranks
    counts = (4 * ranks * counts[0], 4 * ranks * counts[1])
    problem, _ = two_pools(name, memory, ("h100", "a100"))
    strategy = Strategy(
        tensor_parallel_size=2,
        sequence_parallel=True,
        pipeline_parallel_size=ranks,
        virtual_pipeline_stages=chunks,
        pipeline_schedule=kind,
        data_parallel_size=2 * own,
        recompute=data.draw(st.sampled_from([Recompute.NONE, Recompute.FULL])),
    )
    asked = _with_batch(problem, own * sum(counts))
    machine = Machine.of(asked)
    mixed: MixedStrategy = by_replicas(strategy, counts)
    costs = machine.costs(mixed, simulate=True)
    assume(costs.fits)
    rows = StrategyColumns.of([replace(strategy, recompute=Recompute.NONE)])
    shared = Asked.of(machine, rows, (0, 1), ANY, Manner.REPLICAS).shared_batch()
    assert shared.could_beat(costs.step_seconds * (1 + 1e-9)).all()
    bound = least_that_could(shared.could_beat, np.array([costs.step_seconds]))
    assert 0 < bound[0] <= costs.step_seconds


def _with_batch(problem: MixedProblem, batch: int) -> MixedProblem:
    pools = (
        replace(pool, problem=replace(pool.problem, training=replace(pool.problem.training, global_batch_size=batch)))
        for pool in problem.pools
    )
    return replace(problem, pools=tuple(pools))


def test_a_bound_is_where_yes_begins() -> None:
    asked = np.array([3.0, 0.7, 1e-3, 50.0])
    bounds = least_that_could(lambda limit: limit > asked, np.full(4, 40.0))
    assert bounds == pytest.approx([3.0, 0.7, 1e-3, 40.0], rel=1e-5)
    assert (bounds <= asked).all()
    assert least_that_could(lambda limit: limit > 0, np.array([40.0])) == 0


def test_more_time_and_more_memory_never_turn_a_yes_into_a_no() -> None:
    _, machine = two_pools(DENSE.name, (12.0, 30.0), ("h100", "a100"))
    _, roomy = two_pools(DENSE.name, (14.0, 40.0), ("h100", "a100"))
    rows = StrategyColumns.of(
        Strategy(
            tensor_parallel_size=tp, pipeline_parallel_size=pp, virtual_pipeline_stages=v, pipeline_schedule=kind,
            data_parallel_size=32 // (tp * pp), micro_batch_size=micro,
        )
        for kind, pp, v in SHAPES for tp in (1, 2, 4) for micro in (1, 2)
    )  # fmt: skip
    limits = np.geomspace(0.05, 50, 40)
    found = [
        np.stack([Asked.of(each, rows, (0, 1), ANY, Manner.STAGES).free_stages((0, 1)).could_beat(limit) for limit in limits])
        for each in (machine, roomy)
    ]
    assert (found[0] <= found[1]).all()
    assert all((each[:-1] <= each[1:]).all() for each in found)
    assert 0 < found[0].sum() < found[0].size
