"""Steps on local parts do what steps on the whole do, and leave states that checkpoints understand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from autopar.runtime.local_step import optimizer_step

from .processes import run_ranks

MAKERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, amsgrad=True),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.1),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.1),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
}


def values(step: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(step)
    return [torch.randn(shape, generator=generator) for shape in ((5, 3), (4,), (1,))]


def run(make: Callable[[Any], torch.optim.Optimizer], place: Callable[[Tensor, int], Tensor]) -> tuple[torch.optim.Optimizer, list[Tensor]]:
    parameters = [nn.Parameter(place(value, index)) for index, value in enumerate(values(0))]
    optimizer = make(parameters)
    for step in (1, 2, 3):
        for index, (parameter, gradient) in enumerate(zip(parameters, values(step), strict=True)):
            parameter.grad = place(gradient, index) if step != 2 or index != 1 else None
        optimizer_step(optimizer)
    return optimizer, list(parameters)


def whole(value: Any) -> Any:
    return value.full_tensor() if isinstance(value, DTensor) else value


@pytest.mark.parametrize("name", MAKERS)
def test_uneven_shards_and_replicas_step_as_whole_tensors(name: str) -> None:
    """Five rows on two ranks, a plain parameter, and one whose second shard is empty; one step lacks a gradient."""

    def train(_: int) -> tuple[list[Tensor], list[dict[str, Any]], list[dict[str, str]]]:
        mesh = init_device_mesh("cpu", (2,))

        def place(value: Tensor, index: int) -> Tensor:
            return value if index == 1 else distribute_tensor(value, mesh, [Shard(0)])

        optimizer, parameters = run(MAKERS[name], place)
        assert optimizer.param_groups[0]["params"] == parameters
        assert all(parameter in optimizer.state for parameter in parameters)
        states = [optimizer.state[p] for p in parameters]
        kinds = [{key: type(value).__name__ for key, value in state.items()} for state in states]
        return [whole(p.detach()) for p in parameters], [{key: whole(value) for key, value in s.items()} for s in states], kinds

    optimizer, alone = run(MAKERS[name], lambda value, _: value)
    for parameters, states, kinds in run_ranks(2, train):
        for mine, right, state, kind in zip(parameters, alone, states, kinds, strict=True):
            torch.testing.assert_close(mine, right.detach())
            for key, value in optimizer.state[right].items():
                torch.testing.assert_close(state[key], value)
                distributed = isinstance(value, Tensor) and value.dim() > 0 and right is not alone[1]
                assert (kind[key] == "DTensor") == distributed, (key, kind)


def test_an_optimizer_that_looks_at_whole_matrices_is_left_alone() -> None:
    seen: list[type] = []

    class RowNormalised(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            seen.extend(type(parameter) for parameter in self.param_groups[0]["params"])
            return super().step(closure)

    def train(_: int) -> list[str]:
        mesh = init_device_mesh("cpu", (2,))
        run(lambda p: RowNormalised(p[:1], lr=0.1), lambda value, _: distribute_tensor(value, mesh, [Shard(0)]))
        return [kind.__name__ for kind in seen]

    assert run_ranks(2, train) == [["DTensor"] * 3] * 2
