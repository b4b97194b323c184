"""Activation recomputation: which blocks of a pipeline rank run their forward again in the backward.

A block's forward is wrapped on the instance, so that parameter names stay and hooks (FSDP's, the stage's) run once, outside.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from autopar.costmodel.spec.strategy import Recompute, Strategy

Contexts = Callable[[], tuple[AbstractContextManager[Any], AbstractContextManager[Any]]]
"""Makes what surrounds a block's forward, and its recomputation."""


def recomputed_blocks(blocks: Sequence[nn.Module], strategy: Strategy) -> Sequence[nn.Module]:
    """The blocks of one pipeline rank, in model order, that are recomputed whole: the first ``num_recompute_layers``, 0 for all."""
    if strategy.recompute is not Recompute.FULL:
        return ()
    return blocks[: strategy.num_recompute_layers or None]


def recompute(block: nn.Module, contexts: Contexts) -> None:
    """Keep of ``block`` only its input, in place."""
    forward = block.forward

    @functools.wraps(forward)
    def recomputing_forward(*args: Any, **kwargs: Any) -> Any:
        # Dropout's masks come from `contexts`, so torch's generators need no keeping.
        return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, context_fn=contexts, **kwargs)

    block.forward = recomputing_forward
