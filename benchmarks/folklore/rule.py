"""What a rule of thumb is here: a claim, a measure of it, and the verdict that follows from the measure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from typing import Any

import autopar
from autopar.accuracy import view
from autopar.api import build_problem
from autopar.costmodel.problem import Problem
from autopar.costmodel.spec.estimate import Estimate
from autopar.costmodel.spec.strategy import Strategy
from autopar.costmodel.spec.units import GIB
from autopar.search import Constraints, search


class Verdict(StrEnum):
    CONFIRMED = "confirmed"
    PARTLY = "holds in part"
    REFUTED = "refuted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a measure has to reach for its claim to be right, or miss for it to be wrong; between the two it holds in part.

    ``confirmed`` may lie above or below ``refuted``: the measure is judged in that direction.
    """

    confirmed: float
    refuted: float

    def judge(self, value: float) -> Verdict:
        sign = 1 if self.confirmed > self.refuted else -1
        if sign * value >= sign * self.confirmed:
            return Verdict.CONFIRMED
        return Verdict.REFUTED if sign * value <= sign * self.refuted else Verdict.PARTLY


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What was found about one claim."""

    verdict: Verdict
    text: str
    """What the figures say, in one or two sentences made of them."""
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    setting: str
    """Model, cluster, batch and framework of the figures."""
    text_columns: int = 1
    """How many of the first columns hold words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One piece of folklore and how it is examined."""

    name: str
    claim: str
    examine: Callable[[], Finding]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A model on a cluster; what is asked of it comes as strategies or constraints."""

    model: str
    gpus: int
    batch: int
    tokens: int
    cluster: str = "dgx-h100"
    precision: str = "bf16"
    framework: str = "megatron-core"

    @property
    def setting(self) -> str:
        return (
            f"{self.model} on {self.gpus:,} GPUs ({self.cluster}), {self.batch:,} sequences of {self.tokens:,} tokens, {self.precision},"
            f" {self.framework}"
        )

    def problem(self, **framework: Any) -> Problem:
        """The problem, with fields of the framework's profile replaced."""
        found, _ = build_problem(
            self.model,
            cluster=self.cluster,
            gpus=self.gpus,
            global_batch_size=self.batch,
            sequence_length=self.tokens,
            precision=self.precision,
            framework=self.framework,
        )
        return replace(found, framework=replace(found.framework, **framework))

    def estimate(self, *, profile: Mapping[str, Any] | None = None, **strategy: object) -> Estimate:
        """The estimate of a strategy by short names, with fields of the framework's profile replaced."""
        return autopar.estimate(self.problem(**(profile or {})), strategy=strategy)

    def best(self, *, fix: Mapping[str, Any] | None = None, at_least: Mapping[str, int] | None = None, **framework: Any) -> Best | None:
        """The fastest strategy that fits, under fixed or least sizes; None where none does."""
        key = (tuple(sorted((fix or {}).items())), tuple(sorted((at_least or {}).items())), tuple(sorted(framework.items())))
        return _best(self, *key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """A strategy and its step time."""

    strategy: Strategy
    seconds: float


@cache
def _best(
    question: Question, fix: tuple[tuple[str, Any], ...], at_least: tuple[tuple[str, int], ...], framework: tuple[tuple[str, Any], ...]
) -> Best | None:
    found = search(question.problem(**dict(framework)), Constraints(fixed=dict(fix), minimum=dict(at_least)), top=1)
    return Best(strategy=found.ranked[0].strategy, seconds=found.ranked[0].step_time_seconds) if found.ranked else None


def percent(value: float) -> str:
    """A change, signed."""
    return view.percent(value, signed=True)


def gibibytes(value: float) -> str:
    return f"{value / GIB:.1f} GiB"


def join(parts: list[str]) -> str:
    """``a, b and c``."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
