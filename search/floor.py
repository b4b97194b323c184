"""How few GPU-seconds a step can take, whatever their number: where a search over numbers of GPUs may start."""

from __future__ import annotations

import itertools
import math

import numpy as np

from autopar.costmodel.columns import CONTEXT_KINDS, StrategyColumns
from autopar.costmodel.inputs import Inputs
from autopar.costmodel.problem import Problem
from autopar.costmodel.spec.strategy import ContextParallelKind, Strategy
from autopar.costmodel.work import compute_gpu_seconds

from .constraints import Constraints
from .rule import divisors
from .rules_pipeline import most_stages
from .space import MAX_CONTEXT_PARALLEL, micro_batches

SAFETY = 0.97
"""Of the least found: context sizes between those looked at may round to slightly better kernels."""
EVERY_CONTEXT = 16
"""Context sizes up to this are looked at one by one, above it powers of two."""


def least_gpu_seconds(problem: Problem, constraints: Constraints) -> float:
    """A lower bound of GPUs x step time over all numbers of GPUs: the compute of the layout whose kernels are fastest."""
    inputs, rows = Inputs.of(problem), _layouts(problem, constraints)
    return SAFETY * float(np.min(compute_gpu_seconds(inputs, rows)))


def can_divide(problem: Problem, num_gpus: int) -> bool:
    """Whether ``num_gpus`` is a product of sizes that the rules of division accept at all; most other numbers hold no strategy.

    Tensor sizes divide the heads, context sizes the sequence, data-parallel sizes the batch, and stages are as many as there are layers
    and ends. A number divides heads x sequence x batch x stages just where what it does not share with the first three is no more.
    """
    model, training = problem.model, problem.training
    shared = math.gcd(num_gpus, model.num_attention_heads * training.sequence_length * training.global_batch_size)
    return num_gpus // shared <= most_stages(problem)


def _layouts(problem: Problem, constraints: Constraints) -> StrategyColumns:
    """Every combination that the kernels of a layer depend on; the sizes that rules refuse only loosen the bound."""
    model, training = problem.model, problem.training
    tensor = constraints.choose("tensor_parallel_size", divisors(model.num_attention_heads))
    contexts = {*range(1, EVERY_CONTEXT + 1), *(2**power for power in range(5, 9))}
    longest = min(MAX_CONTEXT_PARALLEL, training.sequence_length)
    context = constraints.choose("context_parallel_size", sorted(size for size in contexts if size <= longest))
    expert = constraints.choose("expert_parallel_size", divisors(model.moe.num_experts) if model.moe else (1,))
    micro = micro_batches(problem, constraints)
    usual = next(iter(problem.framework.context_parallel_kinds), ContextParallelKind.RING)
    kind = CONTEXT_KINDS.index(ContextParallelKind(str(constraints.fixed.get("context_parallel_kind", usual))))
    cut = (False, True) if model.moe else (False,)
    grid = np.array(list(itertools.product(tensor, (0, 1), context, expert, cut, micro)), dtype=np.int64)
    tp, sp, cp, ep, experts_cut, mbs = grid.T
    base = StrategyColumns.of([Strategy()]).take(np.zeros(len(grid), dtype=np.int64))
    return base.with_columns(
        tensor_parallel_size=tp,
        sequence_parallel=(sp > 0) & (tp > 1),
        context_parallel_size=cp,
        context_parallel_kind=np.where(cp > 1, kind, CONTEXT_KINDS.index(ContextParallelKind.RING)),
        expert_parallel_size=ep,
        expert_tensor_parallel_size=np.where(experts_cut > 0, tp, 1),
        micro_batch_size=mbs,
    )
