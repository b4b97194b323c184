"""Placement of groups on fast domains, against the rank layout itself."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar.catalog.hardware import cluster
from autopar.catalog.links import link_profiles
from autopar.costmodel.spec.cluster import ClusterSpec, LinkKind
from autopar.costmodel.spec.errors import InvalidInputError
from autopar.costmodel.spec.layout import RankLayout
from autopar.costmodel.topology import LinkColumns, crosses_domain, mesh_share, network_rate, place

POWER = st.sampled_from([1, 2, 4, 8])
ANY = st.integers(1, 9)


def links_of(name: str, num_gpus: int) -> LinkColumns:
    spec = cluster(name, num_gpus)
    return LinkColumns.of(spec, link_profiles(spec))


def members_by_group(layout: RankLayout, axis: str, domain: int, *, expert: bool = False) -> list[list[int]]:
    """Members in each domain it touches, for every group of the axis: by enumeration."""
    groups = {layout.group(rank, axis, expert=expert) for rank in range(layout.world_size)}
    return [list(Counter(rank // domain for rank in group).values()) for group in groups]


@given(tp=POWER, cp=POWER, dp=POWER, pp=POWER, domain=st.sampled_from([1, 2, 4, 8, 16]))
def test_powers_of_two_are_placed_exactly(tp: int, cp: int, dp: int, pp: int, domain: int) -> None:
    layout = RankLayout(tp=tp, cp=cp, dp=dp, pp=pp, ep=1, etp=1)
    links = replace(links_of("dgx-h100", 64), fast_domain_size=np.asarray(float(domain)))
    for axis, (size, stride) in layout.axes().items():
        group = place(size, stride, links)
        truth = members_by_group(layout, axis, domain)
        assert {int(group.members_per_domain)} == {count for counts in truth for count in counts}
        assert {int(group.num_domains)} == {len(counts) for counts in truth}


@given(tp=POWER, dp=POWER, pp=POWER, ep=POWER, etp=st.sampled_from([1, 2, 4]))
def test_expert_grid_is_placed_exactly(tp: int, dp: int, pp: int, ep: int, etp: int) -> None:
    if (tp * dp) % (ep * etp):
        return
    layout = RankLayout(tp=tp, cp=1, dp=dp, pp=pp, ep=ep, etp=etp)
    for axis, (size, stride) in layout.axes(expert=True).items():
        group = place(size, stride, links_of("dgx-h100", 64))
        truth = members_by_group(layout, axis, 8, expert=True)
        assert {int(group.members_per_domain)} == {count for counts in truth for count in counts}


@given(tp=ANY, cp=st.integers(1, 3), dp=ANY, pp=st.integers(1, 3), domain=st.integers(1, 12))
def test_other_sizes_are_never_flattered(tp: int, cp: int, dp: int, pp: int, domain: int) -> None:
    layout = RankLayout(tp=tp, cp=cp, dp=dp, pp=pp, ep=1, etp=1)
    links = replace(links_of("dgx-h100", 64), fast_domain_size=np.asarray(float(domain)))
    for axis, (size, stride) in layout.axes().items():
        group = place(size, stride, links)
        truth = members_by_group(layout, axis, domain)
        assert group.members_per_domain * group.num_domains == size
        assert group.members_per_domain <= min(max(counts) for counts in truth)
        assert group.num_domains >= max(len(counts) for counts in truth)


@pytest.mark.parametrize(
    ("size", "stride", "members", "domains"),
    [(8, 1, 8, 1), (6, 2, 2, 3), (6, 1, 2, 3), (3, 1, 1, 3), (12, 1, 4, 3), (4, 3, 1, 4), (16, 2, 4, 4), (4, 64, 1, 4), (1, 5, 1, 1)],
)
def test_rule_on_nodes_of_eight(size: int, stride: int, members: int, domains: int) -> None:
    group = place(size, stride, links_of("dgx-h100", 512))
    assert (group.members_per_domain, group.num_domains) == (members, domains)
    assert group.concurrent_groups == (8 / members if domains > 1 else 1)


def test_arrays_equal_scalars_and_clusters_mix() -> None:
    rows = [links_of("dgx-h100", 512), links_of("nvl72-gb200", 256), links_of("dgx-1v", 32)]
    sizes, strides = np.array([16, 32, 4]), np.array([2, 4, 2])
    table = place(sizes, strides, LinkColumns.stack(rows))
    for row, links in enumerate(rows):
        one = place(int(sizes[row]), int(strides[row]), links)
        assert table.members_per_domain[row] == one.members_per_domain
        assert table.num_domains[row] == one.num_domains
        assert LinkColumns.stack(rows).take(np.array([row])).fast.efficiency[0] == links.fast.efficiency
    assert table.members_per_domain.tolist() == [4, 16, 4]


def test_single_domain_uses_one_tier_twice() -> None:
    links = links_of("dgx-h100", 8)
    assert links.network.bandwidth == links.fast.bandwidth == 450e9
    assert not place(8, 1, links).crosses


def test_pcie_node_has_pcie_as_its_fast_tier() -> None:
    links = links_of("pcie-box-8", 32)
    assert links.fast.bandwidth == 31.5e9
    assert links.fast_domain_size == 8


def test_network_rate_shares_the_node() -> None:
    links = links_of("dgx-a100", 512)  # 8 adapters of 25 GB/s
    assert network_rate(1, links) == 25e9
    assert network_rate(4, links) == 100e9
    assert network_rate(8, links) == 200e9
    assert network_rate(4, links, sharing=1) == 100e9
    assert network_rate(4, links, sharing=4) == 50e9
    few = links_of("aws-p4d", 64)  # 4 adapters of 12.5 GB/s for 8 GPUs
    assert network_rate(1, few) == 6.25e9
    assert network_rate(1, few, sharing=1) == 12.5e9


@given(members=POWER, sharing=st.floats(1, 64), more=st.floats(0, 64))
def test_more_sharing_never_speeds_up(members: int, sharing: float, more: float) -> None:
    links = links_of("aws-p4d", 64)
    assert network_rate(members, links, sharing + more) <= network_rate(members, links, sharing)


def test_oversubscription_bites_under_full_load_only() -> None:
    links = replace(links_of("dgx-a100", 512), oversubscription=np.asarray(2.0))
    assert network_rate(1, links) == 12.5e9
    assert network_rate(1, links, sharing=1) == 25e9


def test_wired_nvlink_gives_small_groups_few_links() -> None:
    cube = links_of("dgx-1v", 32)
    assert mesh_share(np.array([1, 2, 4, 8]), cube).tolist() == [1, 1 / 6, 4 / 6, 1]
    four = links_of("jean-zay-v100", 32)
    assert mesh_share(np.array([2, 4]), four) == pytest.approx([1 / 3, 1])
    assert mesh_share(2, links_of("dgx-h100", 64)) == 1


def test_distance_crosses_where_it_spans_a_domain() -> None:
    links = links_of("dgx-h100", 64)
    assert crosses_domain(np.array([1, 4, 8, 32]), links).tolist() == [False, False, True, True]
    assert crosses_domain(4, links, size=4)
    assert not crosses_domain(2, links, size=4)


def test_one_profile_a_tier_is_required() -> None:
    spec: ClusterSpec = cluster("dgx-h100", 64)
    assert spec.network_tier.kind is LinkKind.NETWORK
    with pytest.raises(InvalidInputError, match="one for each of the 2 tiers"):
        LinkColumns.of(spec, link_profiles(spec)[:1])
