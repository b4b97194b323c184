"""From a topology and hosts to a plan with hosts in rank order, and what leaves with it."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

import autopar
from autopar.costmodel.axis_placement import axis_placements
from autopar.costmodel.estimate import estimate
from autopar.costmodel.inputs import Inputs
from autopar.costmodel.problem import Problem
from autopar.costmodel.spec.cluster import Hosts
from autopar.costmodel.spec.errors import InvalidInputError
from autopar.costmodel.spec.strategy import Strategy
from autopar.costmodel.topology import place
from autopar.exporters.export import export
from autopar.io.plan_file import dump_plan, parse_plan
from autopar.io.switch_tree import SwitchLevel, SwitchTree, tree_of_paths
from autopar.placing import as_listed, better_order, ordered, placement_of
from autopar.request import build_problem, resized

MODEL = "gpt-1.2b"
STRATEGY = Strategy(
    tensor_parallel_size=8, pipeline_parallel_size=2, data_parallel_size=4, micro_batch_size=1, zero_stage=1, sequence_parallel=True
)


def tree(leaves: str, over: float = 1.0) -> SwitchTree:
    """``"aabb"``: a host for each letter, under the leaf of that name, and one spine above."""
    listed = [(f"n{place}", (leaf, "spine")) for place, leaf in enumerate(leaves)]
    return tree_of_paths(listed, [SwitchLevel(), SwitchLevel(oversubscription=over)], "t")


def problem(topology: object, **inputs: object) -> Problem:
    return build_problem(MODEL, topology=topology, **{"global_batch_size": 64, **inputs})[0]  # type: ignore[arg-type]


def hosts(asked: Problem) -> Hosts:
    assert asked.cluster.hosts is not None
    return asked.cluster.hosts


def test_the_job_is_as_large_as_its_hosts() -> None:
    asked, notes = build_problem(MODEL, topology=tree("aabb"), gpu="h100")
    assert asked.cluster.num_gpus == 32
    assert "GPUs: 32, 8 on each of the 4 hosts" in notes
    assert build_problem(MODEL, topology=tree("aabb"), hosts=["n1", "n2"], gpu="h100")[0].cluster.num_gpus == 16


def test_levels_of_switches_are_tiers_with_the_rates_of_the_file() -> None:
    named = [SwitchLevel(name="rack"), SwitchLevel(name="row", oversubscription=3.0, bandwidth=25e9, latency_seconds=9e-6)]
    asked = problem(replace(tree("aaabbb"), levels=tuple(named)))
    network, row = asked.cluster.tiers[1:]
    assert (network.name, network.domain_size, network.oversubscription) == ("network", 24, 1.0)
    assert (row.name, row.domain_size, row.oversubscription, row.bandwidth) == ("row", 0, 3.0, 25e9)
    assert hosts(asked).switches == (("a", "a", "a", "b", "b", "b"),)


def test_what_a_network_blocks_its_leaves_uplinks_do() -> None:
    flat = build_problem(MODEL, gpus=32)[0].cluster
    blocking = replace(flat, tiers=(flat.tiers[0], replace(flat.tiers[1], oversubscription=2.0)))
    asked = problem(replace(tree("aabb"), levels=()), cluster=blocking)
    assert [tier.oversubscription for tier in asked.cluster.tiers[1:]] == [1.0, 2.0]


def test_one_leaf_is_one_network() -> None:
    asked, plain = problem(tree("aaaa")), build_problem(MODEL, gpus=32, global_batch_size=64)[0]
    assert len(asked.cluster.tiers) == 2
    assert hosts(asked).names == ("n0", "n1", "n2", "n3")
    strategy = replace(STRATEGY, data_parallel_size=2)
    assert estimate(asked, strategy).step_time_seconds == estimate(plain, strategy).step_time_seconds


def test_hosts_are_ordered_by_leaf_and_the_list_is_kept() -> None:
    asked = problem(tree("abababab", over=8.0))
    assert hosts(asked).names == ("n0", "n2", "n4", "n6", "n1", "n3", "n5", "n7")
    listed = as_listed(asked.cluster)
    assert listed.hosts is not None
    assert listed.hosts.names == tuple(f"n{place}" for place in range(8))
    assert listed.hosts.switches == (tuple("abababab"),)
    assert as_listed(listed) is listed
    slower = estimate(replace(asked, cluster=listed), STRATEGY).step_time_seconds
    assert slower > estimate(asked, STRATEGY).step_time_seconds * 1.01


def test_a_part_of_the_hosts_is_chosen_under_one_leaf() -> None:
    asked, notes = build_problem(MODEL, topology=tree("aabbbbaa"), gpus=32)
    assert set(hosts(asked).names) <= {"n0", "n1", "n6", "n7"} or set(hosts(asked).names) == {"n2", "n3", "n4", "n5"}
    assert any(note.startswith("hosts: 4 of 8") for note in notes)


def test_more_blocking_is_never_faster_and_none_changes_nothing() -> None:
    times = [estimate(problem(tree("aaaabbbb", over)), STRATEGY).step_time_seconds for over in (1.0, 2.0, 4.0, 16.0)]
    plain = estimate(build_problem(MODEL, gpus=64, global_batch_size=64)[0], STRATEGY).step_time_seconds
    assert times[0] == pytest.approx(plain, rel=1e-12)
    assert times == sorted(times)
    assert times[-1] > times[0]


def test_the_order_for_a_strategy_is_taken_where_the_cost_model_says_so() -> None:
    asked = problem(tree("aaaabbbb", over=8.0))
    bad = replace(asked, cluster=ordered(asked.cluster, (0, 4, 1, 5, 2, 6, 3, 7)))
    better = better_order(bad, STRATEGY)
    assert better is not None
    assert estimate(better, STRATEGY).step_time_seconds == estimate(asked, STRATEGY).step_time_seconds
    assert better_order(asked, STRATEGY) is None
    assert better_order(build_problem(MODEL, gpus=64)[0], STRATEGY) is None


def test_placement_tells_the_tiers_that_axes_cross() -> None:
    asked = problem(tree("abababab", over=8.0))
    found = placement_of(asked, STRATEGY)
    assert found is not None
    assert {axis.axis: [(use.tier, use.domains, use.sharing) for use in axis.tiers] for axis in found.axes} == {
        "tensor": [],
        "pipeline": [("network", 2, 8), ("spine", 2, 32)],
        "data": [("network", 4, 8)],
    }
    assert found.listed_step_time_seconds is not None
    assert found.listed_step_time_seconds > estimate(asked, STRATEGY).step_time_seconds
    assert placement_of(build_problem(MODEL, gpus=64)[0], STRATEGY) is None


def test_a_plan_holds_its_hosts_and_stands_alone() -> None:
    plan = autopar.plan(MODEL, topology=tree("abab", 4.0), fix={"tp": 8}, global_batch_size=64, top=2)
    assert plan.placement is not None
    assert plan.inputs.cluster.hosts is not None
    assert sorted(plan.inputs.cluster.hosts.names) == ["n0", "n1", "n2", "n3"]
    assert parse_plan(dump_plan(plan)) == plan
    assert autopar.estimate(plan) == plan.estimate
    assert parse_plan(dump_plan(replace(plan, placement=None))).placement is None


def test_without_hosts_there_is_no_placement() -> None:
    plan = autopar.plan(MODEL, gpus=16, fix={"tp": 8}, top=1)
    assert plan.placement is None
    assert plan.inputs.cluster.hosts is None


def test_a_fabric_by_name_and_names_of_hosts() -> None:
    asked = problem("dgx-superpod", gpus=512)
    assert [tier.name for tier in asked.cluster.tiers] == ["nvlink", "network", "spine"]
    named = problem(None, hosts="n[01-08]")
    assert hosts(named).names[0] == "n01"
    assert len(named.cluster.tiers) == 2
    both = problem("dgx-superpod", hosts="n[01-64]")
    assert (len(both.cluster.tiers), hosts(both).names[-1]) == (3, "n64")


def test_hosts_on_a_cluster_file_with_regions(tmp_path: Path) -> None:
    file = tmp_path / "lab.toml"
    file.write_text("""
id = "lab"
device = "h100"
gpus_per_node = 8
num_gpus = 64
tiers = [
  {name = "nvlink", kind = "nvlink", domain_size = 8, bandwidth = 450e9, latency_seconds = 1e-6},
  {name = "network", kind = "network", domain_size = 0, bandwidth = 50e9, latency_seconds = 5e-6, ports_per_domain = 8},
]
[fabric.regions]
nodes = [5, 3]
bandwidth = 12.5e9
latency_seconds = 0.01
""")
    asked = problem(None, cluster=file, hosts="n[1-8]")
    assert hosts(asked).names[-1] == "n8"
    assert len(set(hosts(asked).switches[0])) == 2
    assert "regions together have the 7 nodes" in faults(cluster=file, hosts="n[1-7]")


def test_other_sizes_of_named_hosts() -> None:
    asked = problem(tree("aaaabbbb"))
    smaller, larger = resized(asked, 40), resized(asked, 72)
    assert smaller is not None
    assert hosts(smaller).names == hosts(asked).names[:5]
    assert larger is not None
    assert larger.cluster.hosts is None  # nobody named the ninth
    assert [tier.name for tier in larger.cluster.tiers] == ["nvlink", "network", "spine"]


RACKS = "BlockName=left Nodes=n[0-17]\nBlockName=right Nodes=n[18-31]\nBlockSizes=18\n"
"""Two NVL72 racks, one of them with fewer trays: 72 and 56 GPUs."""


def test_nvlink_domains_of_hosts_are_taken_from_the_file(tmp_path: Path) -> None:
    conf = tmp_path / "topology.conf"
    conf.write_text(RACKS)
    asked = problem(conf, cluster="nvl72-gb200")
    assert asked.cluster.num_gpus == 128
    assert asked.cluster.fast_domain_size == 32  # the largest that divides 128 and fits the smaller rack
    links = Inputs.of(asked).links
    inside, across = place(8, 1, links), place(64, 2, links)
    assert not inside.crosses
    assert across.crosses
    assert [
        axis.tiers
        for axis in axis_placements(asked, replace(STRATEGY, pipeline_parallel_size=1, data_parallel_size=16))
        if axis.axis == "tensor"
    ] == [()]


def test_racks_that_are_alike_are_as_if_nobody_had_named_them(tmp_path: Path) -> None:
    conf = tmp_path / "topology.conf"
    conf.write_text("BlockName=left Nodes=n[0-15]\nBlockName=right Nodes=n[16-31]\n")
    asked, plain = problem(conf, cluster="nvl72-gb200"), problem(None, cluster="nvl72-gb200", gpus=128)
    for strategy in (replace(STRATEGY, data_parallel_size=8), replace(STRATEGY, pipeline_parallel_size=1, data_parallel_size=16)):
        assert estimate(asked, strategy).step_time_seconds == estimate(plain, strategy).step_time_seconds


def test_a_tensor_group_in_two_racks_is_the_worst_of_its_kind() -> None:
    listed = [(f"n{place}", ("leaf",)) for place in range(32)]
    racks = ["left"] * 17 + ["right"] * 15  # the ninth group of 8 GPUs is half here and half there
    asked = problem(tree_of_paths(listed, fast_domains=racks), cluster="nvl72-gb200")
    as_is = replace(asked, cluster=as_listed(asked.cluster))
    group = place(8, 1, Inputs.of(as_is).links)
    assert (group.members_per_domain, group.num_domains) == (4, 2)


def test_racks_larger_than_their_nvlink_are_refused() -> None:
    listed = [(f"n{place}", ("leaf",)) for place in range(20)]
    with pytest.raises(InvalidInputError, match="left=80 GPUs: nvlink of nvl72-gb200 joins at most 72; 18 hosts of 4"):
        problem(tree_of_paths(listed, fast_domains=["left"] * 20), cluster="nvl72-gb200")


def test_racks_mean_nothing_where_nvlink_ends_with_the_node() -> None:
    listed = [(f"n{place}", ("leaf",)) for place in range(4)]
    assert hosts(problem(tree_of_paths(listed, fast_domains=["a", "a", "b", "b"]))).fast_domains == ()


def faults(**inputs: object) -> str:
    with pytest.raises(InvalidInputError) as caught:
        build_problem(MODEL, **inputs)  # type: ignore[arg-type]
    return str(caught.value)


def test_bad_input_is_told_in_one_message() -> None:
    assert faults(topology=tree("aabb"), gpus=64) == (
        "hosts=4 (n0, n1, n2 and 1 more): 64 GPUs are on 8 hosts of 8; --gpus 32, or more hosts"
    )
    assert "hosts=m1: hosts that the topology has" in faults(topology=tree("aabb"), hosts=["n1", "m1"])
    assert "hosts=n1: each host once" in faults(hosts="n1,n1", gpus=16)
    apart = tree_of_paths([("n0", ("a",)), ("n1", ("b",))])
    assert "topology=n1 cannot be reached from n0" in faults(topology=apart)
    assert "letters, digits" in faults(hosts="n1,$(reboot)", gpus=16)
    assert "has one network" in faults(topology=tree("aabb"), cluster=problem("dgx-superpod", gpus=32).cluster)
    with pytest.raises(InvalidInputError, match="is of one size"):
        autopar.size(MODEL, tokens="1T", deadline="30d", hosts="n1")
    assert "did you mean llama3-roce?" in faults(topology="lama3-roce", gpus=16)


def test_a_clusters_hosts_are_checked() -> None:
    cluster = problem(tree("aabb")).cluster
    for changes, said in (
        ({"names": ("n0", "n1")}, "hosts.names=2 nodes: one for each of the 4 nodes"),
        ({"names": ("n0",) * 4}, "each host once"),
        ({"switches": (("a", "b"),)}, r"hosts.switches\[0\]=2 nodes"),
        ({"switches": (("a",) * 4,) * 2}, "hosts.switches=2 levels of switches: at most 1"),
        ({"listed": (0, 0, 1, 2)}, "each place once"),
    ):
        with pytest.raises(InvalidInputError, match=said):
            replace(cluster, hosts=replace(cluster.hosts, **changes))  # type: ignore[type-var, arg-type]


def test_exports_have_a_file_of_ranks() -> None:
    plan = autopar.plan(MODEL, topology=tree("abab", 4.0), fix={"tp": 8}, global_batch_size=64, top=1)
    files = {file.path: file.text for file in export(plan, "slurm").files}
    order = [line.split() for line in files["hosts.txt"].splitlines()]
    assert [int(rank) for rank, _, _ in order] == list(range(32))
    assert [host for _, host, _ in order[::8]] == ["n0", "n2", "n1", "n3"] == files["hostfile"].split()
    assert [int(local) for _, _, local in order] == list(range(8)) * 4
    assert "--distribution=arbitrary --ntasks=4" in files["job.sbatch"]
    assert "#SBATCH --nodelist=n[0,2,1,3]\n" in files["job.sbatch"]
    assert "c10d" not in files["job.sbatch"]
    plain = export(autopar.plan(MODEL, gpus=32, fix={"tp": 8}, top=1), "slurm").files
    assert {file.path for file in plain} == {"job.sbatch", "ranks.json"}


@pytest.mark.parametrize("host", ["n2", "n2.example.org"])
def test_a_launch_script_finds_its_number_in_the_plans_order(tmp_path: Path, host: str) -> None:
    """Runs the script with stand-ins for torchrun and hostname."""
    domain = host.removeprefix("n2")
    listed = tree_of_paths([(f"n{place}{domain}", (leaf, "spine")) for place, leaf in enumerate("abab")])
    plan = autopar.plan(MODEL, topology=listed, fix={"tp": 8}, top=1)
    for file in export(plan, "torchrun").files:
        (tmp_path / file.path).write_text(file.text)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, body in (("torchrun", 'echo "$@"'), ("hostname", "echo n2")):
        (programs / name).write_text(f"#!/bin/sh\n{body}\n")
        (programs / name).chmod(0o755)
    done = subprocess.run(
        ["bash", str(tmp_path / "launch.sh"), "train.py"],
        env={"PATH": f"{programs}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"--node-rank 1 --master-addr n0{domain} " in done.stdout


def test_topology_files_are_read(tmp_path: Path) -> None:
    conf = tmp_path / "topology.conf"
    conf.write_text("SwitchName=a Nodes=n[0-1]\nSwitchName=b Nodes=n[2-3]\nSwitchName=top Switches=a,b\n")
    listed = tmp_path / "t.json"
    listed.write_text(json.dumps([{"host": "n[0-1]", "switches": ["a", "top"]}, {"host": "n[2-3]", "switches": ["b", "top"]}]))
    fabric = tmp_path / "f.toml"
    fabric.write_text('[fabric]\nkind = "fat-tree"\nnodes_per_leaf = 2\n')
    assert problem(conf).cluster.hosts == problem(str(listed)).cluster.hosts
    assert [tier.domain_size for tier in problem(fabric, gpus=32).cluster.tiers] == [8, 16, 0]
    fabric.write_text("[fabric]\nnodes_per_leaf = 0\n")
    assert "$.fabric.nodes_per_leaf=0" in faults(topology=fabric, gpus=32)
