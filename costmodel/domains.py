"""Domains that are unequal or unevenly filled: how groups of ranks lie over them, by enumeration of the groups.

The closed form of :func:`autopar.costmodel.topology.place` speaks of equal domains. Twenty hosts under one leaf switch and
twelve under another are none: here every group of a (size, stride) is looked at, once, and the worst one is what counts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from .columns import Bools, Floats, Shared
from .spec.cluster import ClusterSpec

Ints = npt.NDArray[np.int64]
_Found = tuple[float, float, float, float]
_Find = Callable[[int, int], _Found]


class DomainMap(Shared):
    """The domain of every rank at one level, and what was found out about groups on it."""

    __slots__ = ("_domains", "_gpus", "_hops", "_spreads")

    def __init__(self, domains: npt.ArrayLike) -> None:
        """``domains``: a number for each rank, the same for ranks of one domain."""
        _, numbered, self._gpus = np.unique(np.asarray(domains), return_inverse=True, return_counts=True)
        self._domains: Ints = numbered.astype(np.int64)
        self._spreads: dict[tuple[int, int], _Found] = {}
        self._hops: dict[tuple[int, int], _Found] = {}

    def spread(self, size: npt.ArrayLike, stride: npt.ArrayLike) -> tuple[Floats, Floats, Floats, Floats]:
        """Of the groups of ``size`` ranks, ``stride`` apart, the worst: fewest members in a domain, most passages of a ring
        from one domain to another (1 where there are none), most messages out of a domain in one turn of all rings, for each GPU of
        it and in all.
        """
        return self._looked_up(size, stride, self._spreads, self._spread)

    def hops(self, size: npt.ArrayLike, distance: npt.ArrayLike) -> tuple[Bools, Floats, Floats]:
        """Whether some neighbours of a line of ``size`` ranks, ``distance`` apart, sit in different domains, and how many ranks
        of a domain at most send out of it, for each GPU of it and in all.
        """
        crossed, load, messages, _ = self._looked_up(size, distance, self._hops, self._hop)
        return crossed > 0, load, messages

    def _looked_up(
        self, size: npt.ArrayLike, stride: npt.ArrayLike, known: dict[tuple[int, int], _Found], find: _Find
    ) -> tuple[Floats, Floats, Floats, Floats]:
        sizes, strides = np.broadcast_arrays(np.asarray(size, dtype=np.int64), np.asarray(stride, dtype=np.int64))
        shape = sizes.shape
        pairs, place = np.unique(np.stack([sizes.ravel(), strides.ravel()], axis=1), axis=0, return_inverse=True)
        rows = []
        for ranks, step in pairs.tolist():
            if (ranks, step) not in known:
                known[ranks, step] = find(ranks, step)
            rows.append(known[ranks, step])
        table = np.array(rows, dtype=np.float64)[place.ravel()].reshape(*shape, 4)
        return table[..., 0], table[..., 1], table[..., 2], table[..., 3]

    def _groups(self, size: int, stride: int) -> Ints:
        """Domains of the members, one group a row; ranks past the last whole group are left out.

        Of pairs further apart than half of the ranks (the two ends of a pipeline), all there are.
        """
        whole = len(self._domains) // (size * stride)
        if not whole and size == 2 and stride < len(self._domains):
            return np.stack([self._domains[:-stride], self._domains[stride:]], axis=1)
        cut: Ints = self._domains[: whole * size * stride].reshape(whole, size, stride)
        return np.swapaxes(cut, 1, 2).reshape(-1, size)

    def _spread(self, size: int, stride: int) -> _Found:
        groups = self._groups(size, stride)
        if size == 1 or not len(groups):  # no such group: no strategy that runs asks for it
            return float(size), 1.0, 1.0 / size, 0.0
        leaves = groups != np.roll(groups, -1, axis=1)
        passages = int(leaves.sum(axis=1).max())
        if not passages:
            return float(size), 1.0, 1.0 / size, 0.0
        out = np.bincount(groups[leaves], minlength=len(self._gpus))
        return float(_fewest(groups)), float(passages), *self._fullest(out)

    def _hop(self, size: int, distance: int) -> _Found:
        groups = self._groups(size, distance)
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
