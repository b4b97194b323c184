"""In which order the hosts of a mixed cluster start: nodes are numbered so that every rank is on a GPU of the pool that its stage is in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from typing import TYPE_CHECKING

from autopar.costmodel.spec.errors import Fault, InvalidInputError, raise_if
from autopar.costmodel.spec.layout import RankLayout
from autopar.costmodel.spec.mixed import HostBlock

if TYPE_CHECKING:
    from autopar.costmodel.spec.cluster import ClusterSpec
    from autopar.costmodel.spec.mixed import MixedPlan, PoolSpec
    from autopar.costmodel.spec.strategy import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRun:
    """Hosts of one pool that follow each other in the order of ranks."""

    pool: str
    cluster: ClusterSpec
    first: int
    """Number of its first node."""
    nodes: int
    names: tuple[str, ...] = ()
    """In the order of ranks; empty where the pool's hosts are not named."""

    @property
    def last(self) -> int:
        """Number of its last node."""
        return self.first + self.nodes - 1

    @property
    def gpus_per_node(self) -> int:
        """Processes on each of its nodes."""
        return min(self.cluster.gpus_per_node, self.cluster.num_gpus)

    @property
    def num_gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def numbers(self) -> str:
        """``0 to 7``, or ``8`` alone."""
        return str(self.first) if self.nodes == 1 else f"{self.first} to {self.last}"


def host_order(mixed: MixedPlan, strategy: Strategy) -> tuple[HostRun, ...]:
    """The hosts of a plan of stages by pool, from the one of rank 0 on.

    Stage i of the pipeline is the ranks that :class:`~autopar.costmodel.spec.layout.RankLayout` gives it; nodes hold consecutive ranks.

    Raises:
        InvalidInputError: the ranks of a node would be in two pools, or a pool has no more hosts.
    """
    pools = {pool.name: pool for pool in mixed.pools}
    (lane,) = mixed.lanes
    width = RankLayout.of(strategy).stage_stride
    blocks = (lane.pools[block % len(lane.pools)] for block in range(strategy.world_size // width))
    runs: list[HostRun] = []
    first = 0
    for name, same in groupby(blocks):
        pool = pools[name]
        ranks, each = width * len(list(same)), min(pool.cluster.gpus_per_node, pool.cluster.num_gpus)
        raise_if(list(_faults_of_part(name, ranks, each)))
        taken = sum(run.nodes for run in runs if run.pool == name)
        names = _names(pool)[taken : taken + ranks // each]
        runs.append(HostRun(pool=name, cluster=pool.cluster, first=first, nodes=ranks // each, names=names))
        first += ranks // each
    return tuple(runs)


def with_start_order(mixed: MixedPlan, strategy: Strategy) -> MixedPlan:
    """``mixed`` with the order of its hosts, for those who read the plan file; without one where there is none."""
    if len(mixed.lanes) > 1:
        return mixed
    try:
        runs = host_order(mixed, strategy)
    except InvalidInputError:
        return mixed
    return replace(mixed, start_order=blocks_of(runs))


def blocks_of(runs: Sequence[HostRun]) -> tuple[HostBlock, ...]:
    """``runs`` as files have them."""
    ranks = accumulate((run.num_gpus for run in runs), initial=0)
    return tuple(
        HostBlock(pool=run.pool, first_node=run.first, nodes=run.nodes, first_rank=rank, gpus_per_node=run.gpus_per_node, names=run.names)
        for run, rank in zip(runs, ranks, strict=False)
    )


def _names(pool: PoolSpec) -> tuple[str, ...]:
    return pool.cluster.hosts.names if pool.cluster.hosts is not None else ()


def _faults_of_part(name: str, ranks: int, each: int) -> Iterator[Fault]:
    if ranks % each:
        required = f"{name} has nodes of {each} GPUs, and {ranks} ranks between those of other pools do not fill them"
        yield Fault(field="rank_order", given=f"{ranks} consecutive ranks on {name}", required=required, fix="order=tp-cp-dp-pp")


def order_text(runs: Sequence[HostRun]) -> str:
    """``nodes 0 to 7 are a100-40gb (8 x dgx-a100-40gb), nodes 8 to 15 h100 (8 x dgx-h100)``."""
    told = [
        f"{'node' if run.nodes == 1 else 'nodes'} {run.numbers}{'' if place else ' is' if run.nodes == 1 else ' are'} {run.pool}"
        f" ({run.nodes} x {run.cluster.id})"
        for place, run in enumerate(runs)
    ]
    return ", ".join(told)
