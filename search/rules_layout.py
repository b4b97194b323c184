"""Rules of the rank grid and of tensor, sequence, context and expert parallelism.

Each is what a framework enforces or silently breaks without: Megatron-LM ``arguments.py`` and ``transformer_config.py``,
torchtitan ``parallel_dims.py`` and ``decoder.py``, DeepSpeed ``ulysses_sp.py`` and ``auto_ep_folding.py``.
"""

from __future__ import annotations

import numpy as np

from autopar.costmodel.columns import CONTEXT_KINDS, RANK_ORDERS, Bools, StrategyColumns
from autopar.costmodel.problem import Problem
from autopar.costmodel.spec.errors import Fault
from autopar.costmodel.spec.strategy import ContextParallelKind, RankOrder, Strategy
from autopar.costmodel.spec.training import ComputeType

from .rule import Rule, accepted_values, divisors, everything, nearest

_ULYSSES = CONTEXT_KINDS.index(ContextParallelKind.ULYSSES)
_ALIGNMENT = {ComputeType.FP8: 16, ComputeType.MXFP8: 32, ComputeType.FP4: 32}


# -- the grid -----------------------------------------------------------------------------------------------------------


def _world_size(problem: Problem, columns: StrategyColumns) -> Bools:
    """tensor x pipeline x context x data parallel sizes make the number of GPUs."""
    ranks = columns.tensor_parallel_size * columns.pipeline_parallel_size * columns.context_parallel_size * columns.data_parallel_size
    return np.asarray(ranks == problem.cluster.num_gpus)


def _explain_world_size(problem: Problem, strategy: Strategy) -> Fault:
    gpus, model_ranks = problem.cluster.num_gpus, strategy.world_size // strategy.data_parallel_size
    if gpus % model_ranks == 0:
        fix = f"data_parallel_size={gpus // model_ranks}"
    else:
        below = gpus // model_ranks * model_ranks
        fix = f"nearest valid number of GPUs: {f'{below} or ' if below else ''}{below + model_ranks}"
    sizes = (
        f"{strategy.tensor_parallel_size} x {strategy.pipeline_parallel_size} x {strategy.context_parallel_size}"
        f" x {strategy.data_parallel_size}"
    )
    return Fault(field="num_gpus", given=str(gpus), required=f"must be tp x pp x cp x dp = {sizes} = {strategy.world_size}", fix=fix)


# -- what the framework has ---------------------------------------------------------------------------------------------


def _has_tensor(problem: Problem, columns: StrategyColumns) -> Bools:
    """The framework splits layers over tensor-parallel ranks, or there is one."""
    return np.asarray((columns.tensor_parallel_size == 1) | problem.framework.tensor_parallel)


def _explain_has_tensor(problem: Problem, strategy: Strategy) -> Fault:
    return _absent(problem, "tensor_parallel_size", strategy.tensor_parallel_size, "tensor parallelism")


def _has_experts(problem: Problem, columns: StrategyColumns) -> Bools:
    """The framework spreads experts over ranks, or each rank has all of them."""
    return np.asarray((columns.expert_parallel_size == 1) | problem.framework.expert_parallel)


def _explain_has_experts(problem: Problem, strategy: Strategy) -> Fault:
    return _absent(problem, "expert_parallel_size", strategy.expert_parallel_size, "expert parallelism")


def _has_context(problem: Problem, columns: StrategyColumns) -> Bools:
    """The framework spreads attention over context-parallel ranks in this way, or there is one."""
    kinds = [CONTEXT_KINDS.index(kind) for kind in problem.framework.context_parallel_kinds]
    return np.asarray((columns.context_parallel_size == 1) | np.isin(columns.context_parallel_kind, kinds))


def _explain_has_context(problem: Problem, strategy: Strategy) -> Fault:
    kinds = problem.framework.context_parallel_kinds
    if not kinds:
        return _absent(problem, "context_parallel_size", strategy.context_parallel_size, "context parallelism")
    required = f"{problem.framework.name} has {', '.join(kinds)}"
    given = strategy.context_parallel_kind.value
    return Fault(field="context_parallel_kind", given=given, required=required, fix=f"context_parallel_kind={kinds[0].value}")


def _absent(problem: Problem, field: str, size: int, what: str) -> Fault:
    return Fault(field=field, given=str(size), required=f"{problem.framework.name} has no {what}", fix=nearest(size, [1]))


# -- tensor parallelism -------------------------------------------------------------------------------------------------


def _heads(problem: Problem, columns: StrategyColumns) -> Bools:
    """The attention heads divide over the tensor-parallel ranks."""
    return np.asarray(problem.model.num_attention_heads % columns.tensor_parallel_size == 0)


def _key_value_heads(problem: Problem, columns: StrategyColumns) -> Bools:
    """The key-value heads divide over the tensor-parallel ranks, or the ranks over them where the framework replicates heads.

    Where there are as many as query heads, the rule about those has said it.
    """
    groups, size = problem.model.num_key_value_heads, columns.tensor_parallel_size
    if groups == problem.model.num_attention_heads:
        return everything(columns)
    return np.asarray((groups % size == 0) | ((size % groups == 0) & problem.framework.kv_heads_may_replicate))


def _widths(problem: Problem, columns: StrategyColumns) -> Bools:
    """The feed-forward widths that exist (dense, shared experts) divide over the tensor-parallel ranks."""
    accepted = everything(columns)
    for _, width in _tensor_widths(problem):
        accepted &= width % columns.tensor_parallel_size == 0
    return accepted


def _tensor_widths(problem: Problem) -> list[tuple[str, int]]:
    model = problem.model
    widths = [("ffn_hidden_size", model.ffn_hidden_size)] if model.num_dense_layers else []
    if model.moe is not None and model.moe.shared_expert_ffn_hidden_size:
        widths.append(("shared_expert_ffn_hidden_size", model.moe.shared_expert_ffn_hidden_size))
    return widths


def _vocabulary(problem: Problem, columns: StrategyColumns) -> Bools:
    """The vocabulary divides over the tensor-parallel ranks, unless the framework pads it."""
    if problem.framework.vocab_padding_multiple:
        return everything(columns)
    return np.asarray(problem.model.vocab_size % columns.tensor_parallel_size == 0)


_TENSOR_MASKS = (_has_tensor, _heads, _key_value_heads, _widths, _vocabulary)


def _tensor_fault(problem: Problem, strategy: Strategy, required: str) -> Fault:
    size = strategy.tensor_parallel_size
    valid = accepted_values(problem, strategy, "tensor_parallel_size", divisors(problem.model.num_attention_heads), _TENSOR_MASKS)
    return Fault(field="tensor_parallel_size", given=str(size), required=required, fix=nearest(size, valid))


def _explain_heads(problem: Problem, strategy: Strategy) -> Fault:
    return _tensor_fault(problem, strategy, f"must divide num_attention_heads={problem.model.num_attention_heads}")


def _explain_key_value_heads(problem: Problem, strategy: Strategy) -> Fault:
    heads, replicates = problem.model.num_key_value_heads, problem.framework.kv_heads_may_replicate
    also = " or be a multiple of it" if replicates else f" ({problem.framework.name} does not replicate key-value heads)"
    return _tensor_fault(problem, strategy, f"must divide num_key_value_heads={heads}{also}")


def _explain_widths(problem: Problem, strategy: Strategy) -> Fault:
    uneven = [f"{name}={width}" for name, width in _tensor_widths(problem) if width % strategy.tensor_parallel_size]
    return _tensor_fault(problem, strategy, f"must divide {' and '.join(uneven)}")


def _explain_vocabulary(problem: Problem, strategy: Strategy) -> Fault:
    required = f"must divide vocab_size={problem.model.vocab_size}, which {problem.framework.name} does not pad"
    return _tensor_fault(problem, strategy, required)


# -- sequence and context parallelism -----------------------------------------------------------------------------------


def _sequence_parallel(problem: Problem, columns: StrategyColumns) -> Bools:
    """Sequence parallelism splits over the tensor-parallel ranks: there must be several, and the framework must have it."""
    return ~columns.sequence_parallel | ((columns.tensor_parallel_size > 1) & problem.framework.sequence_parallel)


def _explain_sequence_parallel(problem: Problem, strategy: Strategy) -> Fault:
    if problem.framework.sequence_parallel:
        size = strategy.tensor_parallel_size
        required = f"needs tensor_parallel_size above 1, which is {size}"
    else:
        required = f"{problem.framework.name} does not have it"
    return Fault(field="sequence_parallel", given="true", required=required, fix="sequence_parallel=false")


def _sequence_split(problem: Problem, columns: StrategyColumns) -> Bools:
    """Sequence parallelism cuts each context rank's part of the sequence into tensor_parallel_size equal pieces."""
    length, size = problem.training.sequence_length, columns.tensor_parallel_size
    return np.asarray(~columns.sequence_parallel | (length % (columns.context_parallel_size * size) == 0))


def _explain_sequence_split(problem: Problem, strategy: Strategy) -> Fault:
    ranks = strategy.tensor_parallel_size * strategy.context_parallel_size
    length = problem.training.sequence_length
    lower = length // ranks * ranks
    near = f"{lower} or {lower + ranks}" if lower else str(ranks)
    return Fault(
        field="sequence_length",
        given=str(length),
        required=f"must be a multiple of tensor_parallel_size x context_parallel_size = {ranks} for sequence parallelism",
        fix=f"sequence_parallel=false, or sequence_length={near}",
    )


def _context_split(problem: Problem, columns: StrategyColumns) -> Bools:
    """Ring and gathered attention cut the sequence into two chunks a context rank; Ulysses spreads heads, one piece a rank."""
    size, length = columns.context_parallel_size, problem.training.sequence_length
    zigzag = length % (2 * size) == 0
    queries = problem.model.num_attention_heads // columns.tensor_parallel_size
    values = np.maximum(problem.model.num_key_value_heads // columns.tensor_parallel_size, 1)
    repeated = (size % values == 0) & problem.framework.ulysses_repeats_kv_heads
    spread = (queries % size == 0) & (queries > 0) & ((values % size == 0) | repeated)
    ulysses = (length % size == 0) & spread
    return np.asarray((size == 1) | np.where(columns.context_parallel_kind == _ULYSSES, ulysses, zigzag))


def _explain_context_split(problem: Problem, strategy: Strategy) -> Fault:
    size, length = strategy.context_parallel_size, problem.training.sequence_length
    if strategy.context_parallel_kind is ContextParallelKind.ULYSSES:
        tensor, model, repeats = strategy.tensor_parallel_size, problem.model, problem.framework.ulysses_repeats_kv_heads
        required = (
            f"ulysses needs it to divide sequence_length={length}, the {model.num_attention_heads // tensor} attention heads of a"
            f" tensor-parallel rank and its {max(model.num_key_value_heads // tensor, 1)} key-value heads"
            f"{', or be a multiple of the latter' if repeats else ''}"
        )
    else:
        required = f"{strategy.context_parallel_kind.value} needs sequence_length={length} to be a multiple of twice its size"
    valid = accepted_values(problem, strategy, "context_parallel_size", divisors(length), [_has_context, _context_split])
    return Fault(field="context_parallel_size", given=str(size), required=required, fix=nearest(size, valid))


# -- experts ------------------------------------------------------------------------------------------------------------


def _expert_sequence(problem: Problem, columns: StrategyColumns) -> Bools:
    """Experts behind a tensor-parallel attention need sequence parallelism, or every rank would route the same tokens."""
    return np.asarray((columns.tensor_parallel_size == 1) | columns.sequence_parallel | (problem.model.moe is None))


def _explain_expert_sequence(problem: Problem, strategy: Strategy) -> Fault:
    has = problem.framework.sequence_parallel
    fix = "sequence_parallel=true" if has else "tensor_parallel_size=1"
    required = f"experts with tensor_parallel_size={strategy.tensor_parallel_size} need sequence parallelism"
    return Fault(field="sequence_parallel", given="false", required=required, fix=fix)


def _expert_parallel(problem: Problem, columns: StrategyColumns) -> Bools:
    """The experts divide over the expert-parallel ranks; a model without experts has none to spread."""
    if problem.model.moe is None:
        return np.asarray(columns.expert_parallel_size == 1)
    return np.asarray(problem.model.moe.num_experts % columns.expert_parallel_size == 0)


def _explain_expert_parallel(problem: Problem, strategy: Strategy) -> Fault:
    size, moe = strategy.expert_parallel_size, problem.model.moe
    if moe is None:
        required, valid = f"{problem.model.name} has no experts to spread", [1]
    else:
        valid = list(divisors(moe.num_experts)) if problem.framework.expert_parallel else [1]
        required = f"must divide num_experts={moe.num_experts}"
    return Fault(field="expert_parallel_size", given=str(size), required=required, fix=nearest(size, valid))


def _expert_tensor(problem: Problem, columns: StrategyColumns) -> Bools:
    """Experts are cut over expert-tensor ranks only where the framework does so, without biases, in equal parts."""
    size, moe = columns.expert_tensor_parallel_size, problem.model.moe
    if moe is None or moe.expert_bias or not problem.framework.expert_tensor_parallel:
        return np.asarray(size == 1)
    return np.asarray(moe.ffn_hidden_size % size == 0)


def _explain_expert_tensor(problem: Problem, strategy: Strategy) -> Fault:
    size, moe = strategy.expert_tensor_parallel_size, problem.model.moe
    valid = [1]
    if moe is None:
        required = f"{problem.model.name} has no experts to cut"
    elif not problem.framework.expert_tensor_parallel:
        required = f"{problem.framework.name} does not cut experts over tensor-parallel ranks"
    elif moe.expert_bias:
        required = "experts with biases are not cut"
    else:
        required, valid = f"must divide the experts' ffn_hidden_size={moe.ffn_hidden_size}", list(divisors(moe.ffn_hidden_size))
    return Fault(field="expert_tensor_parallel_size", given=str(size), required=required, fix=nearest(size, valid))


def _expert_grid(_: Problem, columns: StrategyColumns) -> Bools:
    """The expert grid folds over the ranks of a stage: expert x expert-tensor sizes divide tensor x context x data sizes."""
    ranks = columns.tensor_parallel_size * columns.context_parallel_size * columns.data_parallel_size
    return np.asarray(ranks % (columns.expert_parallel_size * columns.expert_tensor_parallel_size) == 0)


def _explain_expert_grid(problem: Problem, strategy: Strategy) -> Fault:
    ranks = strategy.tensor_parallel_size * strategy.context_parallel_size * strategy.data_parallel_size
    size, cut = strategy.expert_parallel_size, strategy.expert_tensor_parallel_size
    required = f"times expert_tensor_parallel_size={cut} must divide tp x cp x dp = {ranks}"
    valid = accepted_values(problem, strategy, "expert_parallel_size", divisors(ranks), [_has_experts, _expert_grid, _expert_parallel])
    return Fault(field="expert_parallel_size", given=str(size), required=required, fix=nearest(size, valid))


# -- order of ranks -----------------------------------------------------------------------------------------------------


def _rank_order(problem: Problem, columns: StrategyColumns) -> Bools:
    """The framework numbers ranks in this order."""
    return np.isin(columns.rank_order, [RANK_ORDERS.index(order) for order in problem.framework.rank_orders])


def _explain_rank_order(problem: Problem, strategy: Strategy) -> Fault:
    orders = problem.framework.rank_orders
    required = f"{problem.framework.name} numbers ranks {' or '.join(orders)}"
    return Fault(field="rank_order", given=strategy.rank_order.value, required=required, fix=f"rank_order={orders[0].value}")


def _rank_order_experts(problem: Problem, columns: StrategyColumns) -> Bools:
    """With stages between replicas, experts fold over the tensor and context ranks: etp x ep = tp x cp, or a rank would have two stages."""
    inner = columns.tensor_parallel_size * columns.context_parallel_size
    folded = columns.expert_parallel_size * columns.expert_tensor_parallel_size == inner
    free = (columns.pipeline_parallel_size == 1) | (problem.model.moe is None)
    return np.asarray(folded | free | ~columns.is_order(RankOrder.TP_CP_PP_DP))


def _explain_rank_order_experts(_: Problem, strategy: Strategy) -> Fault:
    inner = strategy.tensor_parallel_size * strategy.context_parallel_size
    experts = strategy.expert_parallel_size * strategy.expert_tensor_parallel_size
    required = f"puts experts of etp x ep = {experts} ranks and layers of tp x cp = {inner} ranks on different stages"
    fix = f"rank_order={RankOrder.TP_CP_DP_PP.value}"
    return Fault(field="rank_order", given=strategy.rank_order.value, required=required, fix=fix)


# -- low precision ------------------------------------------------------------------------------------------------------


def _alignment(problem: Problem, columns: StrategyColumns) -> Bools:
    """FP8 and FP4 products need the local widths in multiples of 16 (32 when block-scaled) and the rows in multiples of 8."""
    multiple = _ALIGNMENT.get(problem.training.precision.linear)
    accepted = everything(columns)
    if multiple is None:
        return accepted
    for _, width, axis in _local_widths(problem):
        accepted &= width % (getattr(columns, axis) * multiple) == 0
    pieces = columns.context_parallel_size * np.where(columns.sequence_parallel, columns.tensor_parallel_size, 1)
    return np.asarray(accepted & (problem.training.sequence_length * columns.micro_batch_size % (8 * pieces) == 0))


def _local_widths(problem: Problem) -> list[tuple[str, int, str]]:
    model = problem.model
    value_dim = model.latent_attention.v_head_dim if model.latent_attention else model.head_dim
    widths = [(name, width, "tensor_parallel_size") for name, width in _tensor_widths(problem)]
    widths.append(("attention width", model.num_attention_heads * value_dim, "tensor_parallel_size"))
    if model.moe is not None:
        widths.append(("experts' ffn_hidden_size", model.moe.ffn_hidden_size, "expert_tensor_parallel_size"))
    return widths


def _explain_alignment(problem: Problem, strategy: Strategy) -> Fault:
    precision = problem.training.precision
    multiple = _ALIGNMENT[precision.linear]
    local = [(name, width, getattr(strategy, axis)) for name, width, axis in _local_widths(problem)]
    uneven = [f"{name} {width} / {size}" for name, width, size in local if width % (size * multiple)]
    if uneven:
        valid = accepted_values(
            problem, strategy, "tensor_parallel_size", divisors(strategy.tensor_parallel_size), [*_TENSOR_MASKS, _alignment],
            sequence_parallel=lambda size: strategy.sequence_parallel and size > 1,
        )  # fmt: skip
        fix = f"tensor_parallel_size={max(valid)}, or bf16" if valid else "bf16"
        return Fault(field="precision", given=precision.name, required=f"needs multiples of {multiple} for {', '.join(uneven)}", fix=fix)
    rows = problem.training.sequence_length * strategy.micro_batch_size
    required = f"needs the {rows} rows of a micro-batch to split into multiples of 8 on each rank"
    return Fault(field="precision", given=precision.name, required=required, fix="a larger micro_batch_size, or bf16")


LAYOUT_RULES: tuple[Rule, ...] = tuple(
    Rule(name=name, reads=frozenset(reads.split()), mask=mask, explain=explain)
    for name, reads, mask, explain in (
        (
            "world_size",
            "tensor_parallel_size pipeline_parallel_size context_parallel_size data_parallel_size",
            _world_size,
            _explain_world_size,
        ),
        ("tensor_parallel", "tensor_parallel_size", _has_tensor, _explain_has_tensor),
        ("context_parallel", "context_parallel_size context_parallel_kind", _has_context, _explain_has_context),
        ("expert_parallel", "expert_parallel_size", _has_experts, _explain_has_experts),
        ("heads_divide_tp", "tensor_parallel_size", _heads, _explain_heads),
        ("kv_heads_divide_tp", "tensor_parallel_size", _key_value_heads, _explain_key_value_heads),
        ("widths_divide_tp", "tensor_parallel_size", _widths, _explain_widths),
        ("vocabulary_divides_tp", "tensor_parallel_size", _vocabulary, _explain_vocabulary),
        ("sequence_parallel", "sequence_parallel tensor_parallel_size", _sequence_parallel, _explain_sequence_parallel),
        ("sequence_split", "sequence_parallel tensor_parallel_size context_parallel_size", _sequence_split, _explain_sequence_split),
        ("context_split", "tensor_parallel_size context_parallel_size context_parallel_kind", _context_split, _explain_context_split),
        ("experts_need_sequence_parallel", "tensor_parallel_size sequence_parallel", _expert_sequence, _explain_expert_sequence),
        ("experts_divide_ep", "expert_parallel_size", _expert_parallel, _explain_expert_parallel),
        ("expert_tensor_parallel", "expert_tensor_parallel_size", _expert_tensor, _explain_expert_tensor),
        (
            "expert_grid",
            "tensor_parallel_size context_parallel_size data_parallel_size expert_parallel_size expert_tensor_parallel_size",
            _expert_grid,
            _explain_expert_grid,
        ),
        ("rank_order", "rank_order", _rank_order, _explain_rank_order),
        (
            "rank_order_experts",
            "tensor_parallel_size context_parallel_size pipeline_parallel_size expert_parallel_size expert_tensor_parallel_size rank_order",
            _rank_order_experts,
            _explain_rank_order_experts,
        ),
        (
            "low_precision_alignment",
            "tensor_parallel_size expert_tensor_parallel_size sequence_parallel context_parallel_size micro_batch_size",
            _alignment,
            _explain_alignment,
        ),
    )
)
