"""The order of hosts: nested blocks of ranks should straddle as few switches as they can.

Ranks are numbered host by host, and the groups of every axis are made of nested blocks of consecutive ranks (tensor inside
context inside data inside a pipeline stage). A block whose hosts sit under one leaf switch keeps its traffic there; one that
straddles two sends it through their uplinks. ``rows`` below are levels of switches from the leaves outwards, each with the switch
above every host; ``units`` are sizes of nested blocks in hosts. What an order is worth in seconds only the cost model says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import product
from math import prod

Rows = Sequence[Sequence[str]]
Vector = tuple[int, ...]

EXACT_STATES = 256
"""Ways to take some hosts of each leaf, up to which the best order is found by looking at all splits into blocks."""


def nested_units(num_hosts: int) -> tuple[int, ...]:
    """Powers of two below ``num_hosts``, the sizes that blocks most often have; for when no strategy is known yet."""
    return tuple(2**power for power in range(1, max(num_hosts - 1, 1).bit_length()) if 2**power < num_hosts)


def straddles(rows: Rows, order: Sequence[int], units: Iterable[int]) -> int:
    """Switches beyond the first that blocks of each size touch, over all blocks, sizes and levels: what :func:`order_hosts` minimises."""
    total = 0
    for unit in units:
        for start in range(0, len(order), unit):
            block = order[start : start + unit]
            total += sum(len({row[host] for host in block}) - 1 for row in rows)
    return total


def order_hosts(rows: Rows, units: Sequence[int]) -> tuple[int, ...]:
    """Places of the hosts, as listed, in the order of least :func:`straddles`; as listed where nothing is better.

    Units that are no multiple of the next smaller one are left out: blocks nest. Exact where hosts of the leaves can be taken in at
    most ``EXACT_STATES`` ways; beyond that, whole blocks are cut out of leaves
    from the largest unit down and what is left over is packed together, and the better of that and :func:`tree_order` is taken.
    """
    if not rows:
        return ()
    listed = tuple(range(len(rows[0])))
    leaves = _Leaves(rows)
    sizes = _nested({unit for unit in units if 1 < unit < len(listed)})
    candidates = [listed, tree_order(rows), leaves.hosts_of(leaves.packed(leaves.counts, sizes))]
    if prod(count + 1 for count in leaves.counts) <= EXACT_STATES:
        candidates.append(leaves.hosts_of(leaves.exact(sizes)))
    return min(candidates, key=lambda order: straddles(rows, order, sizes))  # the first of equals


def _nested(units: Iterable[int]) -> tuple[int, ...]:
    """Of ``units`` from the smallest up those that are a multiple of the last one kept; largest first."""
    kept: list[int] = []
    for unit in sorted(units):
        if not kept or unit % kept[-1] == 0:
            kept.append(unit)
    return tuple(reversed(kept))


def tree_order(rows: Rows) -> tuple[int, ...]:
    """Hosts switch by switch, each level's switches in the order in which they were first listed."""
    places = [{name: place for place, name in enumerate(dict.fromkeys(row))} for row in rows]
    keys = [tuple(places[level][rows[level][host]] for level in reversed(range(len(rows)))) for host in range(len(rows[0]))]
    return tuple(sorted(range(len(keys)), key=keys.__getitem__))


def fewest_switches(rows: Rows, wanted: int, num_hosts: int) -> tuple[int, ...]:
    """``wanted`` of the hosts, as listed, under few switches: level by level the fullest switch first, or the smallest that holds all.

    A greedy choice: it is not always the best one, and never takes a second switch where one is large enough.
    """

    def chosen(hosts: list[int], level: int, count: int) -> list[int]:
        if count >= len(hosts):
            return hosts
        if level < 0:
            return hosts[:count]
        below: dict[str, list[int]] = {}
        for host in hosts:
            below.setdefault(rows[level][host], []).append(host)
        enough = [group for group in below.values() if len(group) >= count]
        if enough:
            return chosen(min(enough, key=len), level - 1, count)
        taken: list[int] = []
        for group in sorted(below.values(), key=len, reverse=True):
            taken += chosen(group, level - 1, min(count - len(taken), len(group)))
            if len(taken) == count:
                break
        return taken

    return tuple(sorted(chosen(list(range(num_hosts)), len(rows) - 1, wanted)))


class _Leaves:
    """Hosts of one leaf are alike: an order is a word over leaves. Counts by leaf are what the searches below work on."""

    def __init__(self, rows: Rows) -> None:
        self._hosts: dict[str, list[int]] = {}
        for host, leaf in enumerate(rows[0]):
            self._hosts.setdefault(leaf, []).append(host)
        self._names = tuple(self._hosts)
        self._above = [tuple(row[self._hosts[name][0]] for row in rows[1:]) for name in self._names]

    @property
    def counts(self) -> Vector:
        return tuple(len(self._hosts[name]) for name in self._names)

    def hosts_of(self, word: Sequence[int]) -> tuple[int, ...]:
        """The hosts that a word over leaves stands for, those of a leaf in the order in which they were listed."""
        left = [iter(self._hosts[name]) for name in self._names]
        return tuple(next(left[leaf]) for leaf in word)

    def packed(self, counts: Vector, units: Sequence[int]) -> list[int]:
        """A word of ``counts`` hosts of each leaf: whole blocks of the largest unit leaf by leaf, then mixed blocks, each packed inside."""
        if not units:
            return [leaf for leaf, count in enumerate(counts) for _ in range(count)]
        unit, word, left = units[0], [], list(counts)
        for leaf, count in enumerate(counts):
            whole = count // unit * unit
            word += [leaf] * whole
            left[leaf] -= whole
        while any(left):
            block = self._mixed(left, min(unit, sum(left)))
            for leaf, count in enumerate(block):
                left[leaf] -= count
            word += self.packed(block, units[1:])
        return word

    def _mixed(self, left: Sequence[int], room: int) -> Vector:
        """One block out of leftovers: the largest, then, nearest relatives first, the largest that fits, else a part of the smallest."""
        block = [0] * len(left)
        first = max(range(len(left)), key=lambda leaf: left[leaf])
        while room:
            free = [leaf for leaf, count in enumerate(left) if count > block[leaf]]
            relatives = [leaf for leaf in free if self._distance(leaf, first) == min(self._distance(each, first) for each in free)]
            sizes = {leaf: left[leaf] - block[leaf] for leaf in relatives}
            fitting = {leaf: size for leaf, size in sizes.items() if size <= room}
            chosen = first if first in free else max(fitting, key=fitting.__getitem__) if fitting else min(sizes, key=sizes.__getitem__)
            taken = min(sizes.get(chosen, left[chosen]), room)
            block[chosen] += taken
            room -= taken
        return tuple(block)

    def _distance(self, leaf: int, other: int) -> int:
        """Levels at which two leaves are under different switches."""
        return sum(mine != its for mine, its in zip(self._above[leaf], self._above[other], strict=True))

    def _touched(self, block: Vector) -> int:
        """Switches beyond the first at each level, over the levels."""
        present = [leaf for leaf, count in enumerate(block) if count]
        levels = [present, *zip(*(self._above[leaf] for leaf in present), strict=True)]
        return sum(len(set(names)) - 1 for names in levels)

    def exact(self, units: Sequence[int]) -> list[int]:
        """The word of least straddles, by looking at every split of a block into blocks of the next smaller unit."""

        @cache
        def inside(block: Vector, level: int) -> tuple[int, tuple[int, ...]]:
            """Least straddles of the blocks within ``block``, of units[level] and below, and their word."""
            if level == len(units):
                return 0, tuple(leaf for leaf, count in enumerate(block) for _ in range(count))
            unit = units[level]
            if sum(block) <= unit:
                cost, word = inside(block, level + 1)
                return cost + self._touched(block), word
            best: tuple[int, tuple[int, ...]] | None = None
            for first in product(*(range(count + 1) for count in block)):
                if sum(first) != unit:
                    continue
                cost, word = inside(first, level + 1)
                rest, others = inside(tuple(count - taken for count, taken in zip(block, first, strict=True)), level)
                found = cost + self._touched(first) + rest, word + others
                best = found if best is None or found[0] < best[0] else best
            assert best is not None, "a block larger than a unit has a part of its size"
            return best

        return list(inside(self.counts, 0)[1])


def units_of(ranks: Mapping[str, int] | Iterable[int], gpus_per_node: int) -> tuple[int, ...]:
    """Blocks of ranks as whole hosts: those that are a multiple of a host."""
    sizes = ranks.values() if isinstance(ranks, Mapping) else ranks
    return tuple(sorted({size // gpus_per_node for size in sizes if size % gpus_per_node == 0 and size > gpus_per_node}))
