"""Messages between ranks: any order of need, shapes that change, both ends at once."""

from __future__ import annotations

import torch

from autopar.costmodel.spec.strategy import Strategy
from autopar.runtime.mesh import build_mesh
from autopar.runtime.pipeline.plan import Message, RankPlan
from autopar.runtime.pipeline.transport import Transport
from tests.runtime.processes import run_ranks


def transport() -> Transport:
    return Transport(build_mesh(Strategy(pipeline_parallel_size=2), torch.device("cpu")))


def states(microbatch: int, stage: int, length: int = 3) -> torch.Tensor:
    return torch.full((2, length, 4), 10.0 * microbatch + stage)


def test_messages_may_be_needed_in_another_order_than_they_are_sent() -> None:
    """Interleaved chunks on two ranks: the same channel carries states of stage 1 and 3, and gradients of others."""
    sent = (Message(True, 0, 1), Message(True, 0, 3), Message(True, 1, 1), Message(True, 1, 3))

    def run(rank: int) -> list[float]:
        channel = transport()
        channel.begin(RankPlan(rank=rank, steps=(), incoming={} if rank == 0 else {0: sent}), "shape")
        if rank == 0:
            for message in sent:
                channel.send(message, 1, states(message.microbatch, message.stage))
            channel.end()
            return []
        order = (sent[3], sent[0], sent[2], sent[1])
        return [float(channel.take(message, 0)[0, 0, 0]) for message in order]

    assert run_ranks(2, run, timeout=30)[1] == [13.0, 1.0, 11.0, 3.0]


def test_shapes_are_told_once_and_may_change_between_steps() -> None:
    def run(rank: int) -> list[tuple[int, ...]]:
        channel = transport()
        shapes = []
        for length in (3, 5, 3):
            message, gradient = Message(True, 0, 1), Message(False, 0, 0)
            channel.begin(RankPlan(rank=rank, steps=(), incoming={0: (message,)} if rank == 1 else {1: (gradient,)}), length)
            if rank == 0:
                channel.send(message, 1, states(0, 1, length).to(torch.bfloat16))
                channel.ask(gradient, 1)
                received = channel.take(gradient, 1)
            else:
                channel.ask(message, 0)
                received = channel.take(message, 0)
                channel.send(gradient, 0, received + 1)
            channel.end()
            assert received.dtype == torch.bfloat16
            shapes.append(tuple(received.shape))
        return shapes

    assert run_ranks(2, run, timeout=30) == [[(2, 3, 4), (2, 5, 4), (2, 3, 4)]] * 2


def test_both_ranks_may_send_at_once() -> None:
    def run(rank: int) -> float:
        channel = transport()
        mine, other = Message(True, 0, rank + 1), Message(True, 0, 2 - rank)
        channel.begin(RankPlan(rank=rank, steps=(), incoming={1 - rank: (other,)}), "shape")
        channel.send(mine, 1 - rank, torch.full((64, 64, 64), float(rank)))
        received = float(channel.take(other, 1 - rank).mean())
        channel.end()
        return received

    assert run_ranks(2, run, timeout=30) == [1.0, 0.0]


def test_a_stage_of_the_same_rank_gets_the_tensor_itself() -> None:
    def run(rank: int) -> bool:
        channel = transport()
        channel.begin(RankPlan(rank=rank, steps=(), incoming={}), "shape")
        tensor = states(0, 2)
        channel.send(Message(True, 0, 2), rank, tensor)
        return channel.take(Message(True, 0, 2), rank) is tensor

    assert run_ranks(2, run, timeout=30) == [True, True]
