"""The Python interface; the command line is a thin layer over it and gives the same results.

>>> plan = autopar.plan(model="llama3-70b", gpus=128, gpu="h100-sxm5-80gb", fix={"tp": 8})
>>> estimate = autopar.estimate(model="llama3-70b", gpus=128, strategy={"tp": 8, "pp": 4, "mbs": 1})
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

from autopar import __version__
from autopar.costmodel.problem import Problem
from autopar.costmodel.spec.errors import NoPlanError, raise_if
from autopar.costmodel.spec.plan import Alternative, Plan, PlanInputs
from autopar.costmodel.spec.strategy import Strategy
from autopar.io.plan_file import read_plan, write_plan
from autopar.request import build_problem, gather, problem_of, resized

if TYPE_CHECKING:
    from autopar.costmodel.spec.calibration import Calibration
    from autopar.costmodel.spec.cluster import ClusterSpec
    from autopar.costmodel.spec.errors import Fault
    from autopar.costmodel.spec.estimate import Estimate
    from autopar.costmodel.spec.model import ModelSpec
    from autopar.costmodel.spec.plan import SearchSummary
    from autopar.diagnosis import Diagnosis
    from autopar.explanation import Explanation
    from autopar.exporters.export import Export
    from autopar.search import Constraints, Ranked, SearchResult

__all__ = [
    "build_problem",
    "changed_plan",
    "diagnose",
    "estimate",
    "explain",
    "export",
    "faults",
    "import_plan",
    "plan",
    "problem_of",
    "read_plan",
    "write_plan",
]


class ImportInputs(TypedDict, total=False):
    """What ``import_plan`` takes besides the configuration."""

    model: str | None
    cluster: str | None
    gpus: int | None
    gpu: str | None
    global_batch_size: int | None
    sequence_length: int | None
    micro_batch_size: int | None
    precision: str | None
    profile: str | None


class Inputs(TypedDict, total=False):
    """What ``plan``, ``estimate`` and ``explain`` take besides the model; see :func:`autopar.request.build_problem`."""

    cluster: str | Path | ClusterSpec | None
    gpus: int | None
    gpu: str | None
    global_batch_size: int | None
    sequence_length: int | None
    precision: str | None
    framework: str
    memory_reserve: str | int | None
    profile: str | Path | Calibration | None


def plan(
    model: str | Path | ModelSpec,
    *,
    top: int = 5,
    fix: Mapping[str, int | str | bool] | Iterable[str] = (),
    maximum: Mapping[str, int] | Iterable[str] = (),
    minimum: Mapping[str, int] | Iterable[str] = (),
    forbid: Iterable[str] = (),
    **inputs: Unpack[Inputs],
) -> Plan:
    """The fastest strategy that fits, with the runners-up.

    Args:
        model: catalog name, path of a Hugging Face ``config.json`` or its folder, or a spec.
        top: how many strategies to report, the best one included.
        fix: values to keep to, ``{"tp": 8}`` or ``["tp=8"]``, by short or full names of a strategy's fields.
        maximum: sizes not to exceed, in the same forms.
        minimum: sizes to reach, in the same forms.
        forbid: techniques to leave out, ``["cp"]``.
        inputs: the cluster, the batch and the precision, see :class:`Inputs`.

    Raises:
        InvalidInputError: the question cannot mean anything; all its faults at once.
        NoPlanError: nothing fits; says the smallest number of GPUs that would hold the model, and what uses the memory.

    >>> autopar.plan("gpt-175b", gpus=256).strategy.describe()
    """
    from autopar.search import search

    faults: list[Fault] = []
    question = gather(faults, lambda: build_problem(model, **inputs))
    bounds = gather(faults, lambda: _constraints(fix, maximum, minimum, forbid))
    raise_if(faults)
    assert question is not None, "gather keeps a fault where it returns nothing"
    assert bounds is not None, "gather keeps a fault where it returns nothing"
    (problem, assumptions), (constraints, texts) = question, bounds
    result = search(problem, constraints, top=max(top, 1))
    if result.best is None:
        if was_interrupted(result.summary):
            raise KeyboardInterrupt("before a strategy that fits was found")
        raise _nothing_fits(problem, constraints, result, texts)
    best = _estimate(problem, result.best)
    return Plan(
        strategy=result.best,
        estimate=best,
        inputs=PlanInputs(
            model=problem.model,
            cluster=problem.cluster,
            training=problem.training,
            framework=problem.framework.id,
            memory_reserve_bytes=problem.memory_reserve_bytes,
            constraints=texts,
            assumptions=assumptions,
            calibration=problem.calibration,
        ),
        search=result.summary,
        alternatives=tuple(
            Alternative(
                strategy=ranked.strategy,
                step_time_seconds=ranked.step_time_seconds,
                peak_memory_bytes=ranked.peak_memory_bytes,
                tie=ranked.tie,
                separated_by=_separation(problem, best, ranked) if ranked.tie else "",
            )
            for ranked in result.ranked
            if ranked.strategy != result.best
        )[: max(top, 1) - 1],
        autopar_version=__version__,
    )


def _separation(problem: Problem, best: Estimate, other: Ranked) -> str:
    from autopar.costmodel.separation import separating_measurement

    return separating_measurement(best.time, _estimate(problem, other.strategy).time)


def estimate(
    model: str | Path | ModelSpec | Plan | Problem, *, strategy: Strategy | Mapping[str, object] | None = None, **inputs: Unpack[Inputs]
) -> Estimate:
    """Time and memory of one strategy.

    Args:
        model: as for :func:`plan`; or a :class:`Plan` or a :class:`Problem`, whose inputs are then taken.
        strategy: a :class:`Strategy`, or its fields by short or full name, ``{"tp": 8, "pp": 4}``; the data-parallel
            size follows from the number of GPUs. Left out, a plan's own strategy.
        inputs: the cluster, the batch and the precision, see :class:`Inputs`.

    Raises:
        InvalidInputError: the question cannot mean anything; all its faults at once.
        NoPlanError: a rule refuses the strategy. One that is sound but too large comes back with ``fits`` false.

    >>> autopar.estimate("gpt-175b", gpus=256, gpu="a100-sxm4-80gb", strategy={"tp": 8, "pp": 4}).mfu
    """
    from autopar.no_plan import NoPlan

    problem, chosen, _ = resolve(model, strategy, **inputs)
    refused = faults(problem, chosen)
    if refused:
        message = refusal_text(chosen, refused)
        raise NoPlanError(message, NoPlan(reasons=tuple(message.splitlines()), faults=refused, strategy=chosen))
    return _estimate(problem, chosen)


def explain(
    model: str | Path | ModelSpec | Plan | Problem, *, strategy: Strategy | Mapping[str, object] | None = None, **inputs: Unpack[Inputs]
) -> Explanation:
    """Where the time and the memory of one strategy go, the rules that refuse it, and the changes that would help.

    Takes what :func:`estimate` takes; a strategy that is refused is explained, not raised.
    """
    from autopar.explanation import explain_strategy

    problem, chosen, _ = resolve(model, strategy, **inputs)
    return explain_strategy(problem, chosen)


def diagnose(plan: Plan, *, measured: str | float | None = None) -> Diagnosis:
    """What a plan costs, what explains a measured step, and the best changes of one knob and of two.

    Args:
        plan: searched, or imported from a framework's configuration.
        measured: seconds of a step, ``14.2`` or ``"14.2s"``; None where it was not measured.

    Raises:
        InvalidInputError: ``measured`` is no time.
    """
    from autopar.costmodel.spec.units import parse_seconds
    from autopar.diagnosis import diagnose as diagnosis_of

    seconds = parse_seconds(str(measured), field="measured") if measured is not None else None
    return diagnosis_of(problem_of(plan), plan.strategy, measured_seconds=seconds)


def changed_plan(plan: Plan, strategy: Strategy) -> Plan:
    """``plan`` with another strategy for the same inputs, and its estimate."""
    return replace(plan, strategy=strategy, estimate=_estimate(problem_of(plan), strategy), alternatives=(), autopar_version=__version__)


def export(plan: Plan, to: str, *, nearest: bool = False) -> Export:
    """The files of a plan for a framework: ``megatron-lm``, ``torchtitan``, …; see :func:`autopar.exporters.exporter_names`.

    Raises:
        NoPlanError: the framework does not take the plan; names its rules, and the nearest plan, which ``nearest`` exports.
        UnknownNameError: there is no such exporter.
    """
    from autopar.exporters.export import export as exported

    return exported(plan, to, take_nearest=nearest)


def import_plan(configuration: str | Path, framework: str, **given: Unpack[ImportInputs]) -> Plan:
    """The plan that a framework's configuration runs today.

    Args:
        configuration: path of a file, or a command line.
        framework: whose it is, see :func:`autopar.importers.importer_names`.
        given: what the configuration leaves unsaid, or what to take in place of it.

    Raises:
        InvalidInputError: it cannot be read, contradicts itself, or leaves something unsaid; all faults at once.
    """
    from autopar.importers import import_configuration
    from autopar.importers.complete import Given

    return import_configuration(str(configuration), framework, Given(**given))


def resolve(
    model: str | Path | ModelSpec | Plan | Problem, strategy: Strategy | Mapping[str, object] | None, **inputs: Unpack[Inputs]
) -> tuple[Problem, Strategy, tuple[str, ...]]:
    """The problem and the strategy that :func:`estimate` works on, and what was assumed."""
    from autopar.io.flags import make_strategy

    assumptions: tuple[str, ...] = ()
    if isinstance(model, Problem):
        problem = model
    elif isinstance(model, Plan):
        problem, assumptions = problem_of(model), model.inputs.assumptions
        if strategy is None:
            return problem, model.strategy, assumptions
    else:
        if inputs.get("gpus") is None and isinstance(strategy, Strategy):
            inputs["gpus"] = strategy.world_size
        problem, assumptions = build_problem(model, **inputs)
    if isinstance(strategy, Strategy):
        return (
            problem,
            make_strategy({name: getattr(strategy, name) for name in strategy.__slots__}, world_size=_size(problem)),
            assumptions,
        )
    return problem, make_strategy(strategy or {}, world_size=_size(problem), framework=problem.framework), assumptions


def faults(problem: Problem, strategy: Strategy) -> tuple[Fault, ...]:
    """Every rule that refuses ``strategy``, with the numbers behind it and the smallest fix."""
    from autopar.search.feasibility import faults as broken_rules

    return broken_rules(problem, strategy)


def was_interrupted(search: SearchSummary) -> bool:
    """Whether the search was cut short, so that its best is the best of what it saw."""
    return search.interrupted


def refusal_text(strategy: Strategy, refused: Iterable[Fault]) -> str:
    """One message for a strategy that rules refuse."""
    return "\n".join([f"this strategy is refused: {strategy.describe()}", *(f"  {fault}" for fault in refused)])


def _size(problem: Problem) -> int:
    return problem.cluster.num_gpus


def _estimate(problem: Problem, strategy: Strategy) -> Estimate:
    from autopar.costmodel.estimate import estimate as cost

    return cost(problem, strategy)


def _constraints(
    fix: Mapping[str, object] | Iterable[str],
    maximum: Mapping[str, int] | Iterable[str],
    minimum: Mapping[str, int] | Iterable[str],
    forbid: Iterable[str],
) -> tuple[Constraints, tuple[str, ...]]:
    from autopar.io.flags import constraint_texts, parse_assignments, parse_limits, parse_names
    from autopar.search import Constraints

    faults: list[Fault] = []
    fixed = gather(faults, lambda: parse_assignments(_texts(fix), flag="--fix")) or {}
    highest = gather(faults, lambda: parse_limits(_texts(maximum), flag="--max")) or {}
    lowest = gather(faults, lambda: parse_limits(_texts(minimum), flag="--min")) or {}
    forbidden = gather(faults, lambda: parse_names(forbid, flag="--forbid")) or ()
    raise_if(faults)
    constraints = Constraints(fixed=fixed, maximum=highest, minimum=lowest, forbidden=frozenset(forbidden))
    return constraints, constraint_texts(fixed, highest, lowest, forbidden)


def _texts(values: Mapping[str, object] | Iterable[str]) -> list[str]:
    if isinstance(values, Mapping):
        return [f"{name}={getattr(value, 'value', value)}" for name, value in values.items()]
    return list(values)


def _nothing_fits(problem: Problem, constraints: Constraints, result: SearchResult, texts: tuple[str, ...]) -> NoPlanError:
    from autopar.no_plan import NearMiss, NoPlan, SmallestCluster
    from autopar.report.no_plan import no_plan_text
    from autopar.search import smallest_cluster

    smallest = smallest_cluster(problem, constraints, resize=lambda gpus: resized(problem, gpus))
    message = no_plan_text(problem, result, texts, smallest)
    answer = NoPlan(
        reasons=tuple(message.splitlines()),
        faults=result.refused_by,
        nearest=tuple(NearMiss(strategy=miss.strategy, peak_memory_bytes=miss.peak_memory_bytes) for miss in result.nearest_misses),
        smallest_cluster=smallest and SmallestCluster(num_gpus=smallest[0].cluster.num_gpus, strategy=smallest[1].strategy),
    )
    return NoPlanError(message, answer)
