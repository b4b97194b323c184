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
    """Efficiency constants of one device (``costmodel/compute.py`` has the formulas they enter).

    Shares are of the rated peak or bandwidth in :class:`DeviceSpec`, between 0 and 1.
    """

    device: str
    # matrix multiplication
    gemm_efficiency: float
    """Share of the dense peak that a GEMM of many milliseconds sustains, at the clocks its power leaves it."""
    gemm_small_efficiency: float
    """The same for a GEMM of well under a millisecond, before power lowers the clock."""
    gemm_wave_quantisation: float
    """How much of an unfinished last wave of tiles is paid for: 1 all of it (one tile a thread block), 0 none (stream-K)."""
    gemm_overhead_seconds: float
    """Fixed device time of one GEMM or attention kernel: ramp up, first loads, last stores."""
    fp8_efficiency: float
    """``gemm_efficiency`` for FP8, MXFP8 and NVFP4, of their own peaks; casts are apart."""
    # fused attention
    attention_forward_efficiency: float
    """Share of the 16-bit peak that fused attention of head_dim 128 reaches on the FLOPs it does, at long sequences."""
    attention_backward_efficiency: float
    attention_tail: float
    """Idle tail of a forward attention kernel, in times of its longest thread block."""
    flash2_ratio: float
    """Rate of the portable FlashAttention-2 kernels over that of the vendor's current ones; 1 where they are the same."""
    # memory-bound kernels
    memory_efficiency: float
    """Share of the rated memory bandwidth that a large elementwise kernel reaches."""
    memory_half_bytes: float
    """Bytes moved at which a kernel reaches half of that."""
    optimizer_memory_efficiency: float
    """The same share for the fused optimizer, which walks many tensors at once."""
    # host
    launch_seconds: float
    """Host time to launch one kernel from eager PyTorch."""
    origin: Mapping[str, Origin]
    """Field name -> origin; a field that is absent is analytic."""
    sources: Mapping[str, str]
    """Field name -> where its number comes from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkProfile:
    """What collectives reach on one kind of link (fitted by benchmarks/calibration/links.py; formulas in costmodel/communication.py).

    Efficiencies are shares of the tier's rated bandwidth per GPU and direction, reached by a very large message.
    ``half_bytes`` is the message (bytes of the collective over the group's members in one domain) at which the bus
    bandwidth is half of that, start-up aside.
    """

    tier: str
    efficiency: float
    """Of the bus bandwidth of ring and tree collectives."""
    p2p_efficiency: float
    all_to_all_efficiency: float
    half_bytes: float
    latency_seconds: float
    """One step: one hop of a ring, one level of a tree."""
    base_seconds: float
    """Fixed cost of starting one collective."""
    origin: Origin
    source: str
    in_network_efficiency: float = 0.0
    """Message bytes a second of an all-reduce that the switch reduces (NVLS), over the rated bandwidth; 0 where it cannot."""
    two_domain_tree: float = 0.0
    """1 where NCCL is seen to run its double binary tree between two domains (half the traffic of a ring), 0 where it keeps to rings."""
    shared_ring_efficiency: float = 1.0
    """Share of the network's rate left to a group with several members in one domain, whose rings cross the host's buses."""
