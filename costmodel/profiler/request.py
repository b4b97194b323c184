"""What is asked of a backend, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from autopar.costmodel.spec.errors import UnavailableError
from autopar.costmodel.spec.measured import Kind

WIDTH = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1}
"""Bytes of one value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One shape to time."""

    kind: Kind
    variant: str
    dtype: str
    shape: tuple[float, ...]

    def __str__(self) -> str:
        return f"{self.kind.value} {self.variant} {self.dtype} {'x'.join(f'{size:g}' for size in self.shape)}".replace("  ", " ")

    @property
    def work(self) -> float:
        """FLOPs, or values moved: what its time roughly grows with."""
        if self.kind is Kind.GEMM:
            m, n, k = self.shape
            return 2 * m * n * k
        if self.kind is Kind.ATTENTION:
            sequences, heads, _, length, head_dim = self.shape
            return (2 if self.variant == "forward" else 5) * sequences * heads * length**2 * head_dim
        if self.kind is Kind.OPERATOR:
            return 20 * self.shape[0] * self.shape[1]
        return 20 * self.shape[0]

    @property
    def bytes(self) -> float:
        """Memory that one set of operands takes."""
        width = WIDTH.get(self.dtype, 4)
        if self.kind is Kind.GEMM:
            m, n, k = self.shape
            return width * (m * k + k * n) + max(width, 2) * m * n
        if self.kind is Kind.ATTENTION:
            sequences, heads, kv_heads, length, head_dim = self.shape
            return 2 * width * sequences * length * head_dim * (heads + kv_heads)
        if self.kind is Kind.OPERATOR:
            return 3 * width * self.shape[0] * self.shape[1]
        if self.kind is Kind.OPTIMIZER:
            return 4 * width * self.shape[0]
        return 2 * self.shape[0]


class CannotMeasureError(Exception):
    """This backend has no way to run the request, or the request ran out of memory; the profile notes it and goes on."""


class DeviceLostError(UnavailableError):
    """The device answers no more (exit code 3); what was measured is kept."""


class RankLostError(UnavailableError):
    """A rank died or hangs (exit code 3); what was measured is kept."""


class Prepared(Protocol):
    """A request with its operands in place, ready to be timed."""

    library: str
    """What runs it."""

    def seconds(self, calls: int) -> float:
        """Device seconds of one call, the mean of ``calls`` in a row on operands that rotate through more than the cache."""
        ...


class Backend(Protocol):
    """A device that requests are timed on."""

    def prepare(self, request: Request) -> Prepared:
        """``request`` ready to run.

        Raises:
            CannotMeasureError: it cannot be run here; says why.
            DeviceLostError: the device answers no more.
        """
        ...

    def release(self) -> None:
        """Let go of the operands of the last request."""
        ...
