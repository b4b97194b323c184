"""An optimizer's states by parameter name, whichever optimizer it is and however its parameters are sharded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import torch
from torch import Tensor

from .checkpoint_index import Plain, Settings


def optimizer_tensors(optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str]) -> dict[str, Tensor]:
    """``optimizer.NAME.KEY`` -> each state that is a tensor."""
    return {
        f"optimizer.{names[parameter]}.{key}": value.detach()
        for parameter, states in optimizer.state.items()
        for key, value in states.items()
        if isinstance(value, Tensor)
    }


def plain_values(optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str]) -> dict[str, dict[str, Plain]]:
    """Parameter name -> its states that are numbers or words."""
    found: dict[str, dict[str, Plain]] = {}
    for parameter, states in optimizer.state.items():
        if values := _saved((key, value) for key, value in states.items() if not isinstance(value, Tensor)):
            found[names[parameter]] = values
    return found


def restore_plain_values(optimizer: torch.optim.Optimizer, values: Mapping[str, Mapping[str, Plain]], names: Mapping[Tensor, str]) -> None:
    """The inverse of :func:`plain_values`."""
    for parameter, states in optimizer.state.items():
        for key, value in values.get(names[parameter], {}).items():
            states[key] = _like(states.get(key), value)


def named_settings(optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str]) -> list[Settings]:
    """The optimizer's groups: learning rate, decay and the rest, and the names of the parameters."""
    return [
        Settings(
            settings=_saved((key, value) for key, value in group.items() if key != "params"),
            parameters=tuple(names[parameter] for parameter in group["params"]),
        )
        for group in optimizer.param_groups
    ]


def apply_settings(optimizer: torch.optim.Optimizer, saved: Sequence[Settings], names: Mapping[Tensor, str]) -> None:
    """Give every group the settings that its parameters were saved with."""
    of_name = {name: group.settings for group in saved for name in group.parameters}
    for group in optimizer.param_groups:
        settings = next((of_name[names[p]] for p in group["params"] if names[p] in of_name), {})
        for key, value in settings.items():
            if isinstance(current := group.get(key), Tensor) and isinstance(value, int | float):
                current.fill_(value)
            else:
                group[key] = _like(current, value)


def create_states(optimizer: torch.optim.Optimizer) -> None:
    """Let the optimizer make the states it makes on its first step, so that there is something to load into.

    A step with gradients of zero at learning rate 0; parameters are put back, should the optimizer have moved them all the same.
    """
    if optimizer.state:
        return
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    gradients = [p.grad for p in parameters]
    before = [p.detach().clone() for p in parameters]
    rates = [group.get("lr") for group in optimizer.param_groups]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        if rate is not None:
            group["lr"] = torch.zeros_like(rate) if isinstance(rate, Tensor) else 0.0
    optimizer.step()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        if rate is not None:
            group["lr"] = rate
    with torch.no_grad():
        for parameter, gradient, value in zip(parameters, gradients, before, strict=True):
            parameter.grad = gradient
            parameter.copy_(value)


def _plain(value: object) -> Plain | Unsaved:
    """``value`` as a number, a word or a tuple of such; Unsaved for anything else."""
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, tuple | list):
        items = tuple(_plain(item) for item in value)
        return Unsaved() if any(isinstance(item, Unsaved) for item in items) else cast(Plain, items)
    return value if value is None or isinstance(value, bool | int | float | str) else Unsaved()


class Unsaved:
    """Stands for a setting that has no form in JSON, such as a function."""


def _saved(values: Iterable[tuple[str, object]]) -> dict[str, Plain]:
    pairs = ((key, _plain(value)) for key, value in values)
    return {key: value for key, value in pairs if not isinstance(value, Unsaved)}


def _like(current: object, value: Plain) -> object:
    """JSON has lists where optimizers have tuples."""
    return tuple(value) if isinstance(current, tuple) and isinstance(value, list) else value
