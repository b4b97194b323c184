"""What a device and its links really reach: the named constants that measurement fits.

A profile holds a few physical constants a device, each with its origin; the catalog ships one for every
device it knows, the profiler and ``autopar calibrate`` make others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Origin(StrEnum):
    """Where a number comes from; ``measured`` on this device, ``interpolated`` from others like it, or ``analytic``."""

    MEASURED = "measured"
    INTERPOLATED = "interpolated"
    ANALYTIC = "analytic"


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareProfile:
    """Efficiency constants of one device (see docs/cost-model.md for the formulas they enter)."""

    device: str
    # matrix multiplication: time = waves x tile work / (peak x gemm_efficiency / units) + overheads
    gemm_efficiency: float
    """Share of the dense peak that a long, large GEMM sustains (power and clocks included)."""
    gemm_small_efficiency: float
    """The same for GEMMs of few waves, which run at full clocks."""
    gemm_k_overhead: float
    """Prologue and epilogue of a tile, in elements of K."""
    gemm_overhead_seconds: float
    """Fixed device time of one GEMM kernel."""
    fp8_efficiency: float
    """Share of the FP8 (or MXFP8, NVFP4) peak a large GEMM sustains."""
    # fused attention
    attention_forward_efficiency: float
    """Share of the BF16 peak that fused causal attention of head_dim 128 reaches on the FLOPs it does, at long sequences."""
    attention_backward_efficiency: float
    attention_half_sequence: float
    """Sequence length at which attention reaches half of that."""
    # memory-bound kernels
    memory_efficiency: float
    """Share of the rated memory bandwidth that a large elementwise kernel reaches."""
    memory_half_bytes: float
    """Bytes moved at which a kernel reaches half of that."""
    optimizer_memory_efficiency: float
    # host
    launch_seconds: float
    """Host time to launch one kernel from eager PyTorch."""
    origin: Mapping[str, Origin]
    """Field name -> origin; a field that is absent is analytic."""
    sources: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkProfile:
    """What collectives reach on one kind of link.

    ``efficiency`` is the share of the rated per-GPU bandwidth that the bus bandwidth of a large collective reaches,
    ``half_bytes`` the message size (per rank and collective) at which it reaches half, ``latency_seconds`` the cost of one step.
    """

    tier: str
    efficiency: float
    p2p_efficiency: float
    all_to_all_efficiency: float
    half_bytes: float
    latency_seconds: float
    base_seconds: float
    """Fixed cost of starting one collective."""
    origin: Origin
    source: str
