"""Plans and estimates as a person reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from rich.text import Text

from autopar.costmodel.spec.estimate import Estimate, StageEstimate
from autopar.costmodel.spec.strategy import PipelineSchedule, RankOrder, Recompute, Strategy, split_text
from autopar.costmodel.spec.units import GIB, TERA, format_bytes, format_count, format_seconds

from .goodput import BEST, aims_parts
from .placement import placement_parts
from .tables import bullet_list, field_table, plain_table, share_bar, wrapped_table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from autopar.costmodel.problem import Problem
    from autopar.costmodel.spec.cluster import ClusterSpec
    from autopar.costmodel.spec.model import ModelSpec
    from autopar.costmodel.spec.plan import Plan, SearchSummary
    from autopar.costmodel.spec.training import TrainingSpec

MAX_STAGE_ROWS = 16
SHOWN_SHARE = 0.0005
"""Terms under this share of the step are left out of a table, and so is a zero."""


def plan_report(plan: Plan) -> Iterator[RenderableType]:
    """The whole of ``autopar plan``: the strategy, its time and memory, the runners-up, what was assumed and searched."""
    inputs = plan.inputs
    yield headline(inputs.model, inputs.cluster, inputs.training)
    yield strategy_table(plan.strategy, inputs.training.global_batch_size, BEST[inputs.objective])
    yield from result_parts(plan.estimate)
    yield from placement_parts(inputs.cluster, plan.placement, plan.estimate.step_time_seconds)
    yield from aims_parts(plan)
    if plan.alternatives:
        yield _alternatives(plan)
        ties = [f"{other.strategy.describe()}: {other.separated_by}" for other in plan.alternatives if other.separated_by]
        yield from lines("what would tell the ties from the best", ties)
    yield from lines("assumed", inputs.assumptions)
    yield from lines("constraints", inputs.constraints)
    yield from lines("warnings", plan.estimate.warnings, style="yellow")
    yield search_line(plan.search)


def estimate_report(problem: Problem, strategy: Strategy, estimate: Estimate, assumptions: Sequence[str]) -> Iterator[RenderableType]:
    """The whole of ``autopar estimate``."""
    yield headline(problem.model, problem.cluster, problem.training)
    yield strategy_table(strategy, problem.training.global_batch_size, "strategy")
    yield from result_parts(estimate)
    yield from lines("assumed", assumptions)
    yield from lines("warnings", estimate.warnings, style="yellow")


def headline(model: ModelSpec, cluster: ClusterSpec, training: TrainingSpec) -> Text:
    """The question in one line."""
    size = format_count(model.num_parameters)
    active = f", {format_count(model.num_active_parameters)} active" if model.moe else ""
    nodes = f"{cluster.num_nodes:,} nodes of {cluster.gpus_per_node}, {cluster.id}" if cluster.num_nodes > 1 else cluster.id
    text = Text(f"{model.name}", style="bold")
    text.append(f" ({size} parameters{active}) on {cluster.num_gpus:,} x {cluster.device.name} ({nodes})", style="not bold")
    text.append(f"\n{batch_text(training)} a step, {training.precision.name}", style="not bold")
    return text


def batch_text(training: TrainingSpec) -> str:
    """``512 sequences of 4,096 tokens``."""
    count = training.global_batch_size
    return f"{count:,} sequence{'' if count == 1 else 's'} of {training.sequence_length:,} tokens"


def strategy_table(strategy: Strategy, global_batch_size: int, title: str) -> RenderableType:
    """The strategy field by field; sizes of 1 that nobody asked about are left out."""
    table = field_table(title)
    for name, value in strategy_rows(strategy, global_batch_size):
        table.add_row(name, value)
    return table


def strategy_rows(strategy: Strategy, global_batch_size: int) -> Iterator[tuple[str, str]]:
    """Axis and value of :func:`strategy_table`."""
    yield "tensor parallel", f"{strategy.tensor_parallel_size}{' + sequence parallel' if strategy.sequence_parallel else ''}"
    yield "pipeline parallel", _pipeline_text(strategy)
    if strategy.pipeline_layers:
        yield "layers of stages", split_text(strategy.pipeline_layers).replace(",", ", ")
    yield "data parallel", f"{strategy.data_parallel_size}, {_zero_text(strategy)}"
    if strategy.context_parallel_size > 1:
        yield "context parallel", f"{strategy.context_parallel_size}, {strategy.context_parallel_kind.value}"
    if strategy.expert_parallel_size > 1 or strategy.expert_tensor_parallel_size > 1:
        yield "expert parallel", f"{strategy.expert_parallel_size}, tensor parallel {strategy.expert_tensor_parallel_size} inside"
    if strategy.rank_order is not RankOrder.TP_CP_DP_PP:
        yield "order of ranks", strategy.rank_order.value
    yield "micro-batch", _batch_split(strategy, global_batch_size)
    yield "recompute", _recompute_text(strategy)


def result_parts(estimate: Estimate) -> Iterator[RenderableType]:
    """Speed, then where the time goes, then where the memory goes."""
    yield speed_table(estimate)
    yield time_table(estimate)
    yield memory_table(estimate)


def time_table(estimate: Estimate) -> RenderableType:
    """Terms of the step time, largest first."""
    table = plain_table("where the time goes", "term", "time", "share", "")
    terms = sorted(((f.name, getattr(estimate.time, f.name)) for f in fields(estimate.time)), key=lambda term: -term[1])
    total = estimate.step_time_seconds
    for name, seconds in terms:
        share = seconds / total if total > 0 else 0.0
        if share >= SHOWN_SHARE:
            table.add_row(name.replace("_", " "), format_seconds(seconds), f"{share:.1%}", Text(share_bar(share), justify="left"))
    return table


def memory_table(estimate: Estimate) -> RenderableType:
    """Bytes of each pipeline rank by kind; a long pipeline shows its fullest ranks."""
    title = f"where the memory goes (per GPU, of {format_bytes(estimate.memory_capacity_bytes)})"
    kinds = [f.name for f in fields(estimate.stages[0].memory)] if estimate.stages else []
    shown = [kind for kind in kinds if any(getattr(stage.memory, kind) > 0 for stage in estimate.stages)]
    table = plain_table(title, "rank", "layers", *(_KIND_NAMES.get(kind, kind) for kind in shown), "peak")
    stages = sorted(
        sorted(estimate.stages, key=lambda stage: -stage.peak_memory_bytes)[:MAX_STAGE_ROWS], key=lambda stage: stage.pipeline_rank
    )
    for stage in stages:
        over = stage.peak_memory_bytes > estimate.memory_capacity_bytes
        figures = [_gib(getattr(stage.memory, kind)) for kind in shown]
        table.add_row(
            str(stage.pipeline_rank), _layers_text(stage), *figures, Text(_gib(stage.peak_memory_bytes), style="red" if over else "bold")
        )
    if len(stages) < len(estimate.stages):
        table.caption = f"GiB; the {len(stages)} fullest of {len(estimate.stages)} pipeline ranks"
    else:
        table.caption = "GiB"
    table.caption_justify = "left"
    return table


def lines(title: str, texts: Sequence[str], *, style: str = "") -> Iterator[RenderableType]:
    """A titled list; nothing at all where there is nothing to say."""
    if texts:
        yield bullet_list(title, texts, style=style)


_KIND_NAMES = {
    "parameters": "params", "gradients": "grads", "master_weights": "master", "optimizer_states": "optim", "activations": "activ.",
    "logits_and_loss": "logits", "communication_buffers": "buffers", "framework_reserve": "reserve",
}  # fmt: skip


def speed_table(estimate: Estimate) -> RenderableType:
    """Step time, throughput, utilisation and peak memory."""
    table = field_table("speed and memory")
    interval = estimate.step_time_interval
    spread = f"  ({format_seconds(interval.low)} to {format_seconds(interval.high)}, {interval.coverage:.0%})" if interval else ""
    table.add_row("step time", f"{format_seconds(estimate.step_time_seconds)}{spread}")
    table.add_row("tokens/s per GPU", f"{estimate.tokens_per_second_per_gpu:,.0f}")
    table.add_row("model TFLOP/s per GPU", f"{estimate.model_flops_per_second_per_gpu / TERA:,.1f}")
    table.add_row("MFU / HFU", f"{estimate.mfu:.1%} / {estimate.hfu:.1%} (causal attention counted half)")
    table.add_row("pipeline bubble", f"{estimate.bubble_fraction:.1%}")
    peak, capacity = estimate.peak_memory_bytes, estimate.memory_capacity_bytes
    share = f" ({peak / capacity:.0%})" if capacity > 0 else ""
    chance = estimate.fit_probability
    sure = "" if chance is None else f", fits with probability {chance:.0%}"
    verdict = sure if estimate.fits else f": DOES NOT FIT, {format_bytes(peak - capacity)} too much"
    table.add_row(
        "peak memory per GPU",
        Text(f"{format_bytes(peak)} of {format_bytes(capacity)}{share}{verdict}", style="" if estimate.fits else "red"),
    )
    return table


def _alternatives(plan: Plan) -> RenderableType:
    table = wrapped_table("runners-up", "strategy", "step", "vs best", "memory")
    best = plan.estimate.step_time_seconds
    for other in plan.alternatives:
        slower = f"{other.step_time_seconds / best - 1:+.1%}" if best > 0 else ""
        table.add_row(
            other.strategy.describe(),
            format_seconds(other.step_time_seconds),
            f"{slower}{' tie' if other.tie else ''}",
            format_bytes(other.peak_memory_bytes),
        )
    if any(other.tie for other in plan.alternatives):
        table.caption = "tie: closer to the best than the model orders measured runs reliably"
        table.caption_justify = "left"
    return table


def search_line(search: SearchSummary) -> Text:
    """What was looked at, how, and what was refused."""
    rejected = sum(search.rejected.values())
    rules = ", ".join(f"{name} {count:,}" for name, count in sorted(search.rejected.items(), key=lambda item: -item[1]) if count)
    text = f"searched {search.evaluated:,} strategies ({search.method}; {search.optimality})"
    if rejected:
        text += f"; {rejected:,} refused by rule: {rules}"
    return Text(text, style="dim")


def _pipeline_text(strategy: Strategy) -> str:
    if strategy.pipeline_parallel_size == 1 and strategy.virtual_pipeline_stages == 1:
        return "1"
    chunks = f" x {strategy.virtual_pipeline_stages} virtual stages" if strategy.virtual_pipeline_stages > 1 else ""
    return f"{strategy.pipeline_parallel_size}{chunks}, {PipelineSchedule(strategy.pipeline_schedule).value}"


def _batch_split(strategy: Strategy, global_batch_size: int) -> str:
    together = strategy.data_parallel_size * strategy.micro_batch_size
    count, left = divmod(global_batch_size, together)
    if left:
        below = f"{count * together:,} or " if count else ""
        return (
            f"{strategy.micro_batch_size}; a batch of {global_batch_size:,} does not divide over {strategy.data_parallel_size:,}"
            f" data-parallel ranks x {strategy.micro_batch_size}: nearest valid {below}{(count + 1) * together:,}"
        )
    return f"{strategy.micro_batch_size} x {count:,} micro-batch{'' if count == 1 else 'es'} a data-parallel rank"


def _zero_text(strategy: Strategy) -> str:
    group = f" over groups of {strategy.shard_group_size}" if strategy.shard_group_size else ""
    return f"ZeRO stage {strategy.zero_stage}{group}"


def _recompute_text(strategy: Strategy) -> str:
    if strategy.stage_recompute_layers:
        return f"full, on {split_text(strategy.stage_recompute_layers).replace(',', ', ')} layers of the stages in order"
    if strategy.recompute is Recompute.FULL and strategy.num_recompute_layers:
        return f"full, on {strategy.num_recompute_layers} layers of each pipeline rank"
    return strategy.recompute.value + (f", of {', '.join(strategy.recompute_modules)}" if strategy.recompute_modules else "")


def _layers_text(stage: StageEstimate) -> str:
    ends = ("emb+" if stage.holds_embedding else "", "+head" if stage.holds_head else "")
    return f"{ends[0]}{stage.num_layers}{ends[1]}"


def _gib(value: float) -> str:
    return f"{value / GIB:.2f}"
