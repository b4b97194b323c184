"""What a step costs in money and energy, and what a plan is asked to make small."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from .errors import Fault, raise_if


class Objective(StrEnum):
    """What the best strategy is best in."""

    STEP_TIME = "step-time"
    COST = "cost"
    ENERGY = "energy"
    MEMORY = "memory"
    """Peak memory of the fullest GPU; equal ones by step time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What one GPU costs for an hour, its share of the node and the network included; ``currency`` as the user wrote it.

    Raises:
        InvalidInputError: not above zero.
    """

    per_gpu_hour: float
    currency: str = ""

    def __post_init__(self) -> None:
        if not self.per_gpu_hour > 0 or not math.isfinite(self.per_gpu_hour):
            raise_if([Fault(field="price", given=f"{self.per_gpu_hour:g}", required="a price per GPU and hour above zero is needed")])


@dataclass(frozen=True, slots=True, kw_only=True)
class Economics:
    """Money and energy of one step on ``num_gpus`` GPUs. The money is None where no price was given."""

    num_gpus: int
    price: Price | None
    cost_per_step: float | None
    cost_per_million_tokens: float | None
    power_watts_per_gpu: float
    energy_joules_per_step: float
    energy_joules_per_token: float
    energy_basis: str
    """Where the power comes from, and which way it errs."""
