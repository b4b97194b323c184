"""From a plan to an export: the framework's rules are asked first, and what they refuse comes with the nearest plan they take."""

from __future__ import annotations

from dataclasses import dataclass, replace

from autopar import __version__
from autopar.costmodel.estimate import estimate
from autopar.costmodel.problem import Problem
from autopar.costmodel.spec.errors import Fault, NoPlanError
from autopar.costmodel.spec.estimate import Estimate
from autopar.costmodel.spec.mixed import HostBlock
from autopar.costmodel.spec.plan import Plan
from autopar.costmodel.spec.strategy import Strategy
from autopar.costmodel.spec.units import format_bytes, format_seconds
from autopar.host_order import blocks_of, order_text
from autopar.mixed_problem import on_one_pool
from autopar.request import problem_of
from autopar.search.feasibility import RULES

from . import exporter, launch
from .exporter import ExportedFile, Exporter
from .nearest import Nearest, changed_fields, nearest_plan
from .question import Question
from .rule import BrokenRule, inexpressible

EXPORT_SCHEMA_VERSION = "1.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """The files of a plan for a framework, and what it should take there."""

    framework: str
    version: str
    strategy: Strategy
    files: tuple[ExportedFile, ...]
    notes: tuple[str, ...]
    estimate: Estimate
    """Under the framework's own execution profile."""
    replaces: Strategy | None = None
    """The plan's strategy, where the files are those of the nearest one that the framework takes."""
    start_order: tuple[HostBlock, ...] = ()
    """Of a mixed cluster: in which order its hosts start."""
    schema_version: str = EXPORT_SCHEMA_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a framework does not take a plan, and the nearest one that it does."""

    framework: str
    version: str
    strategy: Strategy
    broken: tuple[BrokenRule, ...]
    planned_step_time_seconds: float
    nearest: Nearest | None
    reasons: tuple[str, ...] = ()
    fits: bool = False
    schema_version: str = EXPORT_SCHEMA_VERSION


def export(plan: Plan, to: str, *, take_nearest: bool = False) -> Export:
    """The files of ``plan`` for the framework ``to``.

    Args:
        plan: what is exported.
        to: see :func:`autopar.exporters.exporter_names`.
        take_nearest: where the framework cannot express the plan, export the nearest one that it can.

    Raises:
        UnknownNameError: no such framework.
        NoPlanError: the framework does not take the plan; names the rules, and the nearest plan that it takes.
    """
    target = exporter(to)
    plan = on_one_pool(plan) or plan
    if plan.mixed is not None:
        from .pools import export_pools

        return export_pools(plan, target, take_nearest=take_nearest)
    problem = problem_of(plan)
    kept = plan.inputs.kept_settings if plan.inputs.imported_from == target.name else ()
    question = Question.of(problem, plan.strategy, kept=kept)
    broken = broken_rules(target, question)
    if not broken:
        return exported(plan, target, question)
    nearest = nearest_plan(target, question, broken)
    if nearest is None or not take_nearest:
        raise refused(plan, target, question, broken, nearest)
    return in_place(plan, question, exported(plan, target, Question.of(problem, nearest.strategy, kept=kept)))


def in_place(plan: Plan, question: Question, done: Export) -> Export:
    """``done``, the export of the nearest plan, with what it changes."""
    said = f"in place of the plan's own: {changed_fields(question.strategy, done.strategy)}"
    return replace(done, replaces=plan.strategy, notes=(said, *done.notes))


_ANYWHERE = (
    "world_size", "layer_in_every_stage", "pipeline_layers", "global_batch_divides", "micro_batch_divides", "virtual_stages",
    "recomputed_stages",
)  # fmt: skip
"""Rules of the search that hold under every framework; counts of recomputed layers by stage need one that has them."""


def broken_rules(target: Exporter, question: Question) -> tuple[BrokenRule, ...]:
    """Why ``target`` does not take the question's strategy; empty where it does."""
    return inexpressible(unsound(replace(question, problem=under_profile(target, question)))) or target.broken_rules(question)


def unsound(question: Question) -> tuple[Fault, ...]:
    """What is wrong with a plan that no framework could run."""
    rules = (rule for rule in RULES if rule.name in _ANYWHERE)
    found = (rule.fault(question.problem, question.strategy) for rule in rules)
    return tuple(fault for fault in found if fault is not None)


def exported(plan: Plan, target: Exporter, question: Question, result: Estimate | None = None) -> Export:
    """The files of a question that breaks no rule.

    Args:
        plan: that the question is of.
        target: the framework.
        question: what is written.
        result: its estimate under the target's profile, where it is not that of one kind of GPU.
    """
    under = under_profile(target, question)
    if result is None:
        result = estimate(under, question.strategy)
    notes = (*_crossing(plan, target, under, result), *_of_unlike_hosts(question), *target.notes(question))
    return Export(
        framework=target.name,
        version=target.version,
        strategy=question.strategy,
        files=(*target.files(question, header_lines(target, question, result, notes)), *_hosts(question)),
        notes=notes,
        estimate=result,
        start_order=blocks_of(question.hosts),
    )


def _of_unlike_hosts(question: Question) -> list[str]:
    """What a mixed cluster asks of the person who starts the job."""
    if not question.hosts:
        return []
    kinds = " and ".join(dict.fromkeys(run.cluster.device.architecture for run in question.hosts))
    return [
        f"Hosts start in this order: {order_text(question.hosts)}.",
        f"All hosts need the same releases of NCCL and the framework; what is compiled is compiled for {kinds}.",
    ]


def _hosts(question: Question) -> tuple[ExportedFile, ...]:
    """The host of every rank, where the plan names hosts."""
    if not launch.host_names(question.cluster, question.hosts):
        return ()
    return (ExportedFile(path=launch.HOSTS_FILE, text=launch.hosts_text(question.cluster, question.hosts)),)


def under_profile(target: Exporter, question: Question) -> Problem:
    """The question's problem as the target framework runs it."""
    return replace(question.problem, framework=target.profile(question))


def header_lines(target: Exporter, question: Question, result: Estimate, notes: tuple[str, ...]) -> list[str]:
    """What stands at the head of every file: the plan, the framework's version, the estimate and what is left to do."""
    training = question.training
    return [
        f"{question.model.name} on {_machines(question)}",
        f"{training.global_batch_size:,} sequences of {training.sequence_length:,} tokens a step, {training.precision.name}",
        question.strategy.describe(),
        f"estimated: {format_seconds(result.step_time_seconds)} a step, {result.mfu:.1%} MFU,"
        f" {format_bytes(result.peak_memory_bytes)} of {format_bytes(result.memory_capacity_bytes)} a GPU",
        f"for {target.name} ({target.version}), written by autopar {__version__}",
        *notes,
    ]


def _machines(question: Question) -> str:
    runs = [(run.num_gpus, run.nodes, run.cluster) for run in question.hosts]
    runs = runs or [(question.cluster.num_gpus, question.cluster.num_nodes, question.cluster)]
    return ", then ".join(f"{gpus:,} x {cluster.device.name} ({nodes:,} x {cluster.id})" for gpus, nodes, cluster in runs)


def _crossing(plan: Plan, target: Exporter, under: Problem, result: Estimate) -> list[str]:
    """A remark where the plan was made for another framework than it goes to, with both estimates."""
    if under.framework.id == plan.inputs.framework:
        return []
    planned, now = format_seconds(plan.estimate.step_time_seconds), format_seconds(result.step_time_seconds)
    said = f"planned for {plan.inputs.framework} ({planned} a step); as {under.framework.id} runs it: {now}"
    return [
        said,
        *([] if result.fits else [f"{target.name} needs more memory for it than there is: plan with --framework {under.framework.id}"]),
    ]


def refused(
    plan: Plan,
    target: Exporter,
    question: Question,
    broken: tuple[BrokenRule, ...],
    nearest: Nearest | None,
    instead: str = "",
    on: str = "",
) -> NoPlanError:
    """That ``target`` does not take the plan.

    Args:
        plan: that is refused.
        target: the framework.
        question: what it was asked.
        broken: why.
        nearest: that it takes.
        instead: what to do where there is no nearest plan.
        on: where the nearest plan is, of a mixed cluster.
    """
    reasons = [
        f"{target.name} ({target.version}) does not take this plan: {question.strategy.describe()}",
        *(f"  {rule}" for rule in broken),
    ]
    if nearest is None:
        reasons.append(instead or "no plan for this model on these GPUs that it takes fits in memory")
    else:
        planned, takes = format_seconds(plan.estimate.step_time_seconds), format_seconds(nearest.step_time_seconds)
        reasons += [
            f"nearest that it takes: {nearest.strategy.describe()}{on}",
            f"  {changed_fields(question.strategy, nearest.strategy)}",
            f"  {takes} a step and {format_bytes(nearest.peak_memory_bytes)} under {nearest.framework};"
            f" this plan: {planned} under {plan.inputs.framework}; --nearest writes it",
        ]
    answer = Refusal(
        framework=target.name,
        version=target.version,
        strategy=question.strategy,
        broken=broken,
        planned_step_time_seconds=plan.estimate.step_time_seconds,
        nearest=nearest,
        reasons=tuple(reasons),
    )
    return NoPlanError("\n".join(reasons), answer)
