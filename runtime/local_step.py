"""Optimizer steps on the local parts of distributed parameters.

An optimizer over DTensors dispatches every operation of every parameter through them, some 50 microseconds each, and takes
torch's slow loop over single tensors. For an update that treats each element by itself the parts need not know of each other.
Before and after a step parameters and states are DTensors, as checkpoints expect them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

_BY_ELEMENT = frozenset(
    {
        torch.optim.Adadelta,
        torch.optim.Adagrad,
        torch.optim.Adam,
        torch.optim.Adamax,
        torch.optim.AdamW,
        torch.optim.ASGD,
        torch.optim.NAdam,
        torch.optim.RAdam,
        torch.optim.RMSprop,
        torch.optim.Rprop,
        torch.optim.SGD,
    }
)
"""Optimizers whose update of an element depends on no other element. Others (Adafactor's rows, a layer's norm) see DTensors."""


def optimizer_step(optimizer: torch.optim.Optimizer) -> None:
    """``optimizer.step()``, on local parts where that is the same."""
    if type(optimizer) not in _BY_ELEMENT:
        optimizer.step()
        return
    with _on_local_parts(optimizer):
        optimizer.step()


@contextmanager
def _on_local_parts(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Show ``optimizer`` the local part of each distributed parameter, gradient and state; what it makes anew is distributed after."""
    parameters = [group["params"] for group in optimizer.param_groups]
    local: dict[Tensor, Tensor] = {p: _local_parameter(p) for params in parameters for p in params if isinstance(p, DTensor)}
    if not local:
        yield
        return
    state = optimizer.state
    local_state: defaultdict[Tensor, Any] = defaultdict(dict)
    for parameter, values in state.items():
        local_state[local.get(parameter, parameter)] = {name: _local(value) for name, value in values.items()}
    try:
        for group, params in zip(optimizer.param_groups, parameters, strict=True):
            group["params"] = [local.get(p, p) for p in params]
        optimizer.state = local_state
        yield
    finally:
        for group, params in zip(optimizer.param_groups, parameters, strict=True):
            group["params"] = params
        optimizer.state = state
    for params in parameters:
        for parameter in params:
            _take_over(state, parameter, local_state.get(local.get(parameter, parameter), {}))


def _take_over(state: Any, parameter: Tensor, values: dict[str, Any]) -> None:
    """Put what a step made or replaced into the state of ``parameter``."""
    for name, value in values.items():
        kept = state[parameter].get(name)
        if value is not _local(kept):
            state[parameter][name] = _distributed(value, parameter)


def _local(value: Any) -> Any:
    return value._local_tensor if isinstance(value, DTensor) else value


def _local_parameter(parameter: DTensor) -> nn.Parameter:
    local = nn.Parameter(parameter._local_tensor.detach(), requires_grad=parameter.requires_grad)
    local.grad = _local(parameter.grad)
    return local


def _distributed(value: Any, parameter: Tensor) -> Any:
    """A state of an element each is distributed as the parameter is; a count of steps is a plain number."""
    if not isinstance(parameter, DTensor) or not isinstance(value, Tensor):
        return value
    if value.dim() == 0 or value.shape != parameter._local_tensor.shape:
        return value
    return DTensor.from_local(
        value, parameter.device_mesh, parameter.placements, run_check=False, shape=parameter.shape, stride=parameter.stride()
    )
