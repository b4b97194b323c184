"""Every request as torch runs it eagerly, on a processor or a GPU.

Operands are views of one pool of random values (never zeros, which draw less power and may be skipped), taken one after
the other so that calls in a row find cold caches. Outputs are allocated by the calls, as in training.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from autopar.costmodel.spec.measured import Kind

from .request import WIDTH, CannotMeasureError, Request

Call = Callable[[], object]
MAX_SETS = 32
"""Operand sets that one request rotates through."""
SCALE = 0.05
"""Standard deviation of the values: as weights and activations have it."""


@dataclass(slots=True)
class Pool:
    """Random values of one type on one device; operands are views of it."""

    values: Any
    position: int = 0

    def take(self, *shape: int) -> Any:
        """The next view of ``shape``; starts over at the end.

        Raises:
            CannotMeasureError: the pool is smaller than the tensor.
        """
        count = 1
        for size in shape:
            count *= size
        total = self.values.numel()
        if count > total:
            raise CannotMeasureError(f"an operand of {count:,} values does not fit the {total:,} set aside")
        if self.position + count > total:
            self.position = 0
        start = self.position
        self.position = start + -(-count // 64) * 64
        return self.values[start : start + count].view(*shape)


class TorchKernels:
    """Builds calls for requests. One instance serves one device."""

    def __init__(self, device: str, *, cache_bytes: int, memory_bytes: int) -> None:
        import torch

        self._torch = torch
        self._device = torch.device(device)
        self._cache_bytes = cache_bytes
        self._memory_bytes = memory_bytes
        self._pools: dict[str, Pool] = {}
        self.library = f"torch {torch.__version__}"

    def calls(self, request: Request) -> list[Call]:
        """Calls of ``request`` on operand sets that together exceed the cache, or on one that does so alone.

        Raises:
            CannotMeasureError: torch cannot run it here.
        """
        build = {
            Kind.GEMM: self._gemm,
            Kind.ATTENTION: self._attention,
            Kind.OPERATOR: self._operator,
            Kind.OPTIMIZER: self._optimizer,
            Kind.HOST_COPY: self._host_copy,
            Kind.LAUNCH: self._launch,
        }.get(request.kind)
        if build is None:
            raise CannotMeasureError(f"{request.kind.value} is no kernel")
        if 4 * request.bytes > self._memory_bytes:
            raise CannotMeasureError(f"needs {4 * request.bytes / 2**30:.1f} GiB, and {self._memory_bytes / 2**30:.1f} GiB are free")
        alone = request.kind in (Kind.OPTIMIZER, Kind.LAUNCH, Kind.HOST_COPY)
        sets = 1 if alone else min(MAX_SETS, 1 + int(2 * self._cache_bytes // max(request.bytes, 1)))
        return [build(request) for _ in range(sets)]

    def release(self) -> None:
        """Hand cached memory back, the pools apart."""
        if self._device.type == "cuda":
            self._torch.cuda.empty_cache()

    def _dtype(self, name: str) -> Any:
        torch = self._torch
        return {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[name]

    def _take(self, request: Request, *shape: int) -> Any:
        name = "bf16" if request.dtype == "fp8" else request.dtype
        if name not in self._pools or self._pools[name].values.numel() * WIDTH[name] < 2 * request.bytes:
            count = int(max(4 * self._cache_bytes, 2 * request.bytes, 2**24) // WIDTH[name])
            self._pools.pop(name, None)
            values = self._torch.empty(count, dtype=self._dtype(name), device=self._device)
            self._pools[name] = Pool(values.normal_(std=SCALE))
        return self._pools[name].take(*shape)

    def _leaf(self, request: Request, *shape: int) -> Any:
        return self._take(request, *shape).detach().requires_grad_()

    def _gemm(self, request: Request) -> Call:
        torch = self._torch
        m, n, k = (int(size) for size in request.shape)
        if request.dtype == "fp8":
            return self._fp8_gemm(request, m, n, k)
        if request.dtype == "tf32" and self._device.type != "cuda":
            raise CannotMeasureError("tf32 is a type of GPUs")
        if self._device.type == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = request.dtype == "tf32"
        if request.variant == "nt":
            left, right = self._take(request, m, k), self._take(request, n, k).t()
        elif request.variant == "nn":
            left, right = self._take(request, m, k), self._take(request, k, n)
        else:
            left, right = self._take(request, k, m).t(), self._take(request, k, n)
        return lambda: torch.mm(left, right)

    def _fp8_gemm(self, request: Request, m: int, n: int, k: int) -> Call:
        torch = self._torch
        if self._device.type != "cuda" or not hasattr(torch, "_scaled_mm"):
            raise CannotMeasureError("fp8 products need a GPU of Hopper or later and torch's _scaled_mm")
        if request.variant != "nt":
            raise CannotMeasureError("torch multiplies fp8 in the nt layout alone")
        left = self._take(request, m, k).to(torch.float8_e4m3fn)
        right = self._take(request, n, k).to(torch.float8_e4m3fn).t()
        one = torch.ones((), device=self._device)
        return lambda: torch._scaled_mm(left, right, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)

    def _attention(self, request: Request) -> Call:
        torch = self._torch
        attend = torch.nn.functional.scaled_dot_product_attention
        sequences, heads, kv_heads, length, head_dim = (int(size) for size in request.shape)
        query = self._leaf(request, sequences, heads, length, head_dim)
        key, value = (self._leaf(request, sequences, kv_heads, length, head_dim) for _ in range(2))
        grouped = heads != kv_heads

        def forward() -> Any:
            return attend(query, key, value, is_causal=True, enable_gqa=grouped)

        if request.variant == "forward":
            return forward
        return self._backward(forward(), (query, key, value), self._take(request, sequences, heads, length, head_dim))

    def _backward(self, output: Any, inputs: tuple[Any, ...], gradient: Any) -> Call:
        grad = self._torch.autograd.grad
        return lambda: grad(output, inputs, gradient, retain_graph=True)

    def _operator(self, request: Request) -> Call:
        rows, columns = (int(size) for size in request.shape)
        name = request.variant.removesuffix("_backward")
        forward, leaves = self._forward(request, name, rows, columns)
        if not request.variant.endswith("_backward"):
            return forward
        output: Any = forward()
        gradient = self._torch.ones_like(output) if name == "cross_entropy" else self._take(request, rows, columns)
        return self._backward(output, leaves, gradient)

    def _forward(self, request: Request, name: str, rows: int, columns: int) -> tuple[Call, tuple[Any, ...]]:
        """The forward call of an operator, and the tensors that its backward gives gradients of."""
        torch = self._torch
        function = torch.nn.functional
        x = self._leaf(request, rows, columns)
        if name in ("add", "silu_mul"):
            y = self._leaf(request, rows, columns)
            return (lambda: torch.add(x, y)) if name == "add" else (lambda: function.silu(x) * y), (x, y)
        if name in ("layernorm", "rmsnorm"):
            weight = self._leaf(request, columns)
            if name == "rmsnorm":
                return lambda: function.rms_norm(x, (columns,), weight), (x, weight)
            bias = self._leaf(request, columns)
            return lambda: function.layer_norm(x, (columns,), weight, bias), (x, weight, bias)
        if name == "cross_entropy":
            target = torch.randint(columns, (rows,), device=self._device)
            return lambda: function.cross_entropy(x.float(), target), (x,)
        calls: dict[str, Call] = {
            "copy": lambda: x.detach().clone(),
            "gelu": lambda: function.gelu(x),
            "softmax": lambda: torch.softmax(x, -1),
            "dropout": lambda: function.dropout(x, 0.1),
        }
        return calls[name], (x,)

    def _optimizer(self, request: Request) -> Call:
        torch = self._torch
        (count,) = (int(size) for size in request.shape)
        tensors = max(1, min(16, count // 65_536))
        parameters = [torch.nn.Parameter(self._take(request, count // tensors).clone()) for _ in range(tensors)]
        for parameter in parameters:
            parameter.grad = self._take(request, count // tensors).clone()
        if request.variant == "gradient_norm":
            return lambda: torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True)
        return lambda: optimizer.step()

    def _host_copy(self, request: Request) -> Call:
        torch = self._torch
        if self._device.type != "cuda":
            raise CannotMeasureError("a processor has no memory of its own to copy to")
        (size,) = (int(count) for count in request.shape)
        host = torch.randint(256, (size,), dtype=torch.uint8).pin_memory()
        device = host.to(self._device)
        if request.variant == "to_device":
            return lambda: device.copy_(host, non_blocking=True)
        return lambda: host.copy_(device, non_blocking=True)

    def _launch(self, request: Request) -> Call:
        """One element, with a node of the autograd graph: what an operator costs apart from its work."""
        x = self._leaf(request, 1)
        return lambda: self._torch.add(x, x)
