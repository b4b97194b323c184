"""From what a configuration says to a plan: the machines and the model are filled in, the framework's rules are asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from autopar import __version__
from autopar.catalog.models import model as model_named
from autopar.catalog.models import model_names
from autopar.costmodel.estimate import estimate
from autopar.costmodel.spec.errors import AutoparError, Fault, NoPlanError, raise_if
from autopar.costmodel.spec.model import ModelSpec
from autopar.costmodel.spec.plan import Plan, PlanInputs, SearchSummary
from autopar.costmodel.spec.strategy import Strategy
from autopar.exporters.model_numbers import NUMBERS, numbers_of, whole
from autopar.exporters.question import canonical
from autopar.exporters.rule import BrokenRule, Enforcement, broken, compute_capability
from autopar.exporters.settings import Value
from autopar.io.flags import make_strategy
from autopar.request import build_problem, resolve_cluster, resolve_model

from .imported import Imported

if TYPE_CHECKING:
    from autopar.costmodel.problem import Problem
    from autopar.costmodel.spec.cluster import ClusterSpec

METHOD = "imported"
_SAME_MODEL = frozenset({
    "name", "source", "default_sequence_length", "default_global_batch_size", "max_position_embeddings", "rotary_scaling", *NUMBERS,
})  # fmt: skip
"""Fields of a model that do not tell two apart: what it is called, how long its sequences may be, and what no estimate depends on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What a person says besides the configuration; None and 0 leave it to the configuration or to the usual."""

    model: str | None = None
    cluster: str | None = None
    gpus: int | None = None
    gpu: str | None = None
    global_batch_size: int | None = None
    sequence_length: int | None = None
    micro_batch_size: int | None = None
    precision: str | None = None
    framework: str | None = None
    memory_reserve: str | None = None
    profile: str | None = None


def complete(found: Imported, given: Given) -> Plan:
    """The plan that the configuration runs, with its estimate.

    Raises:
        InvalidInputError: something is said by nobody, or a rule of the framework refuses the configuration; all faults at once.
    """
    gpus = given.gpus or found.world_size or None
    raise_if([*_two_sizes(found, given), *_unsaid(found, given)])
    device = given.gpu or (None if given.cluster else found.device or None)
    notes: list[str] = []
    cluster = resolve_cluster(given.cluster, gpus, device, notes)
    known, differing = as_configured(_model(found, given), found)
    broken_rules = _broken(found, given, cluster, known)
    raise_if([_named(rule) for rule in broken_rules if rule.enforcement in (Enforcement.HARD, Enforcement.RUNTIME)])
    problem, assumptions = _problem(found, given, cluster, known)
    strategy = _strategy(found, given, problem)
    return Plan(
        strategy=strategy,
        estimate=_estimate(problem, strategy),
        inputs=PlanInputs(
            model=problem.model,
            cluster=problem.cluster,
            training=problem.training,
            framework=problem.framework.id,
            memory_reserve_bytes=problem.memory_reserve_bytes,
            constraints=(),
            assumptions=(*notes, *assumptions, *differing, *_remarks(found, cluster, broken_rules)),
            calibration=problem.calibration,
            imported_from=found.name,
            kept_settings=found.kept,
        ),
        search=SearchSummary(evaluated=1, rejected={}, method=METHOD, optimality="not searched: read from a configuration"),
        alternatives=(),
        autopar_version=__version__,
    )


def _two_sizes(found: Imported, given: Given) -> list[Fault]:
    if not given.gpus or found.world_size in (0, given.gpus) or found.world_size_is_usual:
        return []
    required = f"the configuration starts {found.world_size} processes"
    return [Fault(field="--gpus", given=str(given.gpus), required=required, fix=f"leave it out, or --gpus {found.world_size}")]


def _unsaid(found: Imported, given: Given) -> list[Fault]:
    """Faults for what the configuration leaves to others and nobody gave; all that is missing at once."""
    said = {
        "strategy.micro_batch_size": given.micro_batch_size,
        "training.global_batch_size": given.global_batch_size or ("strategy.micro_batch_size" not in found.unsaid),
    }
    missing = [Fault(field="configuration", given="", required=text) for name, text in found.unsaid.items() if not said.get(name)]
    if found.model is None and not found.model_name and given.model is None:
        missing.append(
            Fault(field="--model", given="", required="the configuration does not say which model it trains", fix="give --model")
        )
    if not given.gpus and not found.world_size and not (given.cluster or "").endswith(".toml"):
        missing.append(
            Fault(field="--gpus", given="", required="the configuration does not say how many GPUs it runs on", fix="give --gpus")
        )
    return missing


def _broken(found: Imported, given: Given, cluster: ClusterSpec, known: ModelSpec) -> tuple[BrokenRule, ...]:
    capability = compute_capability(cluster.device.architecture)
    model = found.configuration.model or (known)
    settings = found.configuration.settings
    if given.sequence_length and "sequence_length" not in settings:
        settings = {**settings, "sequence_length": given.sequence_length}
    configuration = replace(found.configuration, settings=settings, world_size=cluster.num_gpus, capability=capability, model=model)
    return broken(found.rules, configuration)


def _named(rule: BrokenRule) -> Fault:
    return replace(rule.fault, required=f"{rule.fault.required} (rule {rule.rule})")


def _model(found: Imported, given: Given) -> ModelSpec:
    """The model that is named, or the catalog's of the shape that the configuration has."""
    named = given.model or found.model_name
    if named:
        return resolve_model(named)
    assert found.model is not None, "asked for before"
    numbers: dict[str, Any] = {
        field: getattr(found.model, field) or found.usual_numbers.get(field, 0.0) for field in numbers_of(found.model)
    }
    return catalog_match(replace(found.model, **numbers))


def _problem(found: Imported, given: Given, cluster: ClusterSpec, model: ModelSpec) -> tuple[Problem, tuple[str, ...]]:
    batch = given.global_batch_size or _whole(found.fields, "training.global_batch_size")
    return build_problem(
        model,
        cluster=cluster,
        global_batch_size=batch or _implied_batch(found, given, cluster),
        sequence_length=given.sequence_length or _whole(found.fields, "training.sequence_length"),
        precision=given.precision or _word(found.fields, "training.precision"),
        framework=given.framework or found.framework,
        memory_reserve=given.memory_reserve,
        profile=given.profile,
    )


def _implied_batch(found: Imported, given: Given, cluster: ClusterSpec) -> int | None:
    """The global batch of configurations that count micro-batches instead."""
    count = _whole(found.fields, "training.num_microbatches")
    micro = given.micro_batch_size or _whole(found.fields, "strategy.micro_batch_size")
    return count * micro * _data_ranks(found, cluster) if count and micro else None


def _data_ranks(found: Imported, cluster: ClusterSpec) -> int:
    ranks = cluster.num_gpus
    for size in ("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size"):
        ranks //= _whole(found.fields, f"strategy.{size}") or 1
    return max(1, ranks)


def _strategy(found: Imported, given: Given, problem: Problem) -> Strategy:
    values: dict[str, Any] = {name.removeprefix("strategy."): v for name, v in found.fields.items() if name.startswith("strategy.")}
    count = _whole(found.fields, "training.num_microbatches")
    if given.micro_batch_size:
        values["micro_batch_size"] = given.micro_batch_size
    elif "micro_batch_size" not in values and count:
        values["micro_batch_size"] = max(1, problem.training.global_batch_size // (count * _data_ranks(found, problem.cluster)))
    strategy = make_strategy(values, world_size=problem.cluster.num_gpus, framework=problem.framework)
    ranks = strategy.data_parallel_size * strategy.context_parallel_size
    if found.shard_copies > 1 and strategy.zero_stage:
        strategy = replace(strategy, shard_group_size=max(1, ranks // found.shard_copies))
    return canonical(problem, strategy)


def _estimate(problem: Problem, strategy: Strategy) -> Any:
    try:
        return estimate(problem, strategy)
    except AutoparError as error:
        from autopar.search.feasibility import faults

        refused = faults(problem, strategy)
        raise NoPlanError("\n".join([f"no estimate of {strategy.describe()}: {error}", *(f"  {fault}" for fault in refused)])) from None


def _remarks(found: Imported, cluster: ClusterSpec, broken_rules: tuple[BrokenRule, ...]) -> list[str]:
    said = list(found.remarks)
    if found.gpus_per_node and found.gpus_per_node != cluster.gpus_per_node and cluster.num_gpus > found.gpus_per_node:
        said.append(f"the configuration has {found.gpus_per_node} GPUs in a node, the estimate {cluster.gpus_per_node}: give --cluster")
    said += [f"{rule.enforcement.value}: {rule.fault} (rule {rule.rule})" for rule in broken_rules]
    if found.unknown:
        said.append(f"not known to {found.name}, kept as they are: {', '.join(found.unknown)}")
    if found.ignored:
        said.append(f"without a difference to the estimate, kept: {', '.join(found.ignored)}")
    return said


def _whole(values: Mapping[str, Value], name: str) -> int | None:
    value = values.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _word(values: Mapping[str, Value], name: str) -> str | None:
    value = values.get(name)
    return value if isinstance(value, str) and value else None


def catalog_match(model: ModelSpec) -> ModelSpec:
    """The model of the catalog that has the same shape, under its own name; of several the one with the same numbers; else ``model``."""
    compared = [f.name for f in fields(ModelSpec) if f.name not in _SAME_MODEL]
    known = [model_named(name) for name in model_names()]
    same = [each for each in known if all(getattr(each, field) == getattr(model, field) for field in compared)]
    return max(same, key=lambda each: sum(getattr(each, field) == getattr(model, field) for field in NUMBERS), default=model)


def as_configured(known: ModelSpec, found: Imported) -> tuple[ModelSpec, tuple[str, ...]]:
    """``known`` with the numbers that the configuration trains it with, and a remark on each that is another than the published."""
    changed: dict[str, Any] = {}
    remarks: list[str] = []
    for field in numbers_of(known):
        published, said = getattr(known, field), getattr(found.model, field, 0.0)
        trained = said or (found.usual_numbers.get(field, 0.0) if published else 0.0)
        if trained and trained != published:
            changed[field] = trained
        if field in changed and published:
            source = "says" if said else f"does not say it, and {found.name} takes"
            remarks.append(
                f"{NUMBERS[field]} of {known.name} is {whole(published)} as published; the configuration {source} {whole(trained)}, "
                "which the plan keeps"
            )
    return replace(known, **changed) if changed else known, tuple(remarks)
