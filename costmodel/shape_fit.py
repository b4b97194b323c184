"""How measured points bend a curve between them: a smooth correction over shapes, and a monotone one over sizes.

Outside the measured range the correction of its nearest edge stays, so the curve is scaled to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .columns import Bools, Floats

Curve = Callable[[Floats], Floats]
"""Seconds of sizes by a formula, nothing measured."""

LENGTHS = (1.5, 3.0, 6.0)
"""Doublings of a dimension over which corrections resemble each other; the one with the least left-out error is taken."""
NUGGETS = (0.02, 0.1, 0.3)
"""Share of the variance that neighbours do not share (a library changes its kernel from one shape to the next)."""
DEFAULT_SPREAD = 0.25
"""Deviation of a kernel's time from the curve where nothing was measured, in logs: the mean error of unfitted devices."""
SAME = 1e-6
"""Log2 distance below which two shapes are one."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShapeFit:
    """A correction over shapes of d dimensions from N points: kriging with an exponential kernel over log2 shapes.

    log ratio(x) = mean + sum_i w_i exp(-|x - x_i| / length), x moved into the measured box first. Length and nugget are those with
    the least leave-one-out error (closed form of Dubrule 1983).
    """

    points: Floats
    """N x d, log2 of the shapes."""
    weights: Floats
    inverse: Floats
    """N x N, of the kernel with its nugget."""
    mean: float
    length: float
    variance: float
    left_out: Floats
    """Of each point: log(predicted / measured) without it."""

    @classmethod
    def of(cls, shapes: npt.ArrayLike, log_ratios: npt.ArrayLike) -> ShapeFit:
        """The fit to N points: ``shapes`` N x d, ``log_ratios`` N, N at least 1."""
        points, targets = np.log2(np.asarray(shapes, dtype=np.float64)), np.asarray(log_ratios, dtype=np.float64)
        mean = float(np.median(targets))
        centred = targets - mean
        variance = max(float(np.mean(centred**2)), 1e-6)
        distance = _distances(points, points)
        best: tuple[float, ShapeFit] | None = None
        for length in LENGTHS:
            kernel = np.exp(-distance / length)
            for nugget in NUGGETS:
                inverse = np.asarray(np.linalg.inv(kernel + nugget * np.eye(len(points))), dtype=np.float64)
                weights = inverse @ centred
                left_out = -weights / np.diag(inverse)
                error = float(np.mean(np.abs(left_out)))
                if best is None or error < best[0]:
                    fit = cls(
                        points=points,
                        weights=weights,
                        inverse=inverse,
                        mean=mean,
                        length=length,
                        variance=variance,
                        left_out=left_out,
                    )
                    best = (error, fit)
        assert best is not None, "LENGTHS and NUGGETS are not empty"
        return best[1]

    @property
    def left_out_error(self) -> float:
        """Median of |predicted / measured - 1| over the points, each left out of the fit."""
        return float(np.median(np.abs(np.expm1(self.left_out))))

    def log_ratio(self, shapes: Floats) -> Floats:
        """Corrections of M shapes, M x d."""
        distance = _distances(self._inside(shapes), self.points)
        return np.asarray(self.mean + np.exp(-distance / self.length) @ self.weights)

    def deviation(self, shapes: Floats) -> Floats:
        """Standard deviation of each correction, in logs: small at a point, that of the whole series far from all."""
        near = np.exp(-_distances(np.log2(shapes), self.points) / self.length)
        explained = np.einsum("ij,jk,ik->i", near, self.inverse, near)
        spread = max(np.sqrt(self.variance), self.left_out_error, 0.02)
        return np.asarray(spread * np.sqrt(np.clip(1 - explained, 0.0, 1.0)))

    def is_measured(self, shapes: Floats) -> Bools:
        """Which of the shapes are points."""
        return np.asarray(_distances(np.log2(shapes), self.points).min(axis=1) < SAME)

    def is_inside(self, shapes: Floats) -> Bools:
        """Which of the shapes lie within the measured range of every dimension."""
        logs = np.log2(shapes)
        low, high = self.points.min(axis=0) - SAME, self.points.max(axis=0) + SAME
        return np.asarray(np.all((logs >= low) & (logs <= high), axis=1))

    def _inside(self, shapes: Floats) -> Floats:
        return np.clip(np.log2(shapes), self.points.min(axis=0), self.points.max(axis=0))


def _distances(left: Floats, right: Floats) -> Floats:
    """M x N Euclidean distances."""
    square = np.zeros((len(left), len(right)))
    for axis in range(left.shape[1]):
        square += np.square(left[:, axis, np.newaxis] - right[np.newaxis, :, axis])
    return np.sqrt(square)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SizeFit:
    """A correction over one size. Times between points lie on straight lines in logs, which never fall.

    The curve's own bends (a change of algorithm or protocol) are divided out where they are asked for, not at chosen sizes: a time
    that never falls in the curve never falls corrected.
    """

    sizes: Floats
    """The measured sizes, ascending."""
    log_seconds: Floats
    """Of each size, on the line that never falls."""
    curve: Curve
    """What the formula says of sizes."""
    spread: float
    """Mean distance of the points from the line that never falls, in logs."""

    @classmethod
    def of(cls, sizes: Sequence[float], seconds: Sequence[float], curve: Curve) -> SizeFit:
        """The fit to measured ``seconds``; several of one size count with their median. ``curve`` gives unmeasured seconds of sizes."""
        distinct = sorted(set(sizes))
        medians = [float(np.median([t for size, t in zip(sizes, seconds, strict=True) if size == each])) for each in distinct]
        raw = np.log(medians)
        line = never_falling(raw)
        spread = float(np.mean(np.abs(raw - line)))
        return cls(sizes=np.asarray(distinct, dtype=np.float64), log_seconds=line, curve=curve, spread=spread)

    def ratio(self, sizes: npt.ArrayLike) -> Floats:
        """Time over curve at each size; that of the nearest end outside the measured range."""
        inside = np.clip(np.asarray(sizes, dtype=np.float64), self.sizes[0], self.sizes[-1])
        return np.asarray(np.exp(np.interp(np.log(inside), np.log(self.sizes), self.log_seconds)) / self.curve(inside))

    def is_measured(self, size: float) -> bool:
        return bool(np.any(np.abs(np.log2(self.sizes / size)) < SAME))

    def is_inside(self, size: float) -> bool:
        return bool(self.sizes[0] * (1 - SAME) <= size <= self.sizes[-1] * (1 + SAME))

    def deviation(self, size: float) -> float:
        """Standard deviation at ``size``, in logs: grows with the doublings to the nearest point, up to that of nothing measured."""
        doublings = float(np.min(np.abs(np.log2(self.sizes / size))))
        return float(min(DEFAULT_SPREAD, max(self.spread, 0.02) + 0.03 * doublings))


def never_falling(values: npt.ArrayLike) -> Floats:
    """The nearest sequence that never falls, in least squares (pool adjacent violators, Ayer 1955)."""
    blocks: list[tuple[float, int]] = []
    for value in np.asarray(values, dtype=np.float64).tolist():
        total, count = value, 1
        while blocks and blocks[-1][0] / blocks[-1][1] >= total / count:
            before, length = blocks.pop()
            total, count = total + before, count + length
        blocks.append((total, count))
    return np.concatenate([np.full(count, total / count) for total, count in blocks])
