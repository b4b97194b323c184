"""``--topology`` and ``--hosts`` as a person uses them."""

from __future__ import annotations

from pathlib import Path

import pytest

CONF = "SwitchName=a Nodes=n[0,2]\nSwitchName=b Nodes=n[1,3]\nSwitchName=top Switches=a,b\n"


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    path = tmp_path / "topology.conf"
    path.write_text(CONF)
    return path


def test_a_plan_says_where_its_ranks_sit(autopar, conf: Path, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    outcome = autopar("plan", "-m", "gpt-1.2b", "--topology", conf, "--hosts", "n[0-3]", "--fix", "tp=8", "--top", 1, "-o", file)
    assert outcome.code == 0
    assert "placement" in outcome.out
    assert "n0, n2, n1, n3" in outcome.out
    assert "8 ranks within nvlink" in outcome.out
    assert "hosts as listed" in outcome.out
    assert "GPUs: 32, 8 on each of the 4 hosts" in outcome.out
    again = autopar("explain", file)
    assert "n0, n2, n1, n3" in again.out
    assert autopar("explain", file, "--json").document["placement"]["axes"][0] == {"axis": "tensor", "size": 8, "tiers": []}
    folder = tmp_path / "out"
    assert autopar("export", file, "--to", "megatron-lm", "-o", folder).code == 0
    assert (folder / "hosts.txt").read_text().splitlines()[8] == "8 n2 0"


def test_two_tiers_without_hosts_have_no_such_section(autopar) -> None:
    outcome = autopar("plan", "-m", "gpt-1.2b", "-n", 16, "--top", 1)
    assert "placement" not in outcome.out


def test_a_fabric_by_name(autopar) -> None:
    outcome = autopar("estimate", "-m", "gpt-1.2b", "-n", 32, "--tp", 8, "--topology", "llama3-roce", "--json")
    assert outcome.code == 0
    plain = autopar("estimate", "-m", "gpt-1.2b", "-n", 32, "--tp", 8, "--json")
    assert outcome.document["step_time_seconds"] == pytest.approx(plain.document["step_time_seconds"])  # a leaf that does not block


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--topology", "CONF", "-n", 64), "32 or more"),
        (("--topology", "CONF", "--hosts", "n[0-4]"), "hosts=n4: hosts that the topology has"),
        (("--topology", "CONF", "--hosts", "n[0-"), "brackets that close"),
        (("--topology", "llama4-roce", "-n", 64), "not a known fabric"),
        (("--topology", "nowhere.conf", "-n", 64), "no such file"),
    ],
)
def test_wrong_inputs(autopar, conf: Path, arguments: tuple[object, ...], said: str) -> None:
    outcome = autopar("plan", "-m", "gpt-1.2b", *(conf if each == "CONF" else each for each in arguments))
    assert outcome.code == 2
    assert outcome.out == ""
    assert (said if said != "32 or more" else "--gpus 32, or more hosts") in outcome.err


def test_a_disconnected_topology_names_the_hosts(autopar, tmp_path: Path) -> None:
    path = tmp_path / "topology.conf"
    path.write_text("SwitchName=a Nodes=n[0-2]\nSwitchName=b Nodes=n[3-4]\n")
    outcome = autopar("plan", "-m", "gpt-1.2b", "--topology", path)
    assert outcome.code == 2
    assert "n3, n4 cannot be reached from n0" in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1
