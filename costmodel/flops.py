"""Model FLOPs of a step: what MFU is counted against.

Per token forward, multiply-add as 2: twice the parameters of the matrices a token passes through (embedding lookup left out,
output matrix counted), plus attention 2 x span x heads x (qk + v dims) with the causal half counted. A
multi-token-prediction module adds a mean layer, its 2h -> h projection and the output matrix again. Backward is twice
forward. No recomputation (that is HFU). The convention of Narayanan 2021 counts the whole s x s square instead.
"""

from __future__ import annotations

import numpy as np

from .columns import Floats
from .inputs import Inputs


def forward_flops_per_token(inputs: Inputs) -> Floats:
    """FLOPs of one token through the model, forward."""
    model = inputs.model
    matrices = model.num_active_parameters - np.where(model.tied > 0, 0, model.vocab * model.hidden) - model.embedding_rows_parameters
    attention = attention_flops_per_token(inputs)
    head = model.vocab * model.hidden
    layer = (2 * (matrices - head) + attention) / model.num_layers
    predicted_more = model.mtp_layers * (layer + 2 * (2 * model.hidden**2 + head))
    return 2 * matrices + attention + predicted_more


def attention_flops_per_token(inputs: Inputs) -> Floats:
    """FLOPs of one token in the attention cores of all layers, forward, over the keys it may see on average."""
    model, s = inputs.model, inputs.training.sequence_length
    window = np.where(model.sliding_window > 0, np.minimum(model.sliding_window, s), s)
    sliding = window - 0.5 * window**2 / s
    span = (1 - model.sliding_fraction) * s / 2 + model.sliding_fraction * sliding
    return np.asarray(2 * span * model.heads * (model.qk_head_dim + model.v_head_dim) * model.num_layers)


def step_model_flops(inputs: Inputs) -> Floats:
    """Model FLOPs of a whole step: three forwards' worth over the global batch."""
    return 3 * forward_flops_per_token(inputs) * inputs.training.sequence_length * inputs.training.global_batch_size
