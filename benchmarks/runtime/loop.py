"""The whole loop on this machine: profile it, plan for two ranks, run the plan's best and some bad strategies, compare.

The planner is right if what it predicts is what is measured, and if its first choice is the fastest there is.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from autopar.api import plan as find_plan
from autopar.catalog.cpu import cpu_cluster
from autopar.costmodel.spec.strategy import Strategy
from autopar.plan_choice import strategies
from autopar.runtime.structure import read_structure
from autopar.runtime.support import training_faults
from autopar.torch_models import spec_of

from . import task
from .overhead import engine_step
from .timing import Turn, in_turns

if TYPE_CHECKING:
    from autopar.costmodel.spec.plan import Plan

BEST = 6
BAD = 3
CANDIDATES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One strategy, predicted and measured."""

    rank: int
    """Its place in the plan, from 1."""
    strategy: str
    predicted_seconds: float
    measured_seconds: float
    spread: float
    """Half the interquartile range of the rounds, over the median."""

    @property
    def error(self) -> float:
        return self.predicted_seconds / self.measured_seconds - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """What came of it. ``profile`` says what the prediction rests on."""

    profile: str
    candidates: int
    tried: tuple[Tried, ...]

    @property
    def mean_error(self) -> float:
        """Mean of the absolute relative errors."""
        return statistics.fmean(abs(each.error) for each in self.tried)

    @property
    def regret(self) -> float:
        """How much slower the plan's first is than the fastest that was tried."""
        return self.tried[0].measured_seconds / min(each.measured_seconds for each in self.tried) - 1


def make_plan(profile: Path | None, cluster: Path | None) -> Plan:
    """The plan for this machine's ranks, with all strategies that were evaluated as alternatives."""
    inputs: dict[str, Any] = {"cluster": str(cluster) if cluster is not None else cpu_cluster(task.RANKS)}
    if profile is not None:
        inputs["profile"] = profile
    return find_plan(
        spec_of(task.model()),
        top=CANDIDATES,
        global_batch_size=task.GLOBAL_BATCH_SIZE,
        sequence_length=task.SEQUENCE_LENGTH,
        precision="fp32",
        framework="autopar",
        **inputs,
    )


def chosen(plan: Plan) -> list[tuple[int, Strategy, float]]:
    """The plan's best strategies that the runtime can run, and bad ones from its middle and end: (place, strategy, seconds)."""
    model = task.model()
    structure = read_structure(model)
    training = plan.inputs.training
    seconds = (plan.estimate.step_time_seconds, *(other.step_time_seconds for other in plan.alternatives))
    runnable = [
        (place, strategy, predicted)
        for place, (strategy, predicted) in enumerate(zip(strategies(plan, len(seconds)), seconds, strict=True), start=1)
        if not training_faults(model, structure, strategy, global_batch_size=training.global_batch_size, precision=training.precision)
    ]
    rest = runnable[BEST:]
    bad = [rest[(index + 1) * len(rest) // BAD - 1] for index in range(BAD)] if len(rest) >= BAD else rest
    return [*runnable[:BEST], *bad]


def measure(plan: Plan, profile: str, *, rounds: int, steps_per_turn: int) -> Loop:
    """Run what :func:`chosen` names, on the ranks of this job."""
    tried = chosen(plan)
    turns = in_turns({str(place): engine_step(strategy) for place, strategy, _ in tried}, rounds=rounds, steps_per_turn=steps_per_turn)
    return Loop(
        profile=profile,
        candidates=1 + len(plan.alternatives),
        tried=tuple(_tried(place, strategy, predicted, turns[str(place)]) for place, strategy, predicted in tried),
    )


def _tried(place: int, strategy: Strategy, predicted: float, turns: Sequence[Turn]) -> Tried:
    seconds = [turn.seconds for turn in turns]
    low, median, high = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else (seconds[0],) * 3
    return Tried(
        rank=place,
        strategy=strategy.describe(),
        predicted_seconds=predicted,
        measured_seconds=statistics.median(seconds),
        spread=(high - low) / 2 / median,
    )


torch.set_num_threads(1)
