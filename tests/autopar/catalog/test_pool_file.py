"""``[[pools]]`` of a cluster file: what is sound is read, and every fault of the rest is told at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import autopar
from autopar.catalog import cluster_file, hardware
from autopar.costmodel.spec.errors import InvalidInputError
from autopar.io.pools import PoolFile
from autopar.mixed import posed

GOOD = """
between = "25GB/s"

[[pools]]
device = "h100"
hosts = "fast[01-02]"

[[pools]]
cluster = "dgx-a100-40gb"
num_gpus = 16
hosts = ["old1", "old2", "old3"]
"""
NO_BOUNDS = ((), (), (), ())


def write(folder: Path, text: str, name: str = "mixed.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_what_a_file_says(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    assert hardware.has_pools(path)
    assert hardware.read_pool_file(path) == PoolFile(
        sizes={"h100": None, "dgx-a100-40gb": 16},
        between="25GB/s",
        hosts={"h100": ("fast01", "fast02"), "dgx-a100-40gb": ("old1", "old2", "old3")},
    )
    asked = {"pools": [{"device": "h100", "num_gpus": 8}, {"device": "a100", "num_gpus": 8}], "between": 25e9}
    assert hardware.read_pool_file(write(tmp_path, json.dumps(asked), "mixed.json")).between == 25e9


def test_a_file_asks_what_its_words_would(tmp_path: Path) -> None:
    read = hardware.read_pool_file(write(tmp_path, GOOD))
    found = posed("llama3.2-1b", read, None, NO_BOUNDS, {})
    spelled = posed("llama3.2-1b", {"h100": 16, "dgx-a100-40gb": 16}, "25GB/s", NO_BOUNDS, {})
    assert found.problem == spelled.problem
    assert found.hosts == {"h100": ("fast01", "fast02"), "dgx-a100-40gb": ("old1", "old2")}
    assert "hosts of dgx-a100-40gb: the first 2 of 3" in found.assumptions
    assert posed("llama3.2-1b", read, "1GB/s", NO_BOUNDS, {}).problem.between.tier.bandwidth == 1e9


def test_a_pool_may_have_a_file_of_its_own_beside_this_one(tmp_path: Path) -> None:
    own = {**hardware._read_toml("clusters", "dgx-h100"), "id": "mine"}
    write(tmp_path, json.dumps({name: value for name, value in own.items() if name != "sources"}), "mine.json")
    path = write(tmp_path, '[[pools]]\ncluster = "mine.json"\nnum_gpus = 8\n[[pools]]\ndevice = "a100"\nnum_gpus = 8\n')
    asked = posed("llama3.2-1b", hardware.read_pool_file(path), "25GB/s", NO_BOUNDS, {})
    assert [pool.problem.cluster.id for pool in asked.problem.pools] == ["mine", "dgx-a100"]


def test_every_fault_is_told_at_once(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
        between = "25"
        [[pools]]
        device = "h10"
        num_gpus = 16
        [[pools]]
        device = "a100-40gb"
        [[pools]]
        cluster = "dgx-a10"
        num_gpus = 8
        [[pools]]
        num_gpus = 8
        [[pools]]
        device = "h100"
        num_gpus = 8
        hosts = "n[1-"
        [[pools]]
        device = "h100"
        num_gpus = 8
        hosts = 7
        [[pools]]
        cluster = "mine.toml"
        num_gpus = 8
        hosts = ["a", "a"]
        """,
    )
    with pytest.raises(InvalidInputError) as error:
        hardware.read_pool_file(path)
    said = str(error.value)
    for expected in (
        "$.pools[0].device='h10': not a known device; did you mean h100",
        "$.pools[1].num_gpus: the number of GPUs is needed; add num_gpus, or the pool's hosts",
        "$.pools[2].cluster='dgx-a10': not a known cluster; did you mean dgx-a100",
        '$.pools[3]: a pool is a device or a cluster; one of them, for example device = "h100"',
        "$.pools[4].hosts='n[1-': brackets that close",
        "$.pools[5]=h100: is a pool already; one pool with num_gpus = 16",
        "$.pools[5].hosts=7: a list of hosts as Slurm writes them",
        "$.pools[6].cluster='mine.toml': there is no such file beside this one",
        "$.pools=a: each host once, in one pool",
        "$.between='25': the rate of one GPU in one direction is needed",
    ):
        assert expected in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[pools]]\ndevice = "h100"\nnum_gpus = 8\n', "two pools or more; one kind of GPU needs no"),
        ('[[pools]]\ndevice = "h100"\nnum_gpu = 8\n', "did you mean num_gpus"),
        ('[[pools]]\ndevice = "h100"\nnum_gpus = "8"\n', "valid integer"),
        ('[[pools]]\ndevice = "h100"\nnum_gpus = 0\n', "greater than or equal to 1"),
        ('id = "x"\n[[pools]]\ndevice = "h100"\nnum_gpus = 8\n', r"\$=id: a file has \[\[pools\]\], or the fields of one cluster"),
        ("pools = 3\n", "valid list"),
        ("pools = []\n", "two pools or more"),
    ],
)
def test_files_that_mean_no_pools(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=said):
        hardware.read_pool_file(write(tmp_path, text))


def test_fewer_hosts_than_the_gpus_need(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD.replace("num_gpus = 16", "num_gpus = 32"))
    with pytest.raises(InvalidInputError, match=r"hosts of dgx-a100-40gb=3 \(old1, old2, old3\): 32 GPUs are on 4 hosts.*num_gpus = 24"):
        autopar.plan("llama3.2-1b", cluster=path)


def test_names_that_cannot_go_into_scripts_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD.replace('"old1"', '"old 1; rm"'))
    with pytest.raises(InvalidInputError, match="names go into scripts"):
        autopar.plan("llama3.2-1b", cluster=path)


def test_what_takes_one_kind_of_gpu_says_who_takes_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    with pytest.raises(InvalidInputError, match=r"holds pools of several devices.*`autopar plan` takes it"):
        autopar.estimate("llama3.2-1b", cluster=path, gpus=8)
    assert not hardware.has_pools(tmp_path / "absent.toml")
    assert not hardware.has_pools(write(tmp_path, "= broken", "broken.toml"))


def test_the_schema_has_both_kinds_of_file() -> None:
    schema = cluster_file.json_schema()
    assert {each["$ref"] for each in schema["anyOf"]} == {"#/$defs/_Cluster", "#/$defs/PoolsFile"}
    assert set(schema["$defs"]["PoolTable"]["properties"]) == {"device", "cluster", "num_gpus", "hosts"}
    json.dumps(schema)
