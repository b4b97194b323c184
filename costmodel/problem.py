"""The question put to the cost model: a model to train, on a cluster, under a framework."""

from __future__ import annotations

from dataclasses import dataclass

from .measurements import Measurements
from .spec.calibration import Calibration
from .spec.cluster import ClusterSpec
from .spec.framework import ExecutionProfile
from .spec.hardware import HardwareProfile, LinkProfile
from .spec.model import ModelSpec
from .spec.residuals import ResidualTable
from .spec.training import TrainingSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Everything an estimate depends on besides the strategy.

    ``links`` has one profile for each tier of the cluster, in the same order.
    ``memory_reserve_bytes`` replaces the framework's reserve where the user asked for one.
    """

    model: ModelSpec
    cluster: ClusterSpec
    training: TrainingSpec
    framework: ExecutionProfile
    hardware: HardwareProfile
    links: tuple[LinkProfile, ...]
    memory_reserve_bytes: float | None = None
    calibration: Calibration | None = None
    """Where some of the constants come from: measured steps of this cluster, for the provenance."""
    measured: Measurements | None = None
    """Measured times of this device and its links, which the curves are scaled by."""
    residuals: ResidualTable | None = None
    """Errors on public runs, for the intervals of estimates; none are given without."""
