"""``[[pools]]`` of a cluster file: the devices of a mixed cluster, validated in full, every fault reported at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from autopar.costmodel.spec.errors import Fault, InvalidInputError, UnknownNameError
from autopar.io.hostlist import expand_hosts, several
from autopar.io.pools import PoolFile, parse_rate

from .hardware import MAX_GPUS, cluster_names, device
from .hardware import cluster as cluster_named

Word = Annotated[str, Field(min_length=1, max_length=200)]
HostList = Annotated[Any, WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}, {"type": "null"}]})]
Rate = Annotated[Any, WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "number"}, {"type": "null"}]})]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class PoolTable(_Strict):
    """GPUs of one kind in nodes of one kind."""

    device: Annotated[Word | None, Field(description="device of the catalog, in the nodes it usually comes in")] = None
    cluster: Annotated[Word | None, Field(description="else a node type of the catalog, or a cluster file beside this one")] = None
    num_gpus: Annotated[Annotated[int, Field(ge=1, le=MAX_GPUS)] | None, Field(description="left out: all that the hosts have")] = None
    hosts: Annotated[HostList, Field(description="hosts in the order in which they start: node[001-008], or a list")] = None


class PoolsFile(_Strict):
    """A mixed cluster."""

    pools: list[PoolTable]
    between: Annotated[
        Rate, Field(description="of a GPU between pools, one direction: 25GB/s, or bytes/s; left out: the slower pool's network")
    ] = None


def pools_of(valid: PoolsFile, path: Path) -> tuple[PoolFile | None, list[Fault]]:
    """What the file says, or None and all its faults."""
    faults: list[Fault] = []
    sizes: dict[str, int | None] = {}
    hosts: dict[str, tuple[str, ...]] = {}
    for place, pool in enumerate(valid.pools):
        at = f"$.pools[{place}]"
        name = _name(pool, path)
        named = _hosts(pool, at, faults)
        faults += _faults_of(pool, at, path)
        if name and name in sizes:
            both = (sizes[name] or 0) + (pool.num_gpus or 0)
            fix = f"one pool with num_gpus = {both}" if sizes[name] and pool.num_gpus else "one pool with the hosts of both"
            faults.append(Fault(field=at, given=pool.device or pool.cluster or "", required="is a pool already", fix=fix))
        sizes[name] = pool.num_gpus
        if named:
            hosts[name] = named
    faults += _twice(hosts)
    if len(valid.pools) < 2:
        fix = "one kind of GPU needs no [[pools]]: --gpu and --gpus say it"
        faults.append(Fault(field="$.pools", given=f"{len(valid.pools)}", required="two pools or more", fix=fix))
    if valid.between is not None:
        try:
            parse_rate(valid.between, field="$.between")
        except InvalidInputError as error:
            faults += error.faults
    return (None if faults else PoolFile(sizes=sizes, between=valid.between, hosts=hosts)), faults


def _name(pool: PoolTable, path: Path) -> str:
    """As ``--pool`` takes it; a cluster file is looked for beside this one."""
    if pool.cluster is not None and _is_file(pool.cluster):
        return str(path.parent / pool.cluster)
    return pool.device or pool.cluster or ""


def _is_file(name: str) -> bool:
    return name.endswith((".toml", ".json"))


def _faults_of(pool: PoolTable, at: str, path: Path) -> Iterator[Fault]:
    if (pool.device is None) == (pool.cluster is None):
        given = "" if pool.device is None else f"{pool.device} and {pool.cluster}"
        yield Fault(field=at, given=given, required="a pool is a device or a cluster", fix='one of them, for example device = "h100"')
    if pool.num_gpus is None and pool.hosts is None:
        yield Fault(field=f"{at}.num_gpus", given="", required="the number of GPUs is needed", fix="add num_gpus, or the pool's hosts")
    try:
        if pool.device is not None:
            device(pool.device)
        if pool.cluster is not None and not _is_file(pool.cluster):
            cluster_named(pool.cluster, 1)
    except UnknownNameError as error:
        yield replace(error.faults[0], field=f"{at}.{'device' if pool.device is not None else 'cluster'}")
    if pool.cluster is not None and _is_file(pool.cluster) and not (path.parent / pool.cluster).is_file():
        fix = f"a node type of the catalog, for example {cluster_names()[0]}"
        yield Fault(field=f"{at}.cluster", given=repr(pool.cluster), required="there is no such file beside this one", fix=fix)


def _hosts(pool: PoolTable, at: str, faults: list[Fault]) -> tuple[str, ...]:
    if pool.hosts is None:
        return ()
    field = f"{at}.hosts"
    if not isinstance(pool.hosts, str) and not (isinstance(pool.hosts, list) and all(isinstance(name, str) for name in pool.hosts)):
        required = "a list of hosts as Slurm writes them, or of their names"
        faults.append(Fault(field=field, given=repr(pool.hosts)[:60], required=required, fix='for example "node[001-016]"'))
        return ()
    try:
        names = expand_hosts(pool.hosts, field=field) if isinstance(pool.hosts, str) else tuple(pool.hosts)
    except InvalidInputError as error:
        faults += error.faults
        return ()
    if not names:
        faults.append(Fault(field=field, given="", required="at least one host", fix="for example node[001-016]"))
    return names


def _twice(hosts: dict[str, tuple[str, ...]]) -> Iterator[Fault]:
    """A host that is named twice, in one pool or in two."""
    counts = Counter(name for names in hosts.values() for name in names)
    if found := [name for name, count in counts.items() if count > 1]:
        yield Fault(field="$.pools", given=several(found), required="each host once, in one pool", fix="leave it out of one of them")
