"""The Python interface; the command line is a thin layer over it and gives the same results.

>>> plan = autopar.plan(model="llama3-70b", gpus=128, gpu="h100-sxm5-80gb", fix={"tp": 8})
>>> estimate = autopar.estimate(model="llama3-70b", gpus=128, strategy={"tp": 8, "pp": 4, "mbs": 1})
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack, cast

from autopar import __version__
from autopar.costmodel.problem import Problem
from autopar.costmodel.spec.economics import Objective
from autopar.costmodel.spec.errors import Fault, NoPlanError, raise_if
from autopar.costmodel.spec.goodput import Goodput
from autopar.costmodel.spec.plan import Alternative, Plan, PlanInputs
from autopar.costmodel.spec.strategy import Strategy
from autopar.io.plan_file import read_plan, write_plan
from autopar.request import build_problem, gather, problem_of, resized

if TYPE_CHECKING:
    from autopar.aims import Aims, Failures, Prices
    from autopar.costmodel.spec.calibration import Calibration
    from autopar.costmodel.spec.cluster import ClusterSpec
    from autopar.costmodel.spec.economics import Economics
    from autopar.costmodel.spec.estimate import Estimate
    from autopar.costmodel.spec.model import ModelSpec
    from autopar.costmodel.spec.plan import SearchSummary
    from autopar.explanation import Explanation
    from autopar.frontier import ParetoFront
    from autopar.perturbation import WhatIf
    from autopar.search import Constraints, Ranked, SearchResult
    from autopar.sizing import Missed, Sizing, Task

__all__ = ["build_problem", "estimate", "explain", "faults", "pareto", "plan", "problem_of", "read_plan", "size", "whatif", "write_plan"]


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


class Question(Inputs, total=False):
    """The inputs, and what ``plan`` and ``pareto`` may be told of money and failures; see :func:`autopar.aims.read_aims`."""

    price: Prices | None
    """Of a GPU-hour: ``2.5``, ``"2.5 USD"`` or ``{"h100-sxm5-80gb": 2.5}``."""
    mtbf_node: str | float | None
    """Mean time between failures of one node: ``"4000h"``, or seconds."""
    checkpoint_seconds: str | float | None
    restart_seconds: str | float | None
    repair_time: str | float | None


def plan(
    model: str | Path | ModelSpec,
    *,
    top: int = 5,
    fix: Mapping[str, int | str | bool] | Iterable[str] = (),
    maximum: Mapping[str, int] | Iterable[str] = (),
    minimum: Mapping[str, int] | Iterable[str] = (),
    forbid: Iterable[str] = (),
    objective: str = "step-time",
    **inputs: Unpack[Question],
) -> Plan:
    """The fastest strategy that fits (or the best by another objective), with the runners-up.

    Args:
        model: catalog name, path of a Hugging Face ``config.json`` or its folder, or a spec.
        top: how many strategies to report, the best one included.
        fix: values to keep to, ``{"tp": 8}`` or ``["tp=8"]``, by short or full names of a strategy's fields.
        maximum: sizes not to exceed, in the same forms.
        minimum: sizes to reach, in the same forms.
        forbid: techniques to leave out, ``["cp"]``.
        objective: ``step-time``, ``cost``, ``energy`` or ``memory``. On one number of GPUs the first three choose alike.
        inputs: the cluster, the batch and the precision, prices and failures, see :class:`Inputs` and :class:`Question`.

    Raises:
        InvalidInputError: the question cannot mean anything; all its faults at once.
        NoPlanError: nothing fits; says the smallest number of GPUs that would hold the model, and what uses the memory. Or failures
            leave no progress.
        UnavailableError: energy is asked for, and the device has no power figure.

    >>> autopar.plan("gpt-175b", gpus=256).strategy.describe()
    """
    asked = _posed(model, (fix, maximum, minimum, forbid), objective, inputs)
    if asked.aims.objective is Objective.COST:
        asked.aims.needs_price(asked.problem.cluster)
    result = _searched(asked, top=max(top, 1))
    if result.best is None:
        if was_interrupted(result.summary):
            raise KeyboardInterrupt("before a strategy that fits was found")
        raise _nothing_fits(asked.problem, asked.constraints, result, asked.texts)
    return _planned(asked, result.best, result, top=max(top, 1))


def pareto(
    model: str | Path | ModelSpec,
    axes: str | Iterable[str] = ("time", "memory"),
    *,
    fix: Mapping[str, int | str | bool] | Iterable[str] = (),
    maximum: Mapping[str, int] | Iterable[str] = (),
    minimum: Mapping[str, int] | Iterable[str] = (),
    forbid: Iterable[str] = (),
    progress: Callable[[str], None] | None = None,
    **inputs: Unpack[Question],
) -> ParetoFront:
    """Every plan that no other beats on all of ``axes`` at once: time, gpus, memory, cost, energy.

    With ``gpus``, ``cost`` or ``energy`` among them, numbers of GPUs up to ``gpus=`` are compared, else strategies on that number.

    Args:
        model: as for :func:`plan`, and so the constraints and the inputs.
        axes: two or more, ``"time,memory"`` or a sequence; cost needs ``price=``.
        progress: called with a line for each number of GPUs that was planned for.

    Raises:
        InvalidInputError: the question cannot mean anything; all its faults at once.
        NoPlanError: nothing fits on any number of GPUs looked at.
        UnavailableError: energy is asked for, and the device has no power figure.

    >>> autopar.pareto("llama3-8b", "time,gpus,cost", gpus=64, price="2.5 USD").points
    """
    from autopar.frontier import Axis, Described, pareto_front, read_axes

    faults: list[Fault] = []
    chosen = gather(faults, lambda: read_axes(axes)) or ()
    asked = gather(faults, lambda: _posed(model, (fix, maximum, minimum, forbid), "step-time", inputs))
    if asked is not None and (Axis.COST in chosen or asked.aims.prices):
        gather(faults, lambda: asked.aims.needs_price(asked.problem.cluster))
    raise_if(faults)
    assert asked is not None, "gather keeps a fault where it returns nothing"
    words = Described(constraints=asked.texts, assumptions=asked.assumptions)
    front = pareto_front(asked.problem, asked.constraints, chosen, asked.aims, words, progress)
    if not front.points:
        if front.interrupted:
            raise KeyboardInterrupt("before a strategy that fits was found")
        raise _nothing_fits(asked.problem, asked.constraints, _searched(asked, top=5), asked.texts)
    return front


def size(
    model: str | Path | ModelSpec,
    *,
    tokens: str | float,
    deadline: str | float,
    max_gpus: int | None = None,
    fix: Mapping[str, int | str | bool] | Iterable[str] = (),
    maximum: Mapping[str, int] | Iterable[str] = (),
    minimum: Mapping[str, int] | Iterable[str] = (),
    forbid: Iterable[str] = (),
    progress: Callable[[str], None] | None = None,
    **inputs: Unpack[Question],
) -> Sizing:
    """The fewest GPUs that train ``model`` on ``tokens`` by ``deadline``, on each cluster asked about, the cheapest first.

    The clusters are the one that ``gpu`` or ``cluster`` names, else every one that has a price, else the default one.

    Args:
        model: as for :func:`plan`, and so the constraints and the inputs; ``gpus`` is what is asked for.
        tokens: of the whole run: ``"15T"`` or a number.
        deadline: ``"30d"``, or seconds.
        max_gpus: no more than these; 131,072, or what a cluster file has.
        progress: called with a line for each number of GPUs that was planned for.

    Raises:
        InvalidInputError: the question cannot mean anything; all its faults at once.
        NoPlanError: no number of GPUs meets the deadline on any of the clusters: says why, and the least change that does.

    >>> autopar.size("llama3-70b", tokens="15T", deadline="60d", price={"h100-sxm5-80gb": 2.5, "b200-sxm": 5}).clusters[0].fewest
    """
    from autopar.sizing import Sized, Sizing, in_order, missed_text, size_on

    asked = _size_question(model, (fix, maximum, minimum, forbid), tokens, deadline, max_gpus, inputs)
    found = [size_on(problem, replace(asked.task, max_gpus=limit), progress) for problem, limit in asked.problems]
    clusters = in_order([each for each in found if isinstance(each, Sized)])
    missed = (*asked.unusable, *(each for each in found if not isinstance(each, Sized)))
    training = asked.problems[0][0].training if asked.problems else None
    answer = Sizing(
        model=asked.model,
        tokens=asked.task.tokens,
        deadline_seconds=asked.task.deadline_seconds,
        num_steps=asked.task.steps(asked.problems[0][0]) if asked.problems else 0,
        global_batch_size=training.global_batch_size if training else 0,
        sequence_length=training.sequence_length if training else 0,
        clusters=clusters,
        missed=missed,
        currency=next((price.currency for price in asked.task.aims.prices.values()), ""),
        constraints=asked.texts,
        assumptions=asked.assumptions,
        fits=bool(clusters),
    )
    if not clusters:
        raise NoPlanError(missed_text(asked.task, asked.model, missed), answer)
    return answer


@dataclass(frozen=True, slots=True, kw_only=True)
class _SizeQuestion:
    """The question of :func:`size` as it was understood."""

    model: str
    task: Task
    problems: tuple[tuple[Problem, int], ...]
    """With the most GPUs to look at."""
    unusable: tuple[Missed, ...]
    """Clusters that the question cannot be put to: a precision they do not have."""
    texts: tuple[str, ...]
    assumptions: tuple[str, ...]


def _size_question(
    model: str | Path | ModelSpec, bounds: _Bounds, tokens: str | float, deadline: str | float, max_gpus: int | None, given: Question
) -> _SizeQuestion:
    """All faults at once; of several clusters those that fit the question stay, and the others are named."""
    from autopar.aims import read_aims
    from autopar.io.quantities import parse_duration, parse_tokens
    from autopar.sizing import MAX_GPUS, Missed, Task

    inputs, failures = _split(given, "size")
    faults: list[Fault] = []
    count = gather(faults, lambda: parse_tokens(tokens))
    seconds = gather(faults, lambda: parse_duration(deadline, field="--deadline"))
    limits = gather(faults, lambda: _constraints(*bounds))
    aims = gather(faults, lambda: read_aims("step-time", given.get("price"), failures))
    if inputs.get("gpus") is not None:
        faults.append(Fault(field="gpus", given=str(inputs["gpus"]), required="is what is asked for", fix="max_gpus bounds it"))
    if max_gpus is not None and not 1 <= max_gpus <= MAX_GPUS:
        faults.append(Fault(field="max_gpus", given=str(max_gpus), required=f"a whole number from 1 to {MAX_GPUS:,}"))
    clusters = _clusters_asked(inputs, aims)
    problems, unusable, notes = [], [], []
    for cluster in clusters:
        own: list[Fault] = []
        found = gather(own, lambda cluster=cluster: build_problem(model, **{**inputs, **cluster}))  # type: ignore[misc]
        if found is None and len(clusters) > 1 and not faults:
            name = str(cluster.get("cluster") or cluster.get("gpu"))
            unusable.append(Missed(cluster=name, device=name, reasons=tuple(map(str, own)), fastest=None))
        faults += own if found is None and len(clusters) == 1 else []
        if found is not None:
            notes += [note for note in found[1] if not note.startswith(("GPUs:", "nodes:"))]
            has_size = "gpus" not in cluster
            problems.append((found[0], max_gpus or (found[0].cluster.num_gpus if has_size else MAX_GPUS)))
            if aims is not None and aims.prices:
                gather(faults, lambda found=found: aims.needs_price(found[0].cluster))  # type: ignore[misc]
    if not problems and not faults:
        faults += [Fault(field=each.cluster, given="", required="; ".join(each.reasons)) for each in unusable]
    raise_if(faults)
    assert count is not None, "gather keeps a fault where it returns nothing"
    assert seconds is not None, "gather keeps a fault where it returns nothing"
    assert limits is not None, "gather keeps a fault where it returns nothing"
    assert aims is not None, "gather keeps a fault where it returns nothing"
    task = Task(tokens=count, deadline_seconds=seconds, max_gpus=MAX_GPUS, constraints=limits[0], aims=aims)
    return _SizeQuestion(
        model=problems[0][0].model.name,
        task=task,
        problems=tuple(problems),
        unusable=tuple(unusable),
        texts=limits[1],
        assumptions=tuple(dict.fromkeys((*notes, *aims.assumptions))),
    )


def _clusters_asked(inputs: Inputs, aims: Aims | None) -> list[Inputs]:
    """The clusters to look at, each as one node of it; a cluster that says its own size keeps it."""
    from autopar.catalog import hardware
    from autopar.request import DEFAULT_DEVICE

    named = inputs.get("cluster")
    if named is not None and (not isinstance(named, str) or named not in hardware.cluster_names()):
        return [{}]
    if named is not None:
        return [{"gpus": hardware.cluster(named, 1).gpus_per_node}]
    given = inputs.get("gpu")
    priced = [name for name in (aims.prices if aims else ()) if name]
    names = [str(given)] if given is not None else priced or [DEFAULT_DEVICE]
    asked: list[Inputs] = []
    for name in names:
        if name in hardware.cluster_names():
            asked.append({"cluster": name, "gpus": hardware.cluster(name, 1).gpus_per_node})
        else:
            home = hardware.device(name).default_cluster
            asked.append({"gpu": name, "gpus": hardware.cluster(home, 1).gpus_per_node})
    return asked


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """A question as it was understood."""

    problem: Problem
    assumptions: tuple[str, ...]
    constraints: Constraints
    texts: tuple[str, ...]
    aims: Aims


_Bounds = tuple[
    "Mapping[str, object] | Iterable[str]", "Mapping[str, int] | Iterable[str]", "Mapping[str, int] | Iterable[str]", "Iterable[str]"
]


def _posed(model: str | Path | ModelSpec, bounds: _Bounds, objective: str, given: Question) -> _Asked:
    """The question, or all its faults at once."""
    from autopar.aims import read_aims

    inputs, failures = _split(given, "plan")
    faults: list[Fault] = []
    question = gather(faults, lambda: build_problem(model, **inputs))
    limits = gather(faults, lambda: _constraints(*bounds))
    aims = gather(faults, lambda: read_aims(objective, given.get("price"), failures))
    raise_if(faults)
    assert question is not None, "gather keeps a fault where it returns nothing"
    assert limits is not None, "gather keeps a fault where it returns nothing"
    assert aims is not None, "gather keeps a fault where it returns nothing"
    (problem, assumptions), (constraints, texts) = question, limits
    return _Asked(problem=problem, assumptions=(*assumptions, *aims.assumptions), constraints=constraints, texts=texts, aims=aims)


def _split(given: Question, function: str) -> tuple[Inputs, Failures]:
    """The keywords of a call apart: what the problem is made of, and how often nodes fail."""
    from autopar.aims import FAILURE_NAMES

    inputs = cast("Inputs", {name: value for name, value in given.items() if name in Inputs.__annotations__})
    failures = cast("Failures", {name: value for name, value in given.items() if name in FAILURE_NAMES})
    unknown = sorted(set(given) - set(inputs) - set(failures) - {"price"})
    if unknown:
        raise TypeError(f"{function}() got an unexpected keyword argument {unknown[0]!r}")
    return inputs, failures


def _searched(asked: _Asked, *, top: int) -> SearchResult:
    if asked.aims.objective is Objective.MEMORY:
        from autopar.search.pareto import least_memory

        return least_memory(asked.problem, asked.constraints, top=top)
    from autopar.search import search

    return search(asked.problem, asked.constraints, top=top)


def _planned(asked: _Asked, chosen: Strategy, result: SearchResult, *, top: int) -> Plan:
    problem, aims = asked.problem, asked.aims
    best = _estimate(problem, chosen)
    goodput = _goodput(asked, chosen, best)
    return Plan(
        strategy=chosen,
        estimate=best,
        inputs=PlanInputs(
            model=problem.model,
            cluster=problem.cluster,
            training=problem.training,
            framework=problem.framework.id,
            memory_reserve_bytes=problem.memory_reserve_bytes,
            constraints=asked.texts,
            assumptions=asked.assumptions,
            calibration=problem.calibration,
            objective=aims.objective,
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
            if ranked.strategy != chosen
        )[: top - 1],
        autopar_version=__version__,
        economics=_economics(asked, best if goodput is None else goodput),
        goodput=goodput,
    )


def _goodput(asked: _Asked, chosen: Strategy, best: Estimate) -> Goodput | None:
    if asked.aims.reliability is None:
        return None
    from autopar.failures import goodput_of

    return goodput_of(asked.problem, chosen, best.step_time_seconds, asked.aims.reliability, asked.constraints)


def _economics(asked: _Asked, step: Estimate | Goodput) -> Economics | None:
    """Money and energy where either was asked about; of a kept step where failures are counted in."""
    price = asked.aims.price_of(asked.problem.cluster)
    if price is None and asked.aims.prices:
        asked.aims.needs_price(asked.problem.cluster)
    if price is None and asked.aims.objective not in (Objective.COST, Objective.ENERGY):
        return None
    from autopar.costmodel.price import economics

    return economics(asked.problem, step.expected_step_seconds if isinstance(step, Goodput) else step.step_time_seconds, price)


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


def whatif(
    model: str | Path | ModelSpec | Plan | Problem,
    *,
    strategy: Strategy | Mapping[str, object] | None = None,
    changes: Iterable[str] = ("nodes=+1", "nodes=-1", "batch=x2", "network=x0.5", "sequence=x2"),
    **inputs: Unpack[Inputs],
) -> WhatIf:
    """What becomes of a strategy, and of the plan, after each of ``changes``: a plateau, a replan or a cliff.

    Args:
        model: as for :func:`estimate`. Of a :class:`Plan` the constraints are kept; a model without a strategy is planned first.
        strategy: as for :func:`estimate`.
        changes: ``nodes=+1``, ``gpus=512``, ``batch=x2``, ``sequence=8192``, ``network=x0.5``; see :func:`autopar.perturbation.changes_of`.
        inputs: the cluster, the batch and the precision, see :class:`Inputs`.

    Raises:
        InvalidInputError: the question or a change cannot mean anything; all faults at once.
        NoPlanError: nothing fits to begin with, or the strategy does not run.
    """
    from autopar.perturbation import changes_of, what_if

    if strategy is None and not isinstance(model, Plan | Problem):
        model = plan(model, top=1, **inputs)
        inputs = {}
    problem, chosen, _ = resolve(model, strategy, **inputs)
    perturbed = changes_of(problem, changes)
    _refuse_unless_it_runs(problem, chosen)
    constraints = _parsed_constraints(model.inputs.constraints if isinstance(model, Plan) else ())
    return what_if(problem, chosen, perturbed, constraints)


def _refuse_unless_it_runs(problem: Problem, strategy: Strategy) -> None:
    from autopar.no_plan import NoPlan
    from autopar.search.feasibility import memory_fault

    now = estimate(problem, strategy=strategy)
    if now.fits:
        return
    fault = memory_fault(now.peak_memory_bytes, now.memory_capacity_bytes)
    refused = () if fault is None else (fault,)
    message = refusal_text(strategy, refused)
    raise NoPlanError(message, NoPlan(reasons=tuple(message.splitlines()), faults=refused, strategy=strategy))


def _parsed_constraints(texts: Iterable[str]) -> Constraints:
    """The constraints of a plan file back from the words it keeps them in: ``tp=8``, ``max tp=8``, ``forbid cp``."""
    words: dict[str, list[str]] = {"fix": [], "max": [], "min": [], "forbid": []}
    for text in texts:
        kind, _, rest = text.rpartition(" ")
        words[kind or "fix"].append(rest)
    return _constraints(words["fix"], words["max"], words["min"], words["forbid"])[0]


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
    from autopar.reopen import reopenings
    from autopar.report.no_plan import no_plan_text
    from autopar.search import smallest_cluster

    smallest = smallest_cluster(problem, constraints, resize=lambda gpus: resized(problem, gpus))
    reopened = reopenings(problem, constraints) if texts or not result.summary.evaluated else ()
    message = "\n".join([no_plan_text(problem, result, texts, smallest), *(f"there is a plan {each}" for each in reopened)])
    answer = NoPlan(
        reasons=tuple(message.splitlines()),
        faults=result.refused_by,
        nearest=tuple(NearMiss(strategy=miss.strategy, peak_memory_bytes=miss.peak_memory_bytes) for miss in result.nearest_misses),
        reopened_by=reopened,
        smallest_cluster=smallest and SmallestCluster(num_gpus=smallest[0].cluster.num_gpus, strategy=smallest[1].strategy),
    )
    return NoPlanError(message, answer)
