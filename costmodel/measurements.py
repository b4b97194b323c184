"""A measured profile made ready for the cost model: its points fitted against the curves of one device and its links."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from . import communication, compute
from .columns import Floats
from .compute import DeviceColumns, GemmLayout
from .device_rates import LOW_PRECISION
from .measured import GroupCurve, KernelCurves, LinkCurves, Uses, attention_features
from .shape_fit import Curve, ShapeFit, SizeFit
from .spec.cluster import DeviceSpec
from .spec.hardware import HardwareProfile, Origin
from .spec.measured import Kind, MeasuredProfile, Point, Series
from .spec.training import ComputeType
from .topology import Group, LinkColumns

ADAM_BYTES = {"fp32": 28.0, "bf16": 14.0, "fp16": 14.0}
"""Bytes a parameter that AdamW moves with weights, gradients and both states in one type."""
NORM_BYTES = {"fp32": 12.0, "bf16": 6.0, "fp16": 6.0}
"""The gradient norm reads each gradient, then reads and writes it to scale it."""
LEAST_WORK = 0.2
"""Share of a measured product that is no overhead, at least."""
ATTENTION_FLOPS = {"forward": 4.0, "backward": 10.0}
"""FLOPs of one score and head dim, causal skipping apart (:func:`autopar.costmodel.compute.attention_seconds`)."""


class Measurements:
    """The points of a profile, and the fits to them; each fit is made once for a device and compute type."""

    __slots__ = ("_kernels", "_links", "profile")

    def __init__(self, profile: MeasuredProfile | None) -> None:
        self.profile = profile
        self._kernels: dict[tuple[object, ...], KernelCurves] = {}
        self._links: dict[tuple[object, ...], LinkCurves] = {}

    @classmethod
    def none(cls) -> Measurements:
        """No points: the curves as they are, for a record of what is asked for."""
        return cls(None)

    def __repr__(self) -> str:
        return "Measurements()" if self.profile is None else f"Measurements({self.profile.device}, {self.profile.machine.date})"

    @property
    def series(self) -> tuple[Series, ...]:
        return () if self.profile is None else self.profile.series

    def on_device(self, device: DeviceColumns, compute_type: ComputeType, uses: Uses | None = None) -> DeviceColumns:
        """``device`` (0-d columns of ``compute_type``) with the corrections of this profile."""
        key = (compute_type, *(float(getattr(device, name)) for name in compute.DEVICE_NAMES))
        if key not in self._kernels:
            self._kernels[key] = _kernel_curves(self.series, device, compute_type)
        found = self._kernels[key]
        return replace(device, curves=found if uses is None else replace(found, uses=uses))

    def on_links(self, links: LinkColumns, uses: Uses | None = None) -> LinkColumns:
        """``links`` (0-d columns) with the corrections of this profile."""
        key = tuple(float(column) for column in _columns_of(links))
        if key not in self._links:
            self._links[key] = _link_curves(self.series, links)
        found = self._links[key]
        return replace(links, curves=found if uses is None else replace(found, uses=uses))


def _columns_of(links: LinkColumns) -> Iterable[Floats]:
    for part in (links.fast, links.network, links):
        for name in part.__slots__:
            value = getattr(part, name)
            if isinstance(value, np.ndarray | np.generic):
                yield np.asarray(value)


def wide_dtype(compute_type: ComputeType) -> str:
    """The type of attention, memory-bound operators and logits beside linear layers of ``compute_type``."""
    if compute_type in (ComputeType.FP32, ComputeType.TF32):
        return "fp32"
    return "fp16" if compute_type is ComputeType.FP16 else "bf16"


def _kernel_curves(series: tuple[Series, ...], device: DeviceColumns, compute_type: ComputeType) -> KernelCurves:
    gemm_dtype = "fp8" if compute_type in LOW_PRECISION else compute_type.value
    dtype = wide_dtype(compute_type)
    wanted = {
        Kind.GEMM: (gemm_dtype,),
        Kind.ATTENTION: _same_width(dtype),
        Kind.OPERATOR: _same_width(dtype),
    }

    def of(kind: Kind) -> dict[str, Series]:
        """The series of one kind in the type asked for, or in another of its width."""
        found: dict[str, Series] = {}
        for each in wanted[kind]:
            for one in series:
                if one.kind is kind and one.dtype == each and one.points:
                    found.setdefault(one.variant, one)
        return found

    return KernelCurves(
        gemm_dtype=gemm_dtype,
        dtype=dtype,
        value_bytes=4.0 if dtype == "fp32" else 2.0,
        gemm={name: gemm_fit(one, device) for name, one in of(Kind.GEMM).items()},
        attention={name: _attention_fit(one, device) for name, one in of(Kind.ATTENTION).items()},
        operators={name: _operator_fit(one, device) for name, one in of(Kind.OPERATOR).items() if name in compute.EAGER_TRAFFIC},
        optimizer=_optimizer_fit(series, device),
    )


def _same_width(dtype: str) -> tuple[str, ...]:
    return ("fp32",) if dtype == "fp32" else (dtype, "bf16" if dtype == "fp16" else "fp16")


def _shapes(points: tuple[Point, ...]) -> Floats:
    return np.array([point.shape for point in points], dtype=np.float64)


def _seconds(points: tuple[Point, ...]) -> Floats:
    return np.array([point.seconds for point in points])


def gemm_curve(series: Series, device: DeviceColumns) -> Floats:
    """What the formula says of the points of a GEMM series."""
    shapes = _shapes(series.points)
    return compute.gemm_seconds(device, shapes[:, 0], shapes[:, 1], shapes[:, 2], layout=GemmLayout(series.variant))


def gemm_fit(series: Series, device: DeviceColumns) -> ShapeFit:
    """The correction that a GEMM series makes of the formula's work, its fixed overhead apart.

    A part of each time is left to the work, so that a product quicker than the overhead has one too.
    """
    overhead = float(device.gemm_overhead_seconds)
    seconds = _seconds(series.points)
    work = np.maximum(seconds - overhead, LEAST_WORK * seconds)
    return ShapeFit.of(_shapes(series.points), np.log(work / (gemm_curve(series, device) - overhead)))


def gemm_left_out(series: Series, device: DeviceColumns) -> Floats:
    """|predicted / measured - 1| of each point of a GEMM series, left out of the fit alone."""
    seconds, overhead = _seconds(series.points), float(device.gemm_overhead_seconds)
    work = np.maximum(seconds - overhead, LEAST_WORK * seconds)
    return np.asarray(np.abs((work * np.exp(gemm_fit(series, device).left_out) + seconds - work) / seconds - 1))


def _attention_fit(series: Series, device: DeviceColumns) -> ShapeFit:
    batch, heads, kv_heads, length, head_dim = _shapes(series.points).T
    curve = compute.attention_seconds(
        device,
        batch=batch,
        heads=heads,
        kv_heads=kv_heads,
        query_length=length,
        key_length=length,
        head_dim=head_dim,
        backward=series.variant == "backward",
    )
    features = np.stack(attention_features(batch, heads, length, head_dim), axis=1)
    return ShapeFit.of(features, np.log(_seconds(series.points) / curve))


def _operator_fit(series: Series, device: DeviceColumns) -> SizeFit:
    shapes = _shapes(series.points)

    def curve(elements: Floats) -> Floats:
        return compute.operator_curve(device, series.variant, elements)

    return SizeFit.of(list(shapes[:, 0] * shapes[:, 1]), list(_seconds(series.points)), curve)


def _optimizer_fit(series: tuple[Series, ...], device: DeviceColumns) -> SizeFit | None:
    """Over bytes moved, the gradient norm added where it was measured at the same size; the widest type measured."""
    for dtype in ("fp32", "bf16", "fp16"):
        mine = {one.variant: one for one in series if one.kind is Kind.OPTIMIZER and one.dtype == dtype and one.points}
        if "adamw" not in mine:
            continue
        sizes, seconds = [], []
        norms = {point.shape[0]: point.seconds for point in mine["gradient_norm"].points} if "gradient_norm" in mine else {}
        for point in mine["adamw"].points:
            (parameters,) = point.shape
            normed = parameters in norms
            sizes.append(parameters * (ADAM_BYTES[dtype] + (NORM_BYTES[dtype] / 3 if normed else 0)))
            seconds.append(point.seconds + (norms[parameters] / 3 if normed else 0))
        return SizeFit.of(sizes, seconds, lambda moved: compute.optimizer_seconds(device, moved))
    return None


def _link_curves(series: tuple[Series, ...], links: LinkColumns) -> LinkCurves:
    found = []
    for one in series:
        if one.kind is not Kind.COLLECTIVE:
            continue
        shapes = _shapes(one.points) if one.points else np.empty((0, 3))
        for size, members in sorted({(float(size), float(members)) for _, size, members in shapes}):
            mine = [point for point in one.points if point.shape[1:] == (size, members)]
            curve = _collective_curve(one.variant, size, members, links)
            fit = SizeFit.of([point.shape[0] for point in mine], [point.seconds for point in mine], curve)
            found.append(GroupCurve(collective=one.variant, size=size, members=members, fit=fit))
    return LinkCurves(curves=tuple(found))


def _collective_curve(collective: str, size: float, members: float, links: LinkColumns) -> Curve:
    """What the formula says of a collective on groups of ``size`` ranks, ``members`` in each domain, all groups of the axis at once."""
    crosses = members < size
    concurrent = max(float(links.fast_domain_size) / members, 1.0) if crosses else 1.0
    group = Group(size=_as(size), members_per_domain=_as(members), num_domains=_as(size / members), concurrent_groups=_as(concurrent))
    functions = {
        "all_reduce": communication.all_reduce_seconds,
        "all_gather": communication.all_gather_seconds,
        "reduce_scatter": communication.reduce_scatter_seconds,
        "all_to_all": communication.all_to_all_seconds,
    }
    if collective == "send_recv":
        return lambda message: communication.p2p_seconds(message, crosses, links)
    return lambda message: functions[collective](message, group, links)


def _as(value: npt.ArrayLike) -> Floats:
    return np.asarray(value, dtype=np.float64)


# -- constants of a device that the catalog has none of ---------------------------------------------------


def measured_constants(profile: MeasuredProfile, device: DeviceSpec) -> HardwareProfile:
    """Constants of ``device`` read off its own points: the best rate of each kind, and the launch.

    They only place the curves; between the points the corrections of :class:`Measurements` hold. For devices that the
    catalog has no constants of (a processor, an architecture it does not know).
    """
    launch = min((point.seconds for one in profile.of_kind(Kind.LAUNCH) for point in one.points), default=2e-6)
    gemm = _best(_gemm_share(one, device) for one in profile.of_kind(Kind.GEMM) if one.dtype != "fp8")
    memory = _best(_copy_share(one, device) for one in profile.of_kind(Kind.OPERATOR) if one.variant in ("copy", "add"))
    optimizer = _best(_adam_share(one, device) for one in profile.of_kind(Kind.OPTIMIZER) if one.variant == "adamw")
    attention = {
        variant: _best(_attention_share(one, device) for one in profile.of_kind(Kind.ATTENTION) if one.variant == variant)
        for variant in ATTENTION_FLOPS
    }
    values = {
        "gemm_efficiency": gemm,
        "gemm_small_efficiency": gemm,
        "gemm_wave_quantisation": 0.0,
        "gemm_overhead_seconds": launch,
        "fp8_efficiency": _best((_gemm_share(one, device) for one in profile.of_kind(Kind.GEMM) if one.dtype == "fp8"), gemm),
        "attention_forward_efficiency": attention["forward"],
        "attention_backward_efficiency": attention["backward"],
        "attention_tail": 0.0,
        "flash2_ratio": 1.0,
        "memory_efficiency": memory,
        "memory_half_bytes": launch * memory * device.memory_bandwidth,
        "optimizer_memory_efficiency": optimizer,
        "launch_seconds": launch,
    }
    machine = profile.machine
    source = f"read off {profile.num_points} points measured on {machine.device_name or profile.device}, {machine.date}"
    return HardwareProfile(
        device=device.id,
        **values,
        origin=dict.fromkeys(values, Origin.MEASURED),
        sources=dict.fromkeys(values, source),
    )


def _best(shares: Iterable[float], otherwise: float = 0.5) -> float:
    """The largest share, kept to what a share can be."""
    return float(np.clip(max(shares, default=otherwise), 0.01, 1.0))


def _gemm_share(series: Series, device: DeviceSpec) -> float:
    peak = device.peak_flops.get(series.dtype)
    rates = [2 * float(np.prod(point.shape)) / point.seconds for point in series.points]
    return max(rates, default=0.0) / peak if peak else 0.0


def _copy_share(series: Series, device: DeviceSpec) -> float:
    tensors = 2 if series.variant == "copy" else 3
    width = 4 if series.dtype == "fp32" else 2
    rates = [tensors * width * float(np.prod(point.shape)) / point.seconds for point in series.points]
    return max(rates, default=0.0) / device.memory_bandwidth


def _adam_share(series: Series, device: DeviceSpec) -> float:
    moved = [ADAM_BYTES[series.dtype] * point.shape[0] / point.seconds for point in series.points]
    return max(moved, default=0.0) / device.memory_bandwidth


def _attention_share(series: Series, device: DeviceSpec) -> float:
    peak = device.peak_flops.get(series.dtype, max(device.peak_flops.values()))
    rates = [
        ATTENTION_FLOPS[series.variant] * sequences * heads * length**2 / 2 * head_dim / point.seconds
        for point in series.points
        for sequences, heads, _, length, head_dim in (point.shape,)
    ]
    return max(rates, default=0.0) / peak
