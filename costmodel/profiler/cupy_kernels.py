"""Products, memory bandwidth, launches and host copies through CuPy.

``cupy`` is passed in, imported by the caller where it is there, so that tests put a recording stand-in in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from autopar.costmodel.spec.measured import Kind

from .request import WIDTH, CannotMeasureError, Request
from .torch_kernels import MAX_SETS, SCALE, Call

GEMM_DTYPES = ("fp16", "bf16", "fp32")
OPERATORS = ("copy", "add")
SPIN_SOURCE = r"""
extern "C" __global__ void spin(long long cycles) {
    long long start = clock64();
    while (clock64() - start < cycles) { }
}
"""
"""Keeps the device busy while the host queues the calls to time, so that their times hold no waiting for launches."""
SPIN_CYCLES_A_CALL = 30_000
"""Some 15 us at 2 GHz: longer than a launch takes."""
MAX_SPIN_CYCLES = 20_000_000


class CupyKernels:
    """Calls for what CuPy runs, on one device, and their times by CUDA events."""

    def __init__(self, cupy: Any, *, cache_bytes: int, memory_bytes: int) -> None:
        self._cupy = cupy
        self._cache_bytes = cache_bytes
        self._memory_bytes = memory_bytes
        self._pools: dict[str, Any] = {}
        self._position: dict[str, int] = {}
        self._spin: Any = None
        self.library = f"cupy {cupy.__version__}"

    def runs(self, request: Request) -> bool:
        """Whether CuPy has kernels for ``request``."""
        match request.kind:
            case Kind.GEMM:
                return request.dtype in GEMM_DTYPES and (request.dtype != "bf16" or _bfloat16() is not None)
            case Kind.OPERATOR:
                if request.dtype == "bf16":  # moved by CuPy, added by torch
                    return request.variant == "copy" and _bfloat16() is not None
                return request.variant in OPERATORS and request.dtype in ("fp32", "fp16")
            case _:
                return request.kind in (Kind.LAUNCH, Kind.HOST_COPY)

    def calls(self, request: Request) -> list[Call]:
        """Calls of ``request`` on operands that together exceed the cache.

        Raises:
            CannotMeasureError: it needs more memory than there is.
        """
        if 4 * request.bytes > self._memory_bytes:
            raise CannotMeasureError(f"needs {4 * request.bytes / 2**30:.1f} GiB, and {self._memory_bytes / 2**30:.1f} GiB are free")
        build: dict[Kind, Callable[[Request], Call]] = {
            Kind.GEMM: self._gemm,
            Kind.OPERATOR: self._operator,
            Kind.LAUNCH: self._launch,
            Kind.HOST_COPY: self._host_copy,
        }
        alone = request.kind in (Kind.LAUNCH, Kind.HOST_COPY)
        sets = 1 if alone else min(MAX_SETS, 1 + int(2 * self._cache_bytes // max(request.bytes, 1)))
        return [build[request.kind](request) for _ in range(sets)]

    def seconds(self, calls: list[Call]) -> float:
        """Device seconds of one of ``calls``, run one after the other, between two events."""
        cuda = self._cupy.cuda
        started, ended = cuda.Event(), cuda.Event()
        self._busy(len(calls))
        started.record()
        for call in calls:
            call()
        ended.record()
        ended.synchronize()
        return float(cuda.get_elapsed_time(started, ended)) / 1e3 / len(calls)

    def synchronize(self) -> None:
        """Wait for the device; raises what it died of."""
        self._cupy.cuda.Device().synchronize()

    def release(self) -> None:
        """Hand freed blocks back, the pools apart."""
        self._cupy.get_default_memory_pool().free_all_blocks()

    def _busy(self, calls: int) -> None:
        if self._spin is None:
            self._spin = self._cupy.RawKernel(SPIN_SOURCE, "spin")
        cycles = min(calls * SPIN_CYCLES_A_CALL, MAX_SPIN_CYCLES)
        self._spin((1,), (1,), (self._cupy.int64(cycles),))

    def _take(self, request: Request, *shape: int) -> Any:
        """A view of the pool of random values of the request's type."""
        dtype = request.dtype
        if dtype not in self._pools or self._pools[dtype].size * WIDTH[dtype] < 2 * request.bytes:
            count = int(max(4 * self._cache_bytes, 2 * request.bytes, 2**24) // WIDTH[dtype])
            self._pools.pop(dtype, None)
            values = self._cupy.random.standard_normal(count, dtype=self._cupy.float32) * SCALE
            self._pools[dtype], self._position[dtype] = values.astype(self._dtype(dtype)), 0
        count = 1
        for size in shape:
            count *= size
        pool, start = self._pools[dtype], self._position[dtype]
        start = start if start + count <= pool.size else 0
        self._position[dtype] = start + -(-count // 64) * 64
        return pool[start : start + count].reshape(shape)

    def _dtype(self, name: str) -> Any:
        return _bfloat16() if name == "bf16" else {"fp16": self._cupy.float16, "fp32": self._cupy.float32}[name]

    def _gemm(self, request: Request) -> Call:
        m, n, k = (int(size) for size in request.shape)
        if request.variant == "nt":
            left, right = self._take(request, m, k), self._take(request, n, k).T
        elif request.variant == "nn":
            left, right = self._take(request, m, k), self._take(request, k, n)
        else:
            left, right = self._take(request, k, m).T, self._take(request, k, n)
        return lambda: self._cupy.matmul(left, right)

    def _operator(self, request: Request) -> Call:
        rows, columns = (int(size) for size in request.shape)
        x = self._take(request, rows, columns)
        if request.variant == "copy":
            return lambda: x.copy()
        y = self._take(request, rows, columns)
        return lambda: self._cupy.add(x, y)

    def _launch(self, request: Request) -> Call:  # noqa: ARG002 - as the others
        self._busy(1)
        one = self._cupy.int64(1)
        return lambda: self._spin((1,), (1,), (one,))

    def _host_copy(self, request: Request) -> Call:
        cupy = self._cupy
        (size,) = (int(count) for count in request.shape)
        pinned = cupy.cuda.alloc_pinned_memory(size)
        device = cupy.random.randint(0, 256, size, dtype=cupy.uint8)
        to_device = request.variant == "to_device"
        target, source = (device.data.ptr, pinned.ptr) if to_device else (pinned.ptr, device.data.ptr)
        runtime = cupy.cuda.runtime
        kind = runtime.memcpyHostToDevice if to_device else runtime.memcpyDeviceToHost

        def copy(_keep: tuple[Any, Any] = (pinned, device)) -> None:
            runtime.memcpyAsync(target, source, size, kind, cupy.cuda.get_current_stream().ptr)

        return copy


def _bfloat16() -> Any:
    """ml_dtypes' bfloat16, or None where the package is absent."""
    try:
        return import_module("ml_dtypes").bfloat16
    except ImportError:
        return None
