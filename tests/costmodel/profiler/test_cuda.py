"""The CUDA backend over a CuPy that records its calls, and imports that survive what is missing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module, util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from autopar.costmodel.profiler.choice import Reach, base_requests
from autopar.costmodel.profiler.collect import Budget, Results, Run
from autopar.costmodel.profiler.collectives import Collectives, collective_requests
from autopar.costmodel.profiler.cpu import CpuBackend
from autopar.costmodel.profiler.cuda import CudaBackend, TorchProvider, cuda_backend, load_cupy, load_nccl
from autopar.costmodel.profiler.cupy_kernels import CupyKernels
from autopar.costmodel.profiler.nccl import CupyNcclTransport, nccl_transport
from autopar.costmodel.profiler.ranks import Alone, Launch
from autopar.costmodel.profiler.request import CannotMeasureError, DeviceLostError, RankLostError, Request
from autopar.costmodel.spec.errors import UnavailableError
from autopar.costmodel.spec.measured import Kind


def _fakes() -> Any:
    """The stand-ins beside this file, which is no package."""
    path = Path(__file__).with_name("fake_cuda.py")
    spec = util.spec_from_file_location("fake_cuda", path)
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    sys.modules["fake_cuda"] = module
    spec.loader.exec_module(module)
    return module


FAKES = _fakes()
FakeCupy, FakeNccl = FAKES.FakeCupy, FAKES.FakeNccl


def loading(**modules: Any) -> Callable[[str], Any]:
    """An import that knows these modules alone; an exception among them is raised."""

    def load(name: str) -> Any:
        found = modules.get(name.replace(".", "_"), ImportError(f"No module named {name!r}"))
        if isinstance(found, Exception):
            raise found
        return found

    return load


def gemm(dtype: str = "fp16", variant: str = "nt", shape: tuple[float, ...] = (256, 512, 1024)) -> Request:
    return Request(kind=Kind.GEMM, variant=variant, dtype=dtype, shape=shape)


def backend(cupy: Any) -> CudaBackend:
    return CudaBackend([CupyKernels(cupy, cache_bytes=2**22, memory_bytes=2**34)], libraries={})


@pytest.mark.parametrize("variant", ["nt", "nn", "tn"])
def test_a_product_is_timed_between_events_behind_a_busy_device(variant: str) -> None:
    cupy = FakeCupy(seconds_a_call=3e-4)
    prepared = backend(cupy).prepare(gemm(variant=variant))
    assert prepared.library == "cupy 14.2.0"
    assert prepared.seconds(4) == pytest.approx(3e-4)
    timed = cupy.log[cupy.log.index("record") + 1 :]
    assert timed[:5] == ["matmul (256, 1024)x(1024, 512) float16"] * 4 + ["record"]
    assert cupy.log[cupy.log.index("record") - 1].startswith("spin ")


def test_operands_are_random_and_rotate_through_more_than_the_cache() -> None:
    cupy = FakeCupy()
    kernels = CupyKernels(cupy, cache_bytes=2**22, memory_bytes=2**34)
    small = gemm(shape=(64, 64, 64))
    assert len(kernels.calls(small)) * small.bytes > 2**18
    assert len(kernels.calls(gemm(shape=(4096, 4096, 4096)))) == 1
    assert any(name.startswith("random") for name in cupy.log)
    assert not any("zeros" in name for name in cupy.log)


def test_bf16_goes_through_ml_dtypes_where_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = CupyKernels(FakeCupy(), cache_bytes=2**22, memory_bytes=2**34)
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    assert not kernels.runs(gemm("bf16"))
    monkeypatch.setitem(sys.modules, "ml_dtypes", SimpleNamespace(bfloat16=np.dtype("u2")))
    assert kernels.runs(gemm("bf16"))
    assert len(kernels.calls(gemm("bf16"))) >= 1
    assert not kernels.runs(gemm("fp8"))
    assert not kernels.runs(gemm("tf32"))


@pytest.mark.parametrize(
    ("request_", "call"),
    [
        (Request(kind=Kind.OPERATOR, variant="copy", dtype="fp32", shape=(64, 1024)), "copy (64, 1024)"),
        (Request(kind=Kind.OPERATOR, variant="add", dtype="fp32", shape=(64, 1024)), "add (64, 1024)"),
        (Request(kind=Kind.HOST_COPY, variant="to_device", dtype="fp32", shape=(4096,)), "memcpy 1"),
        (Request(kind=Kind.HOST_COPY, variant="to_host", dtype="fp32", shape=(4096,)), "memcpy 2"),
    ],
)
def test_memory_bound_kernels_and_copies(request_: Request, call: str) -> None:
    cupy = FakeCupy(seconds_a_call=2e-5)
    assert backend(cupy).prepare(request_).seconds(3) == pytest.approx(2e-5)
    assert cupy.log.count(call) == 3


def test_a_launch_is_timed_by_the_hosts_clock() -> None:
    cupy = FakeCupy()
    seconds = backend(cupy).prepare(Request(kind=Kind.LAUNCH, variant="kernel", dtype="fp32", shape=(1,))).seconds(1)
    assert 0 < seconds < 1e-2
    assert cupy.log.count("spin 1") == 200


def test_out_of_memory_is_told_and_the_run_goes_on() -> None:
    cupy = FakeCupy(fails={"matmul (4096": FAKES.OutOfMemoryError("out of memory allocating 2 GiB")})
    results = Results(source="a test")
    run = Run(Alone(), Budget(60), results)
    run.passes(backend(cupy), [gemm(shape=(4096, 64, 64)), gemm()], until=1.0, count=1)
    assert results.failures == {"gemm nt fp16 4096x64x64": "out of memory"}
    assert [request.shape for request in results.samples] == [(256, 512, 1024)]
    assert "free" in cupy.log


def test_a_shape_larger_than_the_memory_is_not_tried() -> None:
    with pytest.raises(CannotMeasureError, match="GiB are free"):
        backend(FakeCupy()).prepare(gemm(shape=(2**17, 2**17, 64)))


def test_a_lost_device_ends_the_run_and_what_was_measured_is_kept() -> None:
    cupy = FakeCupy()
    results = Results(source="a test")
    run = Run(Alone(), Budget(60), results)
    run.passes(backend(cupy), [gemm()], until=1.0, count=1)
    dead = FAKES.DeadDeviceError("cudaErrorECCUncorrectable: uncorrectable ECC error encountered")
    cupy.fails = {"matmul": dead, "synchronize": dead}
    with pytest.raises(DeviceLostError, match="the device answers no more: cudaErrorECC"):
        run.passes(backend(cupy), [gemm(shape=(128, 128, 128))], until=1.0, count=1)
    (series,) = results.series()
    assert [point.shape for point in series.points] == [(256, 512, 1024)]


def test_an_error_that_does_not_stay_is_the_requests_alone() -> None:
    cupy = FakeCupy(fails={"matmul": RuntimeError("cublasStatusNotSupported")})
    with pytest.raises(CannotMeasureError, match="cublasStatusNotSupported"):
        backend(cupy).prepare(gemm()).seconds(1)


def test_a_clock_that_gives_no_time_is_no_measurement() -> None:
    results = Results(source="a test")
    Run(Alone(), Budget(60), results).passes(backend(FakeCupy(seconds_a_call=0.0)), [gemm()], until=1.0)
    assert "0.0 seconds" in results.failures["gemm nt fp16 256x512x1024"]
    Run(Alone(), Budget(60), results).passes(backend(FakeCupy(seconds_a_call=float("nan"))), [gemm("fp32")], until=1.0)
    assert "nan seconds" in results.failures["gemm nt fp32 256x512x1024"]


def test_the_whole_grid_of_a_gpu_runs_with_cupy_alone_and_says_what_it_lacks() -> None:
    reach = Reach(flops_per_second=1e15, bytes_per_second=4e12, seconds=0.01, bytes=2**33)
    requests = base_requests(("bf16", "fp16", "tf32", "fp8"), "bf16", reach, gpu=True)
    results = Results(source="a test")
    Run(Alone(), Budget(3600), results).passes(backend(FakeCupy()), requests, until=1.0, count=1)
    kinds = {(request.kind, request.dtype) for request in results.samples}
    assert {(Kind.GEMM, "fp16"), (Kind.LAUNCH, "bf16"), (Kind.HOST_COPY, "bf16")} <= kinds
    assert all(why == "no library here runs it" for why in results.failures.values())
    assert any(name.startswith("attention") for name in results.failures)
    assert any(name.startswith("gemm nt fp8") for name in results.failures)


# -- imports -----------------------------------------------------------------------------------------------


def test_no_cupy_at_all() -> None:
    assert load_cupy(loading()) == (None, "cupy: No module named 'cupy'")


def test_cupy_without_a_driver() -> None:
    class Driverless:
        def is_available(self) -> bool:
            raise RuntimeError("cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version")

    found, why = load_cupy(loading(cupy=Driverless()))
    assert found is None
    assert "cudaErrorInsufficientDriver" in why
    assert load_cupy(loading(cupy=FakeCupy(gpus=0))) == (None, "cupy: it sees no GPU")
    assert load_cupy(loading(cupy=ImportError("libcublas.so.13: cannot open shared object file")))[0] is None


def test_cupy_without_nccl() -> None:
    assert "No module named" in load_nccl(loading())[1]
    assert "nvidia-nccl" in load_nccl(loading(cupy_cuda_nccl=SimpleNamespace(available=False)))[1]
    assert load_nccl(loading(cupy_cuda_nccl=FakeNccl([])))[1] == ""


def test_nothing_reaches_the_gpu() -> None:
    with pytest.raises(UnavailableError, match=r"cupy: No module named 'cupy'; torch: No module named 'torch'.*pip install"):
        cuda_backend(0, load=loading())


def test_a_cupy_that_is_installed_here_is_answered_without_a_gpu() -> None:
    assert load_cupy(import_module)[0] is None


def test_cupy_alone_is_a_backend_and_what_is_missing_is_noted() -> None:
    found, notes = cuda_backend(0, load=loading(cupy=FakeCupy()))
    assert found.libraries == {"cupy": "14.2.0", "cuda": "13.0"}
    assert notes == ("torch: No module named 'torch'",)
    assert found.prepare(gemm()).seconds(1) > 0


# -- torch on a GPU ----------------------------------------------------------------------------------------


class FakeTorch:
    """torch's events over kernels that run on this processor."""

    def __init__(self) -> None:
        self.slept: list[int] = []
        self.cuda = SimpleNamespace(Event=self._event, _sleep=self.slept.append, synchronize=lambda: None)

    def _event(self, enable_timing: bool) -> SimpleNamespace:
        assert enable_timing
        return SimpleNamespace(record=lambda: None, synchronize=lambda: None, elapsed_time=lambda _: 0.5)


@pytest.fixture(scope="module")
def torch_provider() -> TorchProvider:
    pytest.importorskip("torch")
    kernels = CpuBackend(threads=1, cache_bytes=2**16, memory_bytes=2**32)._kernels
    return TorchProvider(FakeTorch(), kernels)


def test_torchs_kernels_are_timed_by_its_own_events(torch_provider: TorchProvider) -> None:
    found = CudaBackend([torch_provider], libraries={})
    attention = Request(kind=Kind.ATTENTION, variant="backward", dtype="bf16", shape=(1, 2, 2, 16, 16))
    assert found.prepare(attention).seconds(5) == pytest.approx(0.5e-3 / 5)
    assert torch_provider._torch.slept == [150_000]
    assert found.prepare(Request(kind=Kind.LAUNCH, variant="kernel", dtype="fp32", shape=(1,))).seconds(1) > 0


def test_a_library_without_the_kernel_leaves_it_to_the_next(torch_provider: TorchProvider) -> None:
    found = CudaBackend([CupyKernels(FakeCupy(), cache_bytes=2**16, memory_bytes=2**34), torch_provider], libraries={})
    assert found.prepare(gemm()).library.startswith("cupy")
    norm = Request(kind=Kind.OPERATOR, variant="layernorm", dtype="fp32", shape=(4, 64))
    assert found.prepare(norm).library.startswith("torch")
    with pytest.raises(CannotMeasureError, match="fp8 products need a GPU"):
        found.prepare(gemm("fp8"))


# -- NCCL ----------------------------------------------------------------------------------------------------


class Pretending(Alone):
    """Rank 0 of four on two nodes; the others say what it says."""

    launch = Launch(rank=0, world_size=4, local_rank=0, ranks_per_node=2)

    def gathered(self, value: Any) -> list[Any]:
        return [value] * 4


def test_collectives_through_cupys_nccl() -> None:
    log: list[str] = []
    transport = CupyNcclTransport(FakeCupy(log=log), FakeNccl(log), Pretending(), timeout_seconds=5)
    assert transport.library == "cupy 14.2.0 NCCL 2.28.9"
    # ranks 0,1 of a node; 0,2 strided over the nodes; all four
    assert sorted(name for name in log if name.startswith("communicator")) == [
        "communicator 0 of 2",
        "communicator 0 of 2",
        "communicator 0 of 4",
    ]
    found = Collectives(Pretending.launch, transport)
    asked = {}
    for request in collective_requests(Pretending.launch, largest=2**10):
        log.clear()
        assert found.prepare(request).seconds(1) > 0
        asked[(request.variant, *request.shape[1:])] = [name for name in log if "synchronize" not in name]
    assert asked["all_reduce", 4, 2] == ["allReduce 256"] * 3
    assert asked["all_gather", 2, 1] == ["allGather 128"] * 3
    assert asked["reduce_scatter", 2, 2] == ["reduceScatter 128"] * 3
    assert asked["send_recv", 2, 1] == ["send 256 to 1", "recv 256 from 1"] * 3
    assert (
        asked["all_to_all", 2, 2]
        == ["group start", "send 128 to 0", "recv 128 from 0", "send 128 to 1", "recv 128 from 1", "group end"] * 3
    )


def test_a_collective_that_never_ends_gives_its_communicators_up() -> None:
    log: list[str] = []
    cupy = FakeCupy(log=log, hangs=True)
    transport = CupyNcclTransport(cupy, FakeNccl(log), Pretending(), timeout_seconds=0.05)
    prepared = Collectives(Pretending.launch, transport).prepare(collective_requests(Pretending.launch)[0])
    with pytest.raises(RankLostError, match=r"did not end in 0\.05 s: a rank died or hung"):
        prepared.seconds(1)
    assert log.count("abort") == 3


def test_cupys_nccl_is_taken_where_it_loads_and_torchs_where_it_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = FakeCupy()
    transport, note = nccl_transport(Pretending(), timeout_seconds=1, load=loading(cupy=cupy, cupy_cuda_nccl=FakeNccl([])))
    assert isinstance(transport, CupyNcclTransport)
    assert note == ""
    monkeypatch.setattr(
        "autopar.costmodel.profiler.nccl.TorchTransport", lambda _launch, **options: SimpleNamespace(library=f"torch {options['backend']}")
    )
    transport, note = nccl_transport(Pretending(), timeout_seconds=1, load=loading(cupy=cupy))
    assert transport.library == "torch nccl"
    assert "torch.distributed's NCCL (cupy's NCCL: No module named" in note
