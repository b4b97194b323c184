"""How a model is laid over a cluster of several device types: which pool runs each stage, and what each replica does in a step."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from .cluster import ClusterSpec, LinkTier
from .errors import Fault, raise_if
from .strategy import Recompute, Strategy, split_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """Data-parallel replicas that run alike: each is a pipeline whose ranks sit in the same pools, with the same share of the batch."""

    pools: tuple[str, ...]
    """The pool of every pipeline rank, in pipeline order."""
    data_parallel_size: int
    """Replicas of the lane."""
    num_microbatches: int
    """Of each replica in a step."""
    short_replicas: int = 0
    """Replicas of the lane that run one round less (:attr:`MixedStrategy.round_size` micro-batches): they wait for the others."""
    stage_recompute_layers: tuple[int, ...] = ()
    """Layers of each virtual stage that full recomputation covers in this lane; empty: what the strategy says."""

    @property
    def ranks_by_pool(self) -> tuple[tuple[str, int], ...]:
        """Consecutive pipeline ranks in one pool, in pipeline order: ``(("h100", 4), ("a100", 4))``."""
        return tuple((pool, len(list(run))) for pool, run in groupby(self.pools))

    def describe(self) -> str:
        """``4 x (2 h100 > 2 a100) x 32 micro-batches``."""
        ranks = " > ".join(f"{count} {pool}" for pool, count in self.ranks_by_pool)
        short = f", {self.short_replicas} of them one round less" if self.short_replicas else ""
        again = f", recompute {split_text(self.stage_recompute_layers)}" if self.stage_recompute_layers else ""
        return f"{self.data_parallel_size} x ({ranks}) x {self.num_microbatches} micro-batches{short}{again}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedStrategy:
    """One strategy, and the lanes that carry it out.

    ``strategy`` has the sizes that all lanes share; its data-parallel size counts the replicas of all lanes. One lane over several pools
    is *stages by pool*, several lanes of one pool each are *replicas by pool*.
    """

    strategy: Strategy
    lanes: tuple[Lane, ...]

    def __post_init__(self) -> None:
        asked, faults = self.strategy, []
        if not self.lanes:
            faults.append(Fault(field="lanes", given="none", required="at least one lane of replicas"))
        replicas = sum(lane.data_parallel_size for lane in self.lanes)
        if self.lanes and replicas != asked.data_parallel_size:
            required = f"the replicas of all lanes are the data-parallel ranks, {asked.data_parallel_size}"
            faults.append(Fault(field="lanes.data_parallel_size", given=str(replicas), required=required))
        for lane in self.lanes:
            faults += self._lane_faults(lane)
        raise_if(faults)

    def _lane_faults(self, lane: Lane) -> list[Fault]:
        asked, faults = self.strategy, []
        if len(lane.pools) != asked.pipeline_parallel_size:
            required = f"one pool for each of the {asked.pipeline_parallel_size} pipeline ranks"
            faults.append(Fault(field="lanes.pools", given=str(len(lane.pools)), required=required))
        if lane.data_parallel_size < 1 or not 0 <= lane.short_replicas < lane.data_parallel_size:
            required = "replicas of a lane are 1 or more, and not all of them run a round less"
            faults.append(Fault(field="lanes.data_parallel_size", given=f"{lane.data_parallel_size}", required=required))
        least = 1 + (self.round_size if lane.short_replicas else 0)
        if lane.num_microbatches < least:
            faults.append(Fault(field="lanes.num_microbatches", given=str(lane.num_microbatches), required=f"{least} or more"))
        counts = lane.stage_recompute_layers
        if counts and (len(counts) != asked.num_virtual_stages or asked.recompute is not Recompute.FULL or min(counts) < 0):
            required = f"recompute=full, and {asked.num_virtual_stages} counts, one a virtual stage"
            faults.append(Fault(field="lanes.stage_recompute_layers", given=split_text(counts), required=required))
        return faults

    @property
    def round_size(self) -> int:
        """Micro-batches that a replica can run more or fewer of: interleaved schedules take whole rounds over their ranks."""
        return self.strategy.pipeline_parallel_size if self.strategy.virtual_pipeline_stages > 1 else 1

    @property
    def pools(self) -> tuple[str, ...]:
        """The pools in use, in the order of lanes and ranks."""
        return tuple(dict.fromkeys(pool for lane in self.lanes for pool in lane.pools))

    def ranks_of(self, pool: str) -> int:
        """GPUs of ``pool`` in use."""
        held = self.strategy.tensor_parallel_size * self.strategy.context_parallel_size
        return held * sum(lane.data_parallel_size * lane.pools.count(pool) for lane in self.lanes)

    @property
    def sequences(self) -> int:
        """Sequences of a step that all replicas together run."""
        runs = sum(lane.data_parallel_size * lane.num_microbatches - lane.short_replicas * self.round_size for lane in self.lanes)
        return runs * self.strategy.micro_batch_size

    def describe(self) -> str:
        """The strategy in short forms, then its lanes."""
        return f"{self.strategy.describe()} on {' + '.join(lane.describe() for lane in self.lanes)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSpec:
    """GPUs of one kind, by the name they were asked for."""

    name: str
    cluster: ClusterSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What planning as if all GPUs were alike would come to."""

    name: str
    strategy: Strategy | None
    """None where nothing fits."""
    step_time_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostBlock:
    """Hosts of one pool that follow each other in the order of ranks."""

    pool: str
    first_node: int
    nodes: int
    first_rank: int
    gpus_per_node: int
    names: tuple[str, ...] = ()
    """In the order of ranks; empty where the pool's hosts are not named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedPlan:
    """What a plan for a mixed cluster says besides its strategy."""

    pools: tuple[PoolSpec, ...]
    between: LinkTier
    """The network between the pools, per GPU and one direction."""
    network_of: str
    """The pool whose network technology it is taken to have."""
    lanes: tuple[Lane, ...]
    seed: int
    references: tuple[Reference, ...] = ()
    """What a uniform plan would take: all GPUs as the slowest, and each pool alone."""
    start_order: tuple[HostBlock, ...] = ()
    """In which order the hosts start, so that each rank is in the pool of its stage; empty of replicas by pool, which no launcher is asked
    to start."""
