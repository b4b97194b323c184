"""What stands in a stage for the modules that other stages hold.

The model class's own forward runs on every stage, so that masks, positions and whatever else a model derives from its
token ids need no special case. It must therefore find something to call where a module is not: these.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import torch
from torch import nn


class Boundary:
    """What passes between the stages around the model's own forward: one micro-batch at a time."""

    __slots__ = ("last_of_stage", "received")

    def __init__(self) -> None:
        self.received: torch.Tensor | None = None
        """The hidden states that came from the stage before; None on the first stage."""
        self.last_of_stage: torch.Tensor | None = None
        """The hidden states for the stage after, once the forward got there."""

    def end(self, output: Any) -> NoReturn:
        """End the forward with ``output``: the hidden states, or a tuple that starts with them."""
        states = output[0] if isinstance(output, tuple | list) else output
        if not isinstance(states, torch.Tensor):
            raise TypeError(f"a block's hidden states are a tensor, the first of its arguments and of what it returns, not {type(states)}")
        self.last_of_stage = states
        raise EndOfStage


class EndOfStage(BaseException):
    """Ends a model's forward after the last block of a stage; caught by the stage, never seen outside.

    Not an Exception, so that a model that catches those does not swallow it.
    """


class CarriedStates(torch.Tensor):
    """Stands for hidden states on their way to the first block of a stage, which replaces them by what was received.

    Models differ in what a block returns, the states or a tuple that starts with them: ``[0]`` of this is itself.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __getitem__(self, key: Any) -> torch.Tensor:
        return self if isinstance(key, int) and key == 0 else super().__getitem__(key)


class PassedBlock:
    """A block of an earlier stage: passes on what it gets."""

    def __init__(self, boundary: Boundary) -> None:
        self._boundary = boundary

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:  # noqa: ARG002
        received = self._boundary.received
        assert received is not None
        return received.detach().as_subclass(CarriedStates)


class ArrivalBlock(PassedBlock):
    """The last block before a stage that has none of its own, but the head: hands over what was received."""

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:  # noqa: ARG002
        assert self._boundary.received is not None
        return self._boundary.received.as_subclass(CarriedStates)


class EndBlock:
    """The first block after a stage that has none, but the embedding: ends the forward with what it is given."""

    def __init__(self, boundary: Boundary) -> None:
        self._boundary = boundary

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        self._boundary.end(args[0] if args else kwargs.get("hidden_states", kwargs.get("x")))


class AbsentModule(nn.Module):
    """A module of another stage that is never reached, or passes its input on (a norm after the embedding)."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ARG002
        return args[0]


class AbsentEmbedding(nn.Module):
    """An embedding of the first stage: zeros of its output's shape, which the first block's hook replaces."""

    def __init__(self, boundary: Boundary, hidden_size: int) -> None:
        super().__init__()
        self._boundary = boundary
        self._hidden_size = hidden_size

    def forward(self, ids: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        received = self._boundary.received
        assert received is not None
        return torch.zeros((), dtype=received.dtype, device=received.device).expand(*ids.shape, self._hidden_size)


class StageBlocks:
    """Mixed into the class of the model's list of blocks: it counts and iterates over all blocks, and registers this stage's.

    The blocks keep their indices of the whole model, as keys (and so in parameter names) and in iteration.
    """

    _modules: dict[str, nn.Module]
    stand_ins: dict[int, Any]
    """What is called in place of an absent block."""
    num_blocks: int

    def __len__(self) -> int:
        return self.num_blocks

    def __iter__(self) -> Iterator[Any]:
        return (self._at(index) for index in range(self.num_blocks))

    def __getitem__(self, key: int | slice) -> Any:
        if isinstance(key, slice):
            return [self._at(index) for index in range(*key.indices(self.num_blocks))]
        return self._at(range(self.num_blocks)[key])

    def _at(self, index: int) -> Any:
        block = self._modules.get(str(index))
        return self.stand_ins[index] if block is None else block


def with_hidden_states(args: tuple[Any, ...], kwargs: dict[str, Any], states: torch.Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a block with its hidden states replaced."""
    if args:
        return (states, *args[1:]), kwargs
    name = "hidden_states" if "hidden_states" in kwargs else "x"
    return args, {**kwargs, name: states}
