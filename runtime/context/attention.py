"""Attention of this rank's tokens over the keys and values of all context-parallel ranks.

Keys and values are gathered over the group, and their gradients scattered back (the all-gather kind). Legend: B batch, N heads, K
key and value heads, L tokens of this rank (2 parts of P), S tokens of the sequence, D head_dim.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.attention.bias import causal_lower_right
from torch.overrides import TorchFunctionMode

from autopar.costmodel.spec.errors import Fault, InvalidInputError
from autopar.runtime.families.family import Family
from autopar.runtime.tensor.blocks import matching_regions, present_blocks
from autopar.runtime.tensor.collectives import gather_shards
from autopar.runtime.tensor.local import replace_forward

from .split import ContextGroup

SEQUENCE_DIM = 2


def context_parallelize(model: nn.Module, family: Family, context: ContextGroup) -> None:
    """Make the attention of every block of ``model`` see all tokens of the group, in place."""
    masks = Masks()
    for _, block in present_blocks(model, family):
        for region, module in matching_regions(block, family):
            if region.what == "heads":
                forward = module.forward
                replace_forward(module, partial(_over_all_tokens, forward, context, masks))


def _over_all_tokens(forward: Any, context: ContextGroup, masks: Masks, *args: Any, **kwargs: Any) -> Any:
    with _Gathered(context, masks):  # here, so that a recomputation comes by it too
        return forward(*args, **kwargs)


class Masks:
    """The causal masks of one model's attention: (P, seen).

    On GPUs torch's own description of one, which its flash kernels take without a tensor. Elsewhere a tensor that is added to scores,
    which all layers and micro-batches share, in the type of the queries: a kernel would make its own copy of a bool one each time, and
    keep it for its backward, P times as large as a layer's keys.
    """

    def __init__(self) -> None:
        self._made: dict[tuple[int, int, torch.dtype, torch.device], Tensor] = {}

    def causal(self, like: Tensor, seen: int) -> Tensor:
        """For the last of ``seen`` tokens as queries ``like`` (B, N, P, D)."""
        length = like.shape[SEQUENCE_DIM]
        if has_flash_kernel(like):
            return causal_lower_right(length, seen)
        key = (length, seen, like.dtype, like.device)
        if key not in self._made:
            shorter = [made for made in self._made if made[0] != length]
            for made in shorter:  # of batches of another length, which may not come again
                del self._made[made]
            hidden = torch.ones(length, seen, dtype=torch.bool, device=like.device).triu(seen - length + 1)
            self._made[key] = torch.zeros(length, seen, dtype=like.dtype, device=like.device).masked_fill_(hidden, -torch.inf)
        return self._made[key]


def has_flash_kernel(queries: Tensor) -> bool:
    return queries.is_cuda and queries.dtype in (torch.bfloat16, torch.float16)


class _Gathered(TorchFunctionMode):
    """Sends a module's causal attention over its own tokens to :func:`causal_attention`."""

    def __init__(self, context: ContextGroup, masks: Masks) -> None:
        super().__init__()
        self._context, self._masks = context, masks

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention:
            return causal_attention(self._context, self._masks, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def causal_attention(
    context: ContextGroup,
    masks: Masks,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """:func:`torch.nn.functional.scaled_dot_product_attention` of queries (B, N, L, D) over keys and values (B, K, L, D) of all ranks.

    Raises:
        InvalidInputError: the attention is not plainly causal.
    """
    if attn_mask is not None or not is_causal or dropout_p:
        given = "a mask" if attn_mask is not None else "dropout" if dropout_p else "attention that is not causal"
        required = "this runtime splits sequences of plain causal attention alone"
        raise InvalidInputError(Fault(field="context_parallel_size", given=given, required=required, fix="use context_parallel_size=1"))
    order = context.gathered_order()
    keys, values = (_in_order(gather_shards(x, SEQUENCE_DIM, context.group), order) for x in (key, value))
    outputs = []
    for part, own in zip(context.parts, query.chunk(2, SEQUENCE_DIM), strict=True):
        seen = (part + 1) * own.shape[SEQUENCE_DIM]
        mask = masks.causal(own, seen)
        seen_keys, seen_values = (x.narrow(SEQUENCE_DIM, 0, seen) for x in (keys, values))
        outputs.append(F.scaled_dot_product_attention(own, seen_keys, seen_values, attn_mask=mask, scale=scale, enable_gqa=enable_gqa))
    return torch.cat(outputs, SEQUENCE_DIM)


def _in_order(gathered: Tensor, order: list[int]) -> Tensor:
    parts = gathered.chunk(len(order), SEQUENCE_DIM)
    return torch.cat([parts[place] for place in order], SEQUENCE_DIM)
