"""Topology files: Slurm's ``topology.conf``, or TOML or JSON that lists hosts with the switches above them."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autopar.costmodel.spec.errors import Fault, InvalidInputError, raise_if

from .files import read_bytes
from .hostlist import expand_hosts
from .switch_tree import SwitchLevel, SwitchTree, tree_of_blocks, tree_of_paths, tree_of_switches

_SETTING = re.compile(r"(\w+)\s*=\s*(\S+)")
_RATES = ("bandwidth", "oversubscription", "latency_seconds")
_LEAST = {"bandwidth": 0.0, "oversubscription": 1.0, "latency_seconds": 0.0}
_NEEDS = {
    "bandwidth": "bytes/s above 0, of a GPU in one direction: 50 GB/s is 50e9",
    "oversubscription": "at least 1: 2 is half the rated bandwidth when all send",
    "latency_seconds": "seconds, 0 or more",
}


def read_text(path: Path) -> Any:
    """The content of a topology file: TOML or JSON by its suffix as values, anything else as text.

    Raises:
        InvalidInputError: it cannot be read.
    """
    text = read_bytes(path, field="topology").decode("utf-8", "replace")
    suffix = path.suffix.lower()
    if suffix not in (".toml", ".json"):
        return text
    try:
        return json.loads(text) if suffix == ".json" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        required = f"valid {suffix[1:].upper()} is needed: {str(error)[:80]}"
        raise InvalidInputError(Fault(field="topology", given=repr(path.name), required=required)) from None


def parse_slurm(text: str, source: str = "topology.conf") -> SwitchTree:
    """The tree of ``SwitchName=s1 Nodes=…`` and ``SwitchName=s1 Switches=…`` lines, or NVLink domains of ``BlockName=b1 Nodes=…`` lines
    (Slurm's block topology). ``LinkSpeed`` is ignored, as Slurm does, and so is ``BlockSizes``.

    Raises:
        InvalidInputError: a line that is none of these, or switches that are no tree.
    """
    nodes: dict[str, tuple[str, ...]] = {}
    children: dict[str, tuple[str, ...]] = {}
    blocks: dict[str, tuple[str, ...]] = {}
    faults: list[Fault] = []
    for number, line in enumerate(text.splitlines(), 1):
        content = line.partition("#")[0].strip()
        if not content:
            continue
        given = {key.lower(): value for key, value in _SETTING.findall(content)}
        if set(given) == {"blocksizes"}:
            continue
        block = "blockname" in given
        where, name = f"{source}:{number}", given.get("blockname", given.get("switchname"))
        if name is None or ("nodes" in given) == ("switches" in given) or (block and "switches" in given):
            required = "SwitchName=NAME with Nodes=… or Switches=…"
            faults.append(Fault(field=where, given=repr(content[:60]), required=required))
            continue
        if name in nodes or name in children or name in blocks:
            faults.append(Fault(field=where, given=name, required="a switch has one line"))
            continue
        try:
            below = expand_hosts(given.get("nodes") or given["switches"], field=where)
        except InvalidInputError as error:
            faults += error.faults
            continue
        (blocks if block else nodes if "nodes" in given else children)[name] = below
    if blocks and (nodes or children):
        faults.append(Fault(field=source, given="blocks and switches", required="either BlockName or SwitchName lines"))
    if not nodes and not blocks and not faults:
        faults.append(Fault(field=source, given="no hosts", required="lines SwitchName=leaf1 Nodes=node[001-016]"))
    raise_if(faults)
    return tree_of_blocks(blocks, source) if blocks else tree_of_switches(nodes, children, source)


def parse_listed(document: Any, source: str) -> SwitchTree:
    """The tree of a list of hosts: ``{name (or host), switches: [leaf, …, root]}``, names being nodelist expressions; all of them may
    say their NVLink domain, ``nvlink``.

    ``levels`` may say what each level of switches gives, from the leaves outwards: ``bandwidth`` (bytes/s of a GPU out of a switch
    below it), ``oversubscription`` and ``latency_seconds``.

    Raises:
        InvalidInputError: fields that are missing, unknown or impossible; or switches that are no tree.
    """
    document = {"hosts": document} if isinstance(document, list) else document
    if not isinstance(document, Mapping):
        raise InvalidInputError(Fault(field="topology", given=repr(source), required="a list of hosts, or a table with hosts and levels"))
    faults = [Fault(field=f"$.{name}", given="", required="unknown field") for name in document if name not in ("hosts", "levels")]
    levels = _levels(document.get("levels", ()), faults)
    hosts = document.get("hosts")
    listed: list[tuple[str, Sequence[str]]] = []
    domains: list[str] = []
    if not isinstance(hosts, list) or not hosts:
        faults.append(Fault(field="$.hosts", given="", required='a list of {name = "node[001-016]", switches = ["leaf1", "spine"]}'))
    else:
        for place, entry in enumerate(hosts):
            found = _host(entry, f"$.hosts[{place}]", faults)
            listed += found
            domains += [entry["nvlink"] for _ in found if "nvlink" in entry]
    if domains and len(domains) < len(listed):
        faults.append(Fault(field="$.hosts", given=f"nvlink of {len(domains)} of {len(listed)}", required="of all hosts, or of none"))
    raise_if(faults)
    return tree_of_paths(listed, levels, source, domains)


def _host(entry: object, field: str, faults: list[Fault]) -> list[tuple[str, Sequence[str]]]:
    fields = entry if isinstance(entry, Mapping) else {}
    name, switches = fields.get("name", fields.get("host")), fields.get("switches")
    path = [each for each in switches if isinstance(each, str) and each] if isinstance(switches, list) else []
    unknown = set(fields) - {"name", "host", "switches", "nvlink"}
    domain_is_named = isinstance(fields.get("nvlink", ""), str)
    if not isinstance(name, str) or not domain_is_named or not path or path != switches or unknown:
        given = f"unknown {', '.join(sorted(unknown))}" if unknown else ""
        faults.append(Fault(field=field, given=given, required="a name, and switches: a list of names from the leaf outwards"))
        return []
    try:
        return [(host, path) for host in expand_hosts(name, field=field)]
    except InvalidInputError as error:
        faults += error.faults
        return []


def _levels(given: object, faults: list[Fault]) -> tuple[SwitchLevel, ...]:
    if not isinstance(given, list | tuple):
        faults.append(Fault(field="$.levels", given="", required="a list of tables, from the leaves outwards"))
        return ()
    return tuple(level for place, each in enumerate(given) if (level := _level(each, f"$.levels[{place}]", faults)) is not None)


def _level(given: object, field: str, faults: list[Fault]) -> SwitchLevel | None:
    fields = given if isinstance(given, Mapping) else {"": given}
    before = len(faults)
    for name, value in fields.items():
        if name == "name" and isinstance(value, str) and value:
            continue
        if name not in _RATES:
            faults.append(Fault(field=f"{field}.{name}", given=repr(value)[:60], required="unknown field"))
            continue
        number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
        if not _LEAST[name] <= number < math.inf or (name == "bandwidth" and number == 0):
            faults.append(Fault(field=f"{field}.{name}", given=repr(value)[:60], required=_NEEDS[name]))
    return SwitchLevel(**fields) if len(faults) == before else None
