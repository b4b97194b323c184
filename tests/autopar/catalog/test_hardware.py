"""The device and cluster catalog: every file sound, every number sourced, every fault of a user's file reported."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar.catalog import hardware
from autopar.costmodel.spec.cluster import DeviceSpec, LinkKind
from autopar.costmodel.spec.errors import InvalidInputError, UnknownNameError

CATALOG = Path(hardware.__file__).parent
DEVICES = """
v100-sxm2-16gb v100-sxm2-32gb v100-sxm3-32gb v100-pcie-16gb v100-pcie-32gb
a100-sxm4-40gb a100-sxm4-80gb a100-pcie-40gb a100-pcie-80gb a800-sxm4-80gb
h100-sxm5-80gb h100-sxm5-96gb-hbm2e h100-pcie-80gb h100-nvl-94gb gh200-96gb h800-sxm-80gb h20-96gb h200-sxm-141gb
b200-sxm b300-sxm gb200-nvl72 gb300-nvl72
l4-24gb l40s-48gb a10-24gb a10g-24gb a40-48gb a6000-48gb rtx3090-24gb rtx4090-24gb t4-16gb
mi250x mi300x-192gb
"""
CLUSTERS = """
dgx-a100 dgx-a100-40gb dgx-h100 dgx-h200 dgx-b200 hgx-b300 nvl72-gb200 nvl72-gb300 dgx-1v dgx-2 dgx-2h
pcie-box-8 l40s-box rtx4090-box rtx3090-box a10-box mi300x-8 mi250x-frontier a800-8 h800-8 h20-8
selene jean-zay-a100 jean-zay-v100 vtrain-a100 internevo-a100 dlperf-v100 fms-a100-400g fms-h100-800g grand-teton-h100 alps-gh200
aws-p4d aws-p4de aws-p5 aws-p5e aws-p6-b200 aws-g5 aws-g6e aws-p3dn azure-nd-a100-v4 azure-nd-h100-v5
gcp-a2-highgpu gcp-a2-ultragpu gcp-a3-high gcp-a3-mega gcp-a3-ultra oci-bm-a100 oci-bm-h100 coreweave-h100
"""
SOURCED_DEVICE_FIELDS = {"memory_bytes", "memory_bandwidth", "peak_flops", "num_compute_units", "l2_cache_bytes", "power_watts"}

every_device = pytest.mark.parametrize("name", hardware.device_names())
every_cluster = pytest.mark.parametrize("name", hardware.cluster_names())


def raw_file(folder: str, name: str) -> dict[str, Any]:
    return tomllib.loads((CATALOG / folder / f"{name}.toml").read_text(encoding="utf-8"))


# devices


def test_the_catalog_holds_every_device_and_cluster() -> None:
    assert set(DEVICES.split()) <= set(hardware.device_names())
    assert set(CLUSTERS.split()) <= set(hardware.cluster_names())


@every_device
def test_a_device_file_holds_exactly_the_fields_of_the_type(name: str) -> None:
    raw = raw_file("devices", name)
    assert set(raw) == {field.name for field in fields(DeviceSpec)}
    assert raw["id"] == name
    assert hardware.device(name) == DeviceSpec(**raw)


@every_device
def test_every_number_of_a_device_has_a_source(name: str) -> None:
    sources = hardware.device(name).sources
    assert set(sources) == SOURCED_DEVICE_FIELDS
    assert all(len(text) > 15 for text in sources.values())


@every_device
def test_numbers_of_a_device_are_plausible(name: str) -> None:
    spec = hardware.device(name)
    assert 14e9 < spec.memory_bytes < 300e9
    assert 300e9 <= spec.memory_bandwidth <= 8e12
    assert 40 <= spec.num_compute_units <= 304
    assert 4 * 2**20 <= spec.l2_cache_bytes <= 128 * 2**20
    assert 70 <= spec.power_watts <= 1400


@every_device
def test_the_name_s_gigabytes_are_there_less_what_the_driver_keeps(name: str) -> None:
    marked = [part for part in name.split("-") if part.endswith("gb") and part[:-2].isdigit()]
    if not marked:
        assert name in {"b200-sxm", "b300-sxm", "gb200-nvl72", "gb300-nvl72", "mi250x"}
        return
    gigabytes = int(marked[0][:-2])
    assert 0.91 * gigabytes * 2**30 < hardware.device(name).memory_bytes <= 1.005 * gigabytes * 2**30


@every_device
def test_peaks_are_dense_and_in_proportion(name: str) -> None:
    peaks = hardware.device(name).peak_flops
    architecture = hardware.device(name).architecture
    assert set(peaks) <= {"fp32", "tf32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4"}
    assert {"fp32", "fp16"} <= set(peaks)
    assert ("bf16" in peaks) == (architecture not in {"volta", "turing"})
    assert ("fp8" in peaks) == (architecture in {"hopper", "ada", "blackwell", "blackwell-ultra", "cdna3"})
    assert ("nvfp4" in peaks) == ("mxfp8" in peaks) == (architecture in {"blackwell", "blackwell-ultra"})
    half = peaks["fp16"]
    assert peaks.get("bf16", half) == half
    assert peaks.get("tf32", half / 2) == pytest.approx(half / 2, rel=0.015)
    assert peaks.get("fp8", 2 * half) == pytest.approx(2 * half, rel=0.03)
    assert peaks.get("mxfp8") == (peaks.get("fp8") if "mxfp8" in peaks else None)
    assert peaks["fp32"] < half


# Multiply-adds a multiprocessor does each cycle in dense FP16 (architecture whitepapers), against which a figure with
# 2:4 sparsity would ask for a clock of 2.5 GHz and more.
FP16_FLOPS_PER_UNIT_AND_CYCLE = {"volta": 1024, "hopper": 4096, "blackwell": 8192, "blackwell-ultra": 8192, "cdna2": 1024, "cdna3": 2048}
GA100_UNIT, GA102_UNIT, HALF_RATE_UNIT = 2048, 1024, 512


@every_device
def test_no_peak_is_the_sparse_figure(name: str) -> None:
    spec = hardware.device(name)
    if spec.architecture in FP16_FLOPS_PER_UNIT_AND_CYCLE:
        per_cycle = FP16_FLOPS_PER_UNIT_AND_CYCLE[spec.architecture]
    elif name.startswith(("a100", "a800")):
        per_cycle = GA100_UNIT
    else:
        per_cycle = HALF_RATE_UNIT if name.startswith(("rtx", "a10g")) else GA102_UNIT
    clock = spec.peak_flops["fp16"] / spec.num_compute_units / per_cycle
    assert 0.4e9 < clock < 2.6e9
    if per_cycle >= 2048:
        assert clock < 2.15e9


@pytest.mark.parametrize(
    ("name", "precision", "flops"),
    [
        ("v100-sxm2-32gb", "fp16", 125e12),
        ("a100-sxm4-80gb", "bf16", 312e12),
        ("h100-sxm5-80gb", "bf16", 989.4e12),
        ("h100-sxm5-80gb", "fp8", 1978.9e12),
        ("h100-pcie-80gb", "bf16", 756e12),
        ("h20-96gb", "bf16", 148e12),
        ("b200-sxm", "bf16", 2250e12),
        ("b200-sxm", "nvfp4", 9000e12),
        ("gb200-nvl72", "fp8", 5000e12),
        ("gb200-nvl72", "nvfp4", 10000e12),
        ("gb300-nvl72", "nvfp4", 15000e12),
        ("l40s-48gb", "bf16", 362.05e12),
        ("l4-24gb", "bf16", 121e12),
        ("rtx4090-24gb", "bf16", 165.2e12),
        ("mi300x-192gb", "bf16", 1307.4e12),
    ],
)
def test_published_dense_peaks(name: str, precision: str, flops: float) -> None:
    assert hardware.device(name).peak_flops[precision] == flops


def test_export_parts_are_the_original_with_fewer_links() -> None:
    for cut, original in (("a800-sxm4-80gb", "a100-sxm4-80gb"), ("h800-sxm-80gb", "h100-sxm5-80gb")):
        a, b = hardware.device(cut), hardware.device(original)
        assert (a.peak_flops, a.memory_bytes, a.memory_bandwidth) == (b.peak_flops, b.memory_bytes, b.memory_bandwidth)
        assert hardware.cluster_for_device(cut, 8).fast_tier.bandwidth == 200e9
    assert hardware.device("h200").memory_bytes == 150_109_880_320


# names


@pytest.mark.parametrize(
    ("spelled", "id_"),
    [
        ("h100", "h100-sxm5-80gb"),
        ("H100-SXM", "h100-sxm5-80gb"),
        ("a100", "a100-sxm4-80gb"),
        ("A100_80GB", "a100-sxm4-80gb"),
        ("h200", "h200-sxm-141gb"),
        ("b200", "b200-sxm"),
        ("GB200", "gb200-nvl72"),
        ("v100", "v100-sxm2-32gb"),
        ("mi300x", "mi300x-192gb"),
        ("rtx4090", "rtx4090-24gb"),
        (" 4090 ", "rtx4090-24gb"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm5-80gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm4-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("Tesla V100-SXM2-16GB", "v100-sxm2-16gb"),
        ("NVIDIA GeForce RTX 3090", "rtx3090-24gb"),
        ("NVIDIA B300 SXM6 AC", "b300-sxm"),
        ("AMD Instinct MI250X", "mi250x"),
    ],
)
def test_common_spellings_and_driver_names_of_devices(spelled: str, id_: str) -> None:
    assert hardware.device(spelled).id == id_


def test_every_alias_is_reachable_and_names_a_device() -> None:
    for alias, id_ in hardware.device_aliases().items():
        assert alias not in hardware.device_names()
        assert hardware.device(alias.upper()).id == id_


@pytest.mark.parametrize(("alias", "id_"), sorted(hardware._CLUSTER_ALIASES.items()))
def test_every_alias_of_a_cluster_names_one(alias: str, id_: str) -> None:
    assert hardware.cluster(alias, 1).id == id_


@pytest.mark.parametrize("name", ["h300", "", "p100", "../devices/l4-24gb", "nvidia", "\x00", "тест"])
def test_an_unknown_device_is_an_error(name: str) -> None:
    with pytest.raises(UnknownNameError):
        hardware.device(name)


def test_an_unknown_name_brings_the_close_matches() -> None:
    with pytest.raises(UnknownNameError, match=r"'h300'.*did you mean.*h200"):
        hardware.device("h300")
    with pytest.raises(UnknownNameError, match=r"'dgx-h10'.*dgx-h100"):
        hardware.cluster("dgx-h10", 8)


@given(st.text(max_size=40))
def test_any_text_is_a_device_or_an_unknown_name(name: str) -> None:
    try:
        found = hardware.device(name)
    except UnknownNameError:
        assert name not in hardware.device_names()
    else:
        assert found.id in hardware.device_names()


# clusters


@every_cluster
def test_a_cluster_file_is_valid_by_the_rules_for_users(name: str) -> None:
    num_gpus = 4 * 72 * raw_file("clusters", name)["gpus_per_node"]
    assert hardware.read_cluster_file(CATALOG / "clusters" / f"{name}.toml", num_gpus) == hardware.cluster(name, num_gpus)


@every_cluster
def test_every_number_of_a_cluster_has_a_source(name: str) -> None:
    raw = raw_file("clusters", name)
    wanted = {"gpus_per_node"}
    for tier in raw["tiers"]:
        numbers = {"bandwidth", "latency_seconds", "ports_per_domain", "oversubscription"} & set(tier)
        wanted |= {f"tiers.{tier['name']}.{number}" for number in numbers}
    assert raw["id"] == name
    assert set(raw["sources"]) == wanted
    assert all(len(text) > 10 for text in raw["sources"].values())


@every_cluster
def test_links_slow_down_and_widen_from_the_inside_out(name: str) -> None:
    spec = hardware.cluster(name, 4 * 72 * raw_file("clusters", name)["gpus_per_node"])
    bandwidths = [tier.bandwidth for tier in spec.tiers]
    assert bandwidths == sorted(bandwidths, reverse=True)
    assert spec.network_tier.kind is LinkKind.NETWORK
    assert spec.network_tier.domain_size == 0
    assert 1 <= spec.network_tier.ports_per_domain <= 32
    assert 3e9 / 8 <= spec.network_tier.bandwidth <= 100e9
    assert all(0.5e-6 <= tier.latency_seconds <= 100e-6 for tier in spec.tiers)


@every_cluster
def test_ports_make_up_the_network_bandwidth(name: str) -> None:
    spec = hardware.cluster(name, 4 * 72 * raw_file("clusters", name)["gpus_per_node"])
    tier = spec.network_tier
    gigabits = tier.bandwidth * spec.gpus_per_node / tier.ports_per_domain * 8 / 1e9
    assert gigabits in {25, 50, 100, 200, 400, 800}


@every_device
def test_every_device_has_a_default_cluster_that_takes_it(name: str) -> None:
    spec = hardware.device(name)
    home = hardware.cluster_for_device(name, 1)
    assert home.id == spec.default_cluster
    assert home.device == spec


@every_cluster
def test_devices_of_a_cluster_are_in_the_catalog(name: str) -> None:
    raw = raw_file("clusters", name)
    assert {raw["device"], *raw.get("other_devices", [])} <= set(hardware.device_names())


@pytest.mark.parametrize(
    ("device", "gpus_per_node", "cluster", "network_gigabits_per_node"),
    [
        ("a100-sxm4-80gb", 8, "selene", 1600),
        ("a100-sxm4-80gb", 8, "vtrain-a100", 800),
        ("a100-sxm4-80gb", 8, "jean-zay-a100", 400),
        ("a100-sxm4-80gb", 8, "internevo-a100", 400),
        ("a100-sxm4-80gb", 8, "fms-a100-400g", 400),
        ("a100-sxm4-80gb", 8, "oci-bm-a100", 1600),
        ("a100-sxm4-40gb", 8, "oci-bm-a100", 1600),
        ("a100-sxm4-40gb", 8, "dgx-a100-40gb", 1600),
        ("a800-sxm4-80gb", 8, "a800-8", 1600),
        ("b200-sxm", 8, "dgx-b200", 3200),
        ("gb200-nvl72", 4, "nvl72-gb200", 1600),
        ("gb300-nvl72", 4, "nvl72-gb300", 3200),
        ("h100-sxm5-80gb", 8, "dgx-h100", 3200),
        ("h100-sxm5-80gb", 8, "fms-h100-800g", 800),
        ("h100-sxm5-80gb", 8, "gcp-a3-mega", 1600),
        ("h100-sxm5-80gb", 8, "oci-bm-h100", 3200),
        ("h100-sxm5-96gb-hbm2e", 8, "grand-teton-h100", 3200),
        ("h200-sxm-141gb", 8, "dgx-h200", 3200),
        ("h200-sxm-141gb", 8, "gcp-a3-ultra", 3200),
        ("h800-sxm-80gb", 8, "h800-8", 3200),
        ("v100-sxm2-16gb", 4, "jean-zay-v100", 400),
        ("v100-sxm2-32gb", 4, "jean-zay-v100", 400),
        ("v100-sxm2-16gb", 8, "dlperf-v100", 100),
        ("v100-sxm2-32gb", 16, "dgx-2", 800),
        ("v100-sxm2-32gb", 16, "dgx-2h", 800),
        ("v100-sxm3-32gb", 16, "dgx-2h", 800),
    ],
)
def test_machines_of_published_runs(device: str, gpus_per_node: int, cluster: str, network_gigabits_per_node: int) -> None:
    spec = hardware.cluster(cluster, 128 * gpus_per_node, device=hardware.device(device))
    assert spec.device.id == device
    assert spec.gpus_per_node == gpus_per_node
    assert spec.network_tier.bandwidth * gpus_per_node * 8 / 1e9 == pytest.approx(network_gigabits_per_node)


@pytest.mark.parametrize(
    ("name", "bandwidth"),
    [("dgx-1v", 150e9), ("dgx-2", 150e9), ("dgx-a100", 300e9), ("dgx-h100", 450e9), ("dgx-b200", 900e9), ("nvl72-gb200", 900e9)],
)
def test_nvlink_is_one_direction_per_gpu(name: str, bandwidth: float) -> None:
    assert hardware.cluster(name, 4).fast_tier.bandwidth == bandwidth


# sizing


@pytest.mark.parametrize(
    ("name", "num_gpus", "tiers"),
    [
        ("dgx-h100", 1, ["nvlink"]),
        ("dgx-h100", 7, ["nvlink"]),
        ("dgx-h100", 8, ["nvlink"]),
        ("dgx-h100", 16, ["nvlink", "network"]),
        ("nvl72-gb200", 72, ["nvlink"]),
        ("nvl72-gb200", 76, ["nvlink", "network"]),
        ("mi250x-frontier", 2, ["xgmi_package"]),
        ("mi250x-frontier", 8, ["xgmi_package", "xgmi"]),
        ("mi250x-frontier", 16, ["xgmi_package", "xgmi", "network"]),
    ],
)
def test_only_tiers_that_are_needed(name: str, num_gpus: int, tiers: list[str]) -> None:
    spec = hardware.cluster(name, num_gpus)
    assert [tier.name for tier in spec.tiers] == tiers
    assert spec.num_gpus == num_gpus


def test_a_part_of_a_node_beyond_the_first_is_refused_with_the_nearest_sizes() -> None:
    with pytest.raises(InvalidInputError, match=r"num_gpus=12: .*whole nodes of 8 GPUs; nearest valid: 8, 16"):
        hardware.cluster("dgx-h100", 12)


@pytest.mark.parametrize("num_gpus", [0, -8, 10_000_001, True, 8.0, "8", None])
def test_numbers_of_gpus_that_mean_nothing(num_gpus: Any) -> None:
    with pytest.raises(InvalidInputError, match="num_gpus"):
        hardware.cluster("dgx-h100", num_gpus)


@given(st.sampled_from(hardware.cluster_names()), st.integers(1, 20_000))
def test_any_size_is_a_cluster_or_names_sizes_that_are(name: str, num_gpus: int) -> None:
    per_node = hardware.cluster(name, 1).gpus_per_node
    try:
        assert hardware.cluster(name, num_gpus).num_gpus == num_gpus
        assert num_gpus <= per_node or num_gpus % per_node == 0
    except InvalidInputError as error:
        near = [int(text) for text in error.faults[0].fix.removeprefix("nearest valid: ").split(", ")]
        assert near[0] < num_gpus < near[1]
        assert all(hardware.cluster(name, size).num_gpus == size for size in near)


def test_a_generic_box_takes_any_device_and_a_product_does_not() -> None:
    l4 = hardware.device("l4")
    assert hardware.cluster("pcie-box-8", 8, device=l4).device == l4
    with pytest.raises(InvalidInputError, match=r"device=h200-sxm-141gb: cluster dgx-h100 comes with h100-sxm5-80gb; .*dgx-h200"):
        hardware.cluster("dgx-h100", 8, device=hardware.device("h200"))


def test_the_catalog_alone_imports_no_heavy_package() -> None:
    code = (
        "import sys; from autopar.catalog import hardware; hardware.cluster_for_device('h100', 16); "
        "print(sorted({'pydantic', 'numpy', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
