"""The processor's backend: every kernel of the grid runs, and is timed."""

from __future__ import annotations

import itertools

import pytest

from autopar.costmodel.profiler.cpu import CpuBackend, CpuPrepared
from autopar.costmodel.profiler.request import CannotMeasureError, Request
from autopar.costmodel.profiler.timing import Samples, sample
from autopar.costmodel.spec.measured import VARIANTS, Kind

SHAPES = {
    Kind.GEMM: (32.0, 48.0, 64.0),
    Kind.ATTENTION: (1.0, 4.0, 2.0, 16.0, 8.0),
    Kind.OPERATOR: (8.0, 64.0),
    Kind.OPTIMIZER: (4096.0,),
    Kind.LAUNCH: (1.0,),
}


@pytest.fixture(scope="module")
def backend() -> CpuBackend:
    pytest.importorskip("torch")
    return CpuBackend(threads=1, cache_bytes=2**16, memory_bytes=2**30)


@pytest.mark.parametrize(("kind", "variant"), [(kind, variant) for kind in SHAPES for variant in VARIANTS[kind]])
def test_every_kernel_runs(backend: CpuBackend, kind: Kind, variant: str) -> None:
    prepared = backend.prepare(Request(kind=kind, variant=variant, dtype="fp32", shape=SHAPES[kind]))
    assert prepared.library.startswith("torch")
    assert 0 < prepared.seconds(2) < 5


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_other_types_run_too(backend: CpuBackend, dtype: str) -> None:
    assert backend.prepare(Request(kind=Kind.GEMM, variant="tn", dtype=dtype, shape=(16.0, 16.0, 16.0))).seconds(1) > 0


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (Request(kind=Kind.GEMM, variant="nt", dtype="fp8", shape=(16.0, 16.0, 16.0)), "fp8 products need a GPU"),
        (Request(kind=Kind.GEMM, variant="nt", dtype="tf32", shape=(16.0, 16.0, 16.0)), "a type of GPUs"),
        (Request(kind=Kind.HOST_COPY, variant="to_host", dtype="fp32", shape=(16.0,)), "no memory of its own"),
        (Request(kind=Kind.GEMM, variant="nt", dtype="fp32", shape=(1e6, 1e6, 1.0)), "GiB are free"),
        (Request(kind=Kind.COLLECTIVE, variant="all_reduce", dtype="fp32", shape=(16.0, 2.0, 2.0)), "is no kernel"),
    ],
)
def test_what_a_processor_cannot_run_is_told(backend: CpuBackend, request_: Request, reason: str) -> None:
    with pytest.raises(CannotMeasureError, match=reason):
        backend.prepare(request_)


def test_a_sample_is_the_quickest_of_three_rounds_and_operands_rotate() -> None:
    ran: list[int] = []
    ticks = itertools.chain([0, 8, 10, 14, 20, 30], itertools.repeat(99))
    prepared = CpuPrepared([lambda: ran.append(0), lambda: ran.append(1), lambda: ran.append(2)], "a test", lambda: float(next(ticks)))
    assert prepared.seconds(2) == 2.0
    assert ran == [0, 1, 2, 0, 1, 2]


def test_short_calls_are_repeated_and_long_ones_are_not_sampled_for_ever() -> None:
    class Timed:
        library = "a test"

        def __init__(self, seconds: float) -> None:
            self.each, self.asked = seconds, []

        def seconds(self, calls: int) -> float:
            self.asked.append(calls)
            return self.each

    quick, slow = Timed(1.5e-6), Timed(0.3)
    assert len(sample(quick)) == 5
    assert quick.asked[1:] == [134] * 6
    assert sample(slow) == [0.3]
    assert slow.asked == [1]
    assert len(sample(Timed(0.05))) == 2
    together = Timed(1.5e-6)
    assert len(sample(together, lambda _: 0.05)) == 2, "the slowest rank decides how many"
    assert together.asked == [1, 1, 1]


def test_a_point_is_the_median_with_its_spread() -> None:
    point = Samples(seconds=[1.0, 1.0, 2.0, 3.0, 3.0]).point((1.0,))
    assert (point.seconds, point.repeats, point.spread) == (2.0, 5, 0.5)
