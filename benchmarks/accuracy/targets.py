"""What the cost model is asked to reach on the public rows, and what it reaches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autopar.accuracy.cases import Case
from autopar.accuracy.metrics import ErrorSummary
from autopar.accuracy.runs import Run
from autopar.accuracy.score import Accuracy, comparable_set
from autopar.accuracy.view import RankingMean, figure, percent


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A set of rows and the mean absolute error asked of it; ``families`` are those of its rows."""

    name: str
    families: tuple[str, ...]
    limit: float
    choose: Callable[[Run], bool] | None = None
    """Which rows of the families; None for all."""

    def of(self, accuracy: Accuracy, *, memory: bool = False) -> ErrorSummary:
        """The errors of this target's rows."""
        errors = [
            prediction.memory_error if memory else prediction.time_error
            for case, prediction in zip(accuracy.cases, accuracy.predictions, strict=True)
            if self.holds(case)
        ]
        return ErrorSummary.of([error for error in errors if error is not None])

    def holds(self, case: Case) -> bool:
        """Whether the row is one of this target's."""
        return case.run.family in self.families and (self.choose is None or self.choose(case.run))


TIME_TARGETS = (
    Target(name="vtrain1: vTrain, one node", families=("vtrain1",), limit=0.06),
    Target(name="vtrainN: vTrain, several nodes", families=("vtrainN",), limit=0.08),
    Target(name="Korthikanti 2022, table 5", families=("paper-kort",), limit=0.03),
    Target(name="Narayanan 2021, table 1", families=("paper-meg21_T1",), limit=0.05),
    Target(name="BLOOM on A100", families=("bloom-a100",), limit=0.08),
    Target(name="llm-foundry", families=("foundry",), limit=0.08),
    Target(name="dgxc, BF16", families=("dgxc",), limit=0.08, choose=lambda run: run.precision == "bf16"),
    Target(name="dgxc, FP8", families=("dgxc",), limit=0.12, choose=lambda run: "fp8" in run.precision),
    Target(name="MLPerf", families=("mlperf-gpt3", "mlperf-llama31-405b"), limit=0.12),
    Target(name="Megatron-Bridge, dense", families=("mbridge",), limit=0.12, choose=lambda run: not run.num_experts),
    Target(name="Megatron-Bridge, MoE", families=("mbridge",), limit=0.18, choose=lambda run: bool(run.num_experts)),
    Target(name="own steps on H200", families=("h200-step", "h200-hf_step"), limit=0.04),
)
MEMORY_TARGETS = (
    Target(name="own steps on H200", families=("h200-step", "h200-hf_step"), limit=0.03),
    Target(name="BLOOM on A100", families=("bloom-a100",), limit=0.08),
)
NO_TARGET = "-"


def verdict(value: float | None, limit: float, *, at_least: bool = False) -> str:
    """``yes``, ``no``, or a dash where there is nothing to judge."""
    if value is None:
        return NO_TARGET
    return "yes" if (value >= limit if at_least else value <= limit) else "**no**"


def ranking_rows(accuracy: Accuracy) -> list[tuple[str, ...]]:
    """Figure, target, reached and verdict, for the ranking of vTrain's grids."""
    found = {family: _rankings(accuracy, family) for family in ("vtrainN", "vtrain1")}
    grids, groups = found["vtrainN"], found["vtrain1"]
    return [
        ("vtrainN: mean regret", "1 %", percent(grids.regret), verdict(grids.regret, 0.01)),
        ("vtrainN: lowest Spearman", "0.9", figure(grids.worst_spearman), verdict(grids.worst_spearman, 0.9, at_least=True)),
        ("vtrainN: pairs ordered right", "97 %", percent(grids.pairwise), verdict(grids.pairwise, 0.97, at_least=True)),
        ("vtrain1: mean regret", "3 %", percent(groups.regret), verdict(groups.regret, 0.03)),
    ]


def _rankings(accuracy: Accuracy, family: str) -> RankingMean:
    names = {comparable_set(case.run) for case in accuracy.cases if case.run.family == family}
    return RankingMean.of([each for each in accuracy.ranking if each.group in names])
