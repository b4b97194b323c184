"""What an exporter works on: a plan's strategy in one form, and the problem it answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autopar.costmodel.columns import StrategyColumns
from autopar.costmodel.inputs import Inputs
from autopar.costmodel.pipeline_shape import PipelineShape
from autopar.costmodel.problem import Problem
from autopar.costmodel.spec.errors import Fault
from autopar.costmodel.spec.schedule import stage_holders
from autopar.costmodel.spec.strategy import EMPTY_ENDS, ContextParallelKind, PipelineSchedule, RankOrder, Recompute, Strategy

from .rule import compute_capability

if TYPE_CHECKING:
    from autopar.costmodel.spec.cluster import ClusterSpec
    from autopar.costmodel.spec.model import ModelSpec
    from autopar.costmodel.spec.training import TrainingSpec
    from autopar.host_order import HostRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A strategy and its problem. ``strategy`` is in the form of :func:`canonical`; ``layers`` are those of its virtual stages."""

    problem: Problem
    strategy: Strategy
    layers: tuple[int, ...]
    kept: tuple[str, ...] = ()
    """Settings of this framework that the plan was imported with, as they stood."""
    hosts: tuple[HostRun, ...] = ()
    """Of a mixed cluster: its hosts in the order of ranks; ``problem`` is then as if all GPUs were of one kind. Empty where they are."""

    @classmethod
    def of(cls, problem: Problem, strategy: Strategy, *, kept: tuple[str, ...] = (), hosts: tuple[HostRun, ...] = ()) -> Question:
        """The question that ``strategy`` answers for ``problem``."""
        plain = canonical(problem, strategy)
        return cls(problem=problem, strategy=plain, layers=stage_layers(problem, plain), kept=kept, hosts=hosts)

    @property
    def model(self) -> ModelSpec:
        return self.problem.model

    @property
    def training(self) -> TrainingSpec:
        return self.problem.training

    @property
    def cluster(self) -> ClusterSpec:
        return self.problem.cluster

    @property
    def capability(self) -> int:
        """The least compute capability of its GPUs: all ranks of a job have the same settings; 0 where one has none or is not known."""
        clusters = [run.cluster for run in self.hosts] or [self.cluster]
        return min(compute_capability(cluster.device.architecture) for cluster in clusters)

    @property
    def num_microbatches(self) -> int:
        return self.strategy.num_microbatches(self.training.global_batch_size)

    @property
    def shard_ranks(self) -> int:
        """Ranks over which the dense states of one stage may be sharded: data x context parallel ones."""
        return self.strategy.data_parallel_size * self.strategy.context_parallel_size

    @property
    def shard_group(self) -> int:
        """Ranks that share one copy of the sharded states."""
        return self.strategy.shard_group_size or self.shard_ranks


def stage_layers(problem: Problem, strategy: Strategy) -> tuple[int, ...]:
    """Decoder layers of every virtual stage in model order, as the cost model counts them.

    An explicit split that does not make the model's layers comes back as it is, and () where there are more stages than layers
    or the schedule does not run as many: rules refuse these.
    """
    split = strategy.pipeline_layers
    if split and (sum(split) != problem.model.num_layers or len(split) != strategy.num_virtual_stages):
        return split
    if strategy.num_virtual_stages > problem.model.num_layers + EMPTY_ENDS or len(_holders(strategy)) != strategy.num_virtual_stages:
        return ()
    shape = PipelineShape.of(Inputs.of(problem), StrategyColumns.of([strategy]))
    return tuple(int(count) for count in shape.dense_layers + shape.moe_layers)


def fullest_rank(layers: tuple[int, ...], strategy: Strategy) -> int:
    """Decoder layers of the pipeline rank that holds most of them."""
    held = [0] * strategy.pipeline_parallel_size
    for count, rank in zip(layers, _holders(strategy), strict=False):
        held[rank] += count
    return max(held)


def _holders(strategy: Strategy) -> tuple[int, ...]:
    return stage_holders(strategy.pipeline_schedule, strategy.pipeline_parallel_size, strategy.virtual_pipeline_stages)


def canonical(problem: Problem, strategy: Strategy) -> Strategy:
    """``strategy`` with everything that makes no difference at its plainest value: two that train alike become equal.

    A split in equal parts is left to the framework, any other is spelled out; full recomputation of as many layers as a rank
    holds covers all of them; what a single rank cannot split or shard is off.
    """
    changes: dict[str, object] = {}
    if strategy.tensor_parallel_size == 1:
        changes["sequence_parallel"] = False
    if strategy.context_parallel_size == 1:
        changes["context_parallel_kind"] = ContextParallelKind.RING
    if problem.model.moe is None:
        changes |= {"expert_parallel_size": 1, "expert_tensor_parallel_size": 1}
    if strategy.pipeline_parallel_size == 1 or strategy.data_parallel_size == 1:
        changes["rank_order"] = RankOrder.TP_CP_DP_PP
    if strategy.pipeline_parallel_size == 1 and strategy.virtual_pipeline_stages == 1:
        changes["pipeline_schedule"] = PipelineSchedule.ONE_F_ONE_B
    layers = stage_layers(problem, strategy)
    changes["pipeline_layers"] = () if len(set(layers)) <= 1 and sum(layers) == problem.model.num_layers else layers
    covers_all = strategy.num_recompute_layers >= fullest_rank(layers, strategy) > 0
    if strategy.recompute is not Recompute.FULL or covers_all:
        changes["num_recompute_layers"] = 0
    ranks = strategy.data_parallel_size * strategy.context_parallel_size
    if strategy.zero_stage == 0 or strategy.shard_group_size in (1, ranks):
        changes["shard_group_size"] = 0
    if strategy.shard_group_size == 1 < ranks:
        changes["zero_stage"] = 0  # groups of one rank share nothing out
    whole_experts = strategy.expert_parallel_size * strategy.expert_tensor_parallel_size == strategy.tensor_parallel_size
    if ranks == 1 and (problem.model.moe is None or whole_experts):
        changes["zero_stage"] = _lowest_stage(problem, strategy)
    return replace(strategy, **changes)  # type: ignore[arg-type]


def _lowest_stage(problem: Problem, strategy: Strategy) -> int:
    """The framework's lowest ZeRO stage, which stands for all of them where no second rank is there to shard over."""
    framework = problem.framework
    stages = framework.zero_stages_with_pipeline if strategy.pipeline_parallel_size > 1 else framework.zero_stages
    return min(stages, default=0)


def one_rank_order(name: str, strategy: Strategy) -> Iterator[Fault]:
    """A fault where ``strategy`` numbers ranks otherwise than the framework ``name`` always does."""
    usual = RankOrder.TP_CP_DP_PP
    if strategy.rank_order is not usual:
        required = f"{name} always numbers ranks {usual.value}"
        yield Fault(field="rank_order", given=strategy.rank_order.value, required=required, fix=f"order={usual.value}")
