"""What a search answers."""

from __future__ import annotations

from dataclasses import dataclass

from autopar.costmodel.spec.errors import Fault
from autopar.costmodel.spec.plan import SearchSummary
from autopar.costmodel.spec.strategy import PipelineSchedule, RankOrder, Recompute, Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """A strategy with its place in the ranking."""

    strategy: Strategy
    step_time_seconds: float
    peak_memory_bytes: float
    tie: bool
    """Not the best, but the cost model cannot tell it from the best."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The best strategies that fit, fastest first.

    ``nearest_misses`` are those that need least memory, where nothing fits. ``refused_by`` says what is wrong with the strategy
    that came closest to being considered, where the rules (or the constraints) left none to evaluate.
    """

    best: Strategy | None
    ranked: tuple[Ranked, ...]
    summary: SearchSummary
    nearest_misses: tuple[Ranked, ...] = ()
    refused_by: tuple[Fault, ...] = ()
    seconds: float = 0.0
    """Wall time of the search; kept out of the summary, which is part of a plan and has to be the same every time."""


def simplicity(strategy: Strategy) -> tuple[int, ...]:
    """Orders strategies of equal time: fewest ranks and stages in each axis, plainest schedule, least sharding and recomputation.

    The usual order of ranks comes before the other.
    """
    return (
        strategy.tensor_parallel_size,
        strategy.pipeline_parallel_size,
        strategy.context_parallel_size,
        strategy.expert_parallel_size,
        strategy.expert_tensor_parallel_size,
        strategy.virtual_pipeline_stages,
        list(PipelineSchedule).index(strategy.pipeline_schedule),
        strategy.zero_stage,
        list(Recompute).index(strategy.recompute),
        strategy.num_recompute_layers,
        strategy.micro_batch_size,
        int(strategy.sequence_parallel),
        list(RankOrder).index(strategy.rank_order),
        len(strategy.pipeline_layers),
        *strategy.pipeline_layers,
        len(strategy.stage_recompute_layers),
        *strategy.stage_recompute_layers,
        len(strategy.recompute_modules),
    )
