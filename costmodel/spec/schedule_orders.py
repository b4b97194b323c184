"""The pipeline schedules of the literature: what one rank does, in order.

Symbols: p pipeline ranks, r one of them, v virtual stages a rank, m micro-batches. The sizes are taken as
checked (:func:`~autopar.costmodel.spec.schedule.schedule_faults`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import count

from .schedule_action import Action, ActionKind

_F, _B, _I, _W = ActionKind.FORWARD, ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT


def gpipe(rank: int, m: int) -> Iterator[Action]:
    yield from (Action(_F, i, rank) for i in range(m))
    yield from (Action(_B, i, rank) for i in range(m))


def one_f_one_b(p: int, rank: int, m: int) -> Iterator[Action]:
    forwards, backwards = [Action(_F, i, rank) for i in range(m)], [Action(_B, i, rank) for i in range(m)]
    return _alternate(forwards, backwards, warm_up=p - rank - 1)


def _alternate(forwards: Sequence[Action], backwards: Sequence[Action], warm_up: int) -> Iterator[Action]:
    """``warm_up`` forwards, then a forward and a backward in turn, then the backwards left."""
    yield from forwards[:warm_up]
    for i, backward in enumerate(backwards):
        yield from forwards[warm_up + i : warm_up + i + 1]
        yield backward


def interleaved(p: int, v: int, rank: int, m: int, group: int) -> Iterator[Action]:
    """Megatron's interleaved 1F1B (Narayanan 2021): 2(p-r-1) + (v-1)*group warm-up forwards.

    Forwards run ``group`` micro-batches on chunk 0, the same ones on chunk 1 and so on, then the next
    group; backwards likewise from the last chunk to the first.
    """
    groups = [range(first, min(first + group, m)) for first in range(0, m, group)]
    forwards = [Action(_F, i, chunk * p + rank) for batch in groups for chunk in range(v) for i in batch]
    backwards = [Action(_B, i, chunk * p + rank) for batch in groups for chunk in reversed(range(v)) for i in batch]
    return _alternate(forwards, backwards, warm_up=2 * (p - rank - 1) + (v - 1) * group)


def zb_h1(p: int, rank: int, m: int) -> Iterator[Action]:
    """ZB-H1 (Qi 2023, arXiv 2401.10241, section 2.1): 1F1B whose weight backwards lag r behind.

    Rank r holds p-r-1 micro-batches less than rank 0 in 1F1B; here it spends that room on weight
    backwards put off, so every rank peaks at p.
    """
    warm_up = p - rank - 1
    yield from (Action(_F, i, rank) for i in range(min(warm_up, m)))
    for i in range(m):
        if warm_up + i < m:
            yield Action(_F, warm_up + i, rank)
        yield Action(_I, i, rank)
        if i >= rank:
            yield Action(_W, i - rank, rank)
    yield from (Action(_W, i, rank) for i in range(max(m - rank, 0), m))


def zbv(p: int, rank: int, m: int) -> list[Action]:
    """ZBV (Qi 2024, arXiv 2405.15362, section 4): stages r and 2p-1-r on rank r, 2p in flight.

    Fewer than 2p-1 micro-batches: the order for 2p-1 with the missing ones left out.
    """
    full = max(m, 2 * p - 1)
    chunks = (rank, 2 * p - 1 - rank)
    actions: list[Action] = []
    done = {(kind, chunk): 0 for kind in (_F, _I, _W) for chunk in (0, 1)}

    def put(kind: ActionKind, chunk: int) -> None:
        actions.append(Action(kind, done[kind, chunk], chunks[chunk]))
        done[kind, chunk] += 1

    def put_all(*steps: tuple[ActionKind, int], times: int) -> None:
        for _ in range(times):
            for kind, chunk in steps:
                put(kind, chunk)

    put_all((_F, 0), times=2 * (p - rank) - 1)
    put_all((_F, 1), (_F, 0), times=rank)
    put_all((_F, 1), (_I, 1), (_W, 1), times=p - rank)
    while done[_F, 1] < full:
        if done[_F, 0] < full:
            put(_F, 0)
        put_all((_I, 0), (_W, 0), (_F, 1), (_I, 1), (_W, 1), times=1)
    put_all((_I, 0), (_I, 1), times=rank)
    put_all((_I, 0), (_W, 0), times=p - rank)
    put_all((_W, 1), times=full - done[_W, 1])
    put_all((_W, 0), times=full - done[_W, 0])
    return [action for action in actions if action.microbatch < m]


class _DualPipeRank:
    """Counters of one rank; ``near`` is the direction that starts at the closer end of the pipeline."""

    def __init__(self, p: int, rank: int, m: int) -> None:
        down, up = (rank, 0), (2 * p - 1 - rank, m // 2)
        near, far = (down, up) if rank < p // 2 else (up, down)
        self.stages = {True: near[0], False: far[0]}
        self.forwards = {True: count(near[1]), False: count(far[1])}
        self.backwards = {True: count(near[1]), False: count(far[1])}
        self.actions: list[Action] = []
        self.put_off: deque[Action] = deque()

    def forward(self, *, near: bool) -> None:
        self.actions.append(Action(_F, next(self.forwards[near]), self.stages[near]))

    def backward(self, *, near: bool, split: bool = False) -> None:
        microbatch, stage = next(self.backwards[near]), self.stages[near]
        self.actions.append(Action(_I if split else _B, microbatch, stage))
        if split:
            self.put_off.append(Action(_W, microbatch, stage))

    def weight(self) -> None:
        self.actions.append(self.put_off.popleft())

    def pair(self, *, forward_near: bool) -> None:
        """A forward of one direction at the same time as a backward of the other."""
        self.actions.append(Action(_F, next(self.forwards[forward_near]), self.stages[forward_near], True))
        self.backward(near=not forward_near)


def dualpipe(p: int, rank: int, m: int) -> list[Action]:
    """DualPipe (DeepSeek-V3, arXiv 2412.19437, figure 5): two pipelines from both ends, eight phases.

    ``outer`` ranks stand between this one and its end, ``inner`` between it and the middle.
    """
    outer = min(rank, p - 1 - rank)
    inner = p // 2 - outer - 1
    plan = _DualPipeRank(p, rank, m)
    for _ in range(2 * inner):
        plan.forward(near=True)
    for _ in range(outer + 1):
        plan.forward(near=True)
        plan.forward(near=False)
    for _ in range(inner):
        plan.backward(near=False, split=True)
        plan.weight()
        plan.forward(near=False)
    for i in range(m // 2 - p + outer + 1):
        if i == 0 and inner == 0:
            # Left apart, as the authors' release has it: it shortens the bubble of the middle ranks.
            plan.forward(near=True)
            plan.backward(near=False)
        else:
            plan.pair(forward_near=True)
        plan.pair(forward_near=False)
    for _ in range(inner):
        plan.backward(near=False)
        plan.pair(forward_near=False)
    # Half of the last backwards put their weight part off, to fill the gaps that follow.
    for position in range(2 * (outer + 1)):
        plan.backward(near=position % 2 == 1, split=position >= outer + 1)
    for _ in range(inner):
        plan.weight()
        plan.backward(near=True, split=True)
    while plan.put_off:
        plan.weight()
    return plan.actions
