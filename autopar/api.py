"""The Python interface; the command line is a thin layer over it and gives the same results.

>>> plan = autopar.plan(model="llama3-70b", gpus=128, gpu="h100-sxm5-80gb", fix={"tp": 8})
>>> estimate = autopar.estimate(model="llama3-70b", gpus=128, strategy={"tp": 8, "pp": 4, "mbs": 1})
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from autopar.costmodel.problem import Problem
from autopar.costmodel.spec.economics import Objective
from autopar.costmodel.spec.errors import Fault, NoPlanError, raise_if
from autopar.costmodel.spec.plan import Plan
from autopar.costmodel.spec.strategy import Strategy
from autopar.io.plan_file import read_plan, write_plan
from autopar.question import (
    Inputs,
    Question,
    Wanted,
    constraints_of,
    effort_of,
    posed,
    refuse_uneven_memory,
    refuse_unfinished,
    size_question,
)  # fmt: skip
from autopar.request import build_problem, gather, problem_of

if TYPE_CHECKING:
    from autopar.comparison import Comparison
    from autopar.costmodel.spec.estimate import Estimate
    from autopar.costmodel.spec.model import ModelSpec
    from autopar.explanation import Explanation
    from autopar.frontier import ParetoFront
    from autopar.io.pools import PoolFile
    from autopar.mixed_explanation import MixedExplanation
    from autopar.perturbation import WhatIf
    from autopar.search import Progress
    from autopar.sizing import Sizing

__all__ = [
    "Inputs",
    "Question",
    "build_problem",
    "compare",
    "estimate",
    "explain",
    "faults",
    "pareto",
    "plan",
    "problem_of",
    "read_plan",
    "size",
    "whatif",
    "write_plan",
]


def plan(
    model: str | Path | ModelSpec,
    *,
    top: int = 5,
    fix: Mapping[str, int | str | bool] | Iterable[str] = (),
    maximum: Mapping[str, int] | Iterable[str] = (),
    minimum: Mapping[str, int] | Iterable[str] = (),
    forbid: Iterable[str] = (),
    objective: str = "step-time",
    stages: str = "even",
    time_limit: str | float | None = None,
    progress: Callable[[Progress], None] | None = None,
    pools: Mapping[str, int] | Iterable[str] | None = None,
    between: str | float | None = None,
    pools_as: str = "any",
    search: str = "auto",
    seed: int = 0,
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
        stages: ``even``; ``uneven`` also places layers stage by stage, and the plan says what could be left to gain; ``exact``
            lets OR-Tools prove it where it can.
        time_limit: seconds, or ``"30s"``: the best of what was seen by then.
        progress: told how far the search is, some ten times a second.
        pools: in place of a cluster: GPUs of several types, ``{"h100": 64, "a100-40gb": 64}``. Stages are sized to their device and
            micro-batches to the speed of a replica, whichever is faster. A cluster file with ``[[pools]]`` says the same.
        between: bytes/s of a GPU between pools, one direction, or ``"25GB/s"``; the slower pool's network if left out.
        pools_as: ``stages`` (one pipeline runs through the pools), ``replicas`` (each pool has its own, with micro-batches by speed: no
            framework runs it) or ``any``.
        search: of pools, whether every use of them is looked at: ``auto``, ``exact`` or ``genetic``.
        seed: of the genetic search; the same seed gives the same plan.
        inputs: the cluster, the batch and the precision, prices and failures, see :class:`Inputs` and :class:`Question`.

    Raises:
        InvalidInputError: the question cannot mean anything; all its faults at once.
        NoPlanError: nothing fits; says the smallest number of GPUs that would hold the model, and what uses the memory. Or failures
            leave no progress.
        UnavailableError: energy is asked for, and the device has no power figure.

    >>> autopar.plan("gpt-175b", gpus=256).strategy.describe()
    """
    from autopar.planning import LOOKED_AT, nothing_fits, planned, replaced, searched, sure_enough
    from autopar.runnable import that_run

    of_file = pools_of_file(inputs.get("cluster")) if pools is None else None
    if pools is not None or of_file is not None:
        from autopar.mixed import plan_pools

        if of_file is not None:
            inputs.pop("cluster")
        return plan_pools(
            model,
            pools or of_file or (),
            between,
            (fix, maximum, minimum, forbid),
            inputs,
            objective=objective,
            effort=effort_of(stages, time_limit, progress),
            pools_as=pools_as,
            method=search,
            seed=seed,
            top=max(top, 1),
        )
    faults: list[Fault] = []
    if between is not None:
        fix = "for example pools={'h100': 64, 'a100': 64}"
        faults.append(Fault(field="between", given=str(between), required="is the network between pools, and none are given", fix=fix))
    effort = gather(faults, lambda: effort_of(stages, time_limit, progress))
    asked = gather(faults, lambda: posed(model, (fix, maximum, minimum, forbid), objective, inputs))
    raise_if(faults)
    assert effort is not None, "gather keeps a fault where it returns nothing"
    assert asked is not None, "gather keeps a fault where it returns nothing"
    if asked.aims.objective is Objective.COST:
        asked.aims.needs_price(asked.problem.cluster)
    if asked.aims.objective is Objective.MEMORY:
        refuse_uneven_memory(effort, "the strategy with the least memory")
    most = max(top, LOOKED_AT) * len(asked.problem.framework.rank_orders)  # of each strategy one order is told
    result = searched(asked, effort, top=most)
    if result.best is None:
        refuse_unfinished(effort, interrupted=result.summary.interrupted)
        raise nothing_fits(asked.problem, asked.constraints, result, asked.texts)
    asked, result = replaced(asked, result, effort, top=most)
    kept, passed_over = that_run(asked.problem, result.ranked)
    chosen, risk, result = kept[0], "", replace(result, ranked=kept)
    if asked.aims.objective is not Objective.MEMORY:
        chosen, risk = sure_enough(asked.problem, kept)
    told = replace(asked, assumptions=(*asked.assumptions, *(note for note in (passed_over, risk) if note)))
    return planned(told, chosen.strategy, result, top=max(top, 1))


def pools_of_file(cluster: object) -> PoolFile | None:
    """What a cluster file says of its pools; None where ``cluster`` is no such file."""
    from autopar.catalog import hardware
    from autopar.request import is_file

    if not isinstance(cluster, str | Path) or not is_file(cluster, hardware.cluster_names()) or not hardware.has_pools(cluster):
        return None
    return hardware.read_pool_file(cluster)


def pareto(
    model: str | Path | ModelSpec,
    axes: str | Iterable[str] = ("time", "memory"),
    *,
    fix: Mapping[str, int | str | bool] | Iterable[str] = (),
    maximum: Mapping[str, int] | Iterable[str] = (),
    minimum: Mapping[str, int] | Iterable[str] = (),
    forbid: Iterable[str] = (),
    stages: str = "even",
    time_limit: str | float | None = None,
    progress: Callable[[str], None] | None = None,
    **inputs: Unpack[Question],
) -> ParetoFront:
    """Every plan that no other beats on all of ``axes`` at once: time, gpus, memory, cost, energy.

    With ``gpus``, ``cost`` or ``energy`` among them, numbers of GPUs up to ``gpus=`` are compared, else strategies on that number.

    Args:
        model: as for :func:`plan`, and so the constraints and the inputs.
        axes: two or more, ``"time,memory"`` or a sequence; cost needs ``price=``.
        stages, time_limit: as for :func:`plan`; a front of memory is of even stages.
        progress: called with a line for each number of GPUs that was planned for.

    Raises:
        InvalidInputError: the question cannot mean anything; all its faults at once.
        NoPlanError: nothing fits on any number of GPUs looked at.
        UnavailableError: energy is asked for, and the device has no power figure.

    >>> autopar.pareto("llama3-8b", "time,gpus,cost", gpus=64, price="2.5 USD").points
    """
    from autopar.frontier import Axis, pareto_front, read_axes
    from autopar.planning import nothing_fits, searched

    faults: list[Fault] = []
    chosen = gather(faults, lambda: read_axes(axes)) or ()
    effort = gather(faults, lambda: effort_of(stages, time_limit))
    if effort is not None and Axis.MEMORY in chosen:
        gather(faults, lambda: refuse_uneven_memory(effort, "a front of memory"))
    asked = gather(faults, lambda: posed(model, (fix, maximum, minimum, forbid), "step-time", inputs))
    if asked is not None and (Axis.COST in chosen or asked.aims.prices):
        gather(faults, lambda: asked.aims.needs_price(asked.problem.cluster))
    raise_if(faults)
    assert effort is not None, "gather keeps a fault where it returns nothing"
    assert asked is not None, "gather keeps a fault where it returns nothing"
    front = pareto_front(asked, chosen, effort, progress)
    if not front.points:
        refuse_unfinished(effort, interrupted=front.interrupted)
        raise nothing_fits(asked.problem, asked.constraints, searched(asked, effort, top=5), asked.texts)
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
    stages: str = "even",
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
        stages: as for :func:`plan`, on every number of GPUs that is planned for.
        progress: called with a line for each number of GPUs that was planned for.

    Raises:
        InvalidInputError: the question cannot mean anything; all its faults at once.
        NoPlanError: no number of GPUs meets the deadline on any of the clusters: says why, and the least change that does.

    >>> autopar.size("llama3-70b", tokens="15T", deadline="60d", price={"h100-sxm5-80gb": 2.5, "b200-sxm": 5}).clusters[0].fewest
    """
    from autopar.sizing import Sized, Sizing, in_order, missed_text, size_on

    wanted = Wanted(tokens=tokens, deadline=deadline, max_gpus=max_gpus, stages=stages)
    asked = size_question(model, (fix, maximum, minimum, forbid), wanted, inputs)
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
    from autopar.costmodel.estimate import estimate as cost
    from autopar.no_plan import NoPlan, refusal_text

    if isinstance(model, Plan) and model.mixed is not None and strategy is None:
        from autopar.mixed_problem import estimate_of

        return estimate_of(model)
    problem, chosen, _ = resolve(model, strategy, **inputs)
    refused = faults(problem, chosen)
    if refused:
        message = refusal_text(chosen, refused)
        raise NoPlanError(message, NoPlan(reasons=tuple(message.splitlines()), faults=refused, strategy=chosen))
    return cost(problem, chosen)


def explain(
    model: str | Path | ModelSpec | Plan | Problem, *, strategy: Strategy | Mapping[str, object] | None = None, **inputs: Unpack[Inputs]
) -> Explanation | MixedExplanation:
    """Where the time and the memory of one strategy go, the rules that refuse it, and the changes that would help.

    Takes what :func:`estimate` takes; a strategy that is refused is explained, not raised. Of a plan for a mixed cluster: the load of every
    pool's stages, and what near uses of the pools would take.
    """
    from autopar.explanation import explain_strategy

    if isinstance(model, Plan) and model.mixed is not None and strategy is None:
        from autopar.mixed_explanation import explain_mixed

        return explain_mixed(model)

    problem, chosen, _ = resolve(model, strategy, **inputs)
    return explain_strategy(problem, chosen)


def compare(
    plans: Iterable[str | Path | Plan | tuple[Problem, Strategy]],
    *,
    price_per_gpu_hour: float | Iterable[float] | None = None,
    tokens: float | None = None,
) -> Comparison:
    """Plans side by side, each estimated by this release; the first is the one that the others are measured against.

    Args:
        plans: plan files, plans, or pairs of a problem and a strategy.
        price_per_gpu_hour: what one GPU costs an hour, for all plans or for each; without it no cost is told.
        tokens: length of the training run, for days and total cost.

    Raises:
        InvalidInputError: files that cannot be read as plans, all of them at once; or fewer than two plans.
        NoPlanError: rules refuse the strategy of some plan.

    >>> autopar.compare(["a.json", "b.json"], price_per_gpu_hour=2.5, tokens=15e12).plans[1].slower_than_first
    """
    from autopar.candidates import candidates
    from autopar.comparison import Prices
    from autopar.comparison import compare as side_by_side

    asked = candidates(plans)
    given = () if price_per_gpu_hour is None else price_per_gpu_hour
    per_hour = (float(given),) if isinstance(given, int | float) else tuple(given)
    return side_by_side(asked, Prices(per_gpu_hour=per_hour, tokens=tokens))


def whatif(
    model: str | Path | ModelSpec | Plan | Problem,
    *,
    strategy: Strategy | Mapping[str, object] | None = None,
    changes: Iterable[str] = ("nodes=+1", "nodes=-1", "batch=x2", "network=x0.5", "sequence=x2"),
    stages: str = "even",
    **inputs: Unpack[Inputs],
) -> WhatIf:
    """What becomes of a strategy, and of the plan, after each of ``changes``: a plateau, a replan or a cliff.

    Args:
        model: as for :func:`estimate`. Of a :class:`Plan` the constraints are kept; a model without a strategy is planned first.
        strategy: as for :func:`estimate`.
        changes: ``nodes=+1``, ``gpus=512``, ``batch=x2``, ``sequence=8192``, ``network=x0.5``; see :func:`autopar.perturbation.changes_of`.
        stages: as for :func:`plan`: what the new plans, and one made first, may do with their layers.
        inputs: the cluster, the batch and the precision, see :class:`Inputs`.

    Raises:
        InvalidInputError: the question or a change cannot mean anything; all faults at once.
        NoPlanError: nothing fits to begin with, or the strategy does not run.
    """
    from autopar.perturbation import changes_of, what_if

    effort = effort_of(stages)
    if strategy is None and not isinstance(model, Plan | Problem):
        model = plan(model, top=1, stages=stages, **inputs)
        inputs = {}
    problem, chosen, _ = resolve(model, strategy, **inputs)
    perturbed = changes_of(problem, changes)
    _refuse_unless_it_runs(problem, chosen)
    constraints = constraints_of(model.inputs.constraints if isinstance(model, Plan) else ())
    return what_if(problem, chosen, perturbed, constraints, effort.stages)


def _refuse_unless_it_runs(problem: Problem, strategy: Strategy) -> None:
    from autopar.no_plan import NoPlan, refusal_text
    from autopar.search.feasibility import memory_fault

    now = estimate(problem, strategy=strategy)
    if now.fits:
        return
    fault = memory_fault(now.peak_memory_bytes, now.memory_capacity_bytes)
    refused = () if fault is None else (fault,)
    message = refusal_text(strategy, refused)
    raise NoPlanError(message, NoPlan(reasons=tuple(message.splitlines()), faults=refused, strategy=strategy))


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
            make_strategy({name: getattr(strategy, name) for name in strategy.__slots__}, world_size=problem.cluster.num_gpus),
            assumptions,
        )
    return problem, make_strategy(strategy or {}, world_size=problem.cluster.num_gpus, framework=problem.framework), assumptions


def faults(problem: Problem, strategy: Strategy) -> tuple[Fault, ...]:
    """Every rule that refuses ``strategy``, with the numbers behind it and the smallest fix."""
    from autopar.search.feasibility import faults as broken_rules

    return broken_rules(problem, strategy)
