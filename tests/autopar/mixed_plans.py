"""Plans over pools that are written down, not searched for: a better search changes no test that uses them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from autopar.costmodel.mixed_estimate import mixed_estimate
from autopar.costmodel.spec.cluster import Hosts
from autopar.costmodel.spec.mixed import Lane, MixedStrategy, Reference
from autopar.costmodel.spec.plan import Alternative, Plan, PlanInputs, SearchSummary
from autopar.costmodel.spec.strategy import Strategy
from autopar.host_order import with_start_order
from autopar.mixed import MixedQuestion, mixed_plan, posed

STAGED = Strategy(
    tensor_parallel_size=2, sequence_parallel=True, pipeline_parallel_size=4, data_parallel_size=4, pipeline_layers=(5, 4, 12, 11)
)  # fmt: skip
SIZES = {"h100": 16, "a100-40gb": 16}
ORDER = ("a100-40gb", "a100-40gb", "h100", "h100")
NAMES = {"h100": ("fast1", "fast2"), "a100-40gb": ("old07", "old03")}


@cache
def question(model: str = "llama3-8b", pools: tuple[tuple[str, int], ...] = tuple(SIZES.items()), batch: int = 64) -> MixedQuestion:
    """Pools of a model's usual precision and 4,096 tokens."""
    return posed(model, dict(pools), "25GB/s", ((), (), (), ()), {"global_batch_size": batch, "sequence_length": 4096})


def plan_of(asked: MixedQuestion, mixed: MixedStrategy, *others: MixedStrategy) -> Plan:
    """The plan that says ``mixed``, with ``others`` as runners-up."""
    problem = asked.problem
    first, estimates = problem.question, [mixed_estimate(problem, each) for each in (mixed, *others)]
    return Plan(
        strategy=mixed.strategy,
        estimate=estimates[0],
        inputs=PlanInputs(
            model=first.model,
            cluster=first.cluster,
            training=first.training,
            framework=first.framework.id,
            memory_reserve_bytes=None,
            constraints=(),
            assumptions=asked.assumptions,
        ),
        search=SearchSummary(evaluated=1, rejected={}, method="written down", optimality="not searched"),
        alternatives=tuple(
            Alternative(
                strategy=other.strategy,
                step_time_seconds=result.step_time_seconds,
                peak_memory_bytes=result.peak_memory_bytes,
                tie=False,
                lanes=other.lanes,
            )
            for other, result in zip(others, estimates[1:], strict=True)
        ),
        autopar_version="0.1.0",
        mixed=mixed_plan(
            asked,
            mixed,
            references=(
                Reference(name="h100 alone", strategy=STAGED, step_time_seconds=2 * estimates[0].step_time_seconds),
                Reference(name="a100-40gb alone", strategy=None, step_time_seconds=None),
            ),
        ),
    )


def on(strategy: Strategy, pools: tuple[str, ...] = ORDER, batch: int = 64) -> MixedStrategy:
    """One lane whose pipeline ranks are in ``pools``."""
    lane = Lane(pools=pools, data_parallel_size=strategy.data_parallel_size, num_microbatches=strategy.num_microbatches(batch))
    return MixedStrategy(strategy=strategy, lanes=(lane,))


def staged(**changes: Any) -> Plan:
    """16 A100s with the first stages, then 16 H100s; ``changes`` of the strategy."""
    return plan_of(question(), on(replace(STAGED, **changes)))


def named(plan: Plan, names: dict[str, tuple[str, ...]] = NAMES) -> Plan:
    """``plan`` with the hosts of its pools."""
    assert plan.mixed is not None
    pools = tuple(replace(pool, cluster=replace(pool.cluster, hosts=Hosts(names=names[pool.name]))) for pool in plan.mixed.pools)
    return replace(plan, mixed=with_start_order(replace(plan.mixed, pools=pools), plan.strategy))


def replicas() -> Plan:
    """A pipeline in each pool, with three times as many micro-batches on the faster; the runner-up is :func:`staged`'s."""
    strategy = replace(STAGED, pipeline_parallel_size=2, data_parallel_size=8, pipeline_layers=(16, 16))
    lanes = tuple(Lane(pools=(name,) * 2, data_parallel_size=4, num_microbatches=count) for name, count in (("h100", 12), ("a100-40gb", 4)))
    return plan_of(question(), MixedStrategy(strategy=strategy, lanes=lanes), on(STAGED))


def alone() -> Plan:
    """The H100s with all stages."""
    strategy = replace(STAGED, data_parallel_size=2, pipeline_layers=(9, 8, 8, 7))
    return plan_of(question(), on(strategy, ("h100",) * 4))
