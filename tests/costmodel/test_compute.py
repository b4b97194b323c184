"""Kernel times: laws, and figures held against measurements shipped in ``benchmarks/data``."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar.catalog.hardware import device, device_names
from autopar.catalog.profiles import CONSTANTS, hardware_profile, profiled_devices
from autopar.costmodel.columns import Floats
from autopar.costmodel.compute import (
    EAGER_TRAFFIC,
    DeviceColumns,
    GemmLayout,
    attention_seconds,
    cast_seconds,
    gemm_seconds,
    memory_seconds,
    optimizer_seconds,
)
from autopar.costmodel.spec.errors import InvalidInputError, UnavailableError
from autopar.costmodel.spec.hardware import Origin
from autopar.costmodel.spec.training import ComputeType

DATA = Path(__file__).resolve().parents[2] / "benchmarks" / "data"
LAYOUTS = st.sampled_from(list(GemmLayout))
SIZES = st.integers(1, 128).map(lambda blocks: 256 * blocks)
DEVICES = st.sampled_from(["v100-sxm2-32gb", "a100-sxm4-80gb", "h200-sxm-141gb", "b200-sxm", "gb200-nvl72"])


def columns(name: str, compute_type: ComputeType = ComputeType.FP16, *, flash2: bool = False) -> DeviceColumns:
    spec = device(name)
    return DeviceColumns.of(spec, hardware_profile(spec), compute_type, flash2=flash2)


def rows(name: str) -> Iterator[dict[str, str]]:
    with (DATA / name).open(newline="", encoding="utf-8") as file:
        yield from csv.DictReader(file)


def attention(on: DeviceColumns, **changes: object) -> Floats:
    shape: dict[str, object] = {"batch": 1, "heads": 32, "kv_heads": 8, "query_length": 4096, "key_length": 4096, "head_dim": 128}
    return attention_seconds(on, **{**shape, **changes})  # type: ignore[arg-type]


# laws


@given(name=DEVICES, layout=LAYOUTS, m=SIZES, n=SIZES, k=SIZES)
def test_gemm_is_bounded_by_the_peak_and_the_bandwidth(name: str, layout: GemmLayout, m: int, n: int, k: int) -> None:
    on = columns(name)
    seconds = float(gemm_seconds(on, m, n, k, layout=layout))
    assert seconds > 2.0 * m * n * k / float(on.peak_flops)
    assert seconds > 2.0 * (m * k + k * n + m * n) / float(on.memory_bandwidth)


@given(name=DEVICES, layout=LAYOUTS, size=st.tuples(SIZES, SIZES, SIZES), axis=st.integers(0, 2), count=st.integers(1, 64))
def test_doubling_a_dimension_is_never_faster(name: str, layout: GemmLayout, size: tuple[int, int, int], axis: int, count: int) -> None:
    larger = tuple(length * 2 if i == axis else length for i, length in enumerate(size))
    on = columns(name)
    before, after = (float(gemm_seconds(on, *shape, layout=layout, count=count)) for shape in (size, larger))
    assert after >= before * (1 - 1e-9)


@given(layout=LAYOUTS, m=SIZES, n=SIZES, k=SIZES, factor=st.floats(1.0, 8.0))
@pytest.mark.parametrize("rate", ["peak_flops", "memory_bandwidth"])
def test_a_faster_device_is_never_slower(rate: str, layout: GemmLayout, m: int, n: int, k: int, factor: float) -> None:
    slow = columns("h200-sxm-141gb")
    fast = replace(slow, **{rate: getattr(slow, rate) * factor})
    assert gemm_seconds(fast, m, n, k, layout=layout) <= gemm_seconds(slow, m, n, k, layout=layout) * (1 + 1e-12)
    assert memory_seconds(fast, 1e9) <= memory_seconds(slow, 1e9)
    assert attention(fast, query_length=m, key_length=m) <= attention(slow, query_length=m, key_length=m) * (1 + 1e-12)


@given(shapes=st.lists(st.tuples(DEVICES, SIZES, SIZES, SIZES, st.integers(1, 8)), min_size=1, max_size=20), layout=LAYOUTS)
def test_arrays_of_mixed_devices_equal_one_call_a_row(shapes: list[tuple[str, int, int, int, int]], layout: GemmLayout) -> None:
    stacked = DeviceColumns.stack([columns(name) for name, *_ in shapes])
    m, n, k, count = np.array([sizes for _, *sizes in shapes]).T
    together = gemm_seconds(stacked, m, n, k, layout=layout, count=count)
    alone = [gemm_seconds(columns(name), *sizes, layout=layout, count=c) for name, *sizes, c in shapes]
    np.testing.assert_array_equal(together, np.array(alone))
    together = attention(stacked, query_length=m, key_length=m, backward=True)
    alone = [attention(columns(name), query_length=length, key_length=length, backward=True) for name, length, *_ in shapes]
    np.testing.assert_array_equal(together, np.array(alone))


def test_stacked_devices_broadcast_over_a_new_axis() -> None:
    stacked = DeviceColumns.stack([columns("h200-sxm-141gb"), columns("a100-sxm4-80gb")])
    seconds = gemm_seconds(stacked.take((slice(None), None)), np.array([1024, 4096, 8192]), 4096, 4096)
    assert seconds.shape == (2, 3)
    assert (seconds[1] > seconds[0]).all()


@given(count=st.integers(2, 16), m=st.integers(1, 8).map(lambda blocks: 128 * blocks))
def test_a_grouped_kernel_of_small_experts_beats_its_members_one_by_one(count: int, m: int) -> None:
    on = columns("h200-sxm-141gb")
    assert float(gemm_seconds(on, m, 2048, 4096, count=count)) <= count * float(gemm_seconds(on, m, 2048, 4096))


@given(length=st.integers(4, 128).map(lambda blocks: 256 * blocks), backward=st.booleans())
def test_attention_laws(length: int, backward: bool) -> None:
    on = columns("h200-sxm-141gb")
    causal = attention(on, query_length=length, key_length=length, backward=backward)
    full = attention(on, query_length=length, key_length=length, backward=backward, causal_fraction=1.0)
    assert causal < full < 2.2 * causal
    assert attention(on, query_length=2 * length, key_length=2 * length, backward=backward) > causal
    assert attention(on, query_length=length, key_length=length, backward=backward, heads=64) >= causal
    assert attention(columns("h200-sxm-141gb", flash2=True), query_length=length, key_length=length, backward=backward) >= causal


def test_head_dim_64_does_half_the_flops_in_more_than_half_the_time() -> None:
    on = columns("h200-sxm-141gb")
    wide, narrow = (float(attention(on, query_length=16384, key_length=16384, head_dim=d)) for d in (128, 64))
    assert 0.6 * wide < narrow < 0.9 * wide


@given(size=st.integers(1, 10**10))
def test_bytes_take_their_time(size: int) -> None:
    on = columns("h200-sxm-141gb")
    assert float(memory_seconds(on, size)) > size / float(on.memory_bandwidth)
    assert float(optimizer_seconds(on, size)) > float(memory_seconds(on, size))
    assert float(cast_seconds(on, size)) == float(memory_seconds(on, 5 * size))
    assert memory_seconds(on, 0) == 0


def test_an_unpadded_vocabulary_is_several_times_slower() -> None:
    on = columns("h200-sxm-141gb", ComputeType.BF16)
    odd, padded = (float(gemm_seconds(on, 8192, n, 4096)) for n in (50257, 50304))
    assert 4 < odd / padded < 8


# against measurements


def relative(predicted: Floats, measured: Floats) -> Floats:
    return predicted / measured - 1


def gemm_errors(dtype: str, compute_type: ComputeType, layout: GemmLayout) -> tuple[Floats, Floats]:
    """FLOPs and relative errors of measured GEMMs that take the GPU longer than a launch."""
    on = columns("h200-sxm-141gb", compute_type)
    picked = [r for r in rows("h200/gemm.csv") if r["dtype"] == dtype and r["layout"] == str(layout) and "50257" not in r["tri"]]
    m, n, k, seconds = np.array([[float(r[c]) for c in ("m", "n", "k", "seconds")] for r in picked]).T
    flops = 2 * m * n * k
    traffic = float(on.operand_bytes) * (m * k + k * n + m * n)
    keep = np.maximum(flops / on.peak_flops, traffic / on.memory_bandwidth) > 25e-6
    return flops[keep], relative(gemm_seconds(on, m, n, k, layout=layout), seconds)[keep]


@pytest.mark.parametrize("layout", list(GemmLayout))
def test_bf16_gemms_of_an_h200(layout: GemmLayout) -> None:
    flops, error = gemm_errors("bfloat16", ComputeType.BF16, layout)
    assert len(error) == 322
    assert np.median(np.abs(error)) < 0.06
    assert np.abs(error).mean() < 0.07
    assert abs(np.median(error)) < 0.02
    assert abs(np.median(error[flops > 1e12])) < 0.04


@pytest.mark.parametrize(
    ("dtype", "compute_type", "rows_held", "bound"), [("float16", ComputeType.FP16, 45, 0.07), ("float32", ComputeType.TF32, 35, 0.10)]
)
def test_types_the_fit_has_not_seen(dtype: str, compute_type: ComputeType, rows_held: int, bound: float) -> None:
    _, error = gemm_errors(dtype, compute_type, GemmLayout.FORWARD)
    assert len(error) >= rows_held
    assert np.abs(error).mean() < bound
    assert abs(np.median(error)) < 0.06


def test_fp8_gemms_of_an_h200() -> None:
    on = columns("h200-sxm-141gb", ComputeType.FP8)
    m, n, k, seconds = np.array([[float(r[c]) for c in ("m", "n", "k", "seconds")] for r in rows("h200/gemm_fp8.csv")]).T
    error = relative(gemm_seconds(on, m, n, k), seconds)[2 * m * n * k > 1e11]
    assert np.abs(error).mean() < 0.08
    assert abs(np.median(error)) < 0.06


@pytest.mark.parametrize(
    ("name", "hardware", "compute_type", "least", "bound"),
    [
        # fitted to whole steps, where a rate makes up for what it stands beside: further from bare kernels
        ("a100-sxm4-80gb", "A100-SXM4-80GB (Azure ND A100 v4)", ComputeType.FP16, 5, 0.12),
        ("h100-sxm5-80gb", "H100-SXM5-80GB (Azure ND H100 v5)", ComputeType.FP8, 6, 0.18),
        ("h200-sxm-141gb", "H200-SXM-141GB (Azure ND H200 v5)", ComputeType.FP8, 6, 0.12),
    ],
)
def test_published_gemms_of_another_lab(name: str, hardware: str, compute_type: ComputeType, least: int, bound: float) -> None:
    picked = [
        [float(r[c]) for c in ("m", "n", "k", "tflops")]
        for r in rows("published_gemm.csv")
        if r["hardware"] == hardware and r["op"] == "gemm" and float(r["m"]) >= 2048 and float(r["n"]) >= 2048
    ]
    assert len(picked) >= least - 1
    m, n, k, tflops = np.array(picked).T
    rate = 2 * m * n * k / gemm_seconds(columns(name, compute_type), m, n, k) / 1e12
    assert np.abs(rate / tflops - 1).max() < bound


@pytest.mark.parametrize(("backward", "median", "mean"), [(False, 0.04, 0.05), (True, 0.06, 0.08)])
def test_attention_of_an_h200(backward: bool, median: float, mean: float) -> None:
    column = "bwd_s" if backward else "fwd_s"
    picked = [r for r in rows("h200/attention.csv") if float(r[column]) > (2.5e-4 if backward else 8e-5)]
    batch, heads, kv_heads, length, head_dim, seconds = np.array(
        [[float(r[c]) for c in ("batch", "heads", "kv_heads", "seq", "head_dim", column)] for r in picked]
    ).T
    predicted = attention_seconds(
        columns("h200-sxm-141gb"), batch=batch, heads=heads, kv_heads=kv_heads, query_length=length, key_length=length,
        head_dim=head_dim, backward=backward,
    )  # fmt: skip
    error = np.abs(relative(predicted, seconds))
    assert len(error) > 40
    assert np.median(error) < median
    assert error.mean() < mean


def test_streaming_kernels_and_the_optimizer_of_an_h200() -> None:
    on = columns("h200-sxm-141gb")
    stream = [r for r in rows("h200/membound.csv") if r["op"] in ("copy", "add") and float(r["bytes_ideal"]) > 1.2e8]
    moved, seconds = np.array([[float(r["bytes_ideal"]), float(r["seconds"])] for r in stream]).T
    assert np.abs(relative(memory_seconds(on, moved), seconds)).max() < 0.04
    fused = [r for r in rows("h200/optimizer.csv") if r["optimizer"] == "adamw_fused" and r["param_dtype"] == "float32"]
    adam = [r for r in fused if float(r["params"]) > 1e8]
    moved, seconds = np.array([[float(r["bytes_ideal"]), float(r["seconds"])] for r in adam]).T
    assert np.abs(relative(optimizer_seconds(on, moved), seconds)).max() < 0.02


@pytest.mark.parametrize(
    ("operator", "measured"),
    [("gelu", "gelu"), ("layernorm", "layernorm"), ("layernorm_backward", "layernorm_bwd"), ("rmsnorm", "rmsnorm")],
)
def test_eager_traffic_gives_the_measured_time(operator: str, measured: str) -> None:
    large = [r for r in rows("h200/membound.csv") if r["op"] == measured and float(r["bytes_ideal"]) > 2e8]
    elements, seconds = np.array([[float(r["tokens"]) * float(r["hidden"]), float(r["seconds"])] for r in large]).T
    predicted = memory_seconds(columns("h200-sxm-141gb"), EAGER_TRAFFIC[operator].eager * elements)
    assert abs(np.median(relative(predicted, seconds))) < 0.08


# profiles


@pytest.mark.parametrize("name", device_names())
def test_every_device_of_the_catalog_has_constants_with_their_origin(name: str) -> None:
    spec = device(name)
    profile = hardware_profile(spec)
    assert profile.device == name
    assert set(profile.origin) == set(profile.sources) == set(CONSTANTS)
    shares = [c for c in CONSTANTS if c.endswith(("efficiency", "ratio", "quantisation"))]
    assert all(0 <= getattr(profile, c) <= 1 for c in shares)
    assert profile.gemm_small_efficiency >= profile.gemm_efficiency
    if name not in profiled_devices():
        assert Origin.MEASURED not in profile.origin.values()
    for constant, source in profile.sources.items():
        if source.startswith("fit to measured steps"):
            assert profile.origin[constant] is Origin.MEASURED
            assert re.fullmatch(r"fit to measured steps: benchmarks/calibration/steps.py on [\w-]+(, [\w-]+)*", source)


def test_less_power_a_flop_sustains_less() -> None:
    full, capped = (hardware_profile(device(name)) for name in ("h100-sxm5-80gb", "h100-sxm5-96gb-hbm2e"))
    assert capped.gemm_efficiency < full.gemm_efficiency
    assert capped.gemm_efficiency < capped.gemm_small_efficiency


def test_an_architecture_without_measurements_is_an_error() -> None:
    with pytest.raises(UnavailableError, match="autopar profile"):
        hardware_profile(replace(device("h200-sxm-141gb"), id="x1", architecture="unheard-of"))


def test_a_type_the_device_lacks_is_an_error() -> None:
    spec = device("a100-sxm4-80gb")
    with pytest.raises(InvalidInputError, match=r"fp8.*a100-sxm4-80gb"):
        DeviceColumns.of(spec, hardware_profile(spec), ComputeType.FP8)


def test_columns_hold_every_constant_they_are_named_after() -> None:
    spec = device("h200-sxm-141gb")
    profile = hardware_profile(spec)
    on = DeviceColumns.of(spec, profile, ComputeType.BF16)
    shared = {f.name for f in fields(DeviceColumns)} & set(CONSTANTS)
    assert len(shared) >= 10
    assert all(getattr(on, name) == getattr(profile, name) for name in shared)


def test_exponentials_cost_less_beside_slower_tensor_cores_and_half_on_blackwell_ultra() -> None:
    """Share of a head dim of 64 in the time of one of 128, at long sequences where nothing else counts."""

    def share(name: str) -> float:
        narrow, wide = (float(attention(columns(name), query_length=65536, key_length=65536, head_dim=d)) for d in (64, 128))
        return narrow / wide

    assert 0.5 < share("a100-sxm4-80gb") < share("h200-sxm-141gb") < share("b200-sxm") < 1
    assert share("gb300-nvl72") < share("gb200-nvl72")
    assert float(columns("h100-sxm5-80gb", ComputeType.BF16).softmax_cost) == pytest.approx(1)


@pytest.mark.parametrize("name", ["b200-sxm", "gb200-nvl72", "gb300-nvl72"])
def test_a_long_product_in_fp4_is_about_twice_as_fast_as_in_fp8_whatever_is_rated(name: str) -> None:
    eight, four = (columns(name, compute_type) for compute_type in (ComputeType.FP8, ComputeType.FP4))
    ratio = float(gemm_seconds(eight, 16384, 65536, 16384)) / float(gemm_seconds(four, 16384, 65536, 16384))
    assert 1.9 < ratio < 2.1
    assert float(cast_seconds(four, 10**9)) > float(cast_seconds(eight, 10**9))


def test_fp8_and_attention_follow_the_products_of_a_part_with_less_power() -> None:
    less, full = (hardware_profile(device(name)) for name in ("h100-sxm5-96gb-hbm2e", "h200-sxm-141gb"))
    share = less.gemm_efficiency / full.gemm_efficiency
    assert 0.6 < share < 0.9
    for constant in ("fp8_efficiency", "attention_forward_efficiency", "attention_backward_efficiency"):
        assert getattr(less, constant) == pytest.approx(share * getattr(full, constant), rel=1e-9)


def test_attention_of_an_unmeasured_card_is_scaled_by_its_power_and_never_beyond_its_relatives() -> None:
    for name, reference in (("h100-pcie-80gb", "h200-sxm-141gb"), ("gh200-96gb", "h200-sxm-141gb"), ("l4-24gb", "l40s-48gb")):
        mine, its = (hardware_profile(device(each)) for each in (name, reference))
        assert mine.attention_forward_efficiency <= its.attention_forward_efficiency
    assert hardware_profile(device("h100-pcie-80gb")).attention_forward_efficiency < 0.6
