"""Dropout whose masks do not depend on the layout.

Within :meth:`LayoutFreeDropout.forward`, the model's calls of dropout and of attention with dropout are replaced by ones whose
mask is a hash of (seed, step, the place of the call in the model, the sample's number in the global batch, the element's place
in the whole tensor). No state is kept: recomputation, other micro-batches and other shards find the same mask.
"""

from __future__ import annotations

import types
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from autopar.costmodel.spec.errors import Fault, InvalidInputError
from autopar.runtime.tensor.region import WHOLE, Region, current_region, set_region

from .keys import key
from .mask import Samples, dropped
from .names import clean_name


@dataclass(slots=True)
class _Frame:
    """A module whose forward runs: where it is in the model, and how often it used each child or operator so far."""

    path: int
    used: Counter[str] = field(default_factory=Counter)

    def next(self, name: str) -> int:
        """The key of this frame's next use of ``name``."""
        self.used[name] += 1
        return key(self.path, name, self.used[name])

    def copy(self) -> _Frame:
        return _Frame(self.path, Counter(self.used))


@dataclass(slots=True)
class _Pass:
    """The forward pass of one micro-batch: its samples, and the modules it is in, innermost last."""

    samples: Samples
    frames: list[_Frame]

    def copy(self) -> _Pass:
        return _Pass(self.samples, [frame.copy() for frame in self.frames])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Use:
    """One use of dropout in one pass."""

    stream: int
    samples: Samples
    region: Region

    def of(self, tensor: Tensor, p: float, *, inplace: bool = False) -> Tensor:
        drop = dropped(tensor.shape, p, stream=self.stream, samples=self.samples, region=self.region, device=tensor.device)
        scaled = tensor.mul_(1 / (1 - p)) if inplace else tensor * (1 / (1 - p))
        return scaled.masked_fill_(drop, 0) if inplace else scaled.masked_fill(drop, 0)


class LayoutFreeDropout:
    """The dropout of a model's parts on this rank.

    A model that used no dropout in its first step costs nothing from then on.
    """

    def __init__(self, parts: Sequence[nn.Module], *, seed: int) -> None:
        """``parts``: the stages of the model on this rank, whose modules keep the names of the whole model."""
        self.seed = seed
        self._parts = tuple(parts)  # kept, so that no other module gets the id of one of theirs
        self._names: dict[int, str] = {}
        for part in parts:
            inner = {clean_name(name): module for name, module in part.named_modules()}  # of a wrapper and what it wraps, the latter
            self._names |= {id(module): name for name, module in inner.items()}
        self._pass: _Pass | None = None
        self._first_step: int | None = None
        self._used = False
        self._mode = _Replace(self)

    def forward(self, *, step: int, first_sample: int, num_samples: int, sequence_length: int) -> AbstractContextManager[None]:
        """Around the forward pass of a training micro-batch through one stage.

        Args:
            step: number of the optimizer step.
            first_sample: place of the micro-batch's first row in the global batch of the step.
            num_samples: rows of the micro-batch.
            sequence_length: tokens of a row, before any sharding.
        """
        if self._first_step is None:
            self._first_step = step
        if not self._used and step != self._first_step:
            return nullcontext()
        samples = Samples(first=first_sample, count=num_samples, sequence_length=sequence_length)
        return self._running(_Pass(samples, [_Frame(key(self.seed, "dropout", step))]), WHOLE)

    def recompute_contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """``context_fn`` of :func:`torch.utils.checkpoint.checkpoint`: the recomputation starts where the forward pass is now."""
        if self._pass is None:
            return nullcontext(), nullcontext()
        return nullcontext(), self._running(self._pass.copy(), current_region())

    @contextmanager
    def _running(self, at: _Pass, region: Region) -> Iterator[None]:
        outer, outer_region = self._pass, current_region()
        self._pass = at
        set_region(region)
        hooks = [] if outer else [register_module_forward_pre_hook(self._enter), register_module_forward_hook(self._leave)]
        try:
            with self._mode:  # of this thread: a backward pass, and recomputation in it, may run in another than the forward
                yield
        finally:
            for hook in hooks:
                hook.remove()
            self._pass = outer
            set_region(outer_region)

    def _enter(self, module: nn.Module, args: Any) -> None:  # noqa: ARG002
        if (name := self._names.get(id(module))) is not None and self._pass is not None:
            self._pass.frames.append(_Frame(self._pass.frames[-1].next(name)))

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:  # noqa: ARG002
        if id(module) in self._names and self._pass is not None:
            self._pass.frames.pop()

    def dropout(self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:  # noqa: A002
        """:func:`torch.nn.functional.dropout`."""
        if not training or not 0 < p < 1 or self._pass is None:
            return F.dropout(input, p, training, inplace)
        return self._next_use("dropout()").of(input, p, inplace=inplace)

    def _next_use(self, name: str) -> _Use:
        assert self._pass is not None
        self._used = True
        return _Use(stream=self._pass.frames[-1].next(name), samples=self._pass.samples, region=current_region())

    def attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """:func:`torch.nn.functional.scaled_dot_product_attention`.

        With dropout, weights (…, heads, L, S) are computed, and computed again in the backward rather than kept, as in fused kernels.
        """
        if not dropout_p or self._pass is None:
            return F.scaled_dot_product_attention(
                query, key, value, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
            )
        use = self._next_use("attention()")

        def mixed(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None) -> Tensor:
            if enable_gqa:
                key, value = (x.repeat_interleave(query.size(-3) // x.size(-3), dim=-3) for x in (key, value))
            return use.of(_weights(query, key, attn_mask, is_causal, scale), dropout_p) @ value

        kept: Tensor = checkpoint(mixed, query, key, value, attn_mask, use_reentrant=False, preserve_rng_state=False)
        return kept


def _weights(query: Tensor, key: Tensor, attn_mask: Tensor | None, is_causal: bool, scale: float | None) -> Tensor:
    scores = query @ key.transpose(-2, -1) * (query.size(-1) ** -0.5 if scale is None else scale)
    if is_causal:
        scores = scores.masked_fill(scores.new_ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype is torch.bool else scores + attn_mask
    return torch._safe_softmax(scores, -1, dtype=torch.float32).to(query.dtype)


class _Replace(TorchFunctionMode):
    """Sends what uses dropout to a :class:`LayoutFreeDropout`."""

    def __init__(self, target: LayoutFreeDropout) -> None:
        super().__init__()
        multi_head = F.multi_head_attention_forward
        inner = {"dropout": target.dropout, "scaled_dot_product_attention": target.attention, "has_torch_function": lambda _: False}
        self._instead: dict[Any, Callable[..., Any]] = {
            F.dropout: target.dropout,
            torch.dropout: lambda input, p, train: target.dropout(input, p, train),  # noqa: A006
            F.scaled_dot_product_attention: target.attention,
            # Its own calls do not come here: the same code, with other functions behind the names that it calls.
            multi_head: types.FunctionType(
                multi_head.__code__, {**multi_head.__globals__, **inner}, multi_head.__name__, multi_head.__defaults__
            ),
            **{other: _refusal(other) for other in (F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout)},
        }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._instead.get(func, func)(*args, **(kwargs or {}))


def _refusal(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def refuse(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:  # noqa: A002
        if training and p > 0:
            name = getattr(function, "__name__", "dropout")
            required = "dropout of single elements (torch.nn.functional.dropout)"
            raise InvalidInputError(Fault(field="model", given=f"{name}(p={p})", required=required, fix="set its p to 0"))
        return function(input, p, training, inplace)

    return refuse
