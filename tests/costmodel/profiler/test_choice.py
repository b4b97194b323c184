"""Which shapes are measured, and in which order."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from autopar.costmodel.measured import Coverage, Use
from autopar.costmodel.profiler.choice import Reach, base_requests, least_sure, requests_of, spread_out
from autopar.costmodel.profiler.request import Request
from autopar.costmodel.spec.measured import VARIANTS, Kind, Point, Series

REACH = Reach(flops_per_second=1e11, bytes_per_second=1e10, seconds=0.1, bytes=2**27)


def test_the_grid_has_every_kernel_and_stays_within_reach() -> None:
    found = base_requests(("fp32",), "fp32", REACH, gpu=True)
    assert all(REACH.holds(each) for each in found)
    assert len(set(found)) == len(found)
    for kind in set(Kind) - {Kind.COLLECTIVE}:
        assert {each.variant for each in found if each.kind is kind} >= set(VARIANTS[kind]) - {"dropout"}, kind


@given(st.integers(1, 60), st.integers(1, 60))
def test_an_order_cut_anywhere_keeps_the_ends_of_every_kernel(first: int, second: int) -> None:
    requests = [_gemm(layout, size) for layout, count in (("nt", first), ("nn", second)) for size in range(1, count + 1)]
    found = spread_out(requests)
    assert sorted(found, key=str) == sorted(requests, key=str)
    ends = {_gemm("nt", 1), _gemm("nn", 1), _gemm("nt", first), _gemm("nn", second)}
    ahead = min(first, 4) + min(second, 4)
    assert ends <= set(found[:ahead])


def test_what_an_estimate_asks_for_comes_longest_first_and_whole() -> None:
    uses = [_use(64.0, 1e-3), _use(100.5, 1e-2), _use(64.0, 1e-3), _use(7.0, 1.0, Coverage.MEASURED), _use(0.25, 1e-6)]
    assert [each.shape[0] for each in requests_of(uses)] == [100.0, 64.0, 1.0]


def test_refinement_fills_the_hole_first() -> None:
    sizes = [64, 128, 256, 4096]  # nothing between 256 and 4096
    points = tuple(
        Point(shape=(float(m), float(n), float(k)), seconds=2e-12 * m * n * k * (1 + 0.2 * np.sin(m + n + k)), repeats=1, spread=0.0)
        for m in sizes
        for n in sizes
        for k in sizes
    )
    one = Series(kind=Kind.GEMM, variant="nt", dtype="fp32", library="", source="", points=points)
    reach = Reach(flops_per_second=1e12, bytes_per_second=1e12, seconds=10, bytes=2**33)
    tried = {Request(kind=Kind.GEMM, variant="nt", dtype="fp32", shape=point.shape) for point in points}
    found = least_sure([one], reach, tried)
    assert found is not None
    assert found not in tried
    assert any(size not in sizes for size in found.shape)
    assert all(64 <= size <= 4096 for size in found.shape)
    assert least_sure([], reach, tried) is None


def _gemm(layout: str, size: int) -> Request:
    return Request(kind=Kind.GEMM, variant=layout, dtype="fp32", shape=(float(size),) * 3)


def _use(rows: float, seconds: float, coverage: Coverage = Coverage.INTERPOLATED) -> Use:
    return Use(kind=Kind.GEMM, variant="nt", dtype="fp32", shape=(rows, 64.0, 64.0), seconds=seconds, coverage=coverage, deviation=0.1)
