"""Runs a model of no known family on the meta device, to see in which order its modules are called.

The run is of a copy whose parameters and buffers are meta tensors: no weights are read, nothing is computed, and whatever
the model keeps from a forward pass is dropped with the copy.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

LENGTH = 8


def order_of_calls(model: nn.Module) -> tuple[str, ...]:
    """Names of the modules of ``model`` in the order of their calls for token ids; as far as the forward gets, () if nowhere."""
    best: tuple[str, ...] = ()
    for arguments in _arguments(model):
        calls: list[str] = []
        try:
            _run(_meta_twin(model), arguments, calls)
        except Exception:  # a model may do anything with a tensor that has no values
            best = max(best, tuple(calls), key=len)
            continue
        return tuple(calls)
    return best


def _run(model: nn.Module, arguments: dict[str, Any], calls: list[str]) -> None:
    for name, module in model.named_modules(remove_duplicate=False):
        module.register_forward_pre_hook(partial(_note, calls, name))
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        model(**arguments)


def _note(calls: list[str], name: str, *_: object) -> None:
    calls.append(name)


def _arguments(model: nn.Module) -> Iterator[dict[str, Any]]:
    """What a forward may be called with: token ids alone, or with a mask, which spares Hugging Face's models making one."""
    names = list(inspect.signature(type(model).forward).parameters)[1:]
    ids = torch.zeros(1, LENGTH, dtype=torch.long, device="meta")
    if not names:
        return
    first = "input_ids" if "input_ids" in names else names[0]
    yield {first: ids}
    if "attention_mask" in names:
        yield {first: ids, "attention_mask": torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool, device="meta")}
        yield {first: ids, "attention_mask": torch.ones(1, LENGTH, dtype=torch.bool, device="meta")}


def _meta_twin(model: nn.Module) -> nn.Module:
    tensors: dict[int, Any] = {}
    for parameter in model.parameters():
        tensors[id(parameter)] = nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=False)
    for buffer in model.buffers():
        tensors[id(buffer)] = torch.empty_like(buffer, device="meta")
    return copy.deepcopy(model, tensors)
