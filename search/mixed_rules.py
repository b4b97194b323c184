"""What keeps a framework from running a strategy over pools of unlike devices: named rules, as those of one kind of GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from autopar.costmodel.pools import MixedProblem
from autopar.costmodel.spec.errors import Fault
from autopar.costmodel.spec.mixed import MixedStrategy
from autopar.costmodel.spec.strategy import PipelineSchedule

from .feasibility import RULES
from .pool_space import whole_problem

_BY_LANE = ("world_size", "global_batch_divides", "micro_batch_divides", "schedule_microbatches")
"""Rules of one kind of GPU in whose place lanes have their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedRule:
    """One reason to refuse a mixed strategy; the check's docstring is its summary."""

    name: str
    check: Callable[[MixedProblem, MixedStrategy], Iterator[Fault]]

    @property
    def summary(self) -> str:
        """The rule in one line."""
        return (self.check.__doc__ or "").strip().split("\n")[0]


def _pools_known(problem: MixedProblem, mixed: MixedStrategy) -> Iterator[Fault]:
    """Every lane's ranks sit in pools that there are."""
    known = [pool.name for pool in problem.pools]
    for name in mixed.pools:
        if name not in known:
            yield Fault(field="lanes.pools", given=name, required=f"one of the pools {', '.join(known)}")


def _pool_size(problem: MixedProblem, mixed: MixedStrategy) -> Iterator[Fault]:
    """No pool is asked for more GPUs than it has."""
    for pool in problem.pools:
        asked = mixed.ranks_of(pool.name)
        if asked > pool.num_gpus:
            yield Fault(field=f"lanes of {pool.name}", given=f"{asked} GPUs", required=f"the pool has {pool.num_gpus}")


def _whole_batch(problem: MixedProblem, mixed: MixedStrategy) -> Iterator[Fault]:
    """The micro-batches of all replicas make the global batch."""
    batch = problem.question.training.global_batch_size
    if mixed.sequences != batch:
        yield Fault(field="lanes.num_microbatches", given=f"{mixed.sequences} sequences", required=f"the global batch is {batch}")


def _whole_rounds(_: MixedProblem, mixed: MixedStrategy) -> Iterator[Fault]:
    """An interleaved schedule runs whole rounds of as many micro-batches as there are pipeline ranks."""
    for lane in mixed.lanes:
        if lane.num_microbatches % mixed.round_size:
            required = f"a multiple of pipeline_parallel_size={mixed.round_size}"
            yield Fault(field="lanes.num_microbatches", given=str(lane.num_microbatches), required=required)


def _whole_experts(_: MixedProblem, mixed: MixedStrategy) -> Iterator[Fault]:
    """The expert grid folds over the ranks of a stage in one lane: experts are exchanged inside a pool."""
    strategy = mixed.strategy
    size = strategy.expert_parallel_size * strategy.expert_tensor_parallel_size
    for lane in mixed.lanes:
        ranks = strategy.tensor_parallel_size * strategy.context_parallel_size * lane.data_parallel_size
        if ranks % size:
            yield Fault(field="expert_parallel_size", given=str(size), required=f"must divide the {ranks} ranks of a stage of each lane")


def _unequal_under_sharding(_: MixedProblem, mixed: MixedStrategy) -> Iterator[Fault]:
    """Sharded parameters (ZeRO stage 3) are gathered by all replicas together on every micro-batch: each runs as many."""
    if len(mixed.lanes) > 1 and mixed.strategy.zero_stage == 3:
        yield Fault(field="zero_stage", given="3", required="replicas in several pools gather parameters once a step", fix="zero_stage=2")


def _priced_schedule(_: MixedProblem, mixed: MixedStrategy) -> Iterator[Fault]:
    """DualPipe puts every stage on two ranks, which over unlike pools is not modelled."""
    if mixed.strategy.pipeline_schedule is PipelineSchedule.DUALPIPE and len(mixed.pools) > 1:
        yield Fault(field="pipeline_schedule", given="dualpipe", required="is not modelled over several pools", fix="1f1b")


MIXED_RULES: tuple[MixedRule, ...] = tuple(
    MixedRule(name=name, check=check)
    for name, check in (
        ("pools_known", _pools_known),
        ("pool_size", _pool_size),
        ("lanes_make_the_batch", _whole_batch),
        ("whole_rounds", _whole_rounds),
        ("experts_inside_a_lane", _whole_experts),
        ("unequal_replicas_gather_once", _unequal_under_sharding),
        ("schedule_over_pools", _priced_schedule),
    )
)


def mixed_faults(problem: MixedProblem, mixed: MixedStrategy) -> tuple[Fault, ...]:
    """Everything that keeps ``mixed`` from running; empty where it runs (if the memory of every pool suffices)."""
    found = [fault for rule in MIXED_RULES for fault in rule.check(problem, mixed)]
    if found:
        return tuple(found)
    places = tuple(problem.place(name) for name in mixed.pools)
    whole = whole_problem(problem, places)
    asked = replace(whole, cluster=replace(whole.cluster, num_gpus=mixed.strategy.world_size))
    rules = (rule for rule in RULES if len(mixed.lanes) == 1 or rule.name not in _BY_LANE)
    faults = (rule.fault(asked, mixed.strategy) for rule in rules)
    return tuple(fault for fault in faults if fault is not None)
