"""Kernel times of one GPU: matrix multiplication, fused attention, memory-bound kernels, optimizer.

All functions take numpy arrays (or scalars) that broadcast together and return an array of that shape; the
device is itself columns, so that rows of one call may run on different GPUs. None of them counts the
host's launch time, which the caller adds where launches are not hidden.

:class:`KernelPhysics` holds what all devices share; what differs between them is in :class:`HardwareProfile`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from .columns import Floats
from .device_rates import CPU_ARCHITECTURE, softmax_cost, sustained_share
from .measured import KernelCurves
from .spec.cluster import DeviceSpec
from .spec.errors import Fault, InvalidInputError
from .spec.hardware import HardwareProfile
from .spec.training import ComputeType

Array = npt.ArrayLike

OPERAND_BYTES: dict[ComputeType, float] = {
    ComputeType.FP32: 4,
    ComputeType.TF32: 4,
    ComputeType.FP16: 2,
    ComputeType.BF16: 2,
    ComputeType.FP8: 1,
    ComputeType.MXFP8: 1,
    ComputeType.FP4: 0.5,
}

GEMM_TILES: tuple[tuple[int, int], ...] = ((128, 256), (256, 128), (128, 128), (128, 64), (64, 128))
"""Output tiles of one thread block that a library chooses among (rows, columns)."""
SPLIT_K_MINIMUM = 512
"""Elements of K that each part keeps when K is split over idle compute units."""
ATTENTION_BLOCK = 128
"""Query rows of one attention thread block."""
FP8_CAST_BYTES = 5.0
FP4_CAST_BYTES = 7.0
REFERENCE_HEAD_DIM = 128
"""Head dim at which a device's attention efficiency is stated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelPhysics:
    """Constants of the formulas below that all devices share, as ``benchmarks/calibration/kernels.py`` fits them."""

    tile_prologue: float = 166.0
    """Prologue and epilogue of a tile, as elements of K that would take as long."""
    input_gradient_share: float = 0.989
    """Rate of the nn layout over nt."""
    weight_gradient_share: float = 0.976
    """Rate of the tn layout over nt."""
    gemm_memory_share: float = 0.96
    """Bandwidth of a GEMM's operand traffic over that of an elementwise kernel."""
    power_seconds: float = 4e-3
    """Kernel time at which the rate is half way from its cold to its sustained value; not identified below 8 ms."""
    unaligned_share: float = 0.16
    """Rate left when a contiguous dimension is not a multiple of 16 bytes (an unpadded vocabulary)."""
    softmax_flops_forward: float = 340.0
    """Softmax work on one score, as tensor FLOPs of a Hopper unit that would take as long; why head_dim 64 runs slower than 128."""
    softmax_flops_backward: float = 500.0
    attention_backward_tail: float = 0.4
    """Idle tail of a backward kernel, in times of its longest thread block; it splits keys, and balances better than forward."""
    wide_head_share: float = 0.8
    """Rate left for head dims above 128 (multi-head latent attention), whose tiles no longer fit the registers."""


PHYSICS = KernelPhysics()


class GemmLayout(StrEnum):
    """Which of a linear layer's three multiplications it is; the rate differs by how operands lie in memory."""

    FORWARD = "nt"
    """x W^T: m tokens, n outputs, k inputs."""
    INPUT_GRADIENT = "nn"
    """dY W: m tokens, n inputs, k outputs."""
    WEIGHT_GRADIENT = "tn"
    """dY^T x: m outputs, n inputs, k tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EagerTraffic:
    """Bytes for each element of a 16-bit operator: the least a fused kernel moves, and what eager PyTorch's take the time of."""

    ideal: float
    eager: float


EAGER_TRAFFIC: Mapping[str, EagerTraffic] = {
    "copy": EagerTraffic(ideal=4, eager=4.0),
    "add": EagerTraffic(ideal=6, eager=6.1),
    "gelu": EagerTraffic(ideal=4, eager=4.8),
    "gelu_backward": EagerTraffic(ideal=6, eager=6.4),
    "silu_mul": EagerTraffic(ideal=6, eager=10.7),
    "silu_mul_backward": EagerTraffic(ideal=10, eager=18.0),  # counted: three kernels of three tensors, none measured
    "layernorm": EagerTraffic(ideal=4, eager=7.2),
    "layernorm_backward": EagerTraffic(ideal=6, eager=10.5),
    "rmsnorm": EagerTraffic(ideal=4, eager=6.8),
    "rmsnorm_backward": EagerTraffic(ideal=6, eager=10.4),
    "dropout": EagerTraffic(ideal=5, eager=7.2),
    "softmax": EagerTraffic(ideal=4, eager=13.5),
    "fp8_cast": EagerTraffic(ideal=5, eager=23.0),
    "cross_entropy": EagerTraffic(ideal=2, eager=29.0),
    "cross_entropy_backward": EagerTraffic(ideal=4, eager=28.0),
}
"""Median over tensors above 200 MB of time x bandwidth x efficiency (``benchmarks/data/h200/membound.csv``).

An element is one of the output, or one logit for the loss, which eager PyTorch casts to FP32 first. Softmax varies from 7
to 17 bytes with the row length, the norms by a third; small tensors are bound by launches, whatever they move.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceColumns:
    """Devices as columns: one array (or 0-d array) a figure, rates for one compute type a row.

    Rates in FLOP/s, bandwidth in bytes/s, sizes in bytes; the other fields are those of :class:`HardwareProfile`.
    """

    peak_flops: Floats
    """Dense peak of the linear layers' type."""
    attention_peak_flops: Floats
    """Dense 16-bit peak."""
    operand_bytes: Floats
    output_bytes: Floats
    memory_bandwidth: Floats
    num_compute_units: Floats
    gemm_efficiency: Floats
    gemm_small_efficiency: Floats
    gemm_wave_quantisation: Floats
    gemm_overhead_seconds: Floats
    attention_forward_efficiency: Floats
    attention_backward_efficiency: Floats
    attention_tail: Floats
    memory_efficiency: Floats
    memory_half_bytes: Floats
    optimizer_memory_efficiency: Floats
    launch_seconds: Floats
    softmax_cost: Floats
    """Softmax work as tensor FLOPs over Hopper's: units of all devices take exponentials at one rate (Blackwell Ultra's at twice that)
    beside tensor cores of different ones."""
    host_is_device: Floats
    """1 where the host itself computes (a processor), so that launching adds to computing instead of running beside it."""
    curves: KernelCurves | None = None
    """Corrections by measured times; the same for all rows."""

    @classmethod
    def of(cls, device: DeviceSpec, profile: HardwareProfile, compute_type: ComputeType, *, flash2: bool = False) -> DeviceColumns:
        """One device as 0-d columns.

        Args:
            device: its rated figures.
            profile: what it reaches of them.
            compute_type: the type the linear layers run in.
            flash2: attention runs in the portable FlashAttention-2 kernels (frameworks before 2024 on Hopper and later).

        Raises:
            InvalidInputError: the device has no rate for ``compute_type``.
        """
        sustained = sustained_share(device, profile, compute_type)
        flash = profile.flash2_ratio if flash2 else 1.0
        operand = OPERAND_BYTES[compute_type]
        attention_peak = device.peak_flops.get(ComputeType.BF16, device.peak_flops.get(ComputeType.FP16))
        values = {
            "peak_flops": _peak(device, compute_type),
            "attention_peak_flops": attention_peak if attention_peak is not None else _peak(device, compute_type),
            "operand_bytes": operand,
            "output_bytes": max(operand, 2.0),
            "memory_bandwidth": device.memory_bandwidth,
            "num_compute_units": device.num_compute_units,
            "gemm_efficiency": sustained,
            "gemm_small_efficiency": sustained * profile.gemm_small_efficiency / profile.gemm_efficiency,
            "attention_forward_efficiency": profile.attention_forward_efficiency * flash,
            "attention_backward_efficiency": profile.attention_backward_efficiency * flash,
            "softmax_cost": softmax_cost(device),
            "host_is_device": device.architecture.lower() == CPU_ARCHITECTURE,
        }
        columns: dict[str, Any] = {
            name: np.asarray(values.get(name, getattr(profile, name, 0.0)), dtype=np.float64) for name in DEVICE_NAMES
        }
        return cls(**columns)

    @classmethod
    def stack(cls, rows: Sequence[DeviceColumns]) -> DeviceColumns:
        """One row for each of ``rows`` (0-d columns), in order."""
        columns: dict[str, Any] = {name: np.array([getattr(row, name) for row in rows], dtype=np.float64) for name in DEVICE_NAMES}
        return cls(**columns, curves=rows[0].curves)

    def take(self, index: npt.NDArray[np.int64] | npt.NDArray[np.bool_] | slice | tuple[slice | None, ...]) -> DeviceColumns:
        """The rows (or, with ``(slice(None), None)``, the new axis) that ``index`` asks of every column."""
        return DeviceColumns(**{name: getattr(self, name)[index] for name in DEVICE_NAMES}, curves=self.curves)


DEVICE_NAMES: tuple[str, ...] = tuple(f.name for f in fields(DeviceColumns) if f.name != "curves")


def _peak(device: DeviceSpec, compute_type: ComputeType) -> float:
    try:
        return device.peak_flops[compute_type]
    except KeyError:
        known = ", ".join(sorted(device.peak_flops))
        raise InvalidInputError(
            Fault(field="precision", given=str(compute_type), required=f"a type that {device.id} multiplies in", fix=f"it has {known}")
        ) from None


def gemm_seconds(
    device: DeviceColumns,
    m: Array,
    n: Array,
    k: Array,
    *,
    layout: GemmLayout = GemmLayout.FORWARD,
    count: Array = 1,
    physics: KernelPhysics = PHYSICS,
) -> Floats:
    """Device time of ``count`` multiplications (m x k)(k x n) that run as one batched or grouped kernel.

    The output is cut into tiles a x b; of the candidates the fastest counts::

        tiles   = count ceil(m/a) ceil(n/b)
        splits  = tiles that K is cut into when there are fewer tiles than units
        waves   = w + q (ceil(w) - w),  w = tiles splits / units, at least 1
        compute = waves 2 a b (k/splits + k0) units / (peak e)
        e       = e_long + (e_small - e_long) / (1 + t/t_power)
        memory  = (operand bytes + output bytes) / bandwidth
        seconds = (compute^4 + memory^4)^(1/4) + overhead

    q, e_long, e_small and the overhead are the device's; k0 and t_power are :class:`KernelPhysics`.

    Sources: fitted to 322 linear layers (966 GEMMs) on one H200 (``benchmarks/data``, docs/design/kernel-model.md); tile
    and wave quantisation as in NVIDIA's matrix multiplication guide. Wrong for: operands of zeros (faster, less
    power), an expert loop that launches each member on its own (B200 rows of SimuMax: 28 % too fast, see the design page).
    """
    m, n, k, count = (np.asarray(x, dtype=np.float64) for x in (m, n, k, count))
    work = _tile_work(device, m, n, k, count, physics)
    ideal = work * device.num_compute_units / (device.peak_flops * _layout_share(device, m, n, k, layout, physics))
    compute = ideal / _power_limited(ideal, device.gemm_small_efficiency, device.gemm_efficiency, physics)
    traffic = count * ((m * k + k * n) * device.operand_bytes + m * n * device.output_bytes)
    memory = traffic / (device.memory_bandwidth * device.memory_efficiency * physics.gemm_memory_share)
    work = np.asarray(_roofline(compute, memory))
    if device.curves is None:
        return work + device.gemm_overhead_seconds
    return device.curves.gemm_seconds(layout.value, m, n, k, count, work, device.gemm_overhead_seconds)


def _tile_work(device: DeviceColumns, m: Floats, n: Floats, k: Floats, count: Floats, physics: KernelPhysics) -> Floats:
    """FLOPs that the busiest compute unit does under the best tile, prologues and quantisation included.

    A processor's cores share a product without tiles of that size: its FLOPs over the cores.
    """
    units, quantisation = device.num_compute_units, device.gemm_wave_quantisation
    rows_of = {rows: count * np.ceil(m / rows) for rows, _ in GEMM_TILES}
    columns_of = {columns: np.ceil(n / columns) for _, columns in GEMM_TILES}
    most_splits = np.maximum(1.0, k / SPLIT_K_MINIMUM)
    best: Floats = np.asarray(np.inf)
    for rows, columns in GEMM_TILES:
        tiles = rows_of[rows] * columns_of[columns]
        splits = np.minimum(most_splits, np.maximum(1.0, np.floor(units / tiles)))
        waves = tiles * splits / units
        waves = np.maximum(1.0, waves + quantisation * (np.ceil(waves) - waves))
        work = waves * (k / splits + physics.tile_prologue) * (2.0 * rows * columns)
        best = np.minimum(best, work)
    if not np.any(device.host_is_device):
        return best
    return np.where(device.host_is_device > 0, 2.0 * count * m * n * k / units, best)


def _layout_share(device: DeviceColumns, m: Floats, n: Floats, k: Floats, layout: GemmLayout, physics: KernelPhysics) -> Floats:
    """Rate over that of an aligned forward GEMM; tensor cores want contiguous dimensions in multiples of 16 bytes."""
    share = {GemmLayout.INPUT_GRADIENT: physics.input_gradient_share, GemmLayout.WEIGHT_GRADIENT: physics.weight_gradient_share}
    contiguous = m if layout is GemmLayout.WEIGHT_GRADIENT else k
    aligned = ((contiguous * device.operand_bytes) % 16 == 0) & ((n * device.operand_bytes) % 16 == 0)
    return np.where(aligned, 1.0, physics.unaligned_share) * share.get(layout, 1.0)


def _power_limited(ideal: Floats, small: Floats, sustained: Floats, physics: KernelPhysics) -> Floats:
    """Share of the peak, falling from ``small`` to ``sustained`` as a kernel of ``ideal`` seconds at full peak grows."""
    return sustained + (small - sustained) / (1.0 + ideal / (small * physics.power_seconds))


def _roofline(compute: Floats, memory: Floats) -> Floats:
    """(compute^4 + memory^4)^(1/4): a kernel overlaps the two, less well where they are alike."""
    longer, shorter = np.maximum(compute, memory), np.minimum(compute, memory)
    square = np.square(np.divide(shorter, longer, out=np.zeros_like(longer), where=longer > 0))
    return longer * np.sqrt(np.sqrt(1.0 + square * square))


def attention_seconds(
    device: DeviceColumns,
    *,
    batch: Array,
    heads: Array,
    kv_heads: Array,
    query_length: Array,
    key_length: Array,
    head_dim: Array,
    v_head_dim: Array | None = None,
    causal_fraction: Array = 0.5,
    backward: bool = False,
    physics: KernelPhysics = PHYSICS,
) -> Floats:
    """Device time of fused (flash) attention over ``batch`` sequences.

    ``heads`` and ``kv_heads`` are those of this GPU; ``causal_fraction`` is the share of the query x key scores that is
    computed: 0.5 for causal, 1 for full. Symbols: d and v the head dims of keys and values::

        flops a score = 2 (d + v) forward, 2 (3 d + 2 v) backward (scores recomputed)
        cost a score  = (flops + softmax) / (peak e), e the device's at d = v = 128
        scores        = queries x (keys x causal_fraction + 64 on the diagonal)
        seconds       = batch heads scores cost + tail x longest block + kernels x overhead

    softmax is that of :class:`KernelPhysics` times the device's ``softmax_cost``. One thread block holds 128 queries; where the
    blocks are few the tail term leaves units idle. Sources: H200 (``benchmarks/data/h200/attention.csv``), A100 and B200 rows of
    SimuMax. Wrong for: kernels without causal skipping (ask for ``causal_fraction=1``), head_dim above 256, sequences packed from
    short documents.
    """
    d = np.asarray(head_dim, dtype=np.float64)
    v = d if v_head_dim is None else np.asarray(v_head_dim, dtype=np.float64)
    flops = 2 * (3 * d + 2 * v) if backward else 2 * (d + v)
    reference = REFERENCE_HEAD_DIM * (10.0 if backward else 4.0)
    softmax = (physics.softmax_flops_backward if backward else physics.softmax_flops_forward) * device.softmax_cost
    efficiency = device.attention_backward_efficiency if backward else device.attention_forward_efficiency
    tail = physics.attention_backward_tail if backward else device.attention_tail
    batch, heads, kv_heads, queries, keys = (np.asarray(x, dtype=np.float64) for x in (batch, heads, kv_heads, query_length, key_length))
    rows = np.ceil(queries / ATTENTION_BLOCK) * ATTENTION_BLOCK
    # half a block beside the diagonal is computed and masked
    fraction = np.asarray(causal_fraction, dtype=np.float64)
    scores = batch * heads * rows * (keys * fraction + ATTENTION_BLOCK / 2 * (fraction < 1))
    ideal_cost = (flops + softmax) * (reference / (reference + softmax)) / device.attention_peak_flops
    longest = ATTENTION_BLOCK * keys * device.num_compute_units
    ideal = (scores + tail * longest) * ideal_cost
    compute = ideal / (efficiency * np.where(d > REFERENCE_HEAD_DIM, physics.wide_head_share, 1.0))
    elements = batch * (heads * queries + kv_heads * keys) * (d + v)
    memory = elements * (4.0 if backward else 2.0) / (device.memory_bandwidth * device.memory_efficiency)
    kernels = 3 if backward else 1
    seconds = np.asarray(_roofline(compute, memory) + kernels * device.gemm_overhead_seconds)
    if device.curves is None:
        return seconds
    variant = "backward" if backward else "forward"
    return device.curves.attention_seconds(variant, (batch, heads, kv_heads, queries, keys, d), seconds)


def memory_seconds(device: DeviceColumns, bytes_moved: Array) -> Floats:
    """Device time of one memory-bound kernel: (bytes + half) / (bandwidth x efficiency).

    ``half`` bytes are the ramp of one kernel. Source: ``benchmarks/data/h200/membound.csv`` (copy, add). Wrong for tensors that
    stay in the L2 cache between two kernels (faster, below some 30 MB on H200), and for writes alone (fill reaches 0.77 of it).
    """
    moved = np.asarray(bytes_moved, dtype=np.float64)
    seconds = memory_curve(device, moved)
    return seconds if device.curves is None else device.curves.memory_seconds(moved, seconds)


def memory_curve(device: DeviceColumns, bytes_moved: Array) -> Floats:
    """:func:`memory_seconds` by the formula alone, whatever was measured."""
    moved = np.asarray(bytes_moved, dtype=np.float64)
    return np.asarray((moved + device.memory_half_bytes * (moved > 0)) / (device.memory_bandwidth * device.memory_efficiency))


def operator_share(device: DeviceColumns, name: str, rows: Array, columns: Array) -> Floats:
    """Measured time of an operator on a rows x columns tensor, over what :data:`EAGER_TRAFFIC` says of it; 1 where not measured."""
    elements = np.asarray(rows, dtype=np.float64) * np.asarray(columns, dtype=np.float64)
    if device.curves is None:
        return np.ones_like(elements)
    return device.curves.operator_share(name, rows, columns, operator_curve(device, name, elements))


def operator_curve(device: DeviceColumns, name: str, elements: Array) -> Floats:
    """Seconds of an eager operator on ``elements`` by the formula; values as wide as the device's output, logits as they are."""
    widening = 1.0 if name.startswith("cross_entropy") else device.output_bytes / 2
    return memory_curve(device, np.asarray(elements, dtype=np.float64) * EAGER_TRAFFIC[name].eager * widening)


def cast_seconds(device: DeviceColumns, elements: Array) -> Floats:
    """Device time of casting 16-bit values to the type of the linear layers: 5 bytes a value to FP8, 7 to FP4.

    FP8: read twice (amax, then cast), write. FP4: read for the amax, for the copy by rows and, through a Hadamard transform, for
    the one by columns; write both. Analytic: no fused cast was measured. A current-scaling cast to FP8 reads the tensor twice;
    delayed scaling and MXFP8 once. The eager chain of ``gemm_fp8.csv`` takes 4.6 times as long (``fp8_cast`` of
    :data:`EAGER_TRAFFIC`).
    """
    moved = np.asarray(elements, dtype=np.float64) * np.where(device.operand_bytes < 1, FP4_CAST_BYTES, FP8_CAST_BYTES)
    return memory_seconds(device, moved)


def optimizer_seconds(device: DeviceColumns, bytes_moved: Array) -> Floats:
    """Device time of a fused multi-tensor optimizer (or gradient norm) over ``bytes_moved``.

    FP32 AdamW moves 28 bytes a parameter (read weight, gradient, two states; write weight and states). Source:
    ``benchmarks/data/h200/optimizer.csv``. Wrong for all-16-bit states, whose update reaches 0.8 of it.
    """
    moved = np.asarray(bytes_moved, dtype=np.float64)
    seconds = (moved + device.memory_half_bytes * (moved > 0)) / (device.memory_bandwidth * device.optimizer_memory_efficiency)
    return seconds if device.curves is None else device.curves.optimizer_seconds(moved, seconds)
