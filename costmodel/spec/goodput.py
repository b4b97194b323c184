"""What failures leave of a job's time, and what is left to run after one."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .errors import Fault, raise_if
from .strategy import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """How often a node fails and what a failure costs, in seconds.

    Args:
        mtbf_node_seconds: mean time between failures of one node that stop the job, whatever their cause.
        checkpoint_seconds: what training stands still for while a checkpoint is written.
        restart_seconds: from a failure to the first step after it: detection, a new node, start-up, reading the checkpoint.
        repair_seconds: until a failed node is back in the pool; sizes the spares.

    Raises:
        InvalidInputError: with a fault for each that is not above zero (a restart may take none).
    """

    mtbf_node_seconds: float
    checkpoint_seconds: float
    restart_seconds: float
    repair_seconds: float

    def __post_init__(self) -> None:
        faults = []
        for name in self.__slots__:
            value = getattr(self, name)
            least = "0 s or more" if name == "restart_seconds" else "above 0 s"
            good = value >= 0 if name == "restart_seconds" else value > 0
            if not good or not math.isfinite(value):
                faults.append(Fault(field=name.removesuffix("_seconds"), given=f"{value:g}", required=f"a time {least} is needed"))
        raise_if(faults)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resharding:
    """What changes hands between two layouts of one model's state (parameters, master weights, optimizer states)."""

    state_bytes: float
    """The whole state, each value once: what a checkpoint holds."""
    loaded_bytes: float
    """What all GPUs of the new layout hold together: read from the checkpoint where all of it is read."""
    moved_bytes: float
    """Of those, what the GPUs did not hold before: the least a resharding in place would send or read."""
    largest_load_bytes: float
    """What the GPU that holds most reads."""
    changed: tuple[str, ...]
    """What cuts the state differently now, in words; empty where nothing does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AfterLoss:
    """The plan with one node less and no spare."""

    num_gpus: int
    """GPUs it uses; the rest of the surviving nodes idle."""
    idle_gpus: int
    strategy: Strategy
    step_time_seconds: float
    slowdown: float
    """Step time over that of the whole job."""
    resharding: Resharding
    looked_at: tuple[int, ...]
    """Numbers of GPUs that were planned for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """What failures leave, for a job on ``num_nodes`` nodes that checkpoints at the best interval."""

    reliability: Reliability
    num_nodes: int
    job_mtbf_seconds: float
    failures_per_day: float
    checkpoint_interval_seconds: float
    """Daly's: work between two checkpoints."""
    steps_between_checkpoints: int
    """The nearest whole number of steps, the better of the two neighbours."""
    useful_fraction: float
    """Share of the wall time whose work is kept, checkpointing after ``steps_between_checkpoints``."""
    checkpoint_fraction: float
    """Share that writes checkpoints which a failure did not cut short."""
    failure_fraction: float
    """The rest: work lost, checkpoints cut short and restarts."""
    expected_step_seconds: float
    """Wall time a kept step takes: the step time over the useful fraction."""
    spare_nodes: int
    """Fewest that are enough with probability ``spare_coverage`` at any moment."""
    spare_coverage: float
    checkpoint_bytes: float
    spare_load_bytes: float
    """What a spare node reads to take over from a failed one: the strategy stays, no other GPU's state moves."""
    after_loss: AfterLoss | None
    """None where no plan fits on the nodes that are left."""
    after_loss_refused: str = ""
    """Why there is none."""
