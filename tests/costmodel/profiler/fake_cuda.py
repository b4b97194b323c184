"""A CuPy that records its calls and keeps a clock of its own, for machines without a GPU."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np


class DeadDeviceError(RuntimeError):
    """What CUDA raises from every call once the device is gone."""


class OutOfMemoryError(MemoryError):
    """cupy.cuda.memory.OutOfMemoryError."""


@dataclass
class FakeArray:
    """An array of which only the shape matters."""

    shape: tuple[int, ...]
    dtype: Any
    log: list[str]

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    @property
    def T(self) -> FakeArray:
        return FakeArray(self.shape[::-1], self.dtype, self.log)

    @property
    def data(self) -> SimpleNamespace:
        return SimpleNamespace(ptr=4096)

    def reshape(self, shape: tuple[int, ...]) -> FakeArray:
        assert int(np.prod(shape)) == self.size, "a view keeps its size"
        return FakeArray(shape, self.dtype, self.log)

    def __getitem__(self, part: slice) -> FakeArray:
        assert part.stop <= self.size, "a view lies inside its pool"
        return FakeArray((part.stop - part.start,), self.dtype, self.log)

    def __mul__(self, _: float) -> FakeArray:
        return self

    def astype(self, dtype: Any) -> FakeArray:
        return FakeArray(self.shape, dtype, self.log)

    def copy(self) -> FakeArray:
        self.log.append(f"copy {self.shape}")
        return self


@dataclass
class FakeCupy:
    """What the profiler asks of cupy. ``seconds_a_call`` is what the events say of each call between them."""

    seconds_a_call: float = 1e-4
    gpus: int = 1
    hangs: bool = False
    """Whether what was queued never ends."""
    fails: dict[str, Exception] = field(default_factory=dict)
    """Name of a call -> what it raises."""
    log: list[str] = field(default_factory=list)
    __version__: str = "14.2.0"
    float16, float32, uint8 = np.float16, np.float32, np.uint8

    def __post_init__(self) -> None:
        self.cuda = SimpleNamespace(
            Event=self._event,
            get_elapsed_time=self._elapsed,
            Device=self._device,
            get_current_stream=lambda: SimpleNamespace(ptr=7, done=not self.hangs),
            alloc_pinned_memory=lambda size: self._do(f"pinned {size}") or SimpleNamespace(ptr=8192),
            runtime=SimpleNamespace(
                getDeviceCount=lambda: self._do("getDeviceCount") or self.gpus,
                getDeviceProperties=lambda _: {"l2CacheSize": 2**20},
                memGetInfo=lambda: (2**34, 2**34),
                runtimeGetVersion=lambda: 13000,
                memcpyAsync=lambda *arguments: self._do(f"memcpy {arguments[3]}"),
                memcpyHostToDevice=1,
                memcpyDeviceToHost=2,
            ),
        )
        self.random = SimpleNamespace(standard_normal=self._random, randint=lambda *given, dtype: self._array(given[2], dtype),
                                      uniform=lambda *given, dtype: self._array(given[2], dtype))  # fmt: skip

    def is_available(self) -> bool:
        return self.gpus > 0

    def _do(self, name: str) -> None:
        self.log.append(name)
        for failing, error in self.fails.items():
            if name.startswith(failing):
                raise error

    def _array(self, size: int, dtype: Any) -> FakeArray:
        return FakeArray((size,), dtype, self.log)

    def _random(self, size: int, dtype: Any) -> FakeArray:
        self._do(f"random {size}")
        return self._array(size, dtype)

    def _event(self) -> SimpleNamespace:
        event = SimpleNamespace(at=0)
        event.record = lambda: (self._do("record"), setattr(event, "at", len(self.log)))
        event.synchronize = lambda: self._do("event synchronize")
        return event

    def _elapsed(self, started: SimpleNamespace, ended: SimpleNamespace) -> float:
        calls = sum(name.split()[0] in ("matmul", "add", "copy", "memcpy", "spin") for name in self.log[started.at : ended.at])
        return self.seconds_a_call * 1e3 * calls

    def _device(self, index: int = 0) -> SimpleNamespace:
        return SimpleNamespace(use=lambda: self._do(f"use {index}"), synchronize=lambda: self._do("synchronize"))

    def matmul(self, left: FakeArray, right: FakeArray) -> FakeArray:
        assert left.shape[1] == right.shape[0], "the products fit together"
        self._do(f"matmul {left.shape}x{right.shape} {np.dtype(left.dtype).name}")
        return FakeArray((left.shape[0], right.shape[1]), left.dtype, self.log)

    def add(self, left: FakeArray, right: FakeArray) -> FakeArray:
        assert left.shape == right.shape
        self._do(f"add {left.shape}")
        return left

    def empty_like(self, array: FakeArray) -> FakeArray:
        return array

    def int64(self, value: int) -> int:
        return value

    def RawKernel(self, source: str, name: str) -> Any:
        assert name in source
        return lambda _grid, _block, arguments: self._do(f"{name} {arguments[0]}")

    def get_default_memory_pool(self) -> SimpleNamespace:
        return SimpleNamespace(free_all_blocks=lambda: self._do("free"))


@dataclass
class FakeNccl:
    """cupy.cuda.nccl: communicators that record what they are asked."""

    log: list[str]
    available: bool = True
    NCCL_FLOAT32, NCCL_SUM = 7, 0

    def get_version(self) -> int:
        return 22809

    def get_unique_id(self) -> str:
        return "an identifier"

    def groupStart(self) -> None:
        self.log.append("group start")

    def groupEnd(self) -> None:
        self.log.append("group end")

    def NcclCommunicator(self, size: int, identifier: str, rank: int) -> Any:
        assert identifier == "an identifier"
        self.log.append(f"communicator {rank} of {size}")
        return SimpleNamespace(
            allReduce=lambda _send, _receive, count, *_: self.log.append(f"allReduce {count}"),
            allGather=lambda _send, _receive, count, *_: self.log.append(f"allGather {count}"),
            reduceScatter=lambda _send, _receive, count, *_: self.log.append(f"reduceScatter {count}"),
            send=lambda _pointer, count, _type, peer, _stream: self.log.append(f"send {count} to {peer}"),
            abort=lambda: self.log.append("abort"),
            recv=lambda _pointer, count, _type, peer, _stream: self.log.append(f"recv {count} from {peer}"),
        )
