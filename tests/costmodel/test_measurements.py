"""Measured points in the cost model: met where they are, scaling the formula elsewhere, and every shape accounted for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from autopar.api import estimate, plan
from autopar.catalog import hardware
from autopar.catalog.links import link_profiles
from autopar.catalog.measured import measured_profile
from autopar.catalog.profiles import hardware_profile
from autopar.costmodel.columns import StrategyColumns
from autopar.costmodel.communication import all_gather_seconds, all_reduce_seconds, p2p_seconds
from autopar.costmodel.compute import DeviceColumns, GemmLayout, attention_seconds, gemm_seconds, memory_seconds, optimizer_seconds
from autopar.costmodel.estimate import shapes_asked
from autopar.costmodel.inputs import Inputs
from autopar.costmodel.measured import Coverage, Uses
from autopar.costmodel.measurements import Measurements, measured_constants
from autopar.costmodel.problem import Problem
from autopar.costmodel.spec.cluster import ClusterSpec, DeviceSpec, LinkKind, LinkTier
from autopar.costmodel.spec.errors import InvalidInputError, UnavailableError
from autopar.costmodel.spec.measured import Kind, MeasuredProfile, Point, Series
from autopar.costmodel.spec.training import ComputeType
from autopar.costmodel.step import evaluate
from autopar.costmodel.topology import LinkColumns, place
from autopar.request import build_problem, problem_of

H200 = hardware.device("h200")
BASE = measured_profile("h200")
WIDE = st.floats(16, 60_000)


def columns(profile: MeasuredProfile | None = None, compute_type: ComputeType = ComputeType.BF16) -> DeviceColumns:
    plain = DeviceColumns.of(H200, hardware_profile(H200), compute_type)
    return plain if profile is None else Measurements(profile).on_device(plain, compute_type)


def with_series(kind: Kind, variant: str, dtype: str, *points: tuple[tuple[float, ...], float]) -> MeasuredProfile:
    found = tuple(Point(shape=shape, seconds=seconds, repeats=3, spread=0.0) for shape, seconds in points)
    series = Series(kind=kind, variant=variant, dtype=dtype, library="", source="", points=found)
    return replace(BASE, series=(series,))


MEASURED = columns(BASE)
FLAT = 0.005
ROUNDING = 1e-12


def test_a_single_product_scales_the_formulas_work_everywhere() -> None:
    shape = (4096.0, 4096.0, 4096.0)
    overhead = float(columns().gemm_overhead_seconds)
    twice = 2 * float(gemm_seconds(columns(), *shape)) - overhead
    device = columns(with_series(Kind.GEMM, "nt", "bf16", (shape, twice)))
    asked = np.array([100.0, 4096.0, 50_000.0])
    assert gemm_seconds(device, asked, asked, asked) == pytest.approx(2 * gemm_seconds(columns(), asked, asked, asked) - overhead)
    other = {"layout": GemmLayout.WEIGHT_GRADIENT}
    assert np.array_equal(gemm_seconds(device, asked, asked, asked, **other), gemm_seconds(columns(), asked, asked, asked, **other))


@given(WIDE, WIDE, WIDE, st.sampled_from([(2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 2)]))
def test_a_product_twice_as_large_never_takes_less(m: float, n: float, k: float, factors: tuple[int, int, int]) -> None:
    shape = [64 * round(max(size, 64) / 64) for size in (m, n, k)]
    larger = [size * factor for size, factor in zip(shape, factors, strict=True)]
    # where the formula is flat (more of K on idle units, a tile half empty) the correction's own slope is left
    assert float(gemm_seconds(MEASURED, *larger)) >= float(gemm_seconds(MEASURED, *shape)) * (1 - FLAT)


@given(st.floats(1e3, 1e12), st.floats(1, 50))
def test_more_bytes_never_take_less(moved: float, factor: float) -> None:
    for seconds in (memory_seconds, optimizer_seconds):
        assert float(seconds(MEASURED, moved * factor)) >= float(seconds(MEASURED, moved)) * (1 - ROUNDING)


def test_products_of_the_shipped_profile_are_met() -> None:
    """To the nugget's share: a library's jump from one shape to the next is no trend."""
    for one in BASE.of_kind(Kind.GEMM):
        device = columns(BASE, ComputeType(one.dtype))
        m, n, k = np.array([point.shape for point in one.points]).T
        found = gemm_seconds(device, m, n, k, layout=GemmLayout(one.variant))
        error = np.abs(found / np.array([point.seconds for point in one.points]) - 1)
        assert np.median(error) < 0.05, one.name


def test_attention_is_corrected_by_direction() -> None:
    shape = {"batch": 1, "heads": 16, "kv_heads": 16, "query_length": 8192, "key_length": 8192, "head_dim": 128}
    forward = float(attention_seconds(columns(), **shape))
    device = columns(with_series(Kind.ATTENTION, "forward", "bf16", ((1, 16, 16, 8192, 128), 3 * forward)))
    assert float(attention_seconds(device, **shape)) == pytest.approx(3 * forward)
    assert float(attention_seconds(device, **shape, backward=True)) == float(attention_seconds(columns(), **shape, backward=True))


# -- collectives -------------------------------------------------------------------------------------------

CLUSTER = hardware.cluster("dgx-h200", 16)
LINKS = LinkColumns.of(CLUSTER, link_profiles(CLUSTER))


def links(*points: tuple[tuple[float, float, float], float], variant: str = "all_reduce") -> LinkColumns:
    return Measurements(with_series(Kind.COLLECTIVE, variant, "fp32", *points)).on_links(LINKS)


def test_a_collective_takes_the_nearest_measured_group_and_never_one_across_the_network() -> None:
    group, whole = place(4, 1, LINKS), place(16, 1, LINKS)
    sizes = np.array([1e5, 1e7])
    plain = all_reduce_seconds(sizes, group, LINKS)
    found = links(*(((float(size), 4.0, 4.0), 2 * float(seconds)) for size, seconds in zip(sizes, plain, strict=True)))
    assert all_reduce_seconds(sizes, group, found) == pytest.approx(2 * plain, rel=1e-6)
    pair = place(2, 1, LINKS)
    assert all_reduce_seconds(sizes, pair, found) == pytest.approx(2 * all_reduce_seconds(sizes, pair, LINKS), rel=1e-6)
    assert np.array_equal(all_reduce_seconds(sizes, whole, found), all_reduce_seconds(sizes, whole, LINKS))
    assert np.array_equal(all_gather_seconds(sizes, group, found), all_gather_seconds(sizes, group, LINKS))


@given(st.floats(1e2, 1e10), st.floats(1, 100))
@example(8005.0, 47.0)
def test_a_longer_message_never_takes_less(message: float, factor: float) -> None:
    found = links(((1e3, 8, 8), 3e-5), ((1e6, 8, 8), 2.5e-5), ((1e8, 8, 8), 4e-4))
    group = place(8, 1, LINKS)
    assert float(all_reduce_seconds(message * factor, group, found)) >= float(all_reduce_seconds(message, group, found)) * (1 - ROUNDING)


def test_transfers_inside_and_across_nodes_are_told_apart() -> None:
    found = links(((1e6, 2, 1), 1e-3), variant="send_recv")
    assert float(p2p_seconds(1e6, True, found)) == pytest.approx(1e-3)
    assert float(p2p_seconds(1e6, False, found)) == float(p2p_seconds(1e6, False, LINKS))
    assert float(p2p_seconds(0.0, True, found)) == 0


# -- whole problems ------------------------------------------------------------------------------------------


def problem(**inputs: object) -> Problem:
    return build_problem("llama3-8b", gpus=8, gpu="h200", profile="h200", **inputs)[0]  # type: ignore[arg-type]


def test_one_strategy_and_many_are_the_same() -> None:
    found = plan("llama3-8b", gpus=8, gpu="h200", profile="h200", global_batch_size=64)
    asked = problem(global_batch_size=64)
    strategies = [found.strategy, *(other.strategy for other in found.alternatives)]
    together = evaluate(Inputs.of(asked), StrategyColumns.of(strategies)).step_time_seconds
    apart = [float(evaluate(Inputs.of(asked), StrategyColumns.of([each])).step_time_seconds[0]) for each in strategies]
    assert together == pytest.approx(apart, rel=1e-9)
    assert found.estimate.step_time_seconds == pytest.approx(apart[0], rel=1e-9)


def test_a_plan_keeps_its_profile_and_answers_again() -> None:
    found = plan("llama3-8b", gpus=8, gpu="h200", profile="h200", global_batch_size=64)
    assert found.inputs.measured == BASE
    assert estimate(problem_of(found), strategy=found.strategy).step_time_seconds == found.estimate.step_time_seconds


def test_every_shape_says_how_it_is_known() -> None:
    found = plan("llama3-8b", gpus=8, gpu="h200", profile="h200", global_batch_size=64)
    uses = shapes_asked(problem(global_batch_size=64), found.strategy)
    kinds = {use.kind for use in uses}
    assert {Kind.GEMM, Kind.ATTENTION, Kind.OPERATOR} <= kinds
    assert {use.coverage for use in uses} >= {Coverage.INTERPOLATED}
    assert all(use.seconds > 0 and use.deviation > 0 for use in uses)
    provenance = found.estimate.provenance
    assert provenance["profile"].startswith("1299 times of NVIDIA H200")
    assert "interpolated" in provenance["measured gemm"]
    assert any("outside the measured range" in warning for warning in found.estimate.warnings)


def test_without_a_profile_nothing_changes_and_nothing_is_said() -> None:
    plain, _ = build_problem("llama3-8b", gpus=8, gpu="h200", global_batch_size=64)
    found = plan("llama3-8b", gpus=8, gpu="h200", global_batch_size=64)
    assert not any(key.startswith("measured") or key == "profile" for key in found.estimate.provenance)
    assert all(use.coverage is Coverage.ANALYTIC for use in shapes_asked(plain, found.strategy))
    recorded = Uses()
    with_record = evaluate(Inputs.of(plain, recorded), StrategyColumns.of([found.strategy])).step_time_seconds
    assert with_record == evaluate(Inputs.of(plain), StrategyColumns.of([found.strategy])).step_time_seconds
    assert recorded.found


def test_a_profile_of_another_device_is_refused_unless_asked_for() -> None:
    with pytest.raises(
        InvalidInputError, match=r"profile=h200-sxm-141gb: times measured on another device than h100.*--allow-other-device"
    ):
        build_problem("llama3-8b", gpus=8, gpu="h100", profile="h200")
    _, notes = build_problem("llama3-8b", gpus=8, gpu="h100", profile="h200", allow_other_device=True)
    assert any("used for h100-sxm5-80gb as asked" in note for note in notes)


def test_tables_with_two_profiles_are_refused() -> None:
    first, second = problem(), replace(problem(), measured=None)
    with pytest.raises(ValueError, match="cannot be evaluated together"):
        Inputs.stacked([first, second])
    assert Inputs.stacked([first, first]).device.curves is Inputs.of(first).device.curves


# -- a processor ---------------------------------------------------------------------------------------------

CPU = DeviceSpec(
    id="cpu-x-1t", name="a processor", architecture="cpu", memory_bytes=2**34, memory_bandwidth=1e10, peak_flops={"fp32": 1e11},
    num_compute_units=1, l2_cache_bytes=2**24, power_watts=100, default_cluster="x", sources={},
)  # fmt: skip
GLOO = LinkTier(name="gloo", kind=LinkKind.NETWORK, domain_size=0, bandwidth=1e9, latency_seconds=5e-5, ports_per_domain=1)
ON_CPU = ClusterSpec(id="x", device=CPU, gpus_per_node=2, num_gpus=2, tiers=(GLOO,), sources={})


def cpu_profile() -> MeasuredProfile:
    def one(kind: Kind, variant: str, *points: tuple[tuple[float, ...], float]) -> Series:
        return replace(with_series(kind, variant, "fp32", *points).series[0])

    gemms = tuple(one(Kind.GEMM, layout, ((512, 512, 512), 2 * 512**3 / 1e11), ((64, 64, 64), 1e-5)) for layout in ("nt", "nn", "tn"))
    return replace(
        BASE,
        device="cpu-x-1t",
        series=(*gemms, one(Kind.OPERATOR, "copy", ((1024, 1024), 1e-3)), one(Kind.LAUNCH, "kernel", ((1,), 3e-6))),
    )


@pytest.mark.parametrize("framework", ["pytorch-eager", "fsdp", "megatron-core", "deepspeed"])
def test_a_processor_is_planned_for_with_its_own_points(framework: str) -> None:
    inputs = {"cluster": ON_CPU, "global_batch_size": 4, "sequence_length": 128, "framework": framework}
    found = plan("gpt2", **inputs, profile=cpu_profile(), memory_reserve="64MiB")
    assert found.estimate.step_time_seconds > 0
    assert found.inputs.training.precision.name == "fp32"
    with pytest.raises(UnavailableError, match="autopar profile"):
        plan("gpt2", **inputs)


def test_constants_are_read_off_the_points() -> None:
    found = measured_constants(cpu_profile(), CPU)
    assert found.gemm_efficiency == pytest.approx(1.0)
    assert found.launch_seconds == 3e-6
    assert found.memory_efficiency == pytest.approx(8 * 2**20 / 1e-3 / 1e10)
    assert all(0 < getattr(found, name) <= 1 for name in ("attention_forward_efficiency", "optimizer_memory_efficiency"))


def test_a_processor_launches_what_it_computes_itself() -> None:
    inputs = {"cluster": ON_CPU, "global_batch_size": 4, "sequence_length": 128, "framework": "pytorch-eager", "memory_reserve": "64MiB"}
    quick = build_problem("gpt2", **inputs, profile=cpu_profile())[0]  # type: ignore[arg-type]
    slow = replace(quick, hardware=replace(quick.hardware, launch_seconds=quick.hardware.launch_seconds + 1e-3))
    first, second = (estimate(each, strategy={"mbs": 1}) for each in (quick, slow))
    launches = (quick.framework.kernels_per_layer_forward + quick.framework.kernels_per_layer_backward) * 12 * 2
    assert second.step_time_seconds - first.step_time_seconds == pytest.approx(launches * 1e-3, rel=0.01)
