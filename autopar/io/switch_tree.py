"""The switches above a user's hosts: a tree, checked as it is built."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from autopar.costmodel.spec.errors import Fault, raise_if

from .hostlist import several


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchLevel:
    """What one level of switches gives to the hosts below it; None: as the cluster's network tier."""

    name: str = ""
    bandwidth: float | None = None
    """Bytes/s of a GPU in one direction."""
    oversubscription: float | None = None
    latency_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchTree:
    """Hosts in the order in which they were listed, and for each the switches above it, from its leaf to the root.

    All paths are of one length: where a host has fewer switches above it than others, its highest ones count for the missing levels.
    """

    hosts: tuple[str, ...]
    paths: tuple[tuple[str, ...], ...]
    levels: tuple[SwitchLevel, ...] = ()
    """From the leaves outwards; fewer than there are switches in a path: the others are as the cluster's network."""
    source: str = "topology"
    fast_domains: tuple[str, ...] = ()
    """The NVLink domain of each host, where the file tells."""

    def of_hosts(self, names: Sequence[str]) -> SwitchTree:
        """The tree above ``names`` alone, in their order.

        Raises:
            InvalidInputError: the tree has no such host, or no switch joins them all: says which cannot be reached, and from where.
        """
        above = dict(zip(self.hosts, self.paths, strict=True))
        if unknown := [name for name in names if name not in above]:
            known = f"{self.source} has {several(self.hosts)}"
            raise_if([Fault(field="hosts", given=several(unknown), required="hosts that the topology has", fix=known)])
        paths = [above[name] for name in names]
        raise_if(list(_unreachable(names, paths)))
        domains = dict(zip(self.hosts, self.fast_domains, strict=False))
        return replace(self, hosts=tuple(names), paths=tuple(paths), fast_domains=tuple(domains[name] for name in names if domains))

    def switches(self) -> tuple[tuple[str, ...], ...]:
        """By level from the leaves outwards, the switch above each host; levels that are one switch for all are left out."""
        rows = tuple(zip(*self.paths, strict=True))
        return tuple(row for row in rows if len(set(row)) > 1)


def tree_of_paths(
    listed: Sequence[tuple[str, Sequence[str]]],
    levels: Sequence[SwitchLevel] = (),
    source: str = "topology",
    fast_domains: Sequence[str] = (),
) -> SwitchTree:
    """A tree from hosts and the switches above each, from its leaf outwards, and the NVLink domain of each where they are known.

    Raises:
        InvalidInputError: a host twice or without a switch, a switch under two others or above itself; all at once.
    """
    faults: list[Fault] = []
    seen: set[str] = set()
    parents: dict[str, str] = {}
    for host, path in listed:
        if host in seen:
            faults.append(Fault(field="hosts", given=host, required="each host once"))
        seen.add(host)
        if not path:
            faults.append(Fault(field=host, given="no switches", required="the switches above it, from its leaf outwards"))
        if len(set(path)) < len(path):
            faults.append(Fault(field=host, given=" - ".join(path), required="a switch is above itself: switches form a tree"))
        for inner, outer in pairwise(path):
            if parents.setdefault(inner, outer) != outer:
                required = f"a switch is under one other; {inner} is under {parents[inner]} too"
                faults.append(Fault(field=inner, given=outer, required=required))
    raise_if(list(dict.fromkeys(faults)))
    return SwitchTree(
        hosts=tuple(host for host, _ in listed),
        paths=_padded([tuple(path) for _, path in listed]),
        levels=tuple(levels),
        source=source,
        fast_domains=tuple(fast_domains),
    )


def tree_of_switches(nodes: Mapping[str, Sequence[str]], children: Mapping[str, Sequence[str]], source: str) -> SwitchTree:
    """A tree from what is below each switch: hosts in ``nodes``, other switches in ``children``.

    Raises:
        InvalidInputError: a host or a switch under two others, a switch that is not defined, or in a cycle; all at once.
    """
    faults = [*_twice(nodes, "host"), *_twice(children, "switch")]
    known = {*nodes, *children}
    faults += [
        Fault(field=parent, given=child, required="a switch below it that has a line of its own", fix=f"add SwitchName={child}")
        for parent, below in children.items()
        for child in below
        if child not in known
    ]
    above = {child: parent for parent, below in children.items() for child in below}
    faults += _cycles(above)
    raise_if(faults)
    listed = [(host, (leaf, *_ancestors(leaf, above))) for leaf, hosts in nodes.items() for host in hosts]
    return tree_of_paths(listed, source=source)


def tree_of_blocks(blocks: Mapping[str, Sequence[str]], source: str) -> SwitchTree:
    """Hosts in NVLink domains that one network joins.

    Raises:
        InvalidInputError: a host in two blocks.
    """
    raise_if(list(_twice(blocks, "host")))
    listed = [(host, block) for block, hosts in blocks.items() for host in hosts]
    return tree_of_paths([(host, ("network",)) for host, _ in listed], source=source, fast_domains=[block for _, block in listed])


def _twice(below: Mapping[str, Sequence[str]], kind: str) -> Iterator[Fault]:
    found: dict[str, str] = {}
    for parent, names in below.items():
        for name in names:
            if name in found:
                again = f"under {found[name]} and {parent}" if found[name] != parent else f"twice under {parent}"
                yield Fault(field=name, given=again, required=f"a {kind} is under one switch")
            found.setdefault(name, parent)


def _cycles(above: Mapping[str, str]) -> list[Fault]:
    done: set[str] = set()
    faults = []
    for start in above:
        walked: list[str] = []
        at: str | None = start
        while at is not None and at not in done and at not in walked:
            walked.append(at)
            at = above.get(at)
        if at is not None and at in walked:
            cycle = " - ".join([*walked[walked.index(at) :], at])
            faults.append(Fault(field="switches", given=cycle, required="no switch above itself: switches form a tree"))
        done.update(walked)
    return faults


def _ancestors(switch: str, above: Mapping[str, str]) -> Iterator[str]:
    while switch in above:
        switch = above[switch]
        yield switch


def _padded(paths: list[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    """Paths of one length: the leaf of a short one stands for the levels that it has no switch of."""
    longest = max(map(len, paths), default=0)
    return tuple((path[0],) * (longest - len(path)) + path for path in paths)


def _unreachable(hosts: Sequence[str], paths: Sequence[tuple[str, ...]]) -> Iterable[Fault]:
    """One fault where the hosts are under several roots: which cannot be reached, and from where."""
    roots: dict[str, list[str]] = {}
    for host, path in zip(hosts, paths, strict=True):
        roots.setdefault(path[-1], []).append(host)
    if len(roots) <= 1:
        return
    main = max(roots, key=lambda root: len(roots[root]))
    cut_off = [host for root, names in roots.items() if root != main for host in names]
    others = ", ".join(root for root in roots if root != main)
    yield Fault(
        field="topology",
        given=f"{several(cut_off)} cannot be reached from {roots[main][0]}",
        required="one switch above all hosts of the job",
        fix=f"add a switch above {main} and {others}, or leave these hosts out with --hosts",
    )
