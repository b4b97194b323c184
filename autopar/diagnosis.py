"""What a run costs today, what it should cost, what explains the difference, and what to change first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from autopar.costmodel.estimate import estimate
from autopar.costmodel.spec.errors import AutoparError, Fault
from autopar.costmodel.spec.estimate import Estimate, TimeBreakdown
from autopar.costmodel.spec.strategy import Recompute, Strategy
from autopar.explanation import WORTHWHILE, Change, single_changes, two_changes
from autopar.search.feasibility import MEMORY, faults, memory_fault

if TYPE_CHECKING:
    from autopar.costmodel.problem import Problem

DIAGNOSIS_SCHEMA_VERSION = "1.0"
MAX_CHANGES = 5
"""Changes told of each kind."""
NEVER = 1e6
"""A term that would have to grow more often than this explains nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One thing that may be otherwise than the estimate takes it, and the step time it would make."""

    cause: str
    step_time_seconds: float
    share_of_difference: float
    """Of the difference between measured and estimated: 1 explains all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TermFactor:
    """How many times its estimate one term of the step would have to take to explain the difference alone."""

    term: str
    estimated_seconds: float
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """A change of the plan and what it saves. ``expected_seconds`` scales the measured step as the estimates scale."""

    change: Change
    saved_share: float
    expected_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """``within_interval``: the measured step lies where 9 in 10 comparable runs do; None where nothing was measured."""

    strategy: Strategy
    refused_by: tuple[Fault, ...]
    rules: tuple[str, ...]
    estimate: Estimate | None
    measured_step_time_seconds: float | None
    within_interval: bool | None
    causes: tuple[Cause, ...]
    """What would explain the difference, the nearest to the measured time first; nothing without a measurement."""
    terms: tuple[TermFactor, ...]
    one_change: tuple[Gain, ...]
    two_changes: tuple[Gain, ...]
    schema_version: str = DIAGNOSIS_SCHEMA_VERSION

    @property
    def best(self) -> Strategy | None:
        """The fastest of the changes; None where none is worth while."""
        gains = (*self.one_change[:1], *self.two_changes[:1])
        return min(gains, key=lambda gain: gain.expected_seconds).change.strategy if gains else None


def diagnose(problem: Problem, strategy: Strategy, *, measured_seconds: float | None = None) -> Diagnosis:
    """Estimate, causes of the difference to what was measured, and the best changes of one knob and of two.

    Args:
        problem: what is trained, on what, under which framework.
        strategy: how it is trained today.
        measured_seconds: what a step takes; None where it is not known.
    """
    refused = faults(problem, strategy)
    now = None if refused else estimate(problem, strategy)
    too_large = memory_fault(now.peak_memory_bytes, now.memory_capacity_bytes) if now is not None and not now.fits else None
    reference = now.step_time_seconds if now is not None else None
    interval = now.step_time_interval if now is not None else None
    known = measured_seconds is not None and now is not None
    runs = too_large is None or measured_seconds is not None  # what was measured has run, whatever its memory is estimated at
    return Diagnosis(
        strategy=strategy,
        refused_by=refused + ((too_large,) if too_large is not None else ()),
        rules=(MEMORY,) if too_large is not None else (),
        estimate=now,
        measured_step_time_seconds=measured_seconds,
        within_interval=interval.low <= measured_seconds <= interval.high if interval and measured_seconds is not None else None,
        causes=tuple(_causes(problem, strategy, reference, measured_seconds)) if known and reference and measured_seconds else (),
        terms=tuple(_terms(now, measured_seconds)) if now is not None and measured_seconds is not None else (),
        one_change=_gains(single_changes(problem, strategy), reference, measured_seconds, only_faster=runs),
        two_changes=_gains(two_changes(problem, strategy), reference, measured_seconds, only_faster=runs),
    )


def _gains(changes: Iterator[Change], now: float | None, measured: float | None, *, only_faster: bool) -> tuple[Gain, ...]:
    scale = measured / now if measured is not None and now else 1.0
    limit = now * (1 - WORTHWHILE) if now is not None and only_faster else float("inf")
    better = sorted((c for c in changes if c.fits and c.step_time_seconds < limit), key=lambda change: change.step_time_seconds)
    return tuple(
        Gain(
            change=change,
            saved_share=1 - change.step_time_seconds / now if now else 0.0,
            expected_seconds=change.step_time_seconds * scale,
        )
        for change in better[:MAX_CHANGES]
    )


def _terms(now: Estimate, measured: float) -> Iterator[TermFactor]:
    """The terms, those first that would have to change least; none where the term would have to be negative."""
    difference = measured - now.step_time_seconds
    found = []
    for field in fields(TimeBreakdown):
        seconds = getattr(now.time, field.name)
        factor = (seconds + difference) / seconds if seconds > 0 else NEVER
        if 0 <= factor < NEVER:
            found.append(TermFactor(term=field.name, estimated_seconds=seconds, factor=factor))
    yield from sorted(found, key=lambda term: max(term.factor, 1 / term.factor if term.factor else NEVER))[:MAX_CHANGES]


def _causes(problem: Problem, strategy: Strategy, estimated: float, measured: float) -> Iterator[Cause]:
    """Known ways in which a run differs from its estimate, each estimated anew, the nearest to the measured time first."""
    difference = measured - estimated
    found: list[Cause] = []
    for cause, changed, alike in _otherwise(problem, strategy):
        try:
            seconds = estimate(changed, alike).step_time_seconds
        except AutoparError:
            continue
        moved = seconds - estimated
        if moved * difference > 0 and abs(moved) > WORTHWHILE * estimated:
            found.append(Cause(cause=cause, step_time_seconds=seconds, share_of_difference=moved / difference))
    yield from sorted(found, key=lambda cause: abs(cause.step_time_seconds - measured))[:MAX_CHANGES]


def _otherwise(problem: Problem, strategy: Strategy) -> Iterator[tuple[str, Problem, Strategy]]:
    """The problem with one thing otherwise, in words."""
    own = problem.framework
    for cause, changes in (
        ("gradients are reduced without overlap (--overlap-grad-reduce missing, or CUDA_DEVICE_MAX_CONNECTIONS)", {"data_overlap": 0.0}),
        ("parameters are gathered without overlap (--overlap-param-gather missing)", {"param_gather_overlap": 0.0}),
        ("parameters and gradients move without overlap", {"data_overlap": 0.0, "param_gather_overlap": 0.0, "sharded_overlap": 0.0}),
        ("tensor-parallel communication does not overlap", {"tensor_overlap_forward": 0.0, "tensor_overlap_backward": 0.0}),
        ("stages wait for their neighbours' tensors", {"pipeline_overlap": 0.0}),
        ("context-parallel exchange does not overlap", {"context_overlap": 0.0}),
        ("attention is not fused", {"fused_attention": False}),
        ("kernels are launched at half the speed (slow or busy hosts)", {"host_launch_factor": own.host_launch_factor * 2}),
        ("the busiest expert rank gets twice the mean", {"expert_imbalance": own.expert_imbalance * 2}),
        ("stragglers: each doubling of the nodes costs 5 %", {"straggler_fraction_per_doubling": 0.05}),
        ("matrix products run a quarter slower (clocks, power, other kernels)", {"gemm_share": own.gemm_share * 0.75}),
        ("matrix products run a quarter faster", {"gemm_share": own.gemm_share * 1.25}),
        ("all communication overlaps", {"data_overlap": 1.0, "param_gather_overlap": 1.0, "tensor_overlap_forward": 1.0,
                                        "tensor_overlap_backward": 1.0, "pipeline_overlap": 1.0, "context_overlap": 1.0}),
    ):  # fmt: skip
        yield cause, replace(problem, framework=replace(own, **changes)), strategy
    for part in (0.5, 0.25):
        if problem.cluster.num_nodes > 1:
            slower = replace(problem, cluster=problem.cluster.with_network_scaled(part))
            yield f"the network gives {part:.0%} of its bandwidth", slower, strategy
    if strategy.recompute is not Recompute.FULL:
        yield (
            "every layer is recomputed",
            problem,
            replace(strategy, recompute=Recompute.FULL, num_recompute_layers=0, recompute_modules=()),
        )
