"""Which shapes to measure: a coarse grid, those that models and plans ask for, then where two fits disagree most."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from autopar.costmodel.columns import Floats
from autopar.costmodel.measured import Coverage, Use
from autopar.costmodel.shape_fit import ShapeFit
from autopar.costmodel.spec.measured import Kind, Series

from .request import Request

GEMM_SIZES = (64, 256, 1024, 4096, 16384)
CPU_GEMM_SIZES = (64, 192, 512, 1536, 4096)
"""Of a processor, which trains smaller models and has less time."""
ATTENTION_LENGTHS = (128, 512, 2048, 8192)
OPERATORS = (
    "copy", "add", "gelu", "gelu_backward", "silu_mul", "silu_mul_backward", "layernorm", "layernorm_backward", "rmsnorm",
    "rmsnorm_backward", "softmax",
)  # fmt: skip
GEMM_AHEAD = 2
OPERATOR_COLUMNS = 1024
VOCABULARIES = (4096, 32768, 131072)
GEMM_LAYOUTS = ("nt", "nn", "tn")
FINE_STEPS = tuple(2.0 ** (half / 2) for half in range(10, 30))
"""Sizes that refinement chooses among: 32 to 23,170 in half doublings, rounded to multiples of 16 from 64 on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """How large a shape may be, so that a run holds many of them.

    ``flops_per_second`` and ``bytes_per_second`` are what the device does, roughly; ``seconds`` the longest call.
    """

    flops_per_second: float
    bytes_per_second: float
    seconds: float
    bytes: float
    """The largest set of operands."""

    def holds(self, request: Request) -> bool:
        """Whether one call of ``request`` ends in time and fits."""
        return request.bytes <= self.bytes and self.estimate(request) <= self.seconds

    def estimate(self, request: Request) -> float:
        """Seconds of one call, roughly."""
        flops = request.work if request.kind in (Kind.GEMM, Kind.ATTENTION) else 0.0
        return flops / self.flops_per_second + request.bytes / self.bytes_per_second


def base_requests(dtypes: Sequence[str], wide: str, reach: Reach, *, gpu: bool) -> list[Request]:
    """The coarse grid: GEMMs in each of ``dtypes``, everything else in ``wide``; the shapes within ``reach``, quick ones first."""
    sizes = GEMM_SIZES if gpu else CPU_GEMM_SIZES
    found = [Request(kind=Kind.LAUNCH, variant="kernel", dtype=wide, shape=(1.0,))]
    for dtype in dtypes:
        layouts = GEMM_LAYOUTS if dtype != "fp8" else ("nt",)
        for layout, m, n, k in itertools.product(layouts, sizes, sizes, sizes):
            found.append(_gemm(layout, dtype, m, n, k))
    for name, power in itertools.product(OPERATORS, range(12, 29, 2)):
        found.append(_operator(name, wide, max(2**power // OPERATOR_COLUMNS, 1), OPERATOR_COLUMNS))
    for name, rows, columns in itertools.product(("cross_entropy", "cross_entropy_backward"), (32, 256, 2048, 8192), VOCABULARIES):
        found.append(_operator(name, wide, rows, columns))
    for variant, lanes, length, dim in itertools.product(("forward", "backward"), (4, 16, 64), ATTENTION_LENGTHS, (32, 64, 128)):
        shape = (max(lanes / 16, 1.0), float(min(lanes, 16)), float(min(lanes, 16)), float(length), float(dim))
        found.append(Request(kind=Kind.ATTENTION, variant=variant, dtype=wide, shape=shape))
    for variant, power in itertools.product(("adamw", "gradient_norm"), range(16, 31, 3)):
        found.append(Request(kind=Kind.OPTIMIZER, variant=variant, dtype=wide, shape=(float(2**power),)))
    if gpu:
        for variant, power in itertools.product(("to_device", "to_host"), range(16, 29, 3)):
            found.append(Request(kind=Kind.HOST_COPY, variant=variant, dtype=wide, shape=(float(2**power),)))
    return sorted((each for each in found if reach.holds(each)), key=reach.estimate)


def spread_out(requests: Sequence[Request]) -> list[Request]:
    """The same, in an order that may be cut off anywhere: of every kernel first the ends of its list, then its middles."""
    by_kernel: dict[tuple[Kind, str, str], list[Request]] = {}
    for each in requests:
        by_kernel.setdefault((each.kind, each.variant, each.dtype), []).append(each)
    ranked = [(turn, place, mine[index]) for place, mine in enumerate(by_kernel.values()) for turn, index in enumerate(_halving(len(mine)))]

    def turn_of(item: tuple[int, int, Request]) -> tuple[int, int, int]:
        """By depth of halving; products, which have three dimensions to cover, are two halvings ahead."""
        turn, place, request = item
        depth = turn.bit_length()
        return (max(depth - GEMM_AHEAD, 0) if request.kind is Kind.GEMM else depth), place, turn

    return [each for _, _, each in sorted(ranked, key=turn_of)]


def _halving(count: int) -> list[int]:
    """0 to count - 1: both ends, then again and again the middles of what lies between."""
    order = [0, count - 1][:count]
    gaps = [(0, count - 1)]
    while gaps:
        halves = []
        for low, high in gaps:
            middle = (low + high) // 2
            if low < middle < high:
                order.append(middle)
                halves += [(low, middle), (middle, high)]
        gaps = halves
    return order


def requests_of(uses: Iterable[Use], *, unmeasured_only: bool = True) -> list[Request]:
    """What an estimate asked for, as requests with whole sizes; the longest first."""
    wanted = [
        use
        for use in uses
        if not (unmeasured_only and use.coverage is Coverage.MEASURED) and use.kind in (Kind.GEMM, Kind.ATTENTION, Kind.OPERATOR)
    ]
    wanted.sort(key=lambda use: -use.seconds)
    found = (
        Request(kind=use.kind, variant=use.variant, dtype=use.dtype, shape=tuple(float(max(round(size), 1)) for size in use.shape))
        for use in wanted
    )
    return list(dict.fromkeys(found))


def least_sure(series: Iterable[Series], reach: Reach, tried: set[Request]) -> Request | None:
    """The GEMM not yet measured on which two fits to the points disagree most: kriging, and a plane through the log rates.

    Disagreement counts times the series' left-out error, so that none of the layouts is left behind.

    Rates far from all points follow the plane in one and stay at their mean in the other, so holes in the range are filled first.
    None where no shape is left.
    """
    best: tuple[float, Request] | None = None
    for one in series:
        if one.kind is not Kind.GEMM or len(one.points) < 5:
            continue
        shapes = np.array([point.shape for point in one.points])
        rates = np.log([point.seconds / (2 * np.prod(point.shape)) for point in one.points])
        candidates = [each for each in _between(one, shapes) if each not in tried and reach.holds(each)]
        if not candidates:
            continue
        asked = np.array([each.shape for each in candidates])
        fit = ShapeFit.of(shapes, rates)
        gap = fit.left_out_error * np.abs(fit.log_ratio(asked) - _plane(shapes, rates, asked))
        place = int(np.argmax(gap))
        if best is None or gap[place] > best[0]:
            best = (float(gap[place]), candidates[place])
    return None if best is None else best[1]


def _between(one: Series, shapes: Floats) -> Iterator[Request]:
    """Shapes on the fine grid inside the measured range."""
    axes = []
    for axis in range(3):
        low, high = shapes[:, axis].min(), shapes[:, axis].max()
        sizes = {round(step) if step < 64 else 16 * round(step / 16) for step in FINE_STEPS}
        axes.append([size for size in sorted(sizes) if low <= size <= high])
    for m, n, k in itertools.product(*axes):
        yield _gemm(one.variant, one.dtype, m, n, k)


def _plane(shapes: Floats, values: Floats, asked: Floats) -> Floats:
    """Values at ``asked`` of the plane over log2 shapes that fits ``values`` best."""

    def columns(of: Floats) -> Floats:
        return np.column_stack([np.ones(len(of)), np.log2(of)])

    coefficients, *_ = np.linalg.lstsq(columns(shapes), values, rcond=None)
    return np.asarray(columns(asked) @ coefficients)


def _gemm(layout: str, dtype: str, m: float, n: float, k: float) -> Request:
    return Request(kind=Kind.GEMM, variant=layout, dtype=dtype, shape=(float(m), float(n), float(k)))


def _operator(name: str, dtype: str, rows: int, columns: int) -> Request:
    return Request(kind=Kind.OPERATOR, variant=name, dtype=dtype, shape=(float(rows), float(columns)))
