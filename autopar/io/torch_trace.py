"""Traces of torch's profiler (Chrome JSON, recorded with ``record_shapes=True``), as points of products and attention."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from autopar.costmodel.spec.errors import Fault, InvalidInputError
from autopar.costmodel.spec.measured import Kind, Point, Series

DTYPES = {"float": "fp32", "c10::BFloat16": "bf16", "c10::Half": "fp16"}
PRODUCTS = {"aten::mm": 0, "aten::addmm": 1}
"""Operator -> position of its left operand."""
ATTENTION = ("aten::_scaled_dot_product_flash_attention", "aten::_scaled_dot_product_efficient_attention",
             "aten::_scaled_dot_product_cudnn_attention", "aten::_scaled_dot_product_flash_attention_for_cpu")  # fmt: skip
Key = tuple[Kind, str, str]


def parse_torch_trace(text: str, source: str) -> tuple[tuple[Series, ...], tuple[str, ...]] | None:
    """Series from a trace, and notes of what was left out; None where the text is no trace.

    An operator's time is that of the GPU kernels it launched (``External id``); in a trace without any kernel, that of
    the operator on the processor. Times of one shape count with their median.

    Raises:
        InvalidInputError: it is a trace without shapes.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    events = document.get("traceEvents") if isinstance(document, dict) else None
    if not isinstance(events, list):
        return None
    described = [event for event in events if isinstance(event, dict) and isinstance(event.get("args"), dict)]
    operators = [event for event in described if event.get("cat") == "cpu_op"]
    if not any("Input Dims" in event["args"] for event in operators):
        fix = "record it with torch.profiler.profile(record_shapes=True)"
        raise InvalidInputError(Fault(field=source, given="", required="no operator of the trace says its shapes", fix=fix))
    on_gpu = _kernel_seconds(described)
    found: defaultdict[Key, defaultdict[tuple[float, ...], list[float]]] = defaultdict(lambda: defaultdict(list))
    untold = 0
    for event in operators:
        read = _operator(event)
        if read is None:
            continue
        key, shape, told = read
        seconds = on_gpu.get(event["args"].get("External id"), 0.0) if on_gpu else float(event.get("dur", 0)) * 1e-6
        untold += not told
        if seconds > 0:
            found[key][shape].append(seconds)
    notes = (f"{source}: {untold} products without strides, taken as x W^T (nt)",) if untold else ()
    return tuple(_series(key, times, source) for key, times in sorted(found.items())), notes


def _kernel_seconds(events: Iterable[Mapping[str, Any]]) -> Mapping[object, float]:
    """External id -> seconds of its kernels."""
    total: defaultdict[object, float] = defaultdict(float)
    for event in events:
        if event.get("cat") == "kernel":
            total[event["args"].get("External id")] += float(event.get("dur", 0)) * 1e-6
    return total


def _operator(event: Mapping[str, Any]) -> tuple[Key, tuple[float, ...], bool] | None:
    """Kernel, shape and whether the layout was told, of an operator that is a product or an attention; None of any other."""
    name, args = event.get("name"), event["args"]
    dims, types = args.get("Input Dims"), args.get("Input type") or args.get("Input Type") or []
    if name in PRODUCTS and isinstance(dims, list):
        place = PRODUCTS[name]
        if len(dims) < place + 2 or any(len(dims[at]) != 2 for at in (place, place + 1)) or len(types) <= place:
            return None
        dtype = DTYPES.get(types[place])
        (m, k), (_, n) = dims[place], dims[place + 1]
        if dtype is None or min(m, n, k) < 1:
            return None
        strides = args.get("Input Strides")
        layout, told = ("nt", False) if not strides else (_layout(strides[place], strides[place + 1]), True)
        return (Kind.GEMM, layout, dtype), (float(m), float(n), float(k)), told
    if name in ATTENTION and isinstance(dims, list) and len(dims) > 1 and len(dims[0]) == len(dims[1]) == 4:
        dtype = DTYPES.get(types[0]) if types else None
        batch, heads, queries, head_dim = dims[0]
        if dtype is None or queries != dims[1][2] or min(dims[0]) < 1:
            return None
        shape = (float(batch), float(heads), float(dims[1][1]), float(queries), float(head_dim))
        return (Kind.ATTENTION, "forward", dtype), shape, True
    return None


def _layout(left: list[int], right: list[int]) -> str:
    """By which operand is transposed: its first stride is 1."""
    if left and left[0] == 1 and left[-1] != 1:
        return "tn"
    return "nt" if right and right[0] == 1 and right[-1] != 1 else "nn"


def _series(key: Key, times: Mapping[tuple[float, ...], list[float]], source: str) -> Series:
    kind, variant, dtype = key
    points = []
    for shape, seconds in sorted(times.items()):
        low, middle, high = np.quantile(seconds, (0.25, 0.5, 0.75))
        spread = round(float((high - low) / 2 / middle), 4)
        points.append(Point(shape=shape, seconds=float(middle), repeats=len(seconds), spread=spread))
    return Series(kind=kind, variant=variant, dtype=dtype, library="torch", source=f"torch profiler: {source}", points=tuple(points))
