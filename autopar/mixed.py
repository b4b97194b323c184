"""``autopar plan --pool``: from pools by name to a plan over all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from autopar import __version__
from autopar.costmodel.mixed_estimate import mixed_estimate
from autopar.costmodel.pools import MixedProblem, Pool
from autopar.costmodel.spec.cluster import Hosts
from autopar.costmodel.spec.errors import Fault, InvalidInputError, NoPlanError, raise_if
from autopar.costmodel.spec.mixed import MixedPlan, MixedStrategy, PoolSpec, Reference
from autopar.costmodel.spec.plan import Alternative, Plan, PlanInputs
from autopar.host_order import with_start_order
from autopar.io.hostlist import several
from autopar.io.pools import PoolFile, Pools, parse_rate, read_pools
from autopar.mixed_problem import between_link, with_network
from autopar.request import build_problem, gather, looks_like_path, resized

if TYPE_CHECKING:
    from autopar.costmodel.pools import Between
    from autopar.costmodel.problem import Problem
    from autopar.costmodel.spec.cluster import ClusterSpec, LinkTier
    from autopar.costmodel.spec.model import ModelSpec
    from autopar.question import Bounds, Effort
    from autopar.search import Constraints
    from autopar.search.mixed import MixedResult


NOT_TAKEN = {
    "gpu": "the pools say the devices",
    "gpus": "the pools say how many",
    "cluster": "the pools are the cluster",
    "topology": "switches are told of one cluster",
    "hosts": "each pool has its own, which hosts in [[pools]] of a cluster file names",
    "profile": "measured and calibrated constants are of one device",
    "allow_other_device": "measured constants are of one device",
    "price": "cost is of one device type",
    "mtbf_node": "failures are counted on one node type",
    "checkpoint_seconds": "failures are counted on one node type",
    "restart_seconds": "failures are counted on one node type",
    "repair_time": "failures are counted on one node type",
}
"""What planning over pools does not take, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedQuestion:
    """What was asked, understood."""

    problem: MixedProblem
    network_of: str
    constraints: Constraints
    texts: tuple[str, ...]
    assumptions: tuple[str, ...]
    hosts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Of the pools that name theirs: as many as their GPUs fill."""


def posed(
    model: str | Path | ModelSpec,
    pools: Pools | PoolFile,
    between: str | float | None,
    bounds: Bounds,
    given: Mapping[str, object],
) -> MixedQuestion:
    """The question, or all its faults at once.

    Args:
        model: as for :func:`autopar.plan`.
        pools: devices or node types of the catalog (or cluster files), and the GPUs of each; or what a file says of them.
        between: bytes/s of a GPU between pools, one direction, or text such as ``"25GB/s"``; None: the slower pool's network.
        bounds: fixed, highest, lowest and forbidden, as :func:`autopar.question.read_constraints` takes them.
        given: the other inputs of :func:`autopar.plan`.

    Raises:
        InvalidInputError: with all faults of the question.
        UnavailableError: a device without the constants of its kernels.
    """
    from autopar.question import read_constraints

    faults = [
        Fault(field=name, given=str(given[name]), required=f"does not go together with pools: {why}", fix="leave it out")
        for name, why in NOT_TAKEN.items()
        if given.get(name) is not None
    ]
    others = {name: value for name, value in given.items() if name not in NOT_TAKEN}
    listed = pools.hosts if isinstance(pools, PoolFile) else {}
    named = gather(faults, lambda: sized(pools) if isinstance(pools, PoolFile) else read_pools(pools)) or {}
    said = between if between is not None or not isinstance(pools, PoolFile) else pools.between
    rate = None if said is None else gather(faults, lambda: parse_rate(said))
    limits = gather(faults, lambda: read_constraints(*bounds))
    found = _asked_of_each(model, named, others, faults)
    if len({problem.training.precision for problem, _ in found.values()}) > 1:
        found = _asked_of_each(model, named, {**others, "precision": "fp16"}, faults)
    faults += _vendor_faults(found)
    problems = {name: each for name, (each, _) in found.items()}
    hosts, on_hosts = gather(faults, lambda: _placed(problems, listed)) or ({}, [])
    raise_if(list(dict.fromkeys(faults)))
    assert limits is not None, "gather keeps a fault where it returns nothing"
    link, network_of = _between([(name, problem) for name, (problem, _) in found.items()], rate)
    problem = MixedProblem(pools=tuple(Pool(name=name, problem=each) for name, (each, _) in found.items()), between=link)
    notes = dict.fromkeys((*(note for _, each in found.values() for note in each), *on_hosts))
    if rate is None:
        tier = link.tier
        notes[
            f"between the pools: {tier.bandwidth / 1e9:g} GB/s a GPU, the network of {network_of} (the slower; --between says otherwise)"
        ] = None
    return MixedQuestion(
        problem=problem, network_of=network_of, constraints=limits[0], texts=limits[1], assumptions=tuple(notes), hosts=hosts
    )


def sized(pools: PoolFile) -> dict[str, int]:
    """GPUs of each pool; of one that says its hosts alone, all that they have."""
    from autopar.request import resolve_cluster

    def of_hosts(name: str) -> int:
        cluster, gpu = (name, None) if is_cluster(name) else (None, name)
        return resolve_cluster(cluster, 1, gpu, []).gpus_per_node * len(pools.hosts[name])

    return {name: of_hosts(name) if size is None else size for name, size in pools.sizes.items()}


def _placed(problems: Mapping[str, Problem], listed: Mapping[str, tuple[str, ...]]) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """As many of the hosts listed as each pool fills, and a note where there are more.

    Raises:
        InvalidInputError: a pool with fewer hosts than its GPUs need.
    """
    found: dict[str, tuple[str, ...]] = {}
    notes: list[str] = []
    faults: list[Fault] = []
    for name, hosts in listed.items():
        if name not in problems:
            continue
        cluster = problems[name].cluster
        needed, each = cluster.num_nodes, cluster.gpus_per_node
        if len(hosts) < needed:
            required = f"{cluster.num_gpus} GPUs are on {needed} hosts of {each}"
            fix = f"num_gpus = {len(hosts) * each}, or more hosts"
            faults.append(Fault(field=f"hosts of {name}", given=f"{len(hosts)} ({several(hosts)})", required=required, fix=fix))
            continue
        found[name] = hosts[:needed]
        notes += [f"hosts of {name}: the first {needed} of {len(hosts)}"] if len(hosts) > needed else []
        gather(faults, lambda cluster=cluster, name=name: replace(cluster, hosts=Hosts(names=found[name])))  # type: ignore[misc]
    raise_if(faults)
    return found, notes


def _asked_of_each(
    model: str | Path | ModelSpec, named: Mapping[str, int], given: Mapping[str, object], faults: list[Fault]
) -> dict[str, tuple[Problem, tuple[str, ...]]]:
    """The question to each pool, with what was assumed; the faults are kept."""
    found = {}
    for name, count in named.items():
        answer = gather(faults, lambda name=name, count=count: _pool_problem(model, name, count, given))  # type: ignore[misc]
        if answer is not None:
            found[name] = answer
    return found


def _vendor_faults(found: Mapping[str, tuple[Problem, tuple[str, ...]]]) -> list[Fault]:
    """Pools whose collective libraries do not talk to each other: NCCL on NVIDIA's devices, RCCL on AMD's."""
    amd = [name for name, (problem, _) in found.items() if problem.cluster.device.architecture.lower().startswith("cdna")]
    if not amd or len(amd) == len(found):
        return []
    required = "NCCL and RCCL do not talk to each other: no framework trains over both"
    return [Fault(field="--pool", given=", ".join(found), required=required, fix=f"plan for {', '.join(amd)} and the others apart")]


def _pool_problem(model: str | Path | ModelSpec, name: str, count: int, given: Mapping[str, object]) -> tuple[Problem, tuple[str, ...]]:
    """The question to one pool; its faults name it."""
    where: dict[str, object] = {"cluster" if is_cluster(name) else "gpu": name, "gpus": count}
    try:
        return build_problem(model, **given, **where)  # type: ignore[arg-type]
    except InvalidInputError as error:
        own = ("num_gpus", "gpus", "gpu", "cluster", "device", "precision")
        named = (replace(fault, field=f"--pool {name}: {fault.field}") if fault.field in own else fault for fault in error.faults)
        raise InvalidInputError(tuple(named)) from None


def is_cluster(name: str) -> bool:
    """Whether a pool's name means a node type or a cluster file, else a device."""
    from autopar.catalog import hardware

    return looks_like_path(name) or name in hardware.cluster_names()


def _between(pools: list[tuple[str, Problem]], rate: float | None) -> tuple[Between, str]:
    """The network between pools, and whose technology it has: the slowest network of the pools, at ``rate`` where that was given.

    Raises:
        InvalidInputError: no rate was given, and some pool is of a kind that has no network.
    """
    tiers: dict[str, tuple[LinkTier, Problem]] = {}
    for name, problem in pools:
        several = with_network(problem)
        if several is not None:
            tiers[name] = (several.cluster.network_tier, several)
    missing = [name for name, _ in pools if name not in tiers]
    if not tiers or (missing and rate is None):
        required = f"{' and '.join(missing)} has no network: how fast the pools are connected has to be said"
        raise InvalidInputError(Fault(field="--between", given="", required=required, fix="for example --between 25GB/s"))
    name = min(tiers, key=lambda each: tiers[each][0].bandwidth)
    tier, problem = tiers[name]
    named = replace(tier, name="between")
    asked = named if rate is None else replace(named, bandwidth=rate, oversubscription=1.0)
    return between_link(asked, problem, tier.name), name


def plan_pools(
    model: str | Path | ModelSpec,
    pools: Pools | PoolFile,
    between: str | float | None,
    bounds: Bounds,
    given: Mapping[str, object],
    *,
    objective: str,
    effort: Effort,
    pools_as: str,
    method: str,
    seed: int,
    top: int,
) -> Plan:
    """What :func:`autopar.plan` answers where it is given pools; see there.

    Raises:
        InvalidInputError: the question cannot mean anything, or asks what is not answered for pools; all its faults at once.
        NoPlanError: nothing fits.
        UnavailableError: a device without the constants of its kernels, or no DEAP where the search is genetic.
        KeyboardInterrupt: before anything was found.
    """
    from autopar.question import refuse_unfinished
    from autopar.search import Stages
    from autopar.search.mixed import Method, mixed_search
    from autopar.search.pool_space import Manner

    faults: list[Fault] = []
    if objective != "step-time":
        faults.append(Fault(field="objective", given=objective, required="pools are planned for the shortest step", fix="leave it out"))
    if effort.stages is not Stages.EVEN:
        required = "layers are always placed stage by stage over pools"
        faults.append(Fault(field="stages", given=effort.stages.value, required=required, fix="leave it out"))
    if pools_as not in ("any", *Manner):
        faults.append(Fault(field="pools_as", given=repr(pools_as), required=f"one of any, {', '.join(Manner)}"))
    if method not in list(Method):
        faults.append(Fault(field="search", given=repr(method), required=f"one of {', '.join(Method)}"))
    asked = gather(faults, lambda: posed(model, pools, between, bounds, given))
    raise_if(faults)
    assert asked is not None, "gather keeps a fault where it returns nothing"
    manners = tuple(Manner) if pools_as == "any" else (Manner(pools_as),)
    result = mixed_search(asked.problem, asked.constraints, top=top, manners=manners, method=Method(method), seed=seed, watch=effort.watch)
    if result.best is not None:
        return _plan(asked, result, top=top, seed=seed)
    refuse_unfinished(effort, interrupted=result.summary.interrupted)
    raise _nothing_fits(asked, result)


def _plan(asked: MixedQuestion, result: MixedResult, *, top: int, seed: int) -> Plan:
    assert result.best is not None, "asked of a search that found something"
    problem, chosen = asked.problem, result.best.mixed
    first, estimate = problem.question, mixed_estimate(problem, chosen)
    if not result.tiled:
        estimate = replace(estimate, warnings=(*estimate.warnings, _untiled_text(asked)))
    return Plan(
        strategy=chosen.strategy,
        estimate=estimate,
        inputs=PlanInputs(
            model=first.model,
            cluster=first.cluster,
            training=first.training,
            framework=first.framework.id,
            memory_reserve_bytes=first.memory_reserve_bytes,
            constraints=asked.texts,
            assumptions=asked.assumptions,
        ),
        search=result.summary,
        alternatives=tuple(
            Alternative(
                strategy=each.mixed.strategy,
                step_time_seconds=each.step_time_seconds,
                peak_memory_bytes=each.peak_memory_bytes,
                tie=False,
                lanes=each.mixed.lanes,
            )
            for each in result.ranked[1:top]
        ),
        autopar_version=__version__,
        mixed=mixed_plan(asked, chosen, seed, result.references),
    )


def mixed_plan(asked: MixedQuestion, chosen: MixedStrategy, seed: int = 0, references: tuple[Reference, ...] = ()) -> MixedPlan:
    """What a plan file says of ``chosen`` besides its strategy."""
    said = MixedPlan(
        pools=tuple(PoolSpec(name=pool.name, cluster=_named_cluster(asked, pool)) for pool in asked.problem.pools),
        between=asked.problem.between.tier,
        network_of=asked.network_of,
        lanes=chosen.lanes,
        seed=seed,
        references=references,
    )
    return with_start_order(said, chosen.strategy)


def _named_cluster(asked: MixedQuestion, pool: Pool) -> ClusterSpec:
    """The pool's cluster with its hosts, where they are named."""
    names = asked.hosts.get(pool.name)
    return replace(pool.problem.cluster, hosts=Hosts(names=names)) if names else pool.problem.cluster


def _untiled_text(asked: MixedQuestion) -> str:
    """That no strategy uses several pools, and the nearest sizes with which one does."""
    from autopar.search.pool_space import nearest_tiling

    sizes = " and ".join(f"{pool.name}={pool.num_gpus}" for pool in asked.problem.pools)
    near = nearest_tiling(asked.problem, asked.constraints)
    fix = f"; nearest that one does: {near[0]}={near[1]}" if near else ""
    return f"no strategy divides {sizes} into stages or replicas of one size: the best pool is used alone{fix}"


def _nothing_fits(asked: MixedQuestion, result: MixedResult) -> NoPlanError:
    from autopar.costmodel.spec.units import format_bytes, format_count
    from autopar.no_plan import NoPlan, SmallestCluster
    from autopar.search import smallest_cluster

    problem = asked.problem
    where = " + ".join(
        f"{pool.num_gpus:,} x {pool.problem.cluster.device.name} ({format_bytes(pool.problem.cluster.device.memory_bytes)})"
        for pool in problem.pools
    )
    model = problem.question.model
    lines = [f"nothing fits: {model.name} ({format_count(model.num_parameters)} parameters) on {where}"]
    lines += [f"constraints: {', '.join(asked.texts)}"] if asked.texts else []
    lines.append(f"{result.summary.evaluated:,} strategies were evaluated, over every use of the pools and on each alone")
    roomiest = max(problem.pools, key=lambda pool: pool.problem.cluster.device.memory_bytes)
    smallest = smallest_cluster(roomiest.problem, asked.constraints, resize=lambda gpus: resized(roomiest.problem, gpus))
    if smallest is not None:
        count, best = smallest[0].cluster.num_gpus, smallest[1].strategy
        lines.append(f"smallest number of {roomiest.name} alone that holds it: {count:,} ({best.describe()})")
    answer = NoPlan(
        reasons=tuple(lines),
        smallest_cluster=smallest and SmallestCluster(num_gpus=smallest[0].cluster.num_gpus, strategy=smallest[1].strategy),
    )
    return NoPlanError("\n".join(lines), answer)
