"""Which profile a tier gets, and what its origin says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autopar.catalog.hardware import cluster, cluster_names
from autopar.catalog.links import link_classes, link_profiles
from autopar.costmodel.spec.cluster import ClusterSpec, LinkKind
from autopar.costmodel.spec.hardware import LinkProfile, Origin


def chosen(spec: ClusterSpec) -> list[tuple[str, Origin]]:
    return [(profile.source.split(":")[0], profile.origin) for profile in link_profiles(spec)]


@pytest.mark.parametrize("name", cluster_names())
def test_every_cluster_of_the_catalog_gets_one_profile_a_tier(name: str) -> None:
    spec = cluster(name, 64)
    assert [profile.tier for profile in link_profiles(spec)] == [tier.name for tier in spec.tiers]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dgx-h100", [("nvlink4", Origin.MEASURED), ("infiniband", Origin.MEASURED)]),
        ("dgx-a100", [("nvlink3", Origin.MEASURED), ("infiniband", Origin.INTERPOLATED)]),  # HDR: NDR's rows
        ("dgx-1v", [("nvlink2_mesh", Origin.MEASURED), ("infiniband", Origin.INTERPOLATED)]),
        ("h800-8", [("nvlink4", Origin.INTERPOLATED), ("infiniband", Origin.MEASURED)]),  # 200 of 450 GB/s
        ("aws-p4d", [("nvlink3", Origin.MEASURED), ("efa_ampere", Origin.MEASURED)]),
        ("aws-p6-b200", [("nvlink5", Origin.MEASURED), ("efa_blackwell", Origin.MEASURED)]),
        ("gcp-a3-mega", [("nvlink4", Origin.MEASURED), ("tcpxo", Origin.MEASURED)]),
        ("jean-zay-a100", [("nvlink3", Origin.MEASURED), ("omnipath", Origin.INTERPOLATED)]),
        ("pcie-box-8", [("pcie", Origin.ANALYTIC), ("roce", Origin.INTERPOLATED)]),
    ],
)
def test_choice(name: str, expected: list[tuple[str, Origin]]) -> None:
    assert chosen(cluster(name, 64)) == expected


def test_unknown_generation_is_interpolated_from_the_nearest() -> None:
    spec = cluster("dgx-b200", 64)
    later = replace(spec, device=replace(spec.device, architecture="rubin"))
    assert chosen(later)[0] == ("nvlink5", Origin.INTERPOLATED)


def test_unnamed_network_is_analytic_and_takes_the_stated_latency() -> None:
    spec = cluster("dgx-h100", 64)
    network = replace(spec.network_tier, latency_seconds=42e-6)
    unnamed = replace(spec, id="mine", sources={}, tiers=(spec.fast_tier, network))
    profile = link_profiles(unnamed)[1]
    assert profile.origin is Origin.ANALYTIC
    assert profile.latency_seconds == 42e-6


def test_tier_name_decides_before_the_sources() -> None:
    spec = cluster("dgx-h100", 64)
    network = replace(spec.network_tier, name="efa")
    assert chosen(replace(spec, tiers=(spec.fast_tier, network)))[1][0] == "efa_hopper"


def test_every_kind_has_a_class_and_an_unnamed_network() -> None:
    kinds = {link.kind for link in link_classes()}
    assert kinds == set(LinkKind)
    assert [link.id for link in link_classes() if link.kind is LinkKind.NETWORK and not link.names] == ["network"]


def shares(profile: LinkProfile) -> list[float]:
    return [profile.efficiency, profile.p2p_efficiency, profile.all_to_all_efficiency, profile.shared_ring_efficiency]


def test_constants_are_physical() -> None:
    for link in link_classes():
        assert all(0 < share <= 1 for share in shares(link.profile)), link.id
        assert 0 <= link.profile.in_network_efficiency < 1
        assert link.profile.half_bytes > 0
        assert 0 < link.profile.latency_seconds < link.profile.base_seconds * 3
