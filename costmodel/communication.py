"""Seconds of collectives and transfers, from the group's placement and the fitted link constants.

Symbols: n ranks of the group, k of them in each of d fast domains (n = k d), S message bytes as nccl-tests counts them,
B a tier's rated bytes/s per GPU, e its efficiency, h its ``half_bytes``, l its latency a step, R the rate a group gets
from the network ports (topology.network_rate, the group's share while others send).

Every transfer of V bytes takes  V / (e B) x (1 + (h k / S)^a)  (h is per member: S / k bytes pass each port), with one
exponent a for all links: a curve between a start-up cost (a = 1) and a slower link (a = 0), since NCCL trades bandwidth
for latency by switching protocol as messages shrink. Tiers work as a pipeline: the slower one sets the pace (written max
below). "Network" stands for all tiers outside the fast one: each takes the bytes that leave a domain that it joins, at the rate
there (topology.far_rate). Levels of one network (leaf, spine, region) pass a message on as it comes, so that the slowest is all
that counts; PCIe below a network is a hop of its own. l_net counts each hop at the outermost tier that it crosses.

Sources: Thakur, Rabenseifner, Gropp 2005 (rings, recursive doubling); Sanders, Speck, Traeff 2009 (double binary
trees); nccl-tests PERFORMANCE.md (bus bandwidth); constants fitted to published rows, docs/design/collectives.md.
Wrong when: the fabric is congested by other jobs, ranks arrive at different times, or a group's domains hold
unequal numbers of its ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from .columns import Floats
from .topology import FarTier, Group, LinkColumns, Spread, far_rate, mesh_share, network_rate

SATURATION_EXPONENT = 0.6
"""Chosen once for all links: of 0.5 to 0.8, the least error over all published rows."""

TIER_OVERLAP_NORM = 6.0
"""Two tiers that pipeline one message take (fast^p + network^p)^(1/p) seconds: p = 1 one after the other, infinite fully hidden.
Of 1 to 6, the least error on published all-reduces of two and more nodes."""

PEERS_IN_FLIGHT = 8
"""Point-to-point transfers of one rank that NCCL runs at once within an all-to-all."""


def all_reduce_seconds(message_bytes: npt.ArrayLike, group: Group, links: LinkColumns, sharing: npt.ArrayLike | None = None) -> Floats:
    """Seconds to sum ``message_bytes`` (S, the whole buffer of one rank) over the group: the best of ring and tree.

    ring: start + 2 (n - d) l_fast + 2 (d - 1) l_net + max(fast, network) of V = 2 (n - 1) / n S.
    tree: start + 2 log2(k) l_fast + 2 log2(d) l_net + max(fast, network); fast V = 2 S, or S at the
    in-network rate where the switch reduces (NVLS); network V = S for two domains where NCCL runs the double binary tree
    between them (each sends one half up and the other down), else 2 S.

    Args:
        sharing: groups that use the ports of one domain at the same time; default all groups of the axis.
    """
    size = _floats(message_bytes)
    ring = 2 * _ring_latency(group, links) + _ring_transfer(2 * size, size, group, links, sharing)
    tree = _tree_latency(group, links) + _tree_transfer(size, group, links, sharing)
    return _or_nothing("all_reduce", _start(group, links) + np.minimum(ring, tree), size, group, links)


def all_gather_seconds(gathered_bytes: npt.ArrayLike, group: Group, links: LinkColumns, sharing: npt.ArrayLike | None = None) -> Floats:
    """Seconds to gather ``gathered_bytes`` (S, the full result; each rank brings S / n) by a ring.

    start + (n - d) l_fast + (d - 1) l_net + max(fast, network) of V = (n - 1) / n S. The latency is linear in n:
    right for NCCL's ring, pessimistic for thousands of ranks where PAT or a hierarchical gather is used.
    """
    size = _floats(gathered_bytes)
    return _or_nothing("all_gather", _one_turn_seconds(size, group, links, sharing), size, group, links)


def reduce_scatter_seconds(full_bytes: npt.ArrayLike, group: Group, links: LinkColumns, sharing: npt.ArrayLike | None = None) -> Floats:
    """Seconds to sum ``full_bytes`` (S, the whole buffer of one rank) and leave S / n on each: the gather reversed."""
    size = _floats(full_bytes)
    return _or_nothing("reduce_scatter", _one_turn_seconds(size, group, links, sharing), size, group, links)


def all_to_all_seconds(sent_bytes: npt.ArrayLike, group: Group, links: LinkColumns, sharing: npt.ArrayLike | None = None) -> Floats:
    """Seconds for each rank to send ``sent_bytes`` (S, its own part included) in equal parts to all ranks.

    start + l_fast ceil((k - 1) / 8) + l_net ceil((n - k) / 8) + max(fast, network): V = S (k - 1) / n over
    the fast tier, V = S (n - k) / n over the rank's share of the network, R / k. The message that saturates is S / n, one
    peer's. Imbalance is the caller's: pass the largest rank's bytes.
    """
    size = _floats(sent_bytes)
    n, k = group.size, group.members_per_domain
    fast_rate = links.fast.bandwidth * links.fast.all_to_all_efficiency * mesh_share(k, links)
    rate = network_rate(k, links, sharing) / k * links.network.all_to_all_efficiency
    fast = _transfer(size * (k - 1) / n, size / n, fast_rate, links.fast.half_bytes)
    network = _transfer(size * (n - k) / n, size / n, rate, links.network.half_bytes)
    for spread, far in _crossed(group, links):
        share = far.link.bandwidth / far.oversubscription * far.link.all_to_all_efficiency
        network = _beyond(network, _transfer(size * (n - spread.members) / n, size / n, share, far.link.half_bytes), spread, far)
    latency = links.fast.latency_seconds * np.ceil((k - 1) / PEERS_IN_FLIGHT)
    for inner, outer, seconds in _levels([k, *(spread.members for spread in group.beyond)], n, links):
        rounds = np.ceil((outer - k) / PEERS_IN_FLIGHT) - np.ceil((inner - k) / PEERS_IN_FLIGHT)
        latency = latency + seconds * rounds
    return _or_nothing("all_to_all", _start(group, links) + latency + _pipelined(fast, network), size, group, links)


def p2p_seconds(
    message_bytes: npt.ArrayLike,
    crosses_domain: npt.ArrayLike,
    links: LinkColumns,
    sharing: npt.ArrayLike | None = None,
    beyond: Sequence[Spread] = (),
) -> Floats:
    """Seconds for one rank to send ``message_bytes`` to another, across the network where ``crosses_domain``.

    start + l + V / (e_p2p x rate); the network's rate is R of one rank, ``sharing`` the ranks of its domain that
    send at the same time (default: all of them, as pipeline neighbours do). Of a line of ranks that pass a message on, the slowest
    hop is what counts: ``beyond`` says which tiers beyond the network some hop crosses, and how many share them.
    """
    size, crosses = _floats(message_bytes), np.asarray(crosses_domain, dtype=np.bool_)
    pair = mesh_share(2.0, links)
    fast = _transfer(size, size, links.fast.bandwidth * links.fast.p2p_efficiency * pair, links.fast.half_bytes)
    rate = network_rate(1.0, links, sharing) * links.network.p2p_efficiency
    network = _transfer(size, size, rate, links.network.half_bytes)
    start = np.where(crosses, links.network.base_seconds, links.fast.base_seconds)
    latency = np.where(crosses, links.network.latency_seconds, links.fast.latency_seconds)
    moved = np.where(crosses, network, fast)
    for spread, far in zip(beyond, links.beyond, strict=True) if beyond else ():
        onward = _transfer(size, size, far_rate(spread.load, far) * far.link.p2p_efficiency, far.link.half_bytes)
        moved = np.where(spread.crosses, np.where(far.cut_through > 0, np.maximum(moved, onward), onward), moved)
        start = np.where(spread.crosses, far.link.base_seconds, start)
        latency = np.where(spread.crosses, far.link.latency_seconds, latency)
    seconds = np.asarray(np.where(size > 0, start + latency + moved, 0.0))
    if links.curves is None:
        return seconds
    return links.curves.seconds("send_recv", size, np.full_like(seconds, 2.0), np.where(crosses, 1.0, 2.0), seconds)


def _one_turn_seconds(size: Floats, group: Group, links: LinkColumns, sharing: npt.ArrayLike | None) -> Floats:
    """One turn of a ring: what a gather and a scatter of ``size`` bytes both take."""
    return np.asarray(_start(group, links) + _ring_latency(group, links) + _ring_transfer(size, size, group, links, sharing))


def _ring_latency(group: Group, links: LinkColumns) -> Floats:
    """One turn of a ring: n - d hops inside domains, d - 1 between them, each at the outermost tier that it crosses."""
    seconds = (group.size - group.num_domains) * links.fast.latency_seconds
    for domains, further, latency in _levels([group.num_domains, *(spread.domains for spread in group.beyond)], 1.0, links):
        seconds = seconds + (domains - further) * latency
    return np.asarray(seconds)


def _tree_latency(group: Group, links: LinkColumns) -> Floats:
    """Up and down a tree: levels inside a domain, between domains, and so on outwards."""
    seconds = np.log2(group.members_per_domain) * links.fast.latency_seconds
    for domains, further, latency in _levels([group.num_domains, *(spread.domains for spread in group.beyond)], 1.0, links):
        seconds = seconds + np.log2(domains / further) * latency
    return np.asarray(2 * seconds)


def _levels(counts: list[Floats], last: Floats | float, links: LinkColumns) -> Iterator[tuple[Floats, Floats, Floats]]:
    """For each tier outside the fast one: a count there, the count one tier further out (``last`` at the end), and its latency."""
    outside = [links.network, *(far.link for far in links.beyond)]
    further = [*counts[1:], np.asarray(last)]
    for tier, count, outer in zip(outside, counts, further, strict=False):
        yield count, outer, tier.latency_seconds


def _crossed(group: Group, links: LinkColumns) -> Iterator[tuple[Spread, FarTier]]:
    return zip(group.beyond, links.beyond, strict=False)


def _beyond(inner: Floats, seconds: Floats, spread: Spread, far: FarTier) -> Floats:
    """Seconds on the tiers up to ``far``, of what crosses it: the slower of two levels of one network, or a pipeline of two hops."""
    reached = np.where(spread.crosses, seconds, 0.0)
    return np.where(far.cut_through > 0, np.maximum(inner, reached), _pipelined(inner, reached))


def _ring_transfer(volume: Floats, message: Floats, group: Group, links: LinkColumns, sharing: npt.ArrayLike | None) -> Floats:
    """The slower tier's time for (n - 1) / n of ``volume`` around a ring."""
    k = group.members_per_domain
    moved = volume * (group.size - 1) / group.size
    fast = _transfer(moved, message / k, _fast_rate(group, links), links.fast.half_bytes)
    network = _transfer(moved, message / k, _group_rate(group, links, sharing), links.network.half_bytes)
    network = np.where(group.crosses, network, 0.0)
    for spread, far in _crossed(group, links):
        network = _beyond(network, _far_transfer(moved, message, group, spread, far), spread, far)
    return _pipelined(np.where(k > 1, fast, 0.0), network)


def _tree_transfer(size: Floats, group: Group, links: LinkColumns, sharing: npt.ArrayLike | None) -> Floats:
    k = group.members_per_domain
    chain = _transfer(2 * size, size / k, _fast_rate(group, links), links.fast.half_bytes)
    in_network = links.fast.in_network_efficiency * links.fast.bandwidth
    switch = _transfer(size, size / k, np.maximum(in_network, 1.0), links.fast.half_bytes)
    fast = np.where(in_network > 0, np.minimum(chain, switch), chain)
    halved = (group.num_domains == 2) & ((links.network.two_domain_tree > 0) | (in_network > 0))
    crossing = np.where(halved, 1.0, 2.0) * size
    network = _transfer(crossing, size / k, _group_rate(group, links, sharing), links.network.half_bytes)
    network = np.where(group.crosses, network, 0.0)
    for spread, far in _crossed(group, links):
        pair = (spread.domains == 2) & (far.link.two_domain_tree > 0)
        halved = np.where(far.cut_through > 0, halved, pair)
        network = _beyond(network, _far_transfer(np.where(halved, 1.0, 2.0) * size, size, group, spread, far), spread, far)
    return _pipelined(np.where(k > 1, fast, 0.0), network)


def _far_transfer(volume: Floats, message: Floats, group: Group, spread: Spread, far: FarTier) -> Floats:
    """``volume`` bytes of a ring or tree out of a domain that ``far`` joins, through as many ports as send them."""
    through = far.cut_through > 0
    shared = np.where((spread.members > 1) & ~through, far.link.shared_ring_efficiency, 1.0)
    ports = np.where(through, group.members_per_domain, spread.members)
    rate = far_rate(spread.load, far, spread.members) * far.link.efficiency * shared
    return _transfer(volume, message / ports, rate, far.link.half_bytes)


def _pipelined(fast: Floats, network: Floats) -> Floats:
    """Two tiers moving chunks of one message at the same time: the slower sets the pace, and the other still costs a little."""
    slow, quick = np.maximum(fast, network), np.minimum(fast, network)
    ratio = quick / np.where(slow > 0, slow, 1.0)
    return np.asarray(slow * (1 + ratio**TIER_OVERLAP_NORM) ** (1 / TIER_OVERLAP_NORM))


def _fast_rate(group: Group, links: LinkColumns) -> Floats:
    return np.asarray(links.fast.bandwidth * links.fast.efficiency * mesh_share(group.members_per_domain, links))


def _group_rate(group: Group, links: LinkColumns, sharing: npt.ArrayLike | None) -> Floats:
    """Bytes/s that the group's rings and trees reach through one domain's ports."""
    shared = np.where(group.members_per_domain > 1, links.network.shared_ring_efficiency, 1.0)
    return np.asarray(network_rate(group.members_per_domain, links, sharing) * links.network.efficiency * shared)


def _transfer(volume: Floats, message: Floats, rate: Floats, half_bytes: Floats) -> Floats:
    """``volume`` bytes at ``rate``, slowed as ``message`` is small. Grows with the message since the exponent is below 1."""
    return np.asarray(volume / rate * (1 + (half_bytes / np.maximum(message, 1.0)) ** SATURATION_EXPONENT))


def _start(group: Group, links: LinkColumns) -> Floats:
    start = np.where(group.crosses, links.network.base_seconds, links.fast.base_seconds)
    for spread, far in _crossed(group, links):
        start = np.where(spread.crosses, far.link.base_seconds, start)
    return start


def _or_nothing(collective: str, seconds: Floats, size: Floats, group: Group, links: LinkColumns) -> Floats:
    """``seconds``, corrected where the collective was measured; 0 where there is nothing to send or nobody to send it to."""
    present = np.asarray(np.where((size > 0) & (group.size > 1), seconds, 0.0))
    return present if links.curves is None else links.curves.seconds(collective, size, group.size, group.members_per_domain, present)


def _floats(value: npt.ArrayLike) -> Floats:
    return np.asarray(value, dtype=np.float64)
