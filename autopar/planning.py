"""From a search to the plan that is handed out, or to the answer no."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from autopar import __version__
from autopar.costmodel.estimate import UNSURE, estimate, memory_probability
from autopar.costmodel.spec.economics import Objective
from autopar.costmodel.spec.errors import NoPlanError
from autopar.costmodel.spec.goodput import Goodput
from autopar.costmodel.spec.plan import Alternative, Plan, PlanInputs
from autopar.costmodel.spec.strategy import RankOrder, Strategy
from autopar.request import resized

if TYPE_CHECKING:
    from autopar.costmodel.problem import Problem
    from autopar.costmodel.spec.economics import Economics
    from autopar.costmodel.spec.estimate import Estimate
    from autopar.question import Asked, Effort
    from autopar.search import Constraints, Ranked, SearchResult


LOOKED_AT = 10
"""Strategies that a plan is chosen from and its runners-up are of, or as many as are asked for."""
SURE = UNSURE[1]
"""A strategy that fits with this probability fits surely."""
WORTH_A_RISK = 0.02
"""What a strategy that does not has to be faster by, as a share of the step time, to be preferred to one that does.

Below it no prediction tells two strategies apart, and running out of memory does.
"""


def searched(asked: Asked, effort: Effort, *, top: int) -> SearchResult:
    """The ``top`` strategies by the objective of ``asked``. Money and rated energy follow the step time on one number of GPUs."""
    if asked.aims.objective is Objective.MEMORY:
        from autopar.search.pareto import least_memory

        return least_memory(asked.problem, asked.constraints, top=top, watch=effort.watch)
    from autopar.search import search

    return search(asked.problem, asked.constraints, top=top, stages=effort.stages, watch=effort.watch)


def replaced(asked: Asked, result: SearchResult, effort: Effort, *, top: int) -> tuple[Asked, SearchResult]:
    """The question with its hosts in the order that suits the best strategy, searched again where that order is another one.

    The second search stands where its best is faster: what it found is found under the new order, runners-up included.
    """
    if result.best is None or asked.problem.cluster.hosts is None or result.summary.interrupted:
        return asked, result
    from autopar.placing import SAME_TIME, better_order

    problem = better_order(asked.problem, result.best)
    if problem is None:
        return asked, result
    moved = replace(asked, problem=problem)
    again = searched(moved, effort, top=top)
    if again.best is None or again.ranked[0].step_time_seconds >= result.ranked[0].step_time_seconds * (1 - SAME_TIME):
        return asked, result
    return moved, again


def planned(asked: Asked, chosen: Strategy, result: SearchResult, *, top: int) -> Plan:
    """The plan of ``chosen`` with the other strategies of ``result`` as runners-up.

    Raises:
        NoPlanError: failures leave no progress.
        UnavailableError: energy is asked for, and the device has no power figure.
    """
    from autopar.placing import placement_of

    problem, aims = asked.problem, asked.aims
    best = estimate(problem, chosen)
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
            measured=None if problem.measured is None else problem.measured.profile,
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
            for ranked in runners_up(result.ranked, chosen)[: top - 1]
        ),
        autopar_version=__version__,
        economics=_economics(asked, best if goodput is None else goodput),
        goodput=goodput,
        placement=placement_of(problem, chosen),
    )


def sure_enough(problem: Problem, ranked: Sequence[Ranked]) -> tuple[Ranked, str]:
    """The fastest, unless it may well not fit and one that is hardly slower fits surely; and what was passed over, in words.

    Where the fastest that fits surely is too slow for that, it is named.
    """
    best = ranked[0]
    capacity = float(problem.cluster.device.memory_bytes)
    risk = memory_probability(problem, best.peak_memory_bytes, capacity)
    if risk is None or risk >= SURE:
        return best, ""
    for each in ranked:
        probability = memory_probability(problem, each.peak_memory_bytes, capacity)
        if probability is None or probability < SURE:
            continue
        if each.step_time_seconds <= best.step_time_seconds * (1 + WORTH_A_RISK):
            gain = 1 - best.step_time_seconds / each.step_time_seconds
            faster, sure = f"{best.strategy.describe()} is {gain:.1%} faster", f"fits with probability {risk:.0%}, this one with"
            return each, f"memory: {faster} and {sure} {probability:.0%}"
        loss = each.step_time_seconds / best.step_time_seconds - 1
        slower, sure = f"{each.strategy.describe()} is {loss:.1%} slower", f"fits with probability {probability:.0%}, this one with"
        return best, f"memory: {slower} and {sure} {risk:.0%}"
    return best, ""


def runners_up(ranked: Sequence[Ranked], chosen: Strategy) -> list[Ranked]:
    """The others of ``ranked``; a strategy that differs from a faster one in the order of its ranks alone is not told again."""
    seen, kept, is_ahead = {_unordered(chosen)}, [], True
    for each in ranked:
        is_ahead &= each.strategy != chosen
        if _unordered(each.strategy) not in seen:
            seen.add(_unordered(each.strategy))
            kept.append(replace(each, tie=each.tie or is_ahead))
    return kept


def _unordered(strategy: Strategy) -> Strategy:
    return replace(strategy, rank_order=RankOrder.TP_CP_DP_PP)


def _goodput(asked: Asked, chosen: Strategy, best: Estimate) -> Goodput | None:
    if asked.aims.reliability is None:
        return None
    from autopar.failures import goodput_of

    return goodput_of(asked.problem, chosen, best.step_time_seconds, asked.aims.reliability, asked.constraints)


def _economics(asked: Asked, step: Estimate | Goodput) -> Economics | None:
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

    return separating_measurement(best.time, estimate(problem, other.strategy).time)


def nothing_fits(problem: Problem, constraints: Constraints, result: SearchResult, texts: tuple[str, ...]) -> NoPlanError:
    """The answer no, with the smallest number of GPUs that would do and what would give the space a plan."""
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
