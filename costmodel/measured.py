"""Measured times in the cost model: corrections of its kernel and link curves, and a record of which shapes were asked for.

A formula of :mod:`compute` or :mod:`communication` gives the curve; where the profile has points of that kernel, the curve
is multiplied by the interpolated ratio measured / curve. Without points the ratio is 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from .columns import Floats, Shared
from .shape_fit import DEFAULT_SPREAD, ShapeFit, SizeFit
from .spec.measured import Kind


class Coverage(StrEnum):
    """How well a profile covers one shape."""

    MEASURED = "measured"
    INTERPOLATED = "interpolated"
    OUTSIDE = "outside the measured range"
    ANALYTIC = "analytic"


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """One kernel or collective that an estimate asked for: its shape, what the model says it takes, and how sure that is."""

    kind: Kind
    variant: str
    dtype: str
    shape: tuple[float, ...]
    seconds: float
    coverage: Coverage
    deviation: float
    """Standard deviation of the time, in logs."""

    @property
    def key(self) -> tuple[Kind, str, str, tuple[float, ...]]:
        return self.kind, self.variant, self.dtype, self.shape


@dataclass(slots=True)
class Uses:
    """What one estimate asked for, each shape once. Only evaluations of a single strategy are recorded."""

    found: dict[tuple[Kind, str, str, tuple[float, ...]], Use] = field(default_factory=dict)

    def add(self, use: Use) -> None:
        """Keep ``use``."""
        self.found.setdefault(use.key, use)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KernelCurves(Shared):
    """Corrections of one device and compute type."""

    gemm_dtype: str
    dtype: str
    """Of everything that is no linear layer."""
    value_bytes: float
    """Of ``dtype``."""
    gemm: Mapping[str, ShapeFit]
    attention: Mapping[str, ShapeFit]
    operators: Mapping[str, SizeFit]
    optimizer: SizeFit | None
    uses: Uses | None = None

    def gemm_seconds(self, layout: str, m: Floats, n: Floats, k: Floats, count: Floats, work: Floats, overhead: Floats) -> Floats:
        """``work`` corrected, and the fixed ``overhead``; a grouped product is looked up with the rows of its whole group."""
        shapes = np.broadcast_arrays(m * count, n, k)
        fit = self.gemm.get(layout)
        seconds = np.asarray(_corrected(fit, shapes, work) + overhead)
        if self.uses is not None and seconds.size == 1:
            self._record(Kind.GEMM, layout, self.gemm_dtype, shapes, seconds, fit)
        return seconds

    def attention_seconds(self, variant: str, shapes: tuple[Floats, ...], curve: Floats) -> Floats:
        """``curve`` corrected. ``shapes``: sequences, heads, key-value heads, queries, keys, head dim."""
        batch, heads, kv_heads, queries, keys, head_dim = shapes
        fit = self.attention.get(variant)
        length = np.sqrt(queries * keys)
        seconds = _corrected(fit, attention_features(batch, heads, length, head_dim), curve)
        if self.uses is not None and seconds.size == 1:
            asked = np.broadcast_arrays(batch, heads, kv_heads, length, head_dim)
            self._record(Kind.ATTENTION, variant, self.dtype, asked, seconds, fit)
        return seconds

    def operator_share(self, name: str, rows: npt.ArrayLike, columns: npt.ArrayLike, curve: Floats) -> Floats:
        """Time over that of the curve of a memory-bound operator; ``curve`` is for the record."""
        fit = self.operators.get(name)
        elements = np.asarray(rows, dtype=np.float64) * np.asarray(columns, dtype=np.float64)
        share = np.ones_like(elements) if fit is None else fit.ratio(elements)
        if self.uses is not None and elements.size == 1 and elements.item() > 0:
            shape = (float(np.asarray(rows).item()), float(np.asarray(columns).item()))
            self._record_size(Kind.OPERATOR, name, shape, elements.item(), float((share * curve).item()), fit)
        return share

    def memory_seconds(self, bytes_moved: Floats, curve: Floats) -> Floats:
        """``curve`` corrected as a copy of as many bytes is."""
        fit = self.operators.get("copy")
        return curve if fit is None else curve * fit.ratio(bytes_moved / (2 * self.value_bytes))

    def optimizer_seconds(self, bytes_moved: Floats, curve: Floats) -> Floats:
        """``curve`` corrected."""
        return curve if self.optimizer is None else curve * self.optimizer.ratio(bytes_moved)

    def _record(
        self, kind: Kind, variant: str, dtype: str, shapes: list[Floats] | tuple[Floats, ...], seconds: Floats, fit: ShapeFit | None
    ) -> None:
        assert self.uses is not None, "callers look"
        shape = tuple(float(np.asarray(size).item()) for size in shapes)
        looked_up = np.array([shape])
        if kind is Kind.ATTENTION:
            looked_up = np.array([[shape[0] * shape[1], shape[3], shape[4]]])
        coverage, deviation = Coverage.ANALYTIC, DEFAULT_SPREAD
        if fit is not None:
            measured, inside = bool(fit.is_measured(looked_up)[0]), bool(fit.is_inside(looked_up)[0])
            coverage = Coverage.MEASURED if measured else Coverage.INTERPOLATED if inside else Coverage.OUTSIDE
            deviation = float(fit.deviation(looked_up)[0])
        self.uses.add(
            Use(kind=kind, variant=variant, dtype=dtype, shape=shape, seconds=float(seconds.item()), coverage=coverage, deviation=deviation)
        )

    def _record_size(self, kind: Kind, variant: str, shape: tuple[float, ...], size: float, seconds: float, fit: SizeFit | None) -> None:
        assert self.uses is not None, "callers look"
        coverage, deviation = size_coverage(fit, size)
        self.uses.add(
            Use(kind=kind, variant=variant, dtype=self.dtype, shape=shape, seconds=seconds, coverage=coverage, deviation=deviation)
        )


def attention_features(batch: Floats, heads: Floats, length: Floats, head_dim: Floats) -> list[Floats]:
    """What the correction of attention depends on: sequences x heads, length, head dim."""
    return list(np.broadcast_arrays(batch * heads, length, head_dim))


def size_coverage(fit: SizeFit | None, size: float) -> tuple[Coverage, float]:
    """How a one-dimensional series covers ``size``, and the deviation there."""
    if fit is None:
        return Coverage.ANALYTIC, DEFAULT_SPREAD
    coverage = Coverage.MEASURED if fit.is_measured(size) else Coverage.INTERPOLATED if fit.is_inside(size) else Coverage.OUTSIDE
    return coverage, fit.deviation(size)


def _corrected(fit: ShapeFit | None, shapes: list[Floats] | tuple[Floats, ...], curve: Floats) -> Floats:
    """``curve`` times the ratio at ``shapes``, each distinct shape looked up once."""
    if fit is None:
        return curve
    shape = np.broadcast_shapes(np.shape(curve), np.shape(shapes[0]))
    flat = np.stack([np.broadcast_to(size, shape).reshape(-1) for size in shapes], axis=1)
    flat = np.maximum(flat, 1e-9)
    _, first, index = np.unique(np.log2(flat) @ _SEPARATING[: flat.shape[1]], return_index=True, return_inverse=True)
    ratios = np.exp(fit.log_ratio(flat[first]))[index]
    return np.asarray(curve * ratios.reshape(shape))


_SEPARATING = np.array([1.0, 131.071, 8191.93])
"""Weights under which two different shapes do not add up to the same number."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupCurve:
    """The correction of one collective on groups of ``size`` ranks, ``members`` of them in each domain."""

    collective: str
    size: float
    members: float
    fit: SizeFit

    @property
    def crosses(self) -> bool:
        return self.members < self.size


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinkCurves(Shared):
    """Corrections of a cluster's collectives. A group takes the correction of the measured one nearest in ranks and in ranks a domain."""

    curves: tuple[GroupCurve, ...]
    uses: Uses | None = None

    def seconds(self, collective: str, message: Floats, size: Floats, members: Floats, curve: Floats) -> Floats:
        """``curve`` corrected; groups that cross domains and groups that do not are never taken for each other."""
        found = [each for each in self.curves if each.collective == collective]
        crosses = members < size
        shape = np.broadcast_shapes(np.shape(curve), np.shape(message), np.shape(size))
        nearest, ratio = np.full(shape, np.inf), np.ones(shape)
        for each in found:
            distance = np.abs(np.log2(size / each.size)) + np.abs(np.log2(members / each.members))
            closer = (np.where(crosses == each.crosses, distance, np.inf) < nearest) & np.ones(shape, dtype=np.bool_)
            nearest = np.where(closer, distance, nearest)
            ratio = np.where(closer, each.fit.ratio(message), ratio)
        seconds = np.asarray(curve * ratio)
        if self.uses is not None and seconds.size == 1 and seconds.item() > 0:
            self._record(collective, float(message.item()), float(size.item()), float(members.item()), seconds.item())
        return seconds

    def _record(self, collective: str, message: float, size: float, members: float, seconds: float) -> None:
        assert self.uses is not None, "callers look"
        mine = [c for c in self.curves if c.collective == collective and c.crosses == (members < size)]
        exact = next((c for c in mine if c.size == size and c.members == members), None)
        coverage, deviation = size_coverage(None if exact is None else exact.fit, message)
        if exact is None and mine:
            coverage = Coverage.OUTSIDE
        shape = (message, size, members)
        self.uses.add(
            Use(kind=Kind.COLLECTIVE, variant=collective, dtype="", shape=shape, seconds=seconds, coverage=coverage, deviation=deviation)
        )
