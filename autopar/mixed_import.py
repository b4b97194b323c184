"""A framework's configuration that runs on a mixed cluster, as a plan: its stages on pools that are named beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autopar import __version__
from autopar.costmodel.mixed_estimate import mixed_estimate
from autopar.costmodel.spec.errors import Fault, InvalidInputError, NoPlanError, raise_if
from autopar.costmodel.spec.layout import RankLayout
from autopar.costmodel.spec.mixed import Lane, MixedStrategy
from autopar.io.pools import PoolFile, Pools, read_pools
from autopar.mixed import is_cluster, mixed_plan, posed, sized
from autopar.search.mixed_rules import mixed_faults

if TYPE_CHECKING:
    from autopar.costmodel.spec.plan import Plan
    from autopar.importers.complete import Given


def on_pools(given: Given, pools: Pools | PoolFile) -> tuple[Given, dict[str, int]]:
    """``given`` with all GPUs as if they were of the first pool, which is how a configuration is read; and the size of each pool.

    Raises:
        InvalidInputError: pools that are none, or beside which another cluster is named.
    """
    sizes = sized(pools) if isinstance(pools, PoolFile) else read_pools(pools)
    cluster = None if isinstance(pools, PoolFile) else given.cluster
    beside = {"gpu": given.gpu, "cluster": cluster, "gpus": given.gpus, "profile": given.profile}
    required = "does not go together with pools, which say the devices and how many there are"
    raise_if([Fault(field=f"--{name}", given=str(value), required=required, fix="leave it out") for name, value in beside.items() if value])
    first = next(iter(sizes))
    node, device = (first, None) if is_cluster(first) else (None, first)
    return replace(given, gpus=sum(sizes.values()), cluster=node, gpu=device), sizes


def as_pools_say(error: InvalidInputError) -> InvalidInputError:
    """``error`` of reading a configuration for all GPUs of the pools, where their number is wrong told of the pools."""
    fix = "pools that hold as many"
    told = (
        replace(fault, field="--pool", given=f"{fault.given} GPUs in all", fix=fix) if fault.field == "--gpus" else fault
        for fault in error.faults
    )
    return InvalidInputError(tuple(told))


def over_pools(plan: Plan, pools: Pools | PoolFile, sizes: dict[str, int], between: str | float | None) -> Plan:
    """``plan``, read as one for a single kind of GPU, with its stages on ``pools`` in the order in which they were named.

    Raises:
        InvalidInputError: a pool is no whole number of stages, or the question is wrong; all faults at once.
        NoPlanError: a rule refuses the strategy on these pools.
    """
    inputs, strategy = plan.inputs, plan.strategy
    asked = posed(
        inputs.model,
        pools,
        between,
        ((), (), (), ()),
        {
            "global_batch_size": inputs.training.global_batch_size,
            "sequence_length": inputs.training.sequence_length,
            "precision": inputs.training.precision.name,
            "framework": inputs.framework,
            "memory_reserve": inputs.memory_reserve_bytes,
        },
    )
    mixed = MixedStrategy(strategy=strategy, lanes=(_lane(plan, sizes),))
    if refused := mixed_faults(asked.problem, mixed):
        raise NoPlanError("\n".join([f"no estimate of {mixed.describe()}:", *(f"  {fault}" for fault in refused)]))
    as_one = [note for note in inputs.assumptions if not note.startswith("nodes:")]
    notes = (*as_one, *asked.assumptions, f"pools: hosts start in the order {', '.join(sizes)}, as they were named")
    return replace(
        plan,
        estimate=mixed_estimate(asked.problem, mixed),
        inputs=replace(inputs, cluster=asked.problem.question.cluster, assumptions=tuple(dict.fromkeys(notes))),
        mixed=mixed_plan(asked, mixed),
        autopar_version=__version__,
    )


def _lane(plan: Plan, sizes: dict[str, int]) -> Lane:
    """The pipeline's ranks in the pools, one after the other.

    Raises:
        InvalidInputError: a pool's GPUs are no whole number of stages.
    """
    strategy = plan.strategy
    stage = RankLayout.of(strategy).ranks_per_stage
    required = f"a stage has {stage} GPUs (tp x cp x dp), and a pool holds whole stages"
    raise_if(
        [
            Fault(field=f"--pool {name}", given=str(size), required=required, fix=f"nearest: {max(size // stage, 1) * stage}")
            for name, size in sizes.items()
            if size % stage
        ]
    )
    pools = tuple(name for name, size in sizes.items() for _ in range(size // stage))
    count = strategy.num_microbatches(plan.inputs.training.global_batch_size)
    return Lane(pools=pools, data_parallel_size=strategy.data_parallel_size, num_microbatches=count)
