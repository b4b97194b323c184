"""Writes ``autopar/catalog/profiles/h200.json``: the measured profile of an H200, from the tables in ``benchmarks/data/h200``.

    python -m benchmarks.calibration.h200_profile

The tables were measured before ``autopar profile`` was there; they become points by the same types and the same file. Rows whose time
is that of a launch are left out, as in the fit of the constants (docs/design/kernel-model.md).
"""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from autopar import __version__
from autopar.catalog.hardware import device
from autopar.catalog.profiles import hardware_profile
from autopar.costmodel.compute import DeviceColumns, gemm_seconds
from autopar.costmodel.spec.measured import Kind, Machine, MeasuredProfile, Point, Series
from autopar.costmodel.spec.training import ComputeType
from autopar.io.measured_file import write_measured

DATA = Path(__file__).parents[1] / "data" / "h200"
OUTPUT = Path(__file__).parents[2] / "autopar" / "catalog" / "profiles" / "h200.json"
DEVICE = "h200-sxm-141gb"
LAUNCH_FLOOR = 25e-6
"""Seconds of GPU work below which a row's time is the launch's."""
OPERATOR_FLOOR = 100e-6
"""The same for operators, which were timed one launch at a time: of shorter ones the launch's 14 us are a seventh and more."""
ATTENTION_FLOOR = {"forward": 80e-6, "backward": 250e-6}
OPERATORS = {
    "copy": "copy", "add": "add", "gelu": "gelu", "gelu_bwd": "gelu_backward", "silu_mul": "silu_mul", "layernorm": "layernorm",
    "layernorm_bwd": "layernorm_backward", "rmsnorm": "rmsnorm", "rmsnorm_bwd": "rmsnorm_backward", "softmax": "softmax",
    "dropout": "dropout", "xent_fwd": "cross_entropy", "xent_bwd": "cross_entropy_backward",
}  # fmt: skip
"""Names of ``membound.csv`` -> variants; casts and fills have no place in a layer's list."""
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
Key = tuple[Kind, str, str]
Row = Mapping[str, str]


def main() -> None:
    """Read the tables and write the profile."""
    profile = h200_profile()
    write_measured(profile, OUTPUT)
    print(f"{OUTPUT.name}: {profile.num_points} points in {len(profile.series)} series")


def h200_profile() -> MeasuredProfile:
    """The profile that the tables make."""
    info = json.loads((DATA / "info.json").read_text())
    torch = f"torch {info['torch']}"
    series = (
        *_series("gemm.csv", torch, _gemms),
        *_series("gemm_fp8.csv", torch, _fp8_gemms),
        *_series("attention.csv", torch, _attention),
        *_series("membound.csv", torch, _operators),
        *_series("optimizer.csv", torch, _optimizer),
        *_series("pcie.csv", torch, _copies),
    )
    return MeasuredProfile(device=DEVICE, machine=_machine(info), series=series, failures=_failures(), autopar_version=__version__)


def _machine(info: Mapping[str, str]) -> Machine:
    _, driver, _, sm_clock, memory_clock, *_ = (part.strip() for part in info["smi"].split(","))
    nccl = ".".join(part.strip() for part in str(info["nccl"]).strip("()").split(","))
    return Machine(
        device_name=info["gpu"],
        host="",
        date="",
        driver=driver,
        clocks=f"SM {sm_clock}, memory {memory_clock}",
        libraries={"torch": info["torch"], "cuda": info["cuda"], "nccl": nccl},
        world_size=1,
        ranks_per_node=1,
        threads_per_rank=1,
    )


def _failures() -> tuple[str, ...]:
    return (
        f"rows of less than {LAUNCH_FLOOR * 1e6:.0f} us of GPU work (operators 100 us, attention 80 us forward and 250 us backward):"
        " their time is the launch's",
        "products whose contiguous dimension is no multiple of 16 bytes (an unpadded vocabulary): other kernels run them",
        "collectives: one GPU was there",
        "silu_mul_backward: not in the tables",
        "repeats and spread: the tables hold medians alone, so every point says 1 and 0",
    )


def _series(name: str, library: str, points: Callable[[Row], Iterator[tuple[Key, Point]]]) -> Iterator[Series]:
    """The series that one table makes, points in order of shape; a shape that occurs twice keeps its first time."""
    found: defaultdict[Key, dict[tuple[float, ...], Point]] = defaultdict(dict)
    with (DATA / name).open(newline="") as file:
        for row in csv.DictReader(file):
            for key, point in points(row):
                found[key].setdefault(point.shape, point)
    for (kind, variant, dtype), by_shape in sorted(found.items()):
        yield Series(
            kind=kind,
            variant=variant,
            dtype=dtype,
            library=library,
            source=f"benchmarks/data/h200/{name}: own medians on one NVIDIA H200",
            points=tuple(by_shape[shape] for shape in sorted(by_shape)),
        )


def _point(shape: tuple[str, ...], seconds: str) -> Point:
    return Point(shape=tuple(float(size) for size in shape), seconds=float(seconds), repeats=1, spread=0.0)


def _gemms(row: Row) -> Iterator[tuple[Key, Point]]:
    dtype = "tf32" if row["dtype"] == "float32" else DTYPES[row["dtype"]]
    point = _point((row["m"], row["n"], row["k"]), row["seconds"])
    if is_aligned(point.shape, dtype) and work_seconds(point.shape, dtype) >= LAUNCH_FLOOR:
        yield (Kind.GEMM, row["layout"], dtype), point


def _fp8_gemms(row: Row) -> Iterator[tuple[Key, Point]]:
    point = _point((row["m"], row["n"], row["k"]), row["seconds"])
    if work_seconds(point.shape, "fp8") >= LAUNCH_FLOOR:
        yield (Kind.GEMM, "nt", "fp8"), point


def is_aligned(shape: tuple[float, ...], dtype: str) -> bool:
    """Every dimension a multiple of 16 bytes."""
    width = 4 if dtype == "tf32" else 2
    return all(size * width % 16 == 0 for size in shape)


def work_seconds(shape: tuple[float, ...], dtype: str) -> float:
    """GPU time of a product by the formula, its fixed overhead apart."""
    spec = device(DEVICE)
    columns = DeviceColumns.of(spec, hardware_profile(spec), ComputeType(dtype))
    return float(gemm_seconds(columns, *shape) - columns.gemm_overhead_seconds)


def _attention(row: Row) -> Iterator[tuple[Key, Point]]:
    shape = (row["batch"], row["heads"], row["kv_heads"], row["seq"], row["head_dim"])
    for variant, column in (("forward", "fwd_s"), ("backward", "bwd_s")):
        if row["causal"] == "1" and row[column] and float(row[column]) >= ATTENTION_FLOOR[variant]:
            yield (Kind.ATTENTION, variant, DTYPES[row["dtype"]]), _point(shape, row[column])


def _operators(row: Row) -> Iterator[tuple[Key, Point]]:
    if row["op"] in OPERATORS and float(row["seconds"]) >= OPERATOR_FLOOR:
        yield (Kind.OPERATOR, OPERATORS[row["op"]], DTYPES[row["dtype"]]), _point((row["tokens"], row["hidden"]), row["seconds"])


def _optimizer(row: Row) -> Iterator[tuple[Key, Point]]:
    variant = {"adamw_fused": "adamw", "clip_grad_norm": "gradient_norm"}[row["optimizer"]]
    yield (Kind.OPTIMIZER, variant, DTYPES[row["param_dtype"]]), _point((row["params"],), row["seconds"])


def _copies(row: Row) -> Iterator[tuple[Key, Point]]:
    variant = {"h2d": "to_device", "d2h": "to_host"}.get(row["direction"])
    if variant is not None:
        yield (Kind.HOST_COPY, variant, "fp32"), _point((row["bytes"],), row["seconds"])


if __name__ == "__main__":
    main()
