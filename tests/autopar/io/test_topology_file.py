"""Topology files: what they say, and what is wrong with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autopar.costmodel.spec.errors import InvalidInputError
from autopar.io.topology_file import parse_listed, parse_slurm, read_text

SLURM = """
# a job's part of a machine
SwitchName=leaf1 Nodes=n[1-3] LinkSpeed=100
switchname=leaf2 nodes=n[4-5]
SwitchName=leaf3 Nodes=n6
SwitchName=pod1 Switches=leaf[1-2]
SwitchName=core Switches=pod1,leaf3
"""


def listed(**changes: Any) -> dict[str, Any]:
    document: dict[str, Any] = {
        "levels": [{"name": "leaf"}, {"name": "spine", "oversubscription": 2.0, "bandwidth": 25e9, "latency_seconds": 1e-5}],
        "hosts": [{"name": "n[1-2]", "switches": ["a", "top"]}, {"host": "n3", "switches": ["b", "top"]}],
    }
    return {**document, **changes}


def faults(call: Any, *given: Any) -> list[str]:
    with pytest.raises(InvalidInputError) as caught:
        call(*given)
    return [str(fault) for fault in caught.value.faults]


def test_slurm_switches_are_a_tree_of_even_depth() -> None:
    tree = parse_slurm(SLURM)
    assert tree.hosts == ("n1", "n2", "n3", "n4", "n5", "n6")
    assert tree.paths[0] == ("leaf1", "pod1", "core")
    assert tree.paths[5] == ("leaf3", "leaf3", "core")
    assert tree.switches() == (("leaf1",) * 3 + ("leaf2",) * 2 + ("leaf3",), ("pod1",) * 5 + ("leaf3",))


def test_levels_that_are_one_switch_for_a_job_are_left_out() -> None:
    tree = parse_slurm(SLURM)
    assert tree.of_hosts(["n5", "n1"]).switches() == (("leaf2", "leaf1"),)
    assert tree.of_hosts(["n1", "n2"]).switches() == ()


def test_lists_of_hosts_say_rates_too() -> None:
    tree = parse_listed(listed(), "t.toml")
    assert tree.hosts == ("n1", "n2", "n3")
    assert tree.paths == (("a", "top"), ("a", "top"), ("b", "top"))
    assert (tree.levels[0].bandwidth, tree.levels[1].oversubscription) == (None, 2.0)
    assert parse_listed(listed()["hosts"], "t.json").paths == tree.paths


def test_files_are_read_by_their_suffix(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps(listed()))
    (tmp_path / "t.toml").write_text('[[hosts]]\nname = "n1"\nswitches = ["a"]\n')
    (tmp_path / "topology.conf").write_text(SLURM)
    assert read_text(tmp_path / "t.json") == listed()
    assert read_text(tmp_path / "t.toml") == {"hosts": [{"name": "n1", "switches": ["a"]}]}
    assert read_text(tmp_path / "topology.conf") == SLURM
    (tmp_path / "t.json").write_text("{")
    assert "valid JSON is needed" in faults(read_text, tmp_path / "t.json")[0]


def test_nvlink_domains_are_blocks_or_a_field() -> None:
    blocks = parse_slurm("BlockName=r1 Nodes=n[1-2]\nBlockName=r2 Nodes=n3\nBlockSizes=2,4\n")
    assert blocks.fast_domains == ("r1", "r1", "r2")
    assert blocks.switches() == ()
    assert blocks.of_hosts(["n3", "n1"]).fast_domains == ("r2", "r1")
    fields = parse_listed([{"name": "n[1-2]", "switches": ["a"], "nvlink": "r1"}, {"name": "n3", "switches": ["a"], "nvlink": "r2"}], "t")
    assert fields.fast_domains == blocks.fast_domains
    some = [{"name": "n[1-2]", "switches": ["a"], "nvlink": "r1"}, {"name": "n3", "switches": ["a"]}]
    assert faults(parse_listed, some, "t") == ["$.hosts=nvlink of 2 of 3: of all hosts, or of none"]
    assert "n1=under r1 and r2" in faults(parse_slurm, "BlockName=r1 Nodes=n1\nBlockName=r2 Nodes=n1")[0]
    assert "either BlockName or SwitchName" in faults(parse_slurm, "BlockName=r1 Nodes=n1\nSwitchName=a Nodes=n2")[0]


def test_disconnected_hosts_are_named_with_where_they_cannot_be_reached_from() -> None:
    tree = parse_slurm("SwitchName=a Nodes=n[1-4]\nSwitchName=b Nodes=m[1-5]\n")
    (said,) = faults(tree.of_hosts, tree.hosts)
    assert said == (
        "topology=n1, n2, n3 and 1 more cannot be reached from m1: one switch above all hosts of the job; "
        "add a switch above b and a, or leave these hosts out with --hosts"
    )
    assert tree.of_hosts(["n1", "n2"]).hosts == ("n1", "n2")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("SwitchName=a Nodes=n[1-2]\nSwitchName=b Nodes=n2\nSwitchName=t Switches=a,b", "n2=under a and b: a host is under one switch"),
        ("SwitchName=a Nodes=n1,n1", "n1=twice under a: a host is under one switch"),
        ("SwitchName=a Nodes=n1\nSwitchName=b Switches=a\nSwitchName=c Switches=a", "a=under b and c: a switch is under one switch"),
        ("SwitchName=a Nodes=n1\nSwitchName=b Switches=c\nSwitchName=c Switches=b", "b - c - b|c - b - c"),
        ("SwitchName=a Nodes=n1\nSwitchName=b Switches=a,x", "b=x: a switch below it that has a line of its own; add SwitchName=x"),
        ("SwitchName=a", "SwitchName=NAME with Nodes=… or Switches=…"),
        ("SwitchName=a Nodes=n1 Switches=b", "SwitchName=NAME with Nodes=… or Switches=…"),
        ("hello", "t:1='hello'"),
        ("SwitchName=a Nodes=n1\nSwitchName=a Nodes=n2", "a switch has one line"),
        ("SwitchName=a Nodes=n[1-", "brackets that close"),
        ("# nothing", "no hosts"),
    ],
)
def test_slurm_files_that_are_no_tree(text: str, said: str) -> None:
    found = faults(parse_slurm, text, "t")
    assert len(found) == 1
    assert any(each in found[0] for each in said.split("|"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hosts": []}, "$.hosts"),
        ({"hosts": [{"name": "n1"}]}, "$.hosts[0]: a name, and switches"),
        ({"hosts": [{"name": "n1", "switches": ["a"], "rack": 3}]}, "unknown rack"),
        ({"hosts": [{"name": "n[x]", "switches": ["a"]}]}, "ranges of numbers"),
        ({"hosts": [{"name": "n1", "switches": ["a", "b"]}, {"name": "n1", "switches": ["a", "b"]}]}, "hosts=n1: each host once"),
        ({"hosts": [{"name": "n1", "switches": ["a", "b", "a"]}]}, "a switch is above itself"),
        ({"hosts": [{"name": "n1", "switches": ["a", "b"]}, {"name": "n2", "switches": ["a", "c"]}]}, "a switch is under one other"),
        ({"levels": 3}, "$.levels"),
        ({"levels": [{"bandwidth": 0}]}, "$.levels[0].bandwidth=0: bytes/s above 0"),
        ({"levels": [{"bandwidth": -1.0}]}, "$.levels[0].bandwidth=-1.0"),
        ({"levels": [{}, {"oversubscription": 0.5}]}, "$.levels[1].oversubscription=0.5: at least 1"),
        ({"levels": [{"oversubscription": True}]}, "$.levels[0].oversubscription=True"),
        ({"levels": [{"latency_seconds": "1us"}]}, "$.levels[0].latency_seconds"),
        ({"levels": [{"speed": 1}]}, "$.levels[0].speed=1: unknown field"),
        ({"racks": []}, "$.racks: unknown field"),
    ],
)
def test_lists_that_are_wrong(changes: dict[str, Any], said: str) -> None:
    found = faults(parse_listed, listed(**changes), "t.toml")
    assert len(found) == 1
    assert said in found[0]


def test_all_faults_come_at_once() -> None:
    broken = listed(levels=[{"bandwidth": 0, "speed": 1}], hosts=[{"name": "n1"}, {"name": "n[x]", "switches": ["a"]}])
    assert len(faults(parse_listed, broken, "t.toml")) == 4


def test_unknown_hosts_are_named() -> None:
    (said,) = faults(parse_slurm(SLURM).of_hosts, ["n1", "n7"])
    assert said == "hosts=n7: hosts that the topology has; topology.conf has n1, n2, n3 and 3 more"
