"""Domains that are unequal or unevenly filled: how groups of ranks lie over them, by enumeration of the groups.

The closed form of :func:`autopar.costmodel.topology.place` speaks of equal domains. Twenty hosts under one leaf switch and
twelve under another are none: here every group of a (size, stride) is looked at, once, and the worst one is what counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod

import numpy as np
import numpy.typing as npt

from .columns import Bools, Floats, Shared
from .spec.cluster import ClusterSpec

Ints = npt.NDArray[np.int64]
_Found = tuple[float, float, float, float]
_Key = tuple[tuple[int, int], ...]
_Find = Callable[[_Key], _Found]
Axes = Sequence[tuple[npt.ArrayLike, npt.ArrayLike]]
"""The axes that a group spans, each (size, stride), fastest first."""


class DomainMap(Shared):
    """The domain of every rank at one level, and what was found out about groups on it."""

    __slots__ = ("_domains", "_gpus", "_hops", "_spreads")

    def __init__(self, domains: npt.ArrayLike) -> None:
        """``domains``: a number for each rank, the same for ranks of one domain."""
        _, numbered, self._gpus = np.unique(np.asarray(domains), return_inverse=True, return_counts=True)
        self._domains: Ints = numbered.astype(np.int64)
        self._spreads: dict[_Key, _Found] = {}
        self._hops: dict[_Key, _Found] = {}

    def spread(self, axes: Axes) -> tuple[Floats, Floats, Floats, Floats]:
        """Of the groups over ``axes``, each (size, stride), fastest first, the worst: fewest members in a domain, most passages of a
        ring from one domain to another (1 where there are none), most messages out of a domain in one turn of all rings, for each GPU
        of it and in all.
        """
        return self._looked_up(axes, self._spreads, self._spread)

    def hops(self, size: npt.ArrayLike, distance: npt.ArrayLike) -> tuple[Bools, Floats, Floats]:
        """Whether some neighbours of a line of ``size`` ranks, ``distance`` apart, sit in different domains, and how many ranks
        of a domain at most send out of it, for each GPU of it and in all.
        """
        crossed, load, messages, _ = self._looked_up(((size, distance),), self._hops, self._hop)
        return crossed > 0, load, messages

    def _looked_up(self, axes: Axes, known: dict[_Key, _Found], find: _Find) -> tuple[Floats, Floats, Floats, Floats]:
        columns = np.broadcast_arrays(*(np.asarray(value, dtype=np.int64) for axis in axes for value in axis))
        shape = columns[0].shape
        keys, place = np.unique(np.stack([column.ravel() for column in columns], axis=1), axis=0, return_inverse=True)
        rows = []
        for row in keys.tolist():
            key = tuple(zip(row[::2], row[1::2], strict=True))
            if key not in known:
                known[key] = find(key)
            rows.append(known[key])
        table = np.array(rows, dtype=np.float64)[place.ravel()].reshape(*shape, 4)
        return table[..., 0], table[..., 1], table[..., 2], table[..., 3]

    def _groups(self, axes: _Key) -> Ints:
        """Domains of the members, one group a row; ranks past the last whole group are left out.

        Of pairs further apart than half of the ranks (the two ends of a pipeline), all there are.
        """
        count = len(self._domains)
        axes = tuple(axis for axis in axes if axis[0] > 1) or ((1, 1),)
        span = max(size * stride for size, stride in axes)
        if len(axes) == 1 and axes[0][0] == 2 and axes[0][1] < count < span:
            stride = axes[0][1]
            return np.stack([self._domains[:-stride], self._domains[stride:]], axis=1)
        ranks = np.arange(count // span * span)
        firsts = ranks[np.all([ranks // stride % size == 0 for size, stride in axes], axis=0)]
        steps = np.zeros(1, dtype=np.int64)
        for size, stride in axes:
            steps = (np.arange(size)[:, None] * stride + steps).ravel()
        groups: Ints = self._domains[firsts[:, None] + steps]
        return groups

    def _spread(self, axes: _Key) -> _Found:
        size = prod(each for each, _ in axes)
        if size == 1:
            return 1.0, 1.0, 1.0, 0.0
        groups = self._groups(axes)
        if not len(groups):  # no such group is there: as if each member were alone
            return 1.0, float(size), 1.0, float(self._gpus.max())
        leaves = groups != np.roll(groups, -1, axis=1)
        passages = int(leaves.sum(axis=1).max())
        if not passages:
            return float(size), 1.0, 1.0 / size, 0.0
        out = np.bincount(groups[leaves], minlength=len(self._gpus))
        return float(_fewest(groups)), float(passages), *self._fullest(out)

    def _hop(self, axes: _Key) -> _Found:
        groups = self._groups(axes)
        leaves = groups[:, :-1] != groups[:, 1:]
        if not leaves.any():
            return 0.0, 1.0, 0.0, 0.0
        out = np.bincount(groups[:, :-1][leaves], minlength=len(self._gpus))
        back = np.bincount(groups[:, 1:][leaves], minlength=len(self._gpus))  # gradients go the other way
        return 1.0, *self._fullest(np.maximum(out, back)), 0.0

    def _fullest(self, messages: Ints) -> tuple[float, float]:
        """Messages a GPU and in all, of the domain that has most to send for its size."""
        worst = int(np.argmax(messages / self._gpus))
        return float(messages[worst] / self._gpus[worst]), float(messages[worst])


def _fewest(groups: Ints) -> int:
    """Fewest members that any group has in a domain where it has some: the shortest run of its sorted domains."""
    ordered = np.sort(groups, axis=1)
    starts = np.ones(ordered.shape, dtype=np.bool_)
    starts[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    edges = np.append(np.flatnonzero(starts.ravel()), starts.size)
    return int(np.diff(edges).min())


def domain_maps(cluster: ClusterSpec) -> tuple[DomainMap | None, ...]:
    """For each tier of ``cluster``, the map of its domains where no closed form speaks of them: hosts lie unevenly, or domains do not
    divide the cluster, so that the last one is smaller.
    """
    sizes = cluster.domain_sizes
    switches = tuple(cluster.switches_of(tier) for tier in range(len(sizes)))
    return _maps(switches, sizes, cluster.num_gpus, cluster.gpus_per_node)


@lru_cache(maxsize=16)
def _maps(switches: tuple[tuple[str, ...], ...], sizes: tuple[int, ...], num_gpus: int, gpus_per_node: int) -> tuple[DomainMap | None, ...]:
    """Kept between evaluations of one cluster, since a map remembers the groups that it has looked at."""
    last, maps = len(sizes) - 1, []
    for tier, (named, size) in enumerate(zip(switches, sizes, strict=True)):
        even = not num_gpus % size
        if named:
            numbers = {name: number for number, name in enumerate(dict.fromkeys(named))}
            domains = np.repeat([numbers[name] for name in named], gpus_per_node)[:num_gpus]
            maps.append(None if even and np.array_equal(domains, np.arange(num_gpus) // size) else DomainMap(domains))
        else:
            maps.append(None if even or not 0 < tier < last else DomainMap(np.arange(num_gpus) // size))
    return tuple(maps)
