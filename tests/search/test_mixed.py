"""The search over pools against a loop over every placement, and the genetic search against that."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from autopar.costmodel.mixed import Machine
from autopar.costmodel.pools import Between, MixedProblem, Pool
from autopar.costmodel.spec.cluster import LinkKind, LinkTier
from autopar.costmodel.spec.errors import UnavailableError
from autopar.costmodel.spec.hardware import LinkProfile, Origin
from autopar.costmodel.spec.mixed import Lane, MixedStrategy
from autopar.costmodel.spec.strategy import PipelineSchedule, Recompute, Strategy
from autopar.search import Constraints, Watch
from autopar.search.mixed import WORTH, Method, as_the_slowest, mixed_search
from autopar.search.mixed_rules import MIXED_RULES, mixed_faults
from autopar.search.progress import Stopped

GIB = 2**30
Make = Callable[..., MixedProblem]


@pytest.fixture(scope="session")
def make_pools(make_problem: Callable[..., Any]) -> Make:
    """``make(h100=4, a100=4)``: pools by device and size, with their memory in GiB; a slow network between them."""

    def make(memory: tuple[float, ...] = (), **sizes: int) -> MixedProblem:
        options = {name: sizes.pop(name) for name in ("batch", "length") if name in sizes}
        by_stage = bool(sizes.pop("by_stage", False))
        pools = []
        for place, (gpu, size) in enumerate(sizes.items()):
            room = memory[place] * GIB if memory else None
            asked = make_problem(gpus=size, gpu=gpu, memory=room, recompute_by_stage=by_stage, **options)
            pools.append(Pool(name=gpu, problem=asked))
        tier = LinkTier(name="between", kind=LinkKind.NETWORK, domain_size=0, bandwidth=25e9, latency_seconds=5e-6, ports_per_domain=8)
        profile = LinkProfile(
            tier="between", efficiency=0.9, p2p_efficiency=0.9, all_to_all_efficiency=0.9, half_bytes=1e5, latency_seconds=5e-6,
            base_seconds=1e-5, origin=Origin.ANALYTIC, source="a test",
        )  # fmt: skip
        return MixedProblem(pools=tuple(pools), between=Between(tier=tier, profile=profile))

    return make


def splits(layers: int, stages: int) -> Iterator[tuple[int, ...]]:
    """Every way to cut ``layers`` into so many runs of at least one."""
    for cuts in itertools.combinations(range(1, layers), stages - 1):
        ends = (0, *cuts, layers)
        yield tuple(after - before for before, after in itertools.pairwise(ends))


def sizes(problem: MixedProblem, replicas: bool, most: int = 2) -> Iterator[Strategy]:
    """Sizes over all GPUs, one stage a rank, whatever the rules say of them; ``most`` tensor-parallel ranks and micro-batches."""
    gpus = problem.num_gpus
    for tp, pp, micro in itertools.product(range(1, most + 1), (1, 2, 4), range(1, most + 1)):
        if gpus % (tp * pp) or (pp == 1 and not replicas):
            continue
        for sequence in (False, True) if tp > 1 else (False,):
            yield Strategy(
                tensor_parallel_size=tp,
                sequence_parallel=sequence,
                pipeline_parallel_size=pp,
                data_parallel_size=gpus // (tp * pp),
                micro_batch_size=micro,
            )


def recomputed(problem: MixedProblem, strategy: Strategy) -> Iterator[Strategy]:
    """With nothing recomputed, and with every count: of all stages alike, or of each its own."""
    yield strategy
    layers = strategy.pipeline_layers
    if problem.question.framework.recompute_by_stage:
        for counts in itertools.product(*(range(own + 1) for own in layers)):
            if any(counts):
                yield replace(strategy, recompute=Recompute.FULL, stage_recompute_layers=counts)
        return
    held = -(-sum(layers) // strategy.pipeline_parallel_size)
    for count in range(1, held + 1):
        yield replace(strategy, recompute=Recompute.FULL, num_recompute_layers=0 if count == held else count)


def staged(problem: MixedProblem, most: int) -> Iterator[MixedStrategy]:
    """Every order, split and recomputation of stages by pool."""
    batch, layers = problem.question.training.global_batch_size, problem.question.model.num_layers
    for strategy, order in itertools.product(sizes(problem, replicas=False, most=most), itertools.permutations(problem.pools)):
        group = strategy.tensor_parallel_size * strategy.data_parallel_size
        if any(pool.num_gpus % group for pool in order) or batch % (strategy.data_parallel_size * strategy.micro_batch_size):
            continue
        ranks = tuple(pool.name for pool in order for _ in range(pool.num_gpus // group))
        lane = Lane(pools=ranks, data_parallel_size=strategy.data_parallel_size, num_microbatches=strategy.num_microbatches(batch))
        for split in splits(layers, strategy.pipeline_parallel_size):
            for each in recomputed(problem, replace(strategy, pipeline_layers=split)):
                even = replace(each, pipeline_layers=() if len(set(split)) == 1 else split)
                yield MixedStrategy(strategy=even, lanes=(lane,))


def replicated(problem: MixedProblem) -> Iterator[MixedStrategy]:
    """Every share of the batch between the replicas of two pools, nothing recomputed, even stages."""
    batch, layers = problem.question.training.global_batch_size, problem.question.model.num_layers
    for strategy in sizes(problem, replicas=True):
        ranks = strategy.tensor_parallel_size * strategy.pipeline_parallel_size
        own = [pool.num_gpus // ranks for pool in problem.pools]
        if any(pool.num_gpus % ranks for pool in problem.pools) or layers % strategy.pipeline_parallel_size:
            continue
        runs, rest = divmod(batch, strategy.micro_batch_size)
        for counts in itertools.product(*(range(1, runs + 1) for _ in own)):
            surplus = sum(count * size for count, size in zip(counts, own, strict=True)) - runs
            if rest or not 0 <= surplus < own[0]:
                continue
            lanes = tuple(
                Lane(
                    pools=(pool.name,) * strategy.pipeline_parallel_size,
                    data_parallel_size=size,
                    num_microbatches=count,
                    short_replicas=surplus if place == 0 and count > 1 else 0,
                )
                for place, (pool, size, count) in enumerate(zip(problem.pools, own, counts, strict=True))
            )
            yield MixedStrategy(strategy=strategy, lanes=lanes)


def fastest(problem: MixedProblem, every: Iterator[MixedStrategy]) -> float:
    """The least step time of those that the rules accept and every pool holds."""
    machine, best = Machine.of(problem), float("inf")
    for mixed in every:
        costs = machine.costs(mixed, simulate=True)
        if costs.fits and costs.step_seconds < best and not mixed_faults(problem, mixed):
            best = costs.step_seconds
    return best


ONE_A_RANK = Constraints(fixed={"pipeline_schedule": "1f1b", "context_parallel_size": 1}, maximum={"zero_stage": 1})


def upto(most: int, **fixed: int) -> Constraints:
    """The sizes of :func:`sizes`."""
    limits = {"tensor_parallel_size": most, "micro_batch_size": most, **ONE_A_RANK.maximum}
    return replace(ONE_A_RANK, maximum=limits, minimum=fixed)


@pytest.mark.parametrize(
    ("memory", "by_stage", "most"), [((), 0, 2), ((18.0, 9.0), 0, 2), ((9.0, 30.0), 0, 2), ((18.0, 9.0), 1, 1), ((7.0, 20.0), 1, 1)]
)
def test_no_placement_of_stages_is_faster(make_pools: Make, memory: tuple[float, ...], by_stage: int, most: int) -> None:
    problem = make_pools(memory, h100=2, a100=2, batch=8, by_stage=by_stage)
    least = fastest(problem, staged(problem, most))
    found = mixed_search(problem, upto(most, pipeline_parallel_size=2), method=Method.EXACT)
    assert found.best is not None
    assert found.best.step_time_seconds <= least * (1 + WORTH)
    assert found.summary.bound_seconds is not None
    assert least * 0.75 <= found.summary.bound_seconds <= least * (1 + 1e-9)


def test_no_share_of_the_batch_is_faster(make_pools: Make) -> None:
    problem = make_pools(h100=2, a100=2, batch=12)
    least = fastest(problem, replicated(problem))
    found = mixed_search(problem, upto(2), method=Method.EXACT)
    assert found.best is not None
    assert found.best.step_time_seconds <= least * (1 + WORTH)
    assert found.summary.bound_seconds is not None
    assert found.summary.bound_seconds <= least * (1 + 1e-9)


@pytest.mark.parametrize("pools", [{"h100": 4, "a100": 4}, {"a100-40gb": 2, "h100": 1, "b200": 1}])
def test_every_strategy_that_comes_out_runs_and_is_priced_as_it_says(make_pools: Make, pools: dict[str, int]) -> None:
    problem = make_pools(**pools, batch=32)
    found = mixed_search(problem, method=Method.EXACT)
    machine = Machine.of(problem)
    for each in found.ranked:
        assert not mixed_faults(problem, each.mixed)
        costs = machine.costs(each.mixed, simulate=True)
        assert costs.step_seconds == pytest.approx(each.step_time_seconds, rel=1e-12)
        assert costs.fits
    times = [each.step_time_seconds for each in found.ranked]
    assert times == sorted(times)


def test_using_unlike_gpus_is_worth_more_than_the_faster_ones_alone_or_all_as_the_slowest(make_pools: Make) -> None:
    problem = make_pools(h100=8, a100=8, batch=64)
    found = mixed_search(problem)
    assert found.best is not None
    taken = [each.step_time_seconds for each in found.references if each.step_time_seconds is not None]
    assert len(taken) == 3
    assert found.best.step_time_seconds < min(taken)
    assert len(found.best.mixed.pools) == 2


def test_the_genetic_search_is_never_better_than_looking_at_all_and_reproduces(make_pools: Make) -> None:
    problem = make_pools(h100=2, a100=2, batch=16)
    few = Constraints(fixed={"zero_stage": 1, "context_parallel_size": 1}, maximum={"virtual_pipeline_stages": 2, "micro_batch_size": 4})
    exact = mixed_search(problem, few, method=Method.EXACT)
    state = random.getstate()
    runs = [mixed_search(problem, few, method=Method.GENETIC, seed=seed) for seed in (1, 1, 2)]
    assert random.getstate() == state
    assert runs[0] == replace(runs[1], seconds=runs[0].seconds)
    for run in runs:
        assert run.best is not None
        assert exact.best is not None
        assert run.best.step_time_seconds >= exact.best.step_time_seconds * (1 - WORTH)
        assert run.summary.optimality.startswith("heuristic; no placement")
        assert run.summary.bound_seconds is not None
        assert run.summary.bound_seconds <= exact.best.step_time_seconds
        assert not mixed_faults(problem, run.best.mixed)


def test_constraints_are_those_of_all_pools_together(make_pools: Make) -> None:
    problem = make_pools(h100=4, a100=4, batch=32)
    fixed = mixed_search(problem, Constraints(fixed={"data_parallel_size": 8}))
    assert fixed.best is not None
    assert {each.mixed.strategy.data_parallel_size for each in fixed.ranked} == {8}
    assert len(fixed.best.mixed.lanes) == 2
    staged_only = mixed_search(problem, Constraints(fixed={"pipeline_parallel_size": 8}))
    assert not staged_only.ranked  # the model has six layers


@pytest.mark.parametrize("method", [Method.EXACT, Method.GENETIC])
def test_a_search_that_is_stopped_says_so_and_keeps_what_it_found(make_pools: Make, method: Method) -> None:
    problem = make_pools(h100=4, a100=4, batch=32)
    asked = iter([False] * 8)
    watch = Watch(interrupted=lambda: next(asked, True))
    found = mixed_search(problem, method=method, watch=watch)
    assert watch.stopped is Stopped.INTERRUPTED
    assert found.summary.interrupted
    assert found.summary.bound_seconds is None
    assert "evaluated so far" in found.summary.optimality


def test_a_missing_deap_is_named(make_pools: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autopar.search.genetic.find_spec", lambda _: None)
    with pytest.raises(UnavailableError, match=r"autopar\[search\]"):
        mixed_search(make_pools(h100=4, a100=4), method=Method.GENETIC)


def test_the_slowest_kind_has_the_slowest_rates_and_the_smallest_memory(make_pools: Make) -> None:
    problem = make_pools(h100=8, a100=8, l40s=4)
    name, slow = as_the_slowest(problem)
    assert name == "a100"
    assert slow.cluster.num_gpus == 20
    assert slow.cluster.device.memory_bytes == min(pool.problem.cluster.device.memory_bytes for pool in problem.pools)
    assert slow.cluster.network_tier == problem.between.tier


BROKEN: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    ("pools_known", {}, {"pools": ("z", "z")}),
    ("pool_size", {}, {"pools": ("h100", "h100")}),
    ("lanes_make_the_batch", {}, {"num_microbatches": 3}),
    ("schedule_over_pools", {"pipeline_schedule": PipelineSchedule.DUALPIPE}, {}),
    (
        "whole_rounds",
        {"pipeline_schedule": PipelineSchedule.INTERLEAVED, "virtual_pipeline_stages": 3, "micro_batch_size": 2},
        {"num_microbatches": 5},
    ),
)


@pytest.mark.parametrize(("rule", "sizes", "lane"), BROKEN, ids=[each[0] for each in BROKEN])
def test_each_rule_refuses_what_breaks_it(make_pools: Make, rule: str, sizes: dict[str, Any], lane: dict[str, Any]) -> None:
    problem = make_pools(h100=4, a100=4, batch=16)
    strategy = Strategy(**{"pipeline_parallel_size": 2, "data_parallel_size": 4, **sizes})
    given = {"pools": ("h100", "a100"), "data_parallel_size": 4, "num_microbatches": 4 // strategy.micro_batch_size, **lane}
    mixed = MixedStrategy(strategy=strategy, lanes=(Lane(**given),))
    named = next(each for each in MIXED_RULES if each.name == rule)
    assert list(named.check(problem, mixed))
    assert named.summary.endswith(".")
    good = MixedStrategy(
        strategy=Strategy(pipeline_parallel_size=2, data_parallel_size=4),
        lanes=(Lane(pools=("h100", "a100"), data_parallel_size=4, num_microbatches=4),),
    )
    assert not mixed_faults(problem, good)


def test_replicas_in_several_pools_do_not_shard_parameters(make_pools: Make) -> None:
    problem = make_pools(h100=4, a100=4, batch=16)
    lanes = tuple(Lane(pools=(name,), data_parallel_size=4, num_microbatches=2) for name in ("h100", "a100"))
    faults = mixed_faults(problem, MixedStrategy(strategy=Strategy(data_parallel_size=8, zero_stage=3), lanes=lanes))
    assert [fault.field for fault in faults] == ["zero_stage"]
    assert not mixed_faults(problem, MixedStrategy(strategy=Strategy(data_parallel_size=8), lanes=lanes))
