"""Cluster files of users: what is sound is read, and every fault of the rest is told at once."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autopar.catalog import hardware
from autopar.costmodel.spec.cluster import ClusterSpec
from autopar.costmodel.spec.errors import Fault, InvalidInputError

CATALOG = Path(hardware.__file__).parent


def good_file() -> dict[str, Any]:
    return {
        "id": "lab",
        "device": "h100",
        "gpus_per_node": 4,
        "num_gpus": 16,
        "tiers": [
            {"name": "nvlink", "kind": "nvlink", "domain_size": 4, "bandwidth": 450e9, "latency_seconds": 1e-6},
            {
                "name": "network",
                "kind": "network",
                "domain_size": 0,
                "bandwidth": 25e9,
                "latency_seconds": 5e-6,
                "ports_per_domain": 2,
                "oversubscription": 2.0,
            },
        ],
    }


def own_device() -> dict[str, Any]:
    raw = tomllib.loads((CATALOG / "devices" / "h100-sxm5-80gb.toml").read_text(encoding="utf-8"))
    return {**raw, "id": "h100-custom", "memory_bytes": 64 * 2**30}


def read_json(tmp_path: Path, raw: Any, num_gpus: int | None = None) -> ClusterSpec:
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(raw), encoding="utf-8")
    return hardware.read_cluster_file(path, num_gpus)


def faults(tmp_path: Path, raw: Any, num_gpus: int | None = None) -> dict[str, str]:
    with pytest.raises(InvalidInputError) as caught:
        read_json(tmp_path, raw, num_gpus)
    return {fault.field: str(fault) for fault in caught.value.faults}


def test_a_file_with_a_catalog_device(tmp_path: Path) -> None:
    spec = read_json(tmp_path, good_file())
    assert (spec.id, spec.device.id, spec.num_gpus, spec.num_nodes) == ("lab", "h100-sxm5-80gb", 16, 4)
    assert spec.network_tier.oversubscription == 2.0
    assert dict(spec.sources) == {"*": "cluster file cluster.json"}


def test_an_argument_goes_before_the_file(tmp_path: Path) -> None:
    assert read_json(tmp_path, good_file(), 8).num_gpus == 8
    assert [tier.name for tier in read_json(tmp_path, good_file(), 3).tiers] == ["nvlink"]
    assert "num_gpus" in faults(tmp_path, good_file(), 6)


def test_a_file_with_a_device_of_its_own(tmp_path: Path) -> None:
    device = own_device()
    for optional in ("name", "sources", "default_cluster"):
        del device[optional]
    spec = read_json(tmp_path, {**good_file(), "device": device})
    assert spec.device.memory_bytes == 64 * 2**30
    assert (spec.device.name, spec.device.default_cluster) == ("h100-custom", "lab")
    assert spec.device.sources


def test_toml_reads_as_json_does(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(
        '\ufeffid = "lab"\ndevice = "h100"\ngpus_per_node = 4\nnum_gpus = 4\n[[tiers]]\nname = "nvlink"\nkind = "nvlink"\n'
        "domain_size = 4\nbandwidth = 450e9\nlatency_seconds = 1e-6\n",
        encoding="utf-8",
    )
    assert hardware.read_cluster_file(path).tiers == read_json(tmp_path, good_file(), 4).tiers


def test_all_faults_come_at_once_with_their_paths(tmp_path: Path) -> None:
    raw = good_file()
    raw["gpus_per_node"] = "4"
    raw["devise"] = "h100"
    raw["device"] = {**own_device(), "memory_bytes": 80, "memory_bandwidth": float("nan")}
    del raw["device"]["power_watts"]
    raw["device"]["peak_flops"] = {"bf16": 989, "fp7": 1e12}
    raw["tiers"][0]["bandwidth"] = 450
    raw["tiers"][0]["kind"] = "nvlik"
    raw["tiers"][1]["latency_seconds"] = -1
    found = faults(tmp_path, raw)
    assert set(found) == {
        "$.gpus_per_node",
        "$.devise",
        "$.device.memory_bytes",
        "$.device.memory_bandwidth",
        "$.device.power_watts",
        "$.device.peak_flops.bf16",
        "$.device.peak_flops.fp7",
        "$.tiers[0].bandwidth",
        "$.tiers[0].kind",
        "$.tiers[1].latency_seconds",
    }
    assert "did you mean device?" in found["$.devise"]
    assert "450 GB/s is 450e9" in found["$.tiers[0].bandwidth"]
    assert "'nvlink', 'nvlink_mesh', 'xgmi', 'pcie' or 'network'" in found["$.tiers[0].kind"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 0, "450e9", True, None, [450e9], 10**400])
def test_numbers_that_are_not(tmp_path: Path, value: Any) -> None:
    raw = good_file()
    raw["tiers"][0]["bandwidth"] = value
    assert set(faults(tmp_path, raw)) == {"$.tiers[0].bandwidth"}


@pytest.mark.parametrize("field", ["id", "device", "gpus_per_node", "tiers", "num_gpus"])
def test_a_missing_field(tmp_path: Path, field: str) -> None:
    raw = good_file()
    del raw[field]
    assert set(faults(tmp_path, raw)) == {f"$.{field}"}


def test_an_unknown_device_brings_the_close_matches(tmp_path: Path) -> None:
    assert "did you mean" in faults(tmp_path, {**good_file(), "device": "h300"})["$.device"]


@pytest.mark.parametrize(
    ("domains", "kinds"),
    [
        ((0, 0), ("nvlink", "network")),
        ((8, 4), ("nvlink", "pcie")),
        ((4, 4), ("nvlink", "pcie")),
        ((4, 6), ("nvlink", "pcie")),
        ((4, 0), ("network", "pcie")),
    ],
)
def test_tiers_out_of_order(tmp_path: Path, domains: tuple[int, int], kinds: tuple[str, str]) -> None:
    raw = good_file()
    for tier, domain, kind in zip(raw["tiers"], domains, kinds, strict=True):
        tier.update(domain_size=domain, kind=kind, ports_per_domain=1)
    assert set(faults(tmp_path, raw)) == {"$.tiers"}


def test_tiers_that_share_a_name_lack_ports_or_reach_too_few(tmp_path: Path) -> None:
    raw = good_file()
    raw["tiers"][1]["name"] = "nvlink"
    assert set(faults(tmp_path, raw)) == {"$.tiers"}
    raw = good_file()
    del raw["tiers"][1]["ports_per_domain"]
    assert set(faults(tmp_path, raw)) == {"$.tiers[1]"}
    raw = good_file()
    del raw["tiers"][1]
    assert "reaches 4 GPUs" in faults(tmp_path, raw)["num_gpus"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.toml", b"id = [1, 2", "valid TOML is needed"),
        ("a.json", b'{"id": "x"', "valid JSON is needed"),
        ("a.json", b"[1]", "top level"),
        ("a.json", b'{"gpus_per_node": ' + b"9" * 5000 + b"}", "valid JSON is needed"),
        ("a.toml", bytes(range(256)), "UTF-8"),
        ("a.toml", b"#" * 11_000_000, "at most 100,000 bytes"),
        ("a.toml", b"a = " + b"[" * 1900, "$.a: unknown field|nested too deep|valid TOML"),
        ("a.toml", b"[" + b"a." * 40_000 + b"a]", "a line has at most"),
        ("a.json", b"[" * 90_000, "nested too deep"),
        ("a.json", b'{"id": "\\ud800", "\\ud800": 1}', "string"),
        ("a.toml", b"", "$.id: this field is needed"),
        ("a.json", b"{" + b",".join(b'"k%d":1' % i for i in range(5000)) + b"}", "more faults"),
    ],
)
def test_hostile_files_are_told_off_in_a_line(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InvalidInputError) as caught:
        hardware.read_cluster_file(path)
    assert any(part in str(caught.value) for part in message.split("|"))
    assert len(caught.value.faults) <= 51
    assert all(len(line) < 400 for line in str(caught.value).splitlines())


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    for path in (tmp_path / "none.toml", tmp_path, Path("/dev/zero"), "a\0b", "x" * 5000):
        with pytest.raises(InvalidInputError, match="cluster file"):
            hardware.read_cluster_file(path)


def test_a_message_is_safe_on_a_terminal(tmp_path: Path) -> None:
    raw = {**good_file(), "id": "\x1b[31mred", "\x1b[2J": 1, "device": "\x1b]0;x\x07"}
    assert "\x1b" not in "".join(faults(tmp_path, raw).values())


scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8))
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3), max_leaves=8
)


def paths_in(raw: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = raw.items() if isinstance(raw, dict) else enumerate(raw) if isinstance(raw, list) else ()
    return [at, *(path for key, inner in items for path in paths_in(inner, (*at, key)))]


FULL_FILE = {**good_file(), "device": own_device(), "sources": {"gpus_per_node": "us"}, "any_device": True, "other_devices": ["a100"]}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(paths_in(FULL_FILE)[1:]), anything)
def test_a_file_with_any_value_anywhere_is_a_cluster_or_a_fault(tmp_path: Path, at: tuple[Any, ...], value: Any) -> None:
    raw = json.loads(json.dumps(FULL_FILE))
    holder = raw
    for key in at[:-1]:
        holder = holder[key]
    holder[at[-1]] = value
    told: tuple[Fault, ...] = ()
    spec = None
    try:
        spec = read_json(tmp_path, raw)
    except InvalidInputError as error:
        told = error.faults
    assert (spec is None) == bool(told)
    assert all(fault.required for fault in told)
    if spec is not None:
        assert spec.num_gpus >= 1
        assert all(0 < tier.bandwidth < float("inf") for tier in spec.tiers)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300), st.sampled_from(["toml", "json"]), st.integers(0, 700))
def test_any_bytes_are_a_fault(tmp_path: Path, tail: bytes, suffix: str, cut: int) -> None:
    start = (CATALOG / "clusters" / "dgx-h100.toml").read_bytes()[:cut]
    path = tmp_path / f"cluster.{suffix}"
    path.write_bytes(start + tail)
    with pytest.raises(InvalidInputError):
        hardware.read_cluster_file(path)
