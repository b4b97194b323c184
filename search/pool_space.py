"""The ways to use pools of unlike devices, and the strategies of each: rows of the uniform space that the pools can carry out.

*Stages*: one lane; the pools in some order, every pool's GPUs whole stages. *Replicas*: a lane a pool, with the same pipeline in each, and
micro-batches by speed. A pool alone is an ordinary problem, which the uniform search answers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from autopar.costmodel.columns import Bools, StrategyColumns, distinct_rows
from autopar.costmodel.pools import MixedProblem
from autopar.costmodel.problem import Problem
from autopar.costmodel.spec.strategy import PipelineSchedule, Strategy

from .constraints import Constraints
from .feasibility import PREFERENCES
from .space import RecomputeChoices, Space


class Manner(StrEnum):
    """How several pools are used."""

    STAGES = "stages"
    """One pipeline runs through them."""
    REPLICAS = "replicas"
    """Each has pipelines of its own."""


_TILES = {Manner.STAGES: "stages_divide_pools", Manner.REPLICAS: "replicas_divide_pools"}
"""What strategies are counted under that a rule accepts and the pools cannot carry out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """Some of the pools, used in one manner."""

    manner: Manner
    pools: tuple[int, ...]
    """Places in the problem's pools; of stages from the first to the last."""


def uses_of(problem: MixedProblem) -> tuple[Use, ...]:
    """Every use of two pools or more: all orders of stages, all sets of replicas."""
    places = range(len(problem.pools))
    sets = [chosen for size in range(2, len(places) + 1) for chosen in itertools.combinations(places, size)]
    stages = [Use(manner=Manner.STAGES, pools=order) for chosen in sets for order in itertools.permutations(chosen)]
    return (*stages, *(Use(manner=Manner.REPLICAS, pools=chosen) for chosen in sets))


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSpace:
    """The strategies of one set of pools in one manner; the same for every order."""

    manner: Manner
    pools: tuple[int, ...]
    rows: StrategyColumns
    """Of stages: whole, without layer splits. Of replicas: the data-parallel size is that of all pools, splits as the space has them."""
    recompute: RecomputeChoices
    refused: Mapping[str, int]
    """Rule -> strategies it refused."""


def pool_space(problem: MixedProblem, manner: Manner, pools: tuple[int, ...], constraints: Constraints) -> PoolSpace:
    """The rows that the rules and the preferences accept and the pools can carry out."""
    space = Space.of(_asked(problem, manner, pools), _without_data(constraints) if manner is Manner.REPLICAS else constraints)
    parts = list(space.slices())
    rows = StrategyColumns.concatenate(parts) if parts else StrategyColumns.of([])
    refused, before = space.rejected.copy(), len(rows)
    if manner is Manner.STAGES:
        rows = _unsplit(rows.take(_whole_stages(problem, pools, rows)))
    else:
        rows = _over_pools(problem, pools, rows, constraints)
    rows = rows.take(~rows.is_schedule(PipelineSchedule.DUALPIPE) & _inside_domains(problem, pools, rows, constraints))
    refused[_TILES[manner]] += before - len(rows)
    return PoolSpace(manner=manner, pools=pools, rows=rows, recompute=space.recompute, refused=refused)


def whole_problem(problem: MixedProblem, pools: tuple[int, ...]) -> Problem:
    """The question as if all GPUs of ``pools`` were of the kind of the one with the smallest fast domain: what rules look at."""
    chosen = [problem.pools[place] for place in pools]
    narrow = min(chosen, key=lambda pool: pool.problem.cluster.fast_domain_size).problem
    return replace(narrow, cluster=replace(narrow.cluster, num_gpus=sum(pool.num_gpus for pool in chosen)))


def _asked(problem: MixedProblem, manner: Manner, pools: tuple[int, ...]) -> Problem:
    """The uniform problem whose space is thinned out: of replicas that of one pool, with a batch that every size divides."""
    if manner is Manner.STAGES:
        return whole_problem(problem, pools)
    first = problem.pools[pools[0]].problem
    batch = first.training.global_batch_size * first.cluster.num_gpus
    return replace(first, training=replace(first.training, global_batch_size=batch))


def _without_data(constraints: Constraints) -> Constraints:
    """``constraints`` without what they say of the data-parallel size, which is that of all pools."""

    def others(table: dict[str, int]) -> dict[str, int]:
        return {name: value for name, value in table.items() if name != "data_parallel_size"}

    return replace(
        constraints,
        fixed=others(dict(constraints.fixed)),  # type: ignore[arg-type]
        maximum=others(dict(constraints.maximum)),
        minimum=others(dict(constraints.minimum)),
        forbidden=constraints.forbidden - {"data_parallel_size"},
    )


def _whole_stages(problem: MixedProblem, pools: tuple[int, ...], rows: StrategyColumns) -> Bools:
    """A stage's GPUs divide each pool's."""
    stage = rows.tensor_parallel_size * rows.context_parallel_size * rows.data_parallel_size
    return np.asarray(np.logical_and.reduce([problem.pools[place].num_gpus % stage == 0 for place in pools]))


def _unsplit(rows: StrategyColumns) -> StrategyColumns:
    """Every row once, whatever its split: layers are placed later."""
    if not len(rows):
        return rows
    plain = rows.with_columns(layer_split=np.zeros(len(rows), dtype=np.int64))
    names = tuple(name for name in _SIZES if getattr(plain, name).any())
    first, _ = distinct_rows(plain.with_columns(sequence_parallel=plain.sequence_parallel.astype(np.int64)), names)
    return plain.take(np.sort(first))


_SIZES = (
    "tensor_parallel_size", "sequence_parallel", "pipeline_parallel_size", "virtual_pipeline_stages", "pipeline_schedule",
    "context_parallel_size", "context_parallel_kind", "expert_parallel_size", "expert_tensor_parallel_size", "data_parallel_size",
    "micro_batch_size", "zero_stage", "shard_group_size",
)  # fmt: skip


def _over_pools(problem: MixedProblem, pools: tuple[int, ...], rows: StrategyColumns, constraints: Constraints) -> StrategyColumns:
    """``rows`` of one pool as replicas over all of ``pools``: those whose model ranks divide each pool, with whole experts in each.

    Sharded parameters (ZeRO stage 3) are gathered on every micro-batch, by all replicas together: they cannot run unequal numbers.
    """
    group = rows.tensor_parallel_size * rows.context_parallel_size
    ranks = group * rows.pipeline_parallel_size
    experts = rows.expert_parallel_size * rows.expert_tensor_parallel_size
    accepted = (problem.question.training.global_batch_size % rows.micro_batch_size == 0) & (rows.zero_stage < 3)
    data = np.zeros(len(rows), dtype=np.int64)
    for place in pools:
        gpus = problem.pools[place].num_gpus
        own = gpus // ranks
        accepted &= (gpus % ranks == 0) & (group * own % experts == 0)
        data = data + own
    accepted &= np.array([constraints.allows("data_parallel_size", int(size)) for size in data.tolist()], dtype=np.bool_)
    return rows.with_columns(data_parallel_size=data).take(accepted)


def _inside_domains(problem: MixedProblem, pools: tuple[int, ...], rows: StrategyColumns, constraints: Constraints) -> Bools:
    """The preference about tensor parallelism, asked of every pool."""
    preference = next(each for each in PREFERENCES if each.yields_to == "tensor_parallel_size")
    if constraints.is_asked(preference.yields_to):
        return np.ones(len(rows), dtype=np.bool_)
    return np.asarray(np.logical_and.reduce([preference.mask(problem.pools[place].problem, rows) for place in pools]))


def replicas_of(problem: MixedProblem, pools: tuple[int, ...], strategy: Strategy) -> tuple[int, ...]:
    """Replicas that each of ``pools`` holds of ``strategy``."""
    ranks = strategy.tensor_parallel_size * strategy.context_parallel_size * strategy.pipeline_parallel_size
    return tuple(problem.pools[place].num_gpus // ranks for place in pools)


def orders_of(uses: tuple[Use, ...], pools: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The orders in which ``pools`` are used by stages."""
    yield from (use.pools for use in uses if use.manner is Manner.STAGES and tuple(sorted(use.pools)) == pools)


def nearest_tiling(problem: MixedProblem, constraints: Constraints) -> tuple[str, int] | None:
    """The smallest change of one pool's GPUs after which some strategy uses all pools; None where a node more or less does not do.

    Asked where no strategy uses several pools.
    """
    for change in (-1, 1, -2, 2, -3, 3, -4, 4):
        for place, pool in enumerate(problem.pools):
            cluster = pool.problem.cluster
            step = cluster.gpus_per_node if pool.num_gpus > cluster.gpus_per_node else 1
            size = pool.num_gpus + change * step
            if size < 1 or (step == 1 and size > cluster.gpus_per_node):
                continue
            resized = replace(pool, problem=replace(pool.problem, cluster=replace(cluster, num_gpus=size)))
            pools = (*problem.pools[:place], resized, *problem.pools[place + 1 :])
            tried = replace(problem, pools=pools)
            every = tuple(range(len(pools)))
            if any(len(pool_space(tried, manner, every, constraints).rows) for manner in Manner):
                return pool.name, size
    return None
