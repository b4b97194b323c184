"""The words a pipeline schedule is written in."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ActionKind(StrEnum):
    FORWARD = "F"
    BACKWARD = "B"
    """The whole backward: gradients of the input and of the weights."""
    BACKWARD_INPUT = "I"
    BACKWARD_WEIGHT = "W"


@dataclass(frozen=True, slots=True)
class Action:
    """One pass of one micro-batch through one virtual stage.

    ``overlaps_next``: the rank may run it at the same time as its next action (DualPipe's pairs).
    """

    kind: ActionKind
    microbatch: int
    stage: int
    overlaps_next: bool = False

    def __str__(self) -> str:
        return f"{self.kind.value}{self.microbatch}.{self.stage}"
