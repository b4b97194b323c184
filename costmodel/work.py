"""The compute of a step in GPU-seconds: what no number of GPUs gets below."""

from __future__ import annotations

import numpy as np

from .columns import Floats, StrategyColumns
from .inputs import Inputs
from .layer import PassTimes
from .layer_costs import layer_costs


def compute_gpu_seconds(inputs: Inputs, strategies: StrategyColumns) -> Floats:
    """GPU-seconds that the layers of one step compute under each strategy: a lower bound of GPUs x step time.

    Matrix products, attention and elementwise kernels of all layers, forward and backward: T(layers) for one micro-batch on the
    t x c ranks that share it, so B / b x t x c x T in all, whatever the pipeline and data-parallel sizes. The slowest rank is at least
    as busy as the mean one, and everything left out (exposed transfers, the ends, bubbles, the optimizer, what is recomputed) only
    adds. The framework's share of overhead is in.
    """
    costs, model = layer_costs(inputs, strategies), inputs.model
    moe = model.num_moe_layers
    dense = model.num_layers - moe
    one = dense * _computed(costs.dense.forward, costs.dense.backward) + moe * _computed(costs.moe.forward, costs.moe.backward)
    shard = costs.shard
    whole = one * inputs.training.global_batch_size / shard.micro_batch * shard.tp * shard.cp
    return np.asarray(whole * (1 + inputs.framework.step_overhead_fraction))


def _computed(*passes: PassTimes) -> Floats:
    return np.asarray(sum(each.matrix + each.attention + each.elementwise for each in passes))
