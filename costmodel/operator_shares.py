"""How much longer (or shorter) a layer's memory-bound operators take than their bytes say, where they were measured.

The traffic of :mod:`operators` is a sum over operators; its time is scaled by the mean of their measured shares, weighted by
their bytes. A framework that fuses operators keeps its saving: only the ratio measured / eager formula enters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .columns import Floats
from .compute import operator_share
from .inputs import Inputs
from .operators import SOFTMAX_BACKWARD_PASSES, SOFTMAX_PASSES, activation_passes, score_elements
from .sharding import Shard


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One memory-bound operator of a layer: its tensor, and the values it moves in each direction."""

    names: tuple[str, ...]
    """Forward, then backward."""
    rows: Floats
    columns: Floats
    values: tuple[Floats | float, Floats | float]


def layer_shares(inputs: Inputs, shard: Shard, *, moe: bool) -> tuple[Floats, Floats]:
    """Measured over formula of a layer's memory-bound operators, forward and backward; 1 without measurements."""
    if inputs.wide_device.curves is None:
        return np.ones_like(shard.tokens), np.ones_like(shard.tokens)
    found = _attention_operators(inputs, shard) + _feed_forward_operators(inputs, shard, moe=moe)
    return _mean_share(inputs, found, 0), _mean_share(inputs, found, 1)


def score_share(inputs: Inputs, shard: Shard) -> Floats:
    """The same of the softmax over attention's scores."""
    return operator_share(inputs.wide_device, "softmax", score_elements(inputs, shard) / shard.sequence, shard.sequence)


def loss_shares(inputs: Inputs, shard: Shard) -> tuple[Floats, Floats]:
    """The same of the loss, forward and backward."""
    columns = shard.vocab / shard.tp
    forward = operator_share(inputs.wide_device, "cross_entropy", shard.tokens, columns)
    return forward, operator_share(inputs.wide_device, "cross_entropy_backward", shard.tokens, columns)


def _mean_share(inputs: Inputs, found: Sequence[Operator], direction: int) -> Floats:
    total: Floats = np.asarray(0.0)
    weighted: Floats = np.asarray(0.0)
    for each in found:
        moved = each.rows * each.columns * each.values[direction]
        if not np.any(moved > 0):
            continue
        share = operator_share(inputs.wide_device, each.names[direction], np.maximum(each.rows, 1), np.maximum(each.columns, 1))
        total, weighted = total + moved, weighted + moved * share
    return np.where(total > 0, weighted / np.maximum(total, 1e-300), 1.0)


def _attention_operators(inputs: Inputs, shard: Shard) -> tuple[Operator, ...]:
    model, framework = inputs.model, inputs.framework
    rotated = (shard.local_heads + shard.local_kv_heads) * model.qk_head_dim * model.rotary
    passes = 2 * framework.rotary_passes
    unfused = 1 - framework.fused_attention
    scores = score_elements(inputs, shard) / shard.sequence * unfused
    return (
        *_norm_and_residual(inputs, shard),
        Operator(names=("add", "add"), rows=shard.tokens, columns=rotated, values=(passes, passes)),
        Operator(names=("softmax", "softmax"), rows=scores, columns=shard.sequence, values=(SOFTMAX_PASSES, SOFTMAX_BACKWARD_PASSES)),
    )


def _feed_forward_operators(inputs: Inputs, shard: Shard, *, moe: bool) -> tuple[Operator, ...]:
    model, passes = inputs.model, activation_passes(inputs)
    rows = shard.expert_rows if moe else shard.tokens
    width = model.moe_ffn / shard.etp if moe else model.ffn / shard.tp
    gated = model.gated
    return (
        *_norm_and_residual(inputs, shard),
        Operator(names=("silu_mul", "silu_mul_backward"), rows=rows, columns=width * gated, values=(3 * passes, 5 * passes)),
        Operator(names=("gelu", "gelu_backward"), rows=rows, columns=width * (1 - gated), values=(2.0, 3.0)),
    )


def _norm_and_residual(inputs: Inputs, shard: Shard) -> tuple[Operator, ...]:
    """Norm (2 values forward, 3 backward) and residual add (3 and 2) of one of a layer's two blocks."""
    model, norms = inputs.model, inputs.model.norms_per_layer / 2
    layer_norm = model.norm_statistics > 1
    rows, columns = shard.norm_tokens, model.hidden
    return (
        Operator(names=("layernorm", "layernorm_backward"), rows=rows, columns=columns * layer_norm, values=(2 * norms, 3 * norms)),
        Operator(names=("rmsnorm", "rmsnorm_backward"), rows=rows, columns=columns * ~layer_norm, values=(2 * norms, 3 * norms)),
        Operator(names=("add", "add"), rows=rows, columns=columns, values=(3.0, 2.0)),
    )
