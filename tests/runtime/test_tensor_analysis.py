"""Which layers of an unknown block are proven safe to split, and that those that are not stay whole."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from autopar.runtime.tensor.analysis import Pair, proven_pairs


class _Feed(nn.Module):
    """Layers a and b from the input, c to the output; ``combine`` says how c's input is made of theirs."""

    def __init__(self, combine: Callable[[nn.Module, Tensor, Tensor], Tensor], **extra: nn.Module) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(16, 8)
        for name, module in extra.items():
            self.add_module(name, module)
        self.combine = combine

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.c(self.combine(self, self.a(x), self.b(x)))
        return output


def _double(module: nn.Module, a: Tensor, b: Tensor) -> Tensor:
    return torch.mul(module.act(a), b) * 2 + F.dropout(F.gelu(a), p=0.1, training=module.training)


SAFE: dict[str, tuple[nn.Module, tuple[str, ...]]] = {
    "gated": (_Feed(lambda _, a, b: F.silu(a) * b), ("a", "b")),
    "sum": (_Feed(lambda _, a, b: a.relu() + 0.5 * b), ("a", "b")),
    "deep": (_Feed(_double, act=nn.Sigmoid()), ("a", "b")),
}


@pytest.mark.parametrize("name", SAFE)
def test_elementwise_paths_are_proven(name: str) -> None:
    module, columns = SAFE[name]
    (pair,) = proven_pairs(module).pairs
    assert (set(pair.columns), pair.row, pair.features) == (set(columns), "c", 16)


def _leaks(module: nn.Module, a: Tensor, b: Tensor) -> Tensor:
    module.kept = a
    return a * b


UNSAFE: dict[str, nn.Module] = {
    "softmax": _Feed(lambda _, a, b: a.softmax(-1) * b),
    "norm": _Feed(lambda module, a, b: module.norm(a) * b, norm=nn.LayerNorm(16)),
    "sum over features": _Feed(lambda _, a, b: a * b.sum(-1, keepdim=True)),
    "view": _Feed(lambda _, a, b: a.view(-1, 16) + b),
    "flip": _Feed(lambda _, a, b: a.flip(-1) * b),
    "weights of its own": _Feed(lambda module, a, b: module.prelu(a) * b, prelu=nn.PReLU(16)),
    "another input": _Feed(lambda module, a, b: a * b + module.d(torch.ones(16)), d=nn.Identity()),
}


@pytest.mark.parametrize("name", UNSAFE)
def test_other_paths_stay_whole(name: str) -> None:
    proof = proven_pairs(UNSAFE[name])
    assert proof.pairs == ()
    assert proof.reason


class _Wide(nn.Module):
    """c's input is also the block's output."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.c = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.a(x).relu()
        output: Tensor = hidden + self.c(hidden)
        return output


class _Twice(_Wide):
    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.c(self.a(self.a(x)))
        return output


class _Reads(_Wide):
    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.c(self.a(x)) + F.linear(x, self.a.weight)
        return output


class _Modes(_Wide):
    """Splits only what both modes allow."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.a(x)
        output: Tensor = self.c(hidden if self.training else hidden.softmax(-1))
        return output


class _Tied(_Wide):
    def __init__(self) -> None:
        super().__init__()
        self.c.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.c(self.a(x))
        return output


@pytest.mark.parametrize("kind", [_Wide, _Twice, _Reads, _Modes, _Tied])
def test_layers_whose_outputs_or_weights_are_used_elsewhere_stay_whole(kind: type[nn.Module]) -> None:
    module = kind()
    assert proven_pairs(module).pairs == ()
    assert module.training


class _Block(nn.Module):
    """A feed-forward beside a part that no graph shows."""

    def __init__(self) -> None:
        super().__init__()
        self.branching, self.feed = _Branching(), _Feed(lambda _, a, b: a.relu() * b)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = x + self.feed(x + self.branching(x))
        return output


class _Branching(_Wide):
    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.c(self.a(x)) if x.sum() > 0 else x
        return output


def test_parts_that_cannot_be_traced_stay_whole_and_are_named() -> None:
    assert proven_pairs(_Block()).pairs == (Pair(columns=("feed.a", "feed.b"), row="feed.c", features=16),)
    with_nothing_else = nn.Sequential(_Branching(), nn.LayerNorm(8))
    assert "not traced: _Branching" in proven_pairs(with_nothing_else).reason
    assert "cannot be traced" in proven_pairs(_Branching()).reason


def test_no_weights_are_read() -> None:
    with torch.device("meta"):
        assert proven_pairs(_Block()).pairs


def _decorated(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(forward)
    def wrapper(*args: Any, **kwargs: Any) -> Tensor:
        return forward(*args, **kwargs)

    return wrapper


class _Decorated(_Wide):
    """As Hugging Face's blocks: a decorated forward with options that it passes on."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = _Options()

    @_decorated
    def forward(self, x: Tensor, mask: Tensor | None = None, **options: Any) -> Tensor:
        output: Tensor = self.c(self.a(x).relu()) + self.inner(x, mask=mask, **options)
        return output


class _Options(nn.Module):
    def forward(self, x: Tensor, **options: Any) -> Tensor:
        del options
        return x


def test_a_decorated_forward_is_traced_inside_its_decorators() -> None:
    module = _Decorated()
    (pair,) = proven_pairs(module).pairs
    assert (pair.columns, pair.row) == (("a",), "c")
    assert type(module) is _Decorated
