"""What an exporter is: from a plan to the files that a framework reads, checked by that framework's rules first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from autopar.costmodel.spec.framework import ExecutionProfile

from .question import Question
from .rule import BrokenRule


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedFile:
    """One file of an export; ``path`` is relative to the folder it is written to."""

    path: str
    text: str
    executable: bool = False


class Exporter(Protocol):
    """Writes plans for one framework. Others' exporters are found by the entry-point group ``autopar.exporters``."""

    @property
    def name(self) -> str:
        """As ``--to`` takes it."""

    @property
    def version(self) -> str:
        """The framework's release that the files are written for and were tried with."""

    def profile(self, question: Question) -> ExecutionProfile:
        """How the framework runs this strategy: what estimates for it use."""

    def broken_rules(self, question: Question) -> tuple[BrokenRule, ...]:
        """Why the framework would refuse the plan or silently run another; empty where it takes it as it is."""

    def notes(self, question: Question) -> tuple[str, ...]:
        """What the person who runs the files has to know."""

    def files(self, question: Question, header: Sequence[str]) -> tuple[ExportedFile, ...]:
        """The files, for a plan that breaks no rule; ``header`` are lines to put at their head as comments."""
