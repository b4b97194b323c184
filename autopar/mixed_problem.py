"""The question that a plan for a mixed cluster answers, put together again from its file; and the network between pools."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autopar.costmodel.mixed import lane_strategy
from autopar.costmodel.mixed_estimate import mixed_estimate
from autopar.costmodel.pools import Between, MixedProblem, Pool
from autopar.costmodel.spec.errors import Fault, InvalidInputError, NoPlanError, raise_if
from autopar.costmodel.spec.mixed import MixedStrategy
from autopar.request import problem_from, resized
from autopar.search.mixed_rules import mixed_faults

if TYPE_CHECKING:
    from autopar.costmodel.problem import Problem
    from autopar.costmodel.spec.cluster import LinkTier
    from autopar.costmodel.spec.estimate import Estimate
    from autopar.costmodel.spec.mixed import MixedPlan
    from autopar.costmodel.spec.plan import Plan


def mixed_of(plan: Plan) -> tuple[MixedProblem, MixedStrategy]:
    """The problem and the strategy of a plan for a mixed cluster, from its own inputs.

    The names of hosts are for those who start the plan: they are not in the problem.

    Raises:
        InvalidInputError: the plan is for one kind of GPU.
    """
    if plan.mixed is None:
        raise InvalidInputError(Fault(field="plan", given="a plan for one kind of GPU", required="a plan for a mixed cluster"))
    raise_if(_unknown_pools(plan.mixed))
    clusters = {pool.name: replace(pool.cluster, hosts=None) for pool in plan.mixed.pools}
    problems = {name: problem_from(replace(plan.inputs, cluster=cluster)) for name, cluster in clusters.items()}
    named = problems[plan.mixed.network_of]
    several = with_network(named) or named
    link = between_link(plan.mixed.between, several, several.cluster.network_tier.name)
    problem = MixedProblem(pools=tuple(Pool(name=name, problem=each) for name, each in problems.items()), between=link)
    return problem, MixedStrategy(strategy=plan.strategy, lanes=plan.mixed.lanes)


def _unknown_pools(mixed: MixedPlan) -> list[Fault]:
    """Names in a plan file that are none of its pools, or of two of them."""
    known = [pool.name for pool in mixed.pools]
    required = f"one of the file's pools, {', '.join(known)}"
    faults = [
        Fault(field=f"$.mixed.lanes[{place}].pools", given=name, required=required)
        for place, lane in enumerate(mixed.lanes)
        for name in dict.fromkeys(lane.pools)
        if name not in known
    ]
    if mixed.network_of not in known:
        faults.append(Fault(field="$.mixed.network_of", given=mixed.network_of, required=required))
    if len(set(known)) < len(known):
        faults.append(Fault(field="$.mixed.pools", given=", ".join(known), required="each pool has a name of its own"))
    return faults


def estimate_of(plan: Plan) -> Estimate:
    """The estimate of a plan for a mixed cluster, by this release.

    Raises:
        NoPlanError: a rule refuses the strategy on these pools.
    """
    from autopar.no_plan import NoPlan

    problem, mixed = mixed_of(plan)
    if refused := mixed_faults(problem, mixed):
        lines = (f"this strategy is refused: {mixed.describe()}", *(f"  {fault}" for fault in refused))
        raise NoPlanError("\n".join(lines), NoPlan(reasons=lines, faults=refused, strategy=mixed.strategy))
    return mixed_estimate(problem, mixed)


def unequal_faults(plan: Plan) -> tuple[Fault, ...]:
    """What keeps autopar's own runtime from a plan: replicas by pool, whose shares of the batch are not equal."""
    if plan.mixed is None or len(plan.mixed.lanes) == 1:
        return ()
    runs = ", ".join(f"{lane.num_microbatches} on {'/'.join(dict(lane.ranks_by_pool))}" for lane in plan.mixed.lanes)
    required = "this runtime averages gradients over equal shares of the batch: it runs stages by pool, not replicas"
    return (Fault(field="micro-batches", given=runs, required=required, fix="plan with --pools-as stages"),)


def told_as_one(plan: Plan) -> Problem:
    """The question of a plan for a mixed cluster as tables name it: all GPUs in use as one cluster. No estimate is made of it."""
    problem, mixed = mixed_of(plan)
    used = [pool.problem.cluster for pool in problem.pools if mixed.ranks_of(pool.name)]
    device = replace(used[0].device, name=" + ".join(dict.fromkeys(cluster.device.name for cluster in used)))
    name = " + ".join(f"{mixed.ranks_of(pool.name)} x {pool.problem.cluster.id}" for pool in problem.pools if mixed.ranks_of(pool.name))
    whole = replace(used[0], id=name, device=device, num_gpus=sum(mixed.ranks_of(pool.name) for pool in problem.pools))
    return replace(problem.question, cluster=whole)


def on_one_pool(plan: Plan) -> Plan | None:
    """``plan`` as one for a single kind of GPU, where it uses one pool alone; None where it uses several, or is no plan over pools."""
    if plan.mixed is None:
        return None
    raise_if(_unknown_pools(plan.mixed))
    used = MixedStrategy(strategy=plan.strategy, lanes=plan.mixed.lanes).pools
    if len(used) > 1:
        return None
    (cluster,) = (pool.cluster for pool in plan.mixed.pools if pool.name == used[0])
    others = tuple(each for each in plan.alternatives if {name for lane in each.lanes for name in lane.pools} == set(used))
    strategy = lane_strategy(plan.strategy, plan.mixed.lanes[0])
    return replace(plan, strategy=strategy, mixed=None, inputs=replace(plan.inputs, cluster=cluster), alternatives=others)


def between_link(tier: LinkTier, problem: Problem, like: str) -> Between:
    """``tier`` with what is reached of a link of the technology that tier ``like`` of the problem's cluster has."""
    from autopar.catalog.links import link_profiles

    spelled = replace(tier, name=like)
    (profile,) = link_profiles(replace(problem.cluster, tiers=(spelled,)))
    return Between(tier=tier, profile=profile)


def with_network(problem: Problem) -> Problem | None:
    """``problem`` with a network tier: as it is, or on two nodes of its kind; None where that kind comes alone."""
    from autopar.costmodel.spec.cluster import LinkKind

    if problem.cluster.network_tier.kind is LinkKind.NETWORK:
        return problem
    larger = resized(problem, 2 * problem.cluster.gpus_per_node)
    return larger if larger is not None and larger.cluster.network_tier.kind is LinkKind.NETWORK else None
