"""A measured profile: what the kernels and collectives of one machine took, point by point.

The profiler writes it, ``--profile`` reads it, and the cost model scales its curves by it (:mod:`autopar.costmodel.measured`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from .errors import Fault, raise_if

MEASURED_SCHEMA_VERSION = "1.0"
MEASURED_KIND = "measured"


class Kind(StrEnum):
    """What was timed; :data:`AXES` says what its shapes are made of."""

    GEMM = "gemm"
    ATTENTION = "attention"
    OPERATOR = "operator"
    OPTIMIZER = "optimizer"
    HOST_COPY = "host_copy"
    LAUNCH = "launch"
    COLLECTIVE = "collective"


AXES: Mapping[Kind, tuple[str, ...]] = {
    Kind.GEMM: ("m", "n", "k"),
    Kind.ATTENTION: ("sequences", "heads", "kv_heads", "length", "head_dim"),
    Kind.OPERATOR: ("rows", "columns"),
    Kind.OPTIMIZER: ("parameters",),
    Kind.HOST_COPY: ("bytes",),
    Kind.LAUNCH: ("kernels",),
    Kind.COLLECTIVE: ("bytes", "group_size", "members_per_domain"),
}
"""Names of a shape's numbers. Attention is causal and square; the bytes of a collective are counted as nccl-tests counts them."""

VARIANTS: Mapping[Kind, tuple[str, ...]] = {
    Kind.GEMM: ("nt", "nn", "tn"),
    Kind.ATTENTION: ("forward", "backward"),
    Kind.OPERATOR: (
        "copy", "add", "gelu", "gelu_backward", "silu_mul", "silu_mul_backward", "layernorm", "layernorm_backward", "rmsnorm",
        "rmsnorm_backward", "softmax", "dropout", "cross_entropy", "cross_entropy_backward",
    ),
    Kind.OPTIMIZER: ("adamw", "gradient_norm"),
    Kind.HOST_COPY: ("to_device", "to_host"),
    Kind.LAUNCH: ("kernel",),
    Kind.COLLECTIVE: ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"),
}  # fmt: skip

DTYPES = ("fp32", "tf32", "fp16", "bf16", "fp8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One shape's time.

    ``seconds`` is the median of ``repeats`` timings (of medians over ranks, the slowest rank's), ``spread`` half their interquartile
    range over it.
    """

    shape: tuple[float, ...]
    seconds: float
    repeats: int
    spread: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """The points of one kernel or collective.

    ``library`` is what ran it, ``source`` where the numbers come from: this machine's run, or the file they were read from.
    """

    kind: Kind
    variant: str
    dtype: str
    library: str
    source: str
    points: tuple[Point, ...]

    @property
    def name(self) -> str:
        """``gemm nt bf16``."""
        return f"{self.kind.value} {self.variant} {self.dtype}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Whose times they are. Text that the machine did not tell is empty."""

    device_name: str
    """As the driver, or the operating system for a processor, calls it."""
    host: str
    date: str
    """ISO 8601, UTC."""
    driver: str
    clocks: str
    libraries: Mapping[str, str]
    """``torch`` -> ``2.13.0``; CUDA and NCCL among them."""
    world_size: int
    ranks_per_node: int
    threads_per_rank: int
    """Host threads of one rank; on a processor they are the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredProfile:
    """The content of a profile file.

    ``device`` is a catalog id, or the id of the device in the cluster file that was written beside it. ``failures`` has one line for
    each thing that was asked for and not measured.
    """

    kind: str = MEASURED_KIND
    device: str
    machine: Machine
    series: tuple[Series, ...]
    failures: tuple[str, ...]
    autopar_version: str
    schema_version: str = MEASURED_SCHEMA_VERSION

    def __post_init__(self) -> None:
        raise_if(list(_faults(self)))

    @property
    def num_points(self) -> int:
        return sum(len(series.points) for series in self.series)

    def of_kind(self, kind: Kind) -> tuple[Series, ...]:
        """The series of one kind, in order."""
        return tuple(series for series in self.series if series.kind is kind)


MAX_REPORTED_FAULTS = 20
LARGEST = 1e15


def _faults(profile: MeasuredProfile) -> Iterator[Fault]:
    """Everything in the profile that cannot be a measurement; the first twenty."""
    found: list[Fault] = []
    if profile.kind != MEASURED_KIND:
        found.append(Fault(field="kind", given=repr(profile.kind), required=f"a measured profile says {MEASURED_KIND!r}"))
    seen: set[tuple[Kind, str, str]] = set()
    for place, series in enumerate(profile.series):
        path = f"series[{place}]"
        key = (series.kind, series.variant, series.dtype)
        if series.variant not in VARIANTS[series.kind]:
            known = ", ".join(VARIANTS[series.kind])
            found.append(Fault(field=f"{path}.variant", given=repr(series.variant), required=f"of a {series.kind.value}: {known}"))
        if series.dtype not in DTYPES:
            found.append(Fault(field=f"{path}.dtype", given=repr(series.dtype), required=f"one of {', '.join(DTYPES)}"))
        if key in seen:
            found.append(Fault(field=path, given=series.name, required="occurs twice", fix="leave one of the two"))
        seen.add(key)
        found += _point_faults(path, series)
    yield from found[:MAX_REPORTED_FAULTS]
    if len(found) > MAX_REPORTED_FAULTS:
        yield Fault(field="series", given=f"{len(found) - MAX_REPORTED_FAULTS} more faults", required="measure again")


def _point_faults(path: str, series: Series) -> Iterator[Fault]:
    axes = AXES[series.kind]
    for place, point in enumerate(series.points):
        field = f"{path}.points[{place}]"
        if len(point.shape) != len(axes):
            yield Fault(field=f"{field}.shape", given=str(list(point.shape)), required=f"{len(axes)} numbers: {', '.join(axes)}")
        elif not all(math.isfinite(size) and 0 < size <= LARGEST for size in point.shape):
            yield Fault(field=f"{field}.shape", given=str(list(point.shape)), required="sizes above 0")
        if not (math.isfinite(point.seconds) and 0 < point.seconds < 3600):
            yield Fault(field=f"{field}.seconds", given=f"{point.seconds!r}", required="a time above 0 and below an hour")
        if point.repeats < 1:
            yield Fault(field=f"{field}.repeats", given=str(point.repeats), required="at least 1")
        if not (math.isfinite(point.spread) and point.spread >= 0):
            yield Fault(field=f"{field}.spread", given=f"{point.spread!r}", required="0 or more")
