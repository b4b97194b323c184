"""Activation recomputation: what of a pipeline rank's blocks runs its forward again in the backward.

``full``: whole blocks, of which only the input is kept. ``selective``: the attention core (scores, softmax, dropout), where it
runs as separate operations; a fused kernel keeps no scores, so that there is nothing to recompute (Korthikanti 2022).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from autopar.costmodel.spec.strategy import Recompute, Strategy

Contexts = Callable[[], tuple[AbstractContextManager[Any], AbstractContextManager[Any]]]
"""Makes what surrounds a forward, and its recomputation: dropout finds its masks again by it."""

_CONTEXTS = "_autopar_recompute_contexts"
_EAGER_ATTENTION = "eager_attention_forward"
"""The function that a Hugging Face model's attention calls where its kernel is not fused."""


def apply_recompute(stages: Mapping[int, Sequence[nn.Module]], strategy: Strategy, contexts: Contexts) -> set[nn.Module]:
    """Make the blocks of one pipeline rank recompute as ``strategy`` says, in place; those that do.

    ``full`` takes the first ``num_recompute_layers`` of them, 0 for all, or of each stage the first that ``stage_recompute_layers`` counts.

    Args:
        stages: the blocks of each of the rank's stages, by its place in the model.
    """
    blocks = [block for place in sorted(stages) for block in stages[place]]
    if strategy.recompute is Recompute.FULL:
        recomputed = blocks[: strategy.num_recompute_layers or None]
        if strategy.stage_recompute_layers:
            counts = strategy.stage_recompute_layers
            recomputed = [block for place in sorted(stages) for block in stages[place][: counts[place]]]
        for block in recomputed:
            _recompute_block(block, contexts)
        return set(recomputed)
    if strategy.recompute is Recompute.SELECTIVE:
        return {block for block in blocks if _recompute_attention(block, contexts)}
    return set()


def _recompute_block(block: nn.Module, contexts: Contexts) -> None:
    """On the instance, so that parameter names stay and hooks (FSDP's, the stage's) run once, outside."""
    forward = block.forward

    @functools.wraps(forward)
    def recomputing_forward(*args: Any, **kwargs: Any) -> Any:
        return _recomputed(forward, contexts, *args, **kwargs)

    block.forward = recomputing_forward


def _recompute_attention(block: nn.Module, contexts: Contexts) -> bool:
    """Whether ``block`` has attention of separate operations; from now on it recomputes them."""
    config = next((module.config for module in block.modules() if hasattr(module, "config")), None)
    if getattr(config, "_attn_implementation", None) != "eager":
        return False
    found = False
    for module in block.modules():
        home = sys.modules[type(module).__module__]
        attention = getattr(home, _EAGER_ATTENTION, None)
        if attention is not None:
            if not hasattr(attention, _CONTEXTS):
                setattr(home, _EAGER_ATTENTION, _recomputing_attention(attention))
            setattr(module, _CONTEXTS, contexts)
            found = True
    return found


def _recomputing_attention(attention: Callable[..., Any]) -> Callable[..., Any]:
    """``attention``, recomputed for the modules that ask for it; other models of the same family keep theirs."""

    @functools.wraps(attention)
    def maybe_recomputed(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        contexts = getattr(module, _CONTEXTS, None)
        if contexts is None:
            return attention(module, *args, **kwargs)
        return _recomputed(attention, contexts, module, *args, **kwargs)

    setattr(maybe_recomputed, _CONTEXTS, None)
    return maybe_recomputed


def _recomputed(function: Callable[..., Any], contexts: Contexts, *args: Any, **kwargs: Any) -> Any:
    # Dropout's masks come from `contexts`, so torch's generators need no keeping.
    return checkpoint(function, *args, use_reentrant=False, preserve_rng_state=False, context_fn=contexts, **kwargs)
