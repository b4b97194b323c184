"""The answer no, as data: why there is no plan, what came nearest, and where there would be one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from autopar.costmodel.spec.errors import Fault
from autopar.costmodel.spec.strategy import Strategy

NO_PLAN_SCHEMA_VERSION = "1.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class NearMiss:
    """A strategy that the rules accept and the memory does not hold."""

    strategy: Strategy
    peak_memory_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallestCluster:
    """The fewest GPUs of the same kind that hold the model, and the fastest strategy there."""

    num_gpus: int
    strategy: Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class NoPlan:
    """What ``--json`` prints where no strategy fits, or where a rule refuses the one that was asked about.

    ``fits`` is always false, the word that an estimate has too. ``reasons`` are the lines a person reads; ``faults`` what the
    rules refuse, of the strategy asked about or of the one that came nearest; ``nearest`` those that need least memory, least
    first; ``smallest_cluster`` None where no number of these GPUs will do, or where nobody looked (a refused strategy).
    """

    reasons: tuple[str, ...]
    faults: tuple[Fault, ...] = ()
    nearest: tuple[NearMiss, ...] = ()
    smallest_cluster: SmallestCluster | None = None
    strategy: Strategy | None = None
    """The refused one; None where a search found none."""
    reopened_by: tuple[str, ...] = ()
    """Changes of the constraints or the batch after which there is a plan, each with that plan."""
    fits: bool = False
    schema_version: str = NO_PLAN_SCHEMA_VERSION


def refusal_text(strategy: Strategy, refused: Iterable[Fault]) -> str:
    """One message for a strategy that rules refuse."""
    return "\n".join([f"this strategy is refused: {strategy.describe()}", *(f"  {fault}" for fault in refused)])
