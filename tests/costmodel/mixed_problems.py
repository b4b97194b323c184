"""Small questions to pools of like and of unlike devices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from autopar.costmodel.pools import Between, MixedProblem, Pool
from autopar.costmodel.problem import Problem
from autopar.costmodel.spec.mixed import Lane, MixedStrategy
from autopar.costmodel.spec.model import ModelSpec
from autopar.costmodel.spec.strategy import Strategy

from .problems import DENSE, problem


def pools_of(*gpus: str, size: int = 16, model: ModelSpec = DENSE, batch: int = 32, **changes: Any) -> MixedProblem:
    """A pool of ``size`` of each of ``gpus``, called a, b, ...; the slowest network lies between them."""
    asked = [problem(model, gpus=size, batch=batch, gpu=gpu, **changes) for gpu in gpus]
    slow = min(asked, key=lambda each: each.cluster.network_tier.bandwidth)
    named = tuple(Pool(name=name, problem=each) for name, each in zip("abcd", asked, strict=False))
    return MixedProblem(pools=named, between=Between(tier=slow.cluster.network_tier, profile=slow.links[-1]))


def whole_of(mixed: MixedProblem, place: int = 0) -> Problem:
    """All GPUs of ``mixed`` as if they were of one of its pools."""
    asked = mixed.pools[place].problem
    return replace(asked, cluster=replace(asked.cluster, num_gpus=mixed.num_gpus))


def by_stages(strategy: Strategy, batch: int, ranks: tuple[int, ...]) -> MixedStrategy:
    """``strategy`` with so many of its pipeline ranks in each pool, in order."""
    pools = tuple(name for name, count in zip("abcd", ranks, strict=False) for _ in range(count))
    lane = Lane(pools=pools, data_parallel_size=strategy.data_parallel_size, num_microbatches=strategy.num_microbatches(batch))
    return MixedStrategy(strategy=strategy, lanes=(lane,))


def by_replicas(strategy: Strategy, counts: tuple[int, ...]) -> MixedStrategy:
    """``strategy`` with as many of its replicas in one pool as in another, each running so many micro-batches."""
    lanes = tuple(
        Lane(
            pools=(name,) * strategy.pipeline_parallel_size,
            data_parallel_size=strategy.data_parallel_size // len(counts),
            num_microbatches=count,
        )
        for name, count in zip("abcd", counts, strict=False)
    )
    return MixedStrategy(strategy=strategy, lanes=lanes)
