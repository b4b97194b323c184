"""A cluster of several device types: pools that are homogeneous each, and the network between them.

Symbols: pool i has its own device, nodes and links. What two pools say to each other goes through the network of both and through what
lies between them: the slowest of the three sets the pace, in a transfer between two stages as in a ring over replicas of both.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from .columns import Floats
from .communication import p2p_seconds
from .inputs import Inputs
from .layer_costs import boundary_message_bytes
from .pipeline_shape import PipelineShape
from .problem import Problem
from .sharding import Shard
from .spec.cluster import LinkKind, LinkTier
from .spec.errors import Fault, raise_if
from .spec.hardware import LinkProfile
from .spec.strategy import PipelineSchedule
from .topology import crosses_domain


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """GPUs of one kind in nodes of one kind; ``problem.cluster`` has the pool's own size."""

    name: str
    problem: Problem

    @property
    def num_gpus(self) -> int:
        return self.problem.cluster.num_gpus

    @property
    def num_nodes(self) -> float:
        """Nodes that its GPUs fill."""
        return self.num_gpus / self.problem.cluster.gpus_per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class Between:
    """The network between pools: a tier rated per GPU, and what is reached of it."""

    tier: LinkTier
    profile: LinkProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedProblem:
    """One question to several pools: the same model, training and framework on each."""

    pools: tuple[Pool, ...]
    between: Between

    def __post_init__(self) -> None:
        first, faults = self.pools[0].problem, []
        names = [pool.name for pool in self.pools]
        if len(set(names)) < len(names):
            faults.append(Fault(field="pools", given=", ".join(names), required="each pool has a name of its own"))
        faults += [
            Fault(field=f"pools.{pool.name}", given=getattr(pool.problem, part).name, required=f"the same {part} in every pool")
            for pool in self.pools[1:]
            for part in ("model", "framework")
            if getattr(pool.problem, part) != getattr(first, part)
        ]
        faults += [
            Fault(field=f"pools.{pool.name}", given="another batch or precision", required="the same training in every pool")
            for pool in self.pools[1:]
            if pool.problem.training != first.training
        ]
        raise_if(faults)

    @property
    def question(self) -> Problem:
        """The model, the training and the framework: those of every pool."""
        return self.pools[0].problem

    @property
    def num_gpus(self) -> int:
        return sum(pool.num_gpus for pool in self.pools)

    def place(self, name: str) -> int:
        """Where in ``pools`` the pool called ``name`` is.

        Raises:
            KeyError: there is none.
        """
        return {pool.name: place for place, pool in enumerate(self.pools)}[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolInputs:
    """The constants of one pool, and once more with the network between pools in the place of its own."""

    own: Inputs
    across: Inputs

    @classmethod
    def of(cls, pool: Pool, between: Between) -> PoolInputs:
        problem = pool.problem
        kept = [place for place, tier in enumerate(problem.cluster.tiers) if tier.kind is not LinkKind.NETWORK]
        tiers = (*(problem.cluster.tiers[place] for place in kept), between.tier)
        links = (*(problem.links[place] for place in kept), between.profile)
        through = replace(problem, cluster=replace(problem.cluster, tiers=tiers), links=links)
        return cls(own=Inputs.of(problem), across=Inputs.of(through))

    def with_batch(self, sequences: float) -> PoolInputs:
        """The same where a step has ``sequences`` in all: what each replica runs times their number."""

        def asked(inputs: Inputs) -> Inputs:
            batch = np.asarray(sequences, dtype=np.float64)
            return replace(inputs, training=replace(inputs.training, global_batch_size=batch))

        return PoolInputs(own=asked(self.own), across=asked(self.across))


def hop_seconds(pools: Sequence[PoolInputs], shard: Shard, shape: PipelineShape, on: Sequence[int], stride: Floats) -> Floats:
    """Seconds of a micro-batch's activations from each stage to the next, ``[N, S - 1]``.

    Inside a pool as on the pool alone, its own ranks ``stride`` apart; between two pools the slowest of both networks and what
    lies between.

    Args:
        pools: the constants of every pool.
        shard: sizes of the strategies.
        shape: of their pipeline.
        on: the pool of every pipeline rank.
        stride: GPUs of a stage in the lane.
    """
    framework, size = pools[on[0]].own.framework, boundary_message_bytes(pools[on[0]].own, shard)
    hides = shape.schedule not in (PipelineSchedule.GPIPE, PipelineSchedule.ONE_F_ONE_B)
    found: dict[tuple[int, int], Floats] = {}
    stages = stage_pools(shape, on)
    for here, there in itertools.pairwise(stages):
        if (here, there) not in found:
            links = pools[here].own.links
            alone = p2p_seconds(size, crosses_domain(stride, links, float(on.count(here))), links)
            found[here, there] = alone if here == there else between_seconds((pools[here], pools[there]), size)
    hops = [found[pair] for pair in itertools.pairwise(stages)]
    whole = np.zeros((*np.shape(size), 0)) if not hops else np.stack(np.broadcast_arrays(*hops), axis=-1)
    return np.asarray(whole * (1 - framework.pipeline_overlap * hides))


def stage_pools(shape: PipelineShape, on: Sequence[int]) -> list[int]:
    """The pool of every virtual stage, given that of every pipeline rank."""
    return [on[rank] for rank in shape.on_rank.argmax(axis=0).tolist()]


def between_seconds(ends: Sequence[PoolInputs], size: Floats) -> Floats:
    """Seconds of ``size`` bytes from a GPU of one pool to one of another: through the networks of both and what lies between."""
    links = [links for end in ends for links in (end.own.links, end.across.links)]
    return np.asarray(np.maximum.reduce([p2p_seconds(size, True, each) for each in links]))
