"""The backend of GPUs: CuPy where it is there, torch for the rest and where CuPy is not."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol

from autopar.costmodel.spec.errors import UnavailableError
from autopar.costmodel.spec.measured import Kind

from .cpu import first_line
from .cupy_kernels import CupyKernels
from .request import CannotMeasureError, DeviceLostError, Request
from .timing import launch_seconds
from .torch_kernels import Call, TorchKernels

SLEEP_CYCLES_A_CALL = 30_000
MAX_SLEEP_CYCLES = 20_000_000
_OUT_OF_MEMORY = re.compile(r"out of memory|OutOfMemory|cudaErrorMemoryAllocation|cannot allocate", re.IGNORECASE)


class Provider(Protocol):
    """A library that builds calls and times them on the device."""

    library: str

    def runs(self, request: Request) -> bool: ...
    def calls(self, request: Request) -> list[Call]: ...
    def seconds(self, calls: list[Call]) -> float: ...
    def synchronize(self) -> None: ...
    def release(self) -> None: ...


class TorchProvider:
    """torch's kernels, timed by its own events."""

    def __init__(self, torch: Any, kernels: TorchKernels) -> None:
        self._torch = torch
        self._kernels = kernels
        self.library = kernels.library

    def runs(self, request: Request) -> bool:
        """Every kernel; what torch lacks it says when asked."""
        return request.kind is not Kind.COLLECTIVE

    def calls(self, request: Request) -> list[Call]:
        """See :meth:`TorchKernels.calls`."""
        return self._kernels.calls(request)

    def seconds(self, calls: list[Call]) -> float:
        """Device seconds of one of ``calls``, between two events, queued while the device is kept busy."""
        cuda = self._torch.cuda
        started, ended = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        cuda._sleep(min(len(calls) * SLEEP_CYCLES_A_CALL, MAX_SLEEP_CYCLES))
        started.record()
        for call in calls:
            call()
        ended.record()
        ended.synchronize()
        return float(started.elapsed_time(ended)) / 1e3 / len(calls)

    def synchronize(self) -> None:
        """Wait for the device; raises what it died of."""
        self._torch.cuda.synchronize()

    def release(self) -> None:
        """Hand cached memory back."""
        self._kernels.release()


@dataclass(slots=True)
class CudaPrepared:
    """Calls on rotating operands, timed by the library that runs them."""

    backend: CudaBackend
    provider: Provider
    request: Request
    operands: list[Call]
    library: str
    position: int = field(default=0)

    def seconds(self, calls: int) -> float:
        """Device seconds of one call; of a launch, the host's."""
        chosen = [self.operands[(self.position + offset) % len(self.operands)] for offset in range(calls)]
        self.position += calls
        try:
            if self.request.kind is Kind.LAUNCH:
                return launch_seconds(chosen[0], self.provider.synchronize)
            return self.provider.seconds(chosen)
        except Exception as error:
            raise self.backend.failure(error, self.provider) from None


class CudaBackend:
    """One GPU.

    ``providers`` in order of preference; the host's launch is timed from torch where it is there, since training launches from it.
    """

    def __init__(self, providers: list[Provider], *, libraries: Mapping[str, str]) -> None:
        self._providers = providers
        self.libraries = dict(libraries)

    def prepare(self, request: Request) -> CudaPrepared:
        """``request`` ready to run on the first library that has it.

        Raises:
            CannotMeasureError: no library has it, or there is not the memory.
            DeviceLostError: the device answers no more.
        """
        candidates = self._providers[::-1] if request.kind is Kind.LAUNCH else self._providers
        reason = "no library here runs it"
        for provider in candidates:
            if not provider.runs(request):
                continue
            try:
                operands = provider.calls(request)
            except CannotMeasureError as error:
                reason = str(error)
            except Exception as error:
                failed = self.failure(error, provider)
                if isinstance(failed, DeviceLostError):
                    raise failed from None
                reason = str(failed)
            else:
                return CudaPrepared(self, provider, request, operands, provider.library)
        raise CannotMeasureError(reason)

    def failure(self, error: Exception, provider: Provider) -> CannotMeasureError | DeviceLostError:
        """What an error of the device means: a request that cannot run, or a device that answers no more."""
        if isinstance(error, CannotMeasureError | DeviceLostError):
            return error
        if isinstance(error, MemoryError) or _OUT_OF_MEMORY.search(f"{type(error).__name__} {error}"):
            provider.release()
            return CannotMeasureError("out of memory")
        try:
            provider.synchronize()
        except Exception as fatal:  # an error that stays is the device's: every later call gives it again
            return DeviceLostError(f"the device answers no more: {first_line(fatal)}")
        return CannotMeasureError(first_line(error))

    def release(self) -> None:
        """Hand cached memory back."""
        for provider in self._providers:
            try:
                provider.release()
            except Exception as error:
                raise self.failure(error, provider) from None


Import = Callable[[str], Any]


def load_cupy(load: Import = import_module) -> tuple[Any, str]:
    """CuPy where it can reach a GPU, else None and why not. Survives a CuPy without a driver, and none at all."""
    try:
        cupy = load("cupy")
    except Exception as error:  # an ImportError, or whatever a broken CUDA library raises on its way
        return None, f"cupy: {first_line(error)}"
    try:
        if not cupy.is_available() or cupy.cuda.runtime.getDeviceCount() < 1:
            return None, "cupy: it sees no GPU"
    except Exception as error:
        return None, f"cupy: {first_line(error)}"
    return cupy, ""


def load_nccl(load: Import = import_module) -> tuple[Any, str]:
    """CuPy's NCCL where its library loads, else None and why not."""
    try:
        nccl = load("cupy.cuda.nccl")
    except Exception as error:
        return None, f"cupy's NCCL: {first_line(error)}"
    if not getattr(nccl, "available", True) or not hasattr(nccl, "get_version"):
        return None, "cupy's NCCL: libnccl.so.2 does not load (pip install nvidia-nccl-cu13)"
    return nccl, ""


def load_torch(load: Import = import_module) -> tuple[Any, str]:
    """torch where it can reach a GPU, else None and why not."""
    try:
        torch = load("torch")
    except Exception as error:
        return None, f"torch: {first_line(error)}"
    if not torch.cuda.is_available():
        return None, f"torch {torch.__version__}: it sees no GPU"
    return torch, ""


def cuda_backend(local_rank: int, *, load: Import = import_module) -> tuple[CudaBackend, tuple[str, ...]]:
    """The backend of GPU ``local_rank`` with the libraries that are there, and a note for each that is not.

    Raises:
        UnavailableError: neither CuPy nor torch reaches a GPU.
    """
    cupy, no_cupy = load_cupy(load)
    torch, no_torch = load_torch(load)
    notes = tuple(note for note in (no_cupy, no_torch) if note)
    if cupy is None and torch is None:
        raise UnavailableError(f"no library reaches the GPU ({'; '.join(notes)}): pip install 'autopar[profile,runtime]'")
    providers: list[Provider] = []
    libraries: dict[str, str] = {}
    if cupy is not None:
        cupy.cuda.Device(local_rank).use()
        free, _ = cupy.cuda.runtime.memGetInfo()
        cache = int(cupy.cuda.runtime.getDeviceProperties(local_rank).get("l2CacheSize", 2**25))
        providers.append(CupyKernels(cupy, cache_bytes=cache, memory_bytes=free))
        libraries |= {"cupy": cupy.__version__, "cuda": _version(cupy.cuda.runtime.runtimeGetVersion())}
    if torch is not None:
        torch.cuda.set_device(local_rank)
        free, _ = torch.cuda.mem_get_info()
        cache = int(getattr(torch.cuda.get_device_properties(local_rank), "L2_cache_size", 2**25))
        providers.append(TorchProvider(torch, TorchKernels("cuda", cache_bytes=cache, memory_bytes=free)))
        libraries |= {"torch": torch.__version__}
        libraries.setdefault("cuda", str(torch.version.cuda or "unknown"))
    return CudaBackend(providers, libraries=libraries), notes


def _version(number: int) -> str:
    """``13000`` -> ``13.0``."""
    return f"{number // 1000}.{number % 1000 // 10}"
