"""What becomes of a plan when something changes: does it carry over, does a new plan keep up, or is there an edge.

The measure is the step time against the ideal one: that of the plan now, times the work of the new step over the work of the old one,
times the GPUs now over the GPUs then. Bandwidth changes no work: there the ideal is the time now. Within a tenth of the ideal nothing
is lost that an estimate could tell; so a change is

- a *plateau* where the same strategy runs and stays within a tenth of the ideal;
- a *replan* where it does not, and the best strategy after the change does;
- a *cliff* where even that one does not, or where nothing runs at all.

The same strategy means the same sizes but for the data-parallel one, which takes as many replicas as the GPUs hold and the batch
divides by; GPUs left over idle.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from autopar.costmodel.flops import step_model_flops
from autopar.costmodel.inputs import Inputs
from autopar.costmodel.spec.errors import Fault, InvalidInputError, raise_if
from autopar.costmodel.spec.strategy import Strategy
from autopar.failures import best_within
from autopar.request import gather, resized

if TYPE_CHECKING:
    from autopar.costmodel.problem import Problem
    from autopar.search import Constraints, Stages

WHATIF_SCHEMA_VERSION = "1.0"
TOLERANCE = 0.1
"""Share above the ideal time from which a loss counts."""
DEFAULT_CHANGES = ("nodes=+1", "nodes=-1", "batch=x2", "network=x0.5", "sequence=x2")
_CHANGE = re.compile(r"\s*([a-z-]+)\s*=\s*([-+x*]?)\s*([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*", re.IGNORECASE | re.ASCII)
_EXAMPLES = "for example nodes=+1, gpus=512, batch=x2, sequence=8192 or network=x0.5"


class Verdict(StrEnum):
    """See the module."""

    PLATEAU = "plateau"
    REPLAN = "replan"
    CLIFF = "cliff"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One strategy after a change."""

    strategy: Strategy
    num_gpus: int
    """That it uses."""
    step_time_seconds: float
    loss: float
    """Step time over the ideal one, less one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What one change does."""

    change: str
    """In words: ``33 nodes (264 GPUs)``."""
    num_gpus: int
    global_batch_size: int
    sequence_length: int
    ideal_step_time_seconds: float
    same: Outcome | None
    """None where the same strategy does not run."""
    refused: tuple[Fault, ...]
    """Why it does not."""
    replanned: Outcome | None
    """The best strategy after the change; None where nothing fits."""
    looked_at: tuple[int, ...]
    """Numbers of GPUs that were planned for."""
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """The changes asked about, in order."""

    strategy: Strategy
    num_gpus: int
    step_time_seconds: float
    effects: tuple[Effect, ...]
    tolerance: float = TOLERANCE
    schema_version: str = WHATIF_SCHEMA_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """A change in words, and the problem it makes."""

    words: str
    problem: Problem


def changes_of(problem: Problem, texts: Iterable[str]) -> tuple[Changed, ...]:
    """The problems that ``texts`` make of ``problem``.

    ``nodes``, ``gpus``, ``batch`` and ``sequence`` take a number, ``+n``, ``-n`` or a factor ``x2``; ``network`` (all its levels)
    and ``node-links`` (the innermost) a factor of their bandwidth.

    Raises:
        InvalidInputError: with every fault: a word that is none, a size below one, a cluster that does not come in that size.
    """
    faults: list[Fault] = []
    found = [gather(faults, lambda text=text: _changed(problem, text)) for text in texts]  # type: ignore[misc]
    raise_if(faults)
    return tuple(change for change in found if change is not None)


def what_if(problem: Problem, strategy: Strategy, changes: Sequence[Changed], constraints: Constraints, stages: Stages) -> WhatIf:
    """Estimates ``strategy`` after each of ``changes`` and plans anew, within ``constraints``, layers placed as ``stages`` says."""
    from autopar.costmodel.estimate import estimate

    now = estimate(problem, strategy).step_time_seconds

    def anew(after: Problem, ideal: float) -> tuple[Outcome | None, tuple[int, ...]]:
        found, looked_at = best_within(after, after.cluster.num_gpus, strategy, constraints, stages)
        if found is None:
            return None, looked_at
        _, best, seconds = found
        return Outcome(strategy=best, num_gpus=best.world_size, step_time_seconds=seconds, loss=seconds / ideal - 1), looked_at

    return WhatIf(
        strategy=strategy,
        num_gpus=strategy.world_size,
        step_time_seconds=now,
        effects=tuple(_effect(problem, strategy, now, change, anew) for change in changes),
    )


_PlannedAnew = Callable[["Problem", float], tuple[Outcome | None, tuple[int, ...]]]
"""From a problem and its ideal time to the best strategy there, and the numbers of GPUs that were planned for."""


def _effect(problem: Problem, strategy: Strategy, now: float, change: Changed, anew: _PlannedAnew) -> Effect:
    after = change.problem
    work = float(step_model_flops(Inputs.of(after))) / float(step_model_flops(Inputs.of(problem)))
    ideal = now * work * problem.cluster.num_gpus / after.cluster.num_gpus
    same, refused = _carried_over(after, strategy, ideal)
    replanned, looked_at = anew(after, ideal)
    if same is not None and (replanned is None or same.step_time_seconds < replanned.step_time_seconds):
        replanned = same
    return Effect(
        change=change.words,
        num_gpus=after.cluster.num_gpus,
        global_batch_size=after.training.global_batch_size,
        sequence_length=after.training.sequence_length,
        ideal_step_time_seconds=ideal,
        same=same,
        refused=refused,
        replanned=replanned,
        looked_at=looked_at,
        verdict=_verdict(same, replanned),
    )


def _verdict(same: Outcome | None, replanned: Outcome | None) -> Verdict:
    if same is not None and same.loss <= TOLERANCE:
        return Verdict.PLATEAU
    return Verdict.REPLAN if replanned is not None and replanned.loss <= TOLERANCE else Verdict.CLIFF


def _carried_over(problem: Problem, strategy: Strategy, ideal: float) -> tuple[Outcome | None, tuple[Fault, ...]]:
    """The same strategy with as many replicas as run; or the faults of the largest number of them."""
    from autopar.costmodel.estimate import estimate
    from autopar.search.feasibility import faults, memory_fault

    refused: tuple[Fault, ...] = ()
    for on, candidate in _replicated(problem, strategy):
        broken = faults(on, candidate)
        if not broken:
            found = estimate(on, candidate)
            too_large = memory_fault(found.peak_memory_bytes, found.memory_capacity_bytes)
            if too_large is None:
                seconds = found.step_time_seconds
                return Outcome(strategy=candidate, num_gpus=candidate.world_size, step_time_seconds=seconds, loss=seconds / ideal - 1), ()
            broken = (too_large,)
        refused = refused or broken
    if refused:
        return None, refused
    shape = strategy.world_size // strategy.data_parallel_size
    required = f"one replica takes {shape:,} GPUs, and no whole number of nodes here holds replicas that divide the batch"
    return None, (Fault(field="gpus", given=f"{problem.cluster.num_gpus:,}", required=required),)


def _replicated(problem: Problem, strategy: Strategy) -> Iterator[tuple[Problem, Strategy]]:
    """The strategy at the two largest numbers of replicas that divide the batch, on the whole nodes that hold them."""
    gpus, shape = problem.cluster.num_gpus, strategy.world_size // strategy.data_parallel_size
    found = 0
    for replicas in range(gpus // shape, 0, -1):
        if found == 2:
            return
        if problem.training.global_batch_size % (replicas * strategy.micro_batch_size):
            continue
        size = replicas * shape
        on = problem if size == gpus else resized(problem, size)
        if on is not None:
            found += 1
            yield on, replace(strategy, data_parallel_size=replicas)


def _changed(problem: Problem, text: str) -> Changed:
    match = _CHANGE.fullmatch(text)
    if match is None or match[1].lower() not in _CHANGERS:
        known = ", ".join(_CHANGERS)
        raise InvalidInputError(Fault(field="--change", given=repr(text), required=f"is not a change of {known}", fix=_EXAMPLES))
    sign, amount = match[2].replace("*", "x").lower(), float(match[3])
    return _CHANGERS[match[1].lower()](problem, sign, amount, text)


def _new_size(now: int, sign: str, amount: float, text: str, *, step: int = 1) -> int:
    """The size after the change; ``step`` is what ``+1`` stands for."""
    value = {"": amount * step, "+": now + amount * step, "-": now - amount * step, "x": now * amount}[sign]
    if value < 1 or value != round(value):
        required = f"makes {value:g} of {now:,}: a whole number of at least 1 is needed"
        raise InvalidInputError(Fault(field="--change", given=repr(text), required=required, fix=_EXAMPLES))
    return round(value)


def _nodes(problem: Problem, sign: str, amount: float, text: str) -> Changed:
    """Nodes; where there is less than one or only one to take from, ``-1`` halves it and ``+1`` below a node doubles."""
    cluster = problem.cluster
    node = cluster.gpus_per_node
    if cluster.num_gpus < node or (cluster.num_nodes == 1 and sign == "-"):
        halved = {"+": 2 * cluster.num_gpus, "-": cluster.num_gpus // 2}.get(sign, round(amount * node))
        return _sized(problem, halved, text)
    return _sized(problem, _new_size(cluster.num_gpus, sign, amount, text, step=node), text)


def _gpus(problem: Problem, sign: str, amount: float, text: str) -> Changed:
    return _sized(problem, _new_size(problem.cluster.num_gpus, sign, amount, text), text)


def _sized(problem: Problem, gpus: int, text: str) -> Changed:
    cluster = problem.cluster
    after = resized(problem, gpus) if gpus >= 1 else None
    if after is None:
        node = cluster.gpus_per_node
        required = f"{cluster.id} does not come in {gpus:,} GPUs: below a node its divisors, above it whole nodes of {node}"
        raise InvalidInputError(Fault(field="--change", given=repr(text), required=required))
    nodes = after.cluster.num_nodes
    words = f"{nodes:,} node{'s' * (nodes > 1)} ({gpus:,} GPU{'s' * (gpus > 1)})" if gpus >= cluster.gpus_per_node else f"{gpus:,} GPUs"
    return Changed(words=words, problem=after)


def _batch(problem: Problem, sign: str, amount: float, text: str) -> Changed:
    size = _new_size(problem.training.global_batch_size, sign, amount, text)
    training = replace(problem.training, global_batch_size=size)
    return Changed(words=f"batch of {size:,} sequences", problem=replace(problem, training=training))


def _sequence(problem: Problem, sign: str, amount: float, text: str) -> Changed:
    length = _new_size(problem.training.sequence_length, sign, amount, text)
    training = replace(problem.training, sequence_length=length)
    return Changed(words=f"sequences of {length:,} tokens", problem=replace(problem, training=training))


def _network(problem: Problem, sign: str, amount: float, text: str) -> Changed:
    _refuse_no_factor(sign, amount, text)
    cluster = problem.cluster.with_network_scaled(amount)
    names = ", ".join(new.name for old, new in zip(problem.cluster.tiers, cluster.tiers, strict=True) if new.bandwidth != old.bandwidth)
    return Changed(words=_scaled_words(amount, names or cluster.network_tier.name), problem=replace(problem, cluster=cluster))


def _node_links(problem: Problem, sign: str, amount: float, text: str) -> Changed:
    _refuse_no_factor(sign, amount, text)
    first, *others = problem.cluster.tiers
    cluster = replace(problem.cluster, tiers=(replace(first, bandwidth=first.bandwidth * amount), *others))
    return Changed(words=_scaled_words(amount, first.name), problem=replace(problem, cluster=cluster))


def _scaled_words(amount: float, names: str) -> str:
    return f"{amount:g} x the bandwidth of {names}"


def _refuse_no_factor(sign: str, amount: float, text: str) -> None:
    if sign != "x" or not amount > 0:
        required = "a factor above zero is needed"
        raise InvalidInputError(Fault(field="--change", given=repr(text), required=required, fix="for example network=x0.5"))


_CHANGERS = {
    "nodes": _nodes,
    "gpus": _gpus,
    "batch": _batch,
    "sequence": _sequence,
    "network": _network,
    "node-links": _node_links,
}
