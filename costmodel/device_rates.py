"""What of a device's rated figures a kernel of one type can reach, beyond the constants of its profile."""

from __future__ import annotations

from .spec.cluster import DeviceSpec
from .spec.hardware import HardwareProfile
from .spec.training import ComputeType

CPU_ARCHITECTURE = "cpu"
"""The architecture of a processor that trains: its host and its device are one."""
LOW_PRECISION = (ComputeType.FP8, ComputeType.MXFP8, ComputeType.FP4)
FOUR_BIT_GAIN = 2.0
"""Most that a sustained product in FP4 is faster than in FP8."""
HOPPER_UNIT_FLOPS = 989.4e12 / 132


def softmax_cost(device: DeviceSpec) -> float:
    """16-bit FLOP/s of one unit over Hopper's (an H100's peak over its 132 units), halved where exponentials run at twice the rate."""
    peak = device.peak_flops.get(ComputeType.BF16, device.peak_flops.get(ComputeType.FP16))
    if peak is None or device.architecture.lower() == CPU_ARCHITECTURE:
        return 1.0
    cost = peak / device.num_compute_units / HOPPER_UNIT_FLOPS
    return cost / 2 if device.architecture.lower() == "blackwell-ultra" else cost


def sustained_share(device: DeviceSpec, profile: HardwareProfile, compute_type: ComputeType) -> float:
    """Share of the peak that long products reach.

    FP4 reaches FP8's share, but at most FOUR_BIT_GAIN of FP8's rate: half as wide operands take half the energy at best, and power
    limits long products. Blackwell Ultra rates three times its FP8 peak, and NVFP4 steps on it show twice.
    """
    if compute_type not in LOW_PRECISION:
        return profile.gemm_efficiency
    eight, own = device.peak_flops.get(ComputeType.FP8), device.peak_flops.get(compute_type)
    if compute_type is not ComputeType.FP4 or eight is None or own is None:
        return profile.fp8_efficiency
    return profile.fp8_efficiency * min(1.0, FOUR_BIT_GAIN * eight / own)
