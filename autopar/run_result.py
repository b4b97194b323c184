"""What ``autopar run`` is asked, and what it answers; needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

RUN_SCHEMA_VERSION = "1.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What ``autopar run`` was asked for beside the plan."""

    steps: int = 20
    warmup_steps: int = 2
    data: str = "synthetic"
    model: Path | None = None
    device: str | None = None
    learning_rate: float = 3e-4
    max_grad_norm: float | None = None
    seed: int = 0
    save: Path | None = None
    save_every: int = 0
    """Steps between two checkpoints; 0: after the last step alone."""
    resume: Path | None = None
    timeout_seconds: float = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What a run took, and how its loss went."""

    strategy: str
    model: str
    device: str
    world_size: int
    first_step: int
    steps: int
    first_loss: float
    last_loss: float
    step_time_seconds: float
    """Median over the steps after the warm-up, each as long as its slowest rank took."""
    step_seconds: tuple[float, ...]
    tokens_per_second: float
    tokens_per_second_per_gpu: float
    mfu: float | None
    """None on a device that the plan was not made for."""
    planned_step_time_seconds: float
    planned_peak_memory_bytes: float
    peak_memory_bytes: tuple[int, ...]
    memory_kind: str
    checkpoint: str | None
    notes: tuple[str, ...]
    schema_version: str = RUN_SCHEMA_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One strategy that was tried."""

    strategy: str
    failure: str
    """Why it has no result; "" where it has one."""
    result: RunResult | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Strategies of one plan that were run one after the other."""

    best: int | None
    """Index of the fastest; None where none ran."""
    contenders: tuple[Contender, ...]
    schema_version: str = RUN_SCHEMA_VERSION

    @classmethod
    def of(cls, contenders: Sequence[Contender]) -> Comparison:
        times = {index: each.result.step_time_seconds for index, each in enumerate(contenders) if each.result is not None}
        return cls(best=min(times, key=lambda index: times[index], default=None), contenders=tuple(contenders))
