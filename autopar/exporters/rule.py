"""What a framework's rule is: an id, how the framework enforces it, and a check over its own settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from autopar.costmodel.spec.errors import Fault
from autopar.costmodel.spec.model import ModelSpec

from .settings import Settings

if TYPE_CHECKING:
    from .question import Question


class Enforcement(StrEnum):
    """How a framework enforces a rule, as its source has it."""

    HARD = "refused at start"
    SILENT = "silently changed"
    RUNTIME = "fails in the first step"
    DOCUMENTED = "documented"


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """What a framework is given: its settings and environment, and the machines and model they are for.

    ``world_size`` is 0 where it is not known, ``model`` None where the settings do not say it, and ``capability`` the GPUs'
    compute capability (9 for Hopper), 0 where it is not known: checks that need one of them then say nothing.
    """

    settings: Settings
    world_size: int = 0
    model: ModelSpec | None = None
    capability: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    layers: tuple[int, ...] = ()
    """Decoder layers of each virtual stage, where the plan says them."""

    @classmethod
    def of(cls, question: Question, settings: Settings, environment: Mapping[str, str] | None = None) -> Configuration:
        """``settings`` for the machines, the model and the stages of ``question``."""
        return cls(
            settings=settings,
            world_size=question.strategy.world_size,
            model=question.model,
            capability=question.capability,
            environment=environment or {},
            layers=question.layers,
        )


Check = Callable[[Configuration], Iterator[Fault]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkRule:
    """One rule. The check's docstring is its summary."""

    id: str
    enforcement: Enforcement
    check: Check

    @property
    def summary(self) -> str:
        """The rule in one line."""
        return (self.check.__doc__ or "").strip().split("\n")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenRule:
    """A rule and what breaks it."""

    rule: str
    enforcement: Enforcement
    fault: Fault

    def __str__(self) -> str:
        return f"{self.rule}: {self.fault}"


def broken(rules: Iterable[FrameworkRule], configuration: Configuration) -> tuple[BrokenRule, ...]:
    """Every rule that ``configuration`` breaks, in the order of ``rules``."""
    return tuple(
        BrokenRule(rule=rule.id, enforcement=rule.enforcement, fault=fault) for rule in rules for fault in rule.check(configuration)
    )


INEXPRESSIBLE = "inexpressible"
"""In the place of a rule's id: the framework has no setting for what the plan says."""


def inexpressible(faults: Iterable[Fault]) -> tuple[BrokenRule, ...]:
    """``faults`` that are no rule of the framework: it cannot be told at all."""
    return tuple(BrokenRule(rule=INEXPRESSIBLE, enforcement=Enforcement.HARD, fault=fault) for fault in faults)


_CAPABILITIES = {
    "pascal": 6, "volta": 7, "turing": 7, "ampere": 8, "ada": 8, "hopper": 9, "blackwell": 10,
    "blackwell-ultra": 10,
}  # fmt: skip


def compute_capability(architecture: str) -> int:
    """The major compute capability of a device's architecture; 0 for one that has none (AMD) or is not known."""
    return _CAPABILITIES.get(architecture.lower(), 0)
