"""Fit the constants of the kernel-time model to the measurements in ``benchmarks/data`` and say how far off they are.

Run ``python benchmarks/calibration/kernels.py``: it prints the constants of ``costmodel.compute.KernelPhysics`` and of the
device profiles in ``autopar/catalog/profiles``, each with its error on shapes left out of the fit.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from autopar.costmodel.columns import Floats
from autopar.costmodel.compute import (
    PHYSICS,
    DeviceColumns,
    GemmLayout,
    KernelPhysics,
    attention_seconds,
    gemm_seconds,
    memory_seconds,
)
from autopar.costmodel.device_rates import HOPPER_UNIT_FLOPS

DATA = Path(__file__).resolve().parents[1] / "data"
DEVICE_FIELDS = ("gemm_efficiency", "gemm_small_efficiency", "gemm_wave_quantisation", "gemm_overhead_seconds")
PHYSICS_FIELDS = ("tile_prologue", "input_gradient_share", "weight_gradient_share", "gemm_memory_share")
BOUNDS: dict[str, tuple[float, float]] = {
    "gemm_efficiency": (0.3, 1),
    "gemm_small_efficiency": (0.3, 1),
    "gemm_wave_quantisation": (0, 1),
    "gemm_overhead_seconds": (2e-6, 2e-5),
    "tile_prologue": (0, 1000),
    "input_gradient_share": (0.7, 1.2),
    "weight_gradient_share": (0.7, 1.2),
    "gemm_memory_share": (0.5, 1.05),
    "attention_forward_efficiency": (0.1, 1),
    "attention_backward_efficiency": (0.1, 1),
    "attention_tail": (0, 2),
    "attention_backward_tail": (0, 2),
    "softmax_flops_forward": (0, 2000),
    "softmax_flops_backward": (0, 3000),
    "wide_head_share": (0.5, 1),
}
LAUNCH_FLOOR_SECONDS = 25e-6
"""The timings hold one launch from the host, some 20 us: rows that the GPU does in less say nothing about it."""
SIMUMAX_LAYOUT = {"TN": GemmLayout.FORWARD, "NN": GemmLayout.INPUT_GRADIENT, "NT": GemmLayout.WEIGHT_GRADIENT}
"""SimuMax names layouts column-major, as cuBLAS does."""


Fitted = tuple[DeviceColumns, KernelPhysics]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rated:
    """What the vendor rates: enough of a device to fit the rest."""

    peak: float
    bandwidth: float
    units: int
    bytes: float = 2

    def columns(self) -> DeviceColumns:
        """The device with a first guess at its constants."""
        guess = {
            "peak_flops": self.peak, "attention_peak_flops": self.peak, "operand_bytes": self.bytes, "output_bytes": max(2, self.bytes),
            "memory_bandwidth": self.bandwidth, "num_compute_units": self.units, "gemm_efficiency": 0.69, "gemm_small_efficiency": 0.78,
            "gemm_wave_quantisation": 0.3, "gemm_overhead_seconds": 6e-6, "attention_forward_efficiency": 0.6,
            "attention_backward_efficiency": 0.5, "attention_tail": 0.3, "memory_efficiency": 0.9,
            "memory_half_bytes": 2e7, "optimizer_memory_efficiency": 0.72, "launch_seconds": 6e-6, "host_is_device": 0,
            "softmax_cost": self.peak / self.units / HOPPER_UNIT_FLOPS,
        }  # fmt: skip
        columns: dict[str, Any] = {name: np.asarray(value, dtype=np.float64) for name, value in guess.items()}
        return DeviceColumns(**columns)


H200 = Rated(peak=989.4e12, bandwidth=4.8e12, units=132)
A100 = Rated(peak=312e12, bandwidth=1.935e12, units=108)
B200 = Rated(peak=2250e12, bandwidth=7.7e12, units=148)


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmRows:
    """Measured GEMMs."""

    m: Floats
    n: Floats
    k: Floats
    seconds: Floats
    layout: npt.NDArray[np.str_]
    group: npt.NDArray[np.str_]
    """Rows of one group are one linear layer: they are left out together."""

    @classmethod
    def of(cls, rows: list[tuple[float, float, float, float, str, str]]) -> GemmRows:
        m, n, k, seconds = (np.array([row[i] for row in rows], dtype=np.float64) for i in range(4))
        return cls(m=m, n=n, k=k, seconds=seconds, layout=np.array([r[4] for r in rows]), group=np.array([r[5] for r in rows]))

    def take(self, mask: npt.NDArray[np.bool_]) -> GemmRows:
        return GemmRows(**{f.name: getattr(self, f.name)[mask] for f in fields(self)})

    @property
    def flops(self) -> Floats:
        return 2 * self.m * self.n * self.k


def read(name: str) -> Iterator[dict[str, str]]:
    """Rows of one file of ``benchmarks/data``."""
    with (DATA / name).open(newline="", encoding="utf-8") as file:
        yield from csv.DictReader(file)


def measured_gemms(dtype: str = "bfloat16") -> GemmRows:
    """H200 GEMMs long enough to say something about the GPU, without the unpadded vocabulary."""
    rows = GemmRows.of(
        [
            (float(r["m"]), float(r["n"]), float(r["k"]), float(r["seconds"]), r["layout"], r["tri"])
            for r in read("h200/gemm.csv")
            if r["dtype"] == dtype and "50257" not in r["tri"]
        ]
    )
    traffic = 2 * (rows.m * rows.k + rows.k * rows.n + rows.m * rows.n)
    return rows.take(np.maximum(rows.flops / H200.peak, traffic / H200.bandwidth) > LAUNCH_FLOOR_SECONDS)


def published_gemms(hardware: str) -> GemmRows:
    """SimuMax's single GEMMs of one GPU."""
    rows = []
    for r in read("published_gemm.csv"):
        if r["hardware"] == hardware and r["op"] == "matmul":
            m, n, k = float(r["m"]), float(r["n"]), float(r["k"])
            group = "-".join(f"{size:.0f}" for size in sorted((m, n, k)))
            rows.append((m, n, k, 2 * m * n * k / float(r["tflops"]) / 1e12, str(SIMUMAX_LAYOUT[r["layout"]]), group))
    return GemmRows.of(rows)


def predicted_gemms(rows: GemmRows, device: DeviceColumns, physics: KernelPhysics = PHYSICS) -> Floats:
    """Model seconds of ``rows``."""
    seconds = np.empty_like(rows.seconds)
    for layout in GemmLayout:
        mask = rows.layout == str(layout)
        seconds[mask] = gemm_seconds(device, rows.m[mask], rows.n[mask], rows.k[mask], layout=layout, physics=physics)
    return seconds


def with_constants(device: DeviceColumns, physics: KernelPhysics, constants: Mapping[str, float]) -> Fitted:
    """Both, with ``constants`` set in the one that has the field."""
    own = {name: value for name, value in constants.items() if hasattr(physics, name)}
    rest: dict[str, Any] = {name: np.asarray(value, dtype=np.float64) for name, value in constants.items() if name not in own}
    return replace(device, **rest), replace(physics, **own)


def fit(
    names: tuple[str, ...],
    device: DeviceColumns,
    physics: KernelPhysics,
    predict: Callable[[DeviceColumns, KernelPhysics], Floats],
    seconds: Floats,
) -> dict[str, float]:
    """Constants that minimise the soft absolute log error of ``predict`` against ``seconds``."""
    start = np.array([float(getattr(physics, name) if hasattr(physics, name) else getattr(device, name)) for name in names])
    low, high = (np.array([BOUNDS[name][side] for name in names]) for side in (0, 1))
    start = np.clip(start, low + 1e-9, high - 1e-9)

    def residual(values: Floats) -> Floats:
        changed = with_constants(device, physics, dict(zip(names, values.tolist(), strict=True)))
        return np.log(predict(*changed) / seconds)

    # the model is piecewise smooth: a coarse step looks past the kinks
    scale = np.maximum(start, 1e-7)
    best = least_squares(residual, start, bounds=(low, high), x_scale=scale, loss="soft_l1", f_scale=0.05, diff_step=np.asarray(3e-3))
    return dict(zip(names, best.x.tolist(), strict=True))


def fit_gemms(names: tuple[str, ...], rated: Rated, rows: GemmRows, physics: KernelPhysics = PHYSICS) -> dict[str, float]:
    """``fit`` over GEMM rows."""
    return fit(names, rated.columns(), physics, lambda device, shape: predicted_gemms(rows, device, shape), rows.seconds)


def left_out_gemms(names: tuple[str, ...], rated: Rated, rows: GemmRows, folds: int = 5) -> Floats:
    """Model seconds of every row from a fit that has not seen its linear layer."""
    groups = np.unique(rows.group)
    fold_of = dict(zip(groups.tolist(), np.random.default_rng(0).permutation(len(groups)) % folds, strict=True))
    fold = np.array([fold_of[group] for group in rows.group.tolist()])
    seconds = np.empty_like(rows.seconds)
    for held in range(folds):
        constants = fit_gemms(names, rated, rows.take(fold != held))
        seconds[fold == held] = predicted_gemms(rows.take(fold == held), *with_constants(rated.columns(), PHYSICS, constants))
    return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRows:
    """Measured causal attention; FLOPs are what the kernel did."""

    batch: Floats
    heads: Floats
    kv_heads: Floats
    length: Floats
    head_dim: Floats
    v_head_dim: Floats
    seconds: Floats
    backward: bool

    def take(self, mask: npt.NDArray[np.bool_]) -> AttentionRows:
        columns = {f.name: getattr(self, f.name)[mask] for f in fields(self) if f.name != "backward"}
        return AttentionRows(**columns, backward=self.backward)


def measured_attention(backward: bool) -> AttentionRows:
    """H200 rows above the launch floor (autograd's backward launches several kernels)."""
    floor = 2.5e-4 if backward else 8e-5
    key = "bwd_s" if backward else "fwd_s"
    rows = [r for r in read("h200/attention.csv") if float(r[key]) > floor]
    column = {name: np.array([float(r[name]) for r in rows]) for name in ("batch", "heads", "kv_heads", "seq", "head_dim", key)}
    return AttentionRows(
        batch=column["batch"], heads=column["heads"], kv_heads=column["kv_heads"], length=column["seq"], head_dim=column["head_dim"],
        v_head_dim=column["head_dim"], seconds=column[key], backward=backward,
    )  # fmt: skip


def published_attention(hardware: str, backward: bool) -> AttentionRows:
    """SimuMax rows: their rate counts all scores, though the kernel skips the masked half."""
    rows = []
    for r in read("published_gemm.csv"):
        if r["hardware"] == hardware and r["op"] == ("sdp_bwd" if backward else "sdp_fwd"):
            v = {name: float(value) for name, value in re.findall(r"(\w+)=(\d+)", r["notes"])}
            d, w, s = v["qk_head_dim"], v["v_head_dim"], v["seq_len"]
            flops = v["batch"] * v["head_num"] * s * s * (5 if backward else 2) * (d + w)
            rows.append((v["batch"], v["head_num"], v["kv_head_num"], s, d, w, flops / float(r["tflops"]) / 1e12))
    batch, heads, kv_heads, length, head_dim, v_head_dim, seconds = np.array(rows).T
    return AttentionRows(
        batch=batch, heads=heads, kv_heads=kv_heads, length=length, head_dim=head_dim, v_head_dim=v_head_dim, seconds=seconds,
        backward=backward,
    )  # fmt: skip


def predicted_attention(rows: AttentionRows, device: DeviceColumns, physics: KernelPhysics = PHYSICS) -> Floats:
    """Model seconds of ``rows``."""
    return attention_seconds(
        device, batch=rows.batch, heads=rows.heads, kv_heads=rows.kv_heads, query_length=rows.length, key_length=rows.length,
        head_dim=rows.head_dim, v_head_dim=rows.v_head_dim, backward=rows.backward, physics=physics,
    )  # fmt: skip


def errors(predicted: Floats, seconds: Floats) -> str:
    """Median, mean and 90th percentile of the absolute relative error, bias of the median, error of the summed time; in %."""
    relative = predicted / seconds - 1
    size = np.abs(relative)
    figures = (np.median(size), size.mean(), np.quantile(size, 0.9), np.median(relative), predicted.sum() / seconds.sum() - 1)
    median, mean, tail, bias, total = (f"{100 * value:+.1f}" for value in figures)
    return f"n={len(seconds):4d}  median {median[1:]}  mean {mean[1:]}  p90 {tail[1:]}  bias {bias}  sum {total}"


def say(text: str) -> None:
    sys.stdout.write(text + "\n")


def by_size(rows: GemmRows, predicted: Floats) -> None:
    edges = (0, 5e10, 2e11, 1e12, 4e12, np.inf)
    for low, high in pairwise(edges):
        mask = (rows.flops >= low) & (rows.flops < high)
        if mask.any():
            say(f"    {low:7.0e} to {high:7.0e} FLOP  {errors(predicted[mask], rows.seconds[mask])}")


def report_gemms(name: str, names: tuple[str, ...], rated: Rated, rows: GemmRows) -> None:
    constants = fit_gemms(names, rated, rows)
    say(f"{name} GEMM: " + "  ".join(f"{key}={value:.4g}" for key, value in constants.items()))
    predicted = left_out_gemms(names, rated, rows)
    say(f"    left out               {errors(predicted, rows.seconds)}")
    by_size(rows, predicted)


def fit_attention(names: tuple[str, ...], rated: Rated, pair: tuple[AttentionRows, ...]) -> tuple[dict[str, float], Fitted]:
    """Constants over both directions together, since they share physics, and the device and physics that have them."""

    def predict(device: DeviceColumns, physics: KernelPhysics) -> Floats:
        return np.concatenate([predicted_attention(rows, device, physics) for rows in pair])

    constants = fit(names, rated.columns(), PHYSICS, predict, np.concatenate([rows.seconds for rows in pair]))
    return constants, with_constants(rated.columns(), PHYSICS, constants)


def report_attention(name: str, rated: Rated, pair: tuple[AttentionRows, AttentionRows], own: tuple[str, ...]) -> None:
    """Constants from all rows, errors from fits without one shape in five; ``own`` names physics constants to fit beside."""
    names = ("attention_forward_efficiency", "attention_backward_efficiency", "attention_tail", *own)
    constants, _ = fit_attention(names, rated, pair)
    say(f"{name} attention: " + "  ".join(f"{key}={value:.4g}" for key, value in constants.items()))
    predicted = [np.empty_like(rows.seconds) for rows in pair]
    # a shape is in the same fold forward and backward, and so are repetitions of it
    folds = [shape_folds(rows) for rows in pair]
    for held in range(5):
        _, fitted = fit_attention(names, rated, tuple(rows.take(fold != held) for rows, fold in zip(pair, folds, strict=True)))
        for rows, fold, seconds in zip(pair, folds, predicted, strict=True):
            seconds[fold == held] = predicted_attention(rows.take(fold == held), *fitted)
    for rows, seconds, direction in zip(pair, predicted, ("forward", "backward"), strict=True):
        say(f"    left out {direction:13s} {errors(seconds, rows.seconds)}")


def shape_folds(rows: AttentionRows) -> npt.NDArray[np.int64]:
    """A fold from 0 to 4 for each row, by its shape."""
    mixed = rows.batch * 7 + rows.heads * 3 + rows.kv_heads * 11 + rows.length / 1024 * 5 + rows.head_dim / 64
    return mixed.astype(np.int64) % 5


def report_memory() -> None:
    """Efficiency of memory-bound kernels, and the traffic of eager operators over the ideal, from tensors above 200 MB."""
    rows = list(read("h200/membound.csv"))
    device = H200.columns()
    streams = [r for r in rows if r["op"] in ("copy", "add") and float(r["bytes_ideal"]) > 1.2e8]
    moved, seconds = (np.array([float(r[key]) for r in streams]) for key in ("bytes_ideal", "seconds"))
    slope, start = np.polyfit(moved, seconds, 1, w=1 / seconds)
    say(f"memory: efficiency={1 / slope / H200.bandwidth:.4g}  half_bytes={start / slope:.4g}")
    fitted = replace(device, memory_efficiency=np.asarray(1 / slope / H200.bandwidth), memory_half_bytes=np.asarray(start / slope))
    say(f"    fit                    {errors(memory_seconds(fitted, moved), seconds)}")
    for operator in dict.fromkeys(r["op"] for r in rows):
        large = [r for r in rows if r["op"] == operator and float(r["bytes_ideal"]) > 2e8]
        ratio = [float(r["seconds"]) / (float(r["bytes_ideal"]) * slope) for r in large]
        say(f"    {operator:14s} {np.median(ratio):.2f} times its ideal bytes")


def main() -> None:
    h200 = measured_gemms()
    report_gemms("H200", DEVICE_FIELDS + PHYSICS_FIELDS, H200, h200)
    report_gemms("A100", DEVICE_FIELDS, A100, published_gemms("A100-PCIe"))
    report_gemms("B200", DEVICE_FIELDS, B200, published_gemms("B200-SXM"))
    shared = ("softmax_flops_forward", "softmax_flops_backward", "attention_backward_tail")
    report_attention("H200", H200, (measured_attention(False), measured_attention(True)), shared)
    for name, hardware, rated in (("A100", "A100-PCIe", A100), ("B200", "B200-SXM", B200)):
        pair = (published_attention(hardware, False), published_attention(hardware, True))
        report_attention(name, rated, pair, ("wide_head_share",))
    report_memory()


if __name__ == "__main__":
    main()
