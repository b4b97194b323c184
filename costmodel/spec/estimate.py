"""What the cost model answers for one strategy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

ESTIMATE_SCHEMA_VERSION = "1.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeBreakdown:
    """Where a step's wall time goes, in seconds on the critical path; the fields add up to the step time.

    Compute terms are of the pipeline rank that paces the step; communication terms are what is left
    exposed after overlap; ``pipeline_bubble`` is that rank's idle time.
    """

    matrix_multiplication: float
    attention: float
    elementwise: float
    embedding_and_loss: float
    recompute: float
    host_launch: float
    gradient_accumulation: float
    exposed_tensor_communication: float
    exposed_context_communication: float
    exposed_expert_communication: float
    exposed_pipeline_communication: float
    exposed_data_communication: float
    optimizer: float
    pipeline_bubble: float
    overhead: float
    """Jitter, stragglers, data loading and logging."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Bytes on one pipeline rank at its peak, by kind."""

    parameters: float
    gradients: float
    master_weights: float
    optimizer_states: float
    activations: float
    logits_and_loss: float
    communication_buffers: float
    framework_reserve: float

    @property
    def total(self) -> float:
        return math.fsum(getattr(self, name) for name in self.__slots__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEstimate:
    """One pipeline rank."""

    pipeline_rank: int
    layers: tuple[tuple[int, int], ...]
    """``(first, last + 1)`` decoder layers of each virtual stage the rank holds, in the order it runs them."""
    num_layers: int
    holds_embedding: bool
    holds_head: bool
    num_parameters: int
    """Parameters on one GPU of this rank, before ZeRO sharding."""
    forward_seconds: float
    backward_seconds: float
    """Of one micro-batch through all the rank's virtual stages."""
    microbatches_in_flight: float
    memory: StageMemory
    peak_memory_bytes: float
    pool: str = ""
    """Of a mixed cluster: whose GPUs the rank has. Replicas in several pools have a row for each."""
    memory_capacity_bytes: float | None = None
    """Of those GPUs; None: the estimate's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """``coverage`` of comparable measured cases lie between ``low`` and ``high``."""

    low: float
    high: float
    coverage: float
    basis: str
    """Which residuals it rests on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Time and memory of one strategy, with where every number comes from."""

    fits: bool
    step_time_seconds: float
    step_time_interval: Interval | None
    tokens_per_second_per_gpu: float
    model_flops_per_second_per_gpu: float
    mfu: float
    """Model FLOPs (no recompute, causal attention counted half) over the BF16 peak, or the FP8 peak for FP8."""
    hfu: float
    bubble_fraction: float
    peak_memory_bytes: float
    memory_capacity_bytes: float
    fit_probability: float | None
    time: TimeBreakdown
    stages: tuple[StageEstimate, ...]
    warnings: tuple[str, ...]
    provenance: Mapping[str, str]
    schema_version: str = ESTIMATE_SCHEMA_VERSION
