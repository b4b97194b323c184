"""Which strategies are considered at all: hard rules, preferences, and memory.

``RULES`` are what the framework enforces: a strategy that breaks one does not run. ``PREFERENCES`` keep the search away from
strategies that run but that nobody would want; each gives way where the user fixes what it is about, and those marked so are
lifted when nothing else fits. Memory comes last, since it takes an evaluation.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autopar.costmodel.columns import RECOMPUTES, Bools, StrategyColumns
from autopar.costmodel.inputs import Inputs, attention_is_fused
from autopar.costmodel.problem import Problem
from autopar.costmodel.rank_orders import brings_closer
from autopar.costmodel.spec.errors import Fault
from autopar.costmodel.spec.strategy import Recompute, Strategy
from autopar.costmodel.spec.units import format_bytes

from .rule import Mask, Rule
from .rules_layout import LAYOUT_RULES
from .rules_pipeline import PIPELINE_RULES

MEMORY = "memory"
"""Peak memory above the device's: counted like a rule."""
CONSTRAINTS = "constraints"
"""Sizes that follow from others (the data-parallel one) against what the user asked for."""
RECOMPUTE_AS_NEEDED = "recompute_no_more_than_needed"
"""A strategy that fits with fewer layers recomputed is faster: recomputing more only adds work."""
LONG_SEQUENCE = 8192
"""Tokens from which context parallelism is considered unasked."""

_ORDER = (
    "world_size",
    "tensor_parallel",
    "pipeline_parallel",
    "context_parallel",
    "expert_parallel",
    "experts_under_pipeline",
    "heads_divide_tp",
    "kv_heads_divide_tp",
    "widths_divide_tp",
    "vocabulary_divides_tp",
    "sequence_parallel",
    "sequence_split",
    "context_split",
    "experts_need_sequence_parallel",
    "global_batch_divides",
    "layer_in_every_stage",
    "stages_divide_layers",
    "pipeline_layers",
    "schedule_supported",
    "virtual_stages",
    "schedule_ranks",
    "experts_divide_ep",
    "expert_tensor_parallel",
    "expert_grid",
    "micro_batch_divides",
    "schedule_microbatches",
    "low_precision_alignment",
    "zero_stage",
    "shard_group",
    "rank_order",
    "rank_order_experts",
    "recomputed_layers",
    "recomputed_modules",
    "recomputed_stages",
)

RULES: tuple[Rule, ...] = tuple(sorted((*LAYOUT_RULES, *PIPELINE_RULES), key=lambda rule: _ORDER.index(rule.name)))
"""Every hard rule, in the order in which the first to refuse a strategy gets the count."""


def faults(problem: Problem, strategy: Strategy) -> tuple[Fault, ...]:
    """Everything that keeps the framework from running ``strategy``; empty where it runs (if its memory suffices)."""
    found = (rule.fault(problem, strategy) for rule in RULES)
    return tuple(fault for fault in found if fault is not None)


def accepted(problem: Problem, columns: StrategyColumns) -> Bools:
    """Which rows the framework runs (if their memory suffices): those that :func:`faults` finds nothing wrong with."""
    return np.logical_and.reduce([rule.mask(problem, columns) for rule in RULES]) if len(columns) else np.ones(0, dtype=np.bool_)


def runnable(problem: Problem, strategies: Sequence[Strategy]) -> list[Strategy]:
    """Those of ``strategies`` that the framework runs (if their memory suffices), in their order."""
    return list(itertools.compress(strategies, accepted(problem, StrategyColumns.of(strategies))))


def summaries() -> dict[str, str]:
    """Every name that a search counts refused strategies under, and what it asks for, in one line."""
    others = {
        MEMORY: "The peak memory of the fullest GPU is within the device's.",
        CONSTRAINTS: "Sizes that follow from others are as they were asked for.",
        RECOMPUTE_AS_NEEDED: "No more is recomputed than it takes to fit: recomputing more only adds work.",
    }
    preferences = {each.name: (each.mask.__doc__ or "").strip().split("\n")[0] for each in PREFERENCES}
    return {rule.name: rule.summary for rule in RULES} | preferences | others


def memory_fault(peak_memory_bytes: float, memory_capacity_bytes: float) -> Fault | None:
    """The memory rule for one strategy: its peak on the fullest rank, framework reserve included, within the device's memory."""
    if peak_memory_bytes <= memory_capacity_bytes:
        return None
    over = format_bytes(peak_memory_bytes - memory_capacity_bytes)
    return Fault(
        field="peak_memory",
        given=format_bytes(peak_memory_bytes),
        required=f"the device has {format_bytes(memory_capacity_bytes)}, {over} less",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """A rule of taste. It gives way where the user fixes (or sets a minimum of) ``yields_to``."""

    name: str
    reads: frozenset[str]
    mask: Mask
    yields_to: str
    liftable: bool
    """Whether the search tries again without it when nothing fits: it can bring memory."""


def _inside_domain(problem: Problem, columns: StrategyColumns) -> Bools:
    """Tensor parallelism stays inside the fast domain: its reductions are on the critical path of every layer."""
    return columns.tensor_parallel_size <= problem.cluster.fast_domain_size


def _long_sequence(problem: Problem, columns: StrategyColumns) -> Bools:
    """Context parallelism is for long sequences."""
    return np.asarray((columns.context_parallel_size == 1) | (problem.training.sequence_length >= LONG_SEQUENCE))


def _expert_tensor_choice(_: Problem, columns: StrategyColumns) -> Bools:
    """Experts are whole, or cut as the dense layers are."""
    size = columns.expert_tensor_parallel_size
    return np.asarray((size == 1) | (size == columns.tensor_parallel_size))


def _sharding_has_ranks(problem: Problem, columns: StrategyColumns) -> Bools:
    """Without a second rank to shard over, all ZeRO stages are the same: the lowest stands for them."""
    stage_ranks = columns.context_parallel_size * columns.data_parallel_size
    expert_ranks = stage_ranks * columns.tensor_parallel_size // (columns.expert_parallel_size * columns.expert_tensor_parallel_size)
    several = (stage_ranks > 1) | ((expert_ranks > 1) & (problem.model.moe is not None))
    alone, piped = problem.framework.zero_stages, problem.framework.zero_stages_with_pipeline
    lowest = np.where(columns.pipeline_parallel_size > 1, min(piped, default=0), min(alone, default=0))
    return np.asarray(several | (columns.zero_stage == lowest))


def _order_brings_closer(problem: Problem, columns: StrategyColumns) -> Bools:
    """Another order of ranks than the framework's own brings some group or some neighbours closer together on the links."""
    usual = problem.framework.rank_orders[0]
    is_default = columns.is_order(usual)
    if is_default.all():
        return is_default
    return is_default | brings_closer(Inputs.of(problem), columns, usual)


def _selective_saves(problem: Problem, columns: StrategyColumns) -> Bools:
    """Selective recomputation drops the attention scores, which fused attention never keeps."""
    return np.asarray((columns.recompute != RECOMPUTES.index(Recompute.SELECTIVE)) | (not attention_is_fused(problem)))


PREFERENCES: tuple[Preference, ...] = tuple(
    Preference(name=name, reads=frozenset(reads.split()), mask=mask, yields_to=yields_to, liftable=liftable)
    for name, reads, mask, yields_to, liftable in (
        ("tensor_parallel_inside_domain", "tensor_parallel_size", _inside_domain, "tensor_parallel_size", True),
        ("context_parallel_for_long_sequences", "context_parallel_size", _long_sequence, "context_parallel_size", True),
        (
            "experts_whole_or_cut_as_tp",
            "tensor_parallel_size expert_tensor_parallel_size",
            _expert_tensor_choice,
            "expert_tensor_parallel_size",
            False,
        ),
        (
            "zero_stage_with_ranks_to_shard",
            "tensor_parallel_size pipeline_parallel_size context_parallel_size data_parallel_size expert_parallel_size"
            " expert_tensor_parallel_size zero_stage",
            _sharding_has_ranks,
            "zero_stage",
            False,
        ),
        (
            "rank_order_brings_closer",
            "tensor_parallel_size pipeline_parallel_size context_parallel_size data_parallel_size expert_parallel_size"
            " expert_tensor_parallel_size pipeline_schedule shard_group_size rank_order",
            _order_brings_closer,
            "rank_order",
            False,
        ),
        ("selective_recompute_saves_memory", "recompute", _selective_saves, "recompute", False),
    )
)
