"""Micro-batches by speed against every way to share them."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from autopar.search.pool_replicas import Shares, shared_rounds

ROUNDS = 12
times = st.lists(st.integers(1, 9), min_size=ROUNDS, max_size=ROUNDS).map(lambda steps: np.cumsum(np.array(steps, dtype=np.float64)))


def slowest_of(found: Shares, seconds: list[np.ndarray]) -> float:
    return max(each[count - 1] for each, count in zip(seconds, found.rounds, strict=True))


@given(data=st.data(), replicas=st.lists(st.integers(1, 3), min_size=1, max_size=3).filter(lambda counts: sum(counts) <= 5))
def test_no_other_shares_have_a_faster_slowest_replica(data: st.DataObject, replicas: list[int]) -> None:
    seconds = [data.draw(times) for _ in replicas]
    total = data.draw(st.integers(sum(replicas), sum(replicas) + 4))
    found = shared_rounds(seconds, replicas, total)
    assert found is not None
    run = [count * own - short for count, own, short in zip(found.rounds, replicas, found.short, strict=True)]
    assert sum(run) == total
    assert all(count >= 1 + (short > 0) for count, short in zip(found.rounds, found.short, strict=True))
    assert all(0 <= short < own for short, own in zip(found.short, replicas, strict=True))
    pools = [pool for pool, own in enumerate(replicas) for _ in range(own)]
    every = itertools.product(range(1, total - len(pools) + 2), repeat=len(pools))
    least = min(
        max(seconds[pool][count - 1] for pool, count in zip(pools, counts, strict=True)) for counts in every if sum(counts) == total
    )
    assert slowest_of(found, seconds) == least


def test_fewer_rounds_than_replicas_cannot_be_shared() -> None:
    assert shared_rounds([np.array([1.0, 2.0])], [3], 2) is None
