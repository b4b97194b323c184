"""Gradients beside the engine: buckets that are summed in place."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from autopar.runtime import gradient_buckets
from autopar.runtime.gradient_buckets import GradientBuckets

from .processes import run_ranks


class Net(nn.Module):
    """A chain of layers, one of which no forward uses, and a shared one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.unused = nn.Linear(8, 8)
        self.narrow = nn.Parameter(torch.ones(8, dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.layers[0](x) * self.narrow.float()


def inputs(rank: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    return [torch.randn(3, 8, generator=generator) for _ in range(2)]


@pytest.mark.parametrize("bucket_bytes", [1, 300, 25 * 2**20])
def test_buckets_hold_the_sum_over_micro_batches_and_ranks(bucket_bytes: int) -> None:
    def train(rank: int) -> list[dict[str, torch.Tensor]]:
        gradient_buckets.BUCKET_BYTES = bucket_bytes
        model = Net()
        group = dist.group.WORLD
        assert group is not None
        sync = GradientBuckets(model, group)
        steps = []
        for _ in range(2):
            for parameter in model.parameters():
                parameter.grad = None
            first, second = inputs(rank)
            sync.before_backward(last=False, split=False)
            model(first).sum().backward()
            sync.before_backward(last=True, split=False)
            model(second).sum().backward()
            sync.finish()
            steps.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
        return steps

    alone = Net()
    for rank in range(2):
        for value in inputs(rank):
            alone(value).sum().backward()
    for steps in run_ranks(2, train):
        for step in steps:
            assert step.keys() == dict(alone.named_parameters()).keys()
            for name, parameter in alone.named_parameters():
                right = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                torch.testing.assert_close(step[name], right, msg=name, rtol=1e-2 if name == "narrow" else 1e-5, atol=1e-5)


def test_sums_start_before_the_backward_ends() -> None:
    """The last layer's bucket is on its way when the first layer's gradient is not there yet."""

    def train(_: int) -> list[bool]:
        gradient_buckets.BUCKET_BYTES = 1
        model = Net()
        group = dist.group.WORLD
        assert group is not None
        sync = GradientBuckets(model, group)
        started: list[bool] = []
        model.layers[1].weight.register_hook(
            lambda _: started.append(any(bucket.work is not None for bucket in sync._buckets or ()))  # type: ignore[no-untyped-call]
        )
        for last in (False, True):
            sync.before_backward(last=last, split=False)
            model(inputs(0)[0]).sum().backward()
        sync.finish()
        return started

    assert run_ranks(2, train) == [[False, True]] * 2
