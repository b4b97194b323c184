"""Plans over pools of unlike devices as a person reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from autopar.costmodel.spec.errors import InvalidInputError
from autopar.costmodel.spec.mixed import Lane, MixedStrategy
from autopar.costmodel.spec.strategy import Strategy, split_text
from autopar.costmodel.spec.units import GIB, format_bytes, format_count, format_seconds
from autopar.host_order import HostRun, host_order
from autopar.io.hostlist import fold_hosts

from .tables import plain_table, wrapped_table
from .text import batch_text, lines, search_line, speed_table, strategy_rows, time_table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from autopar.costmodel.spec.estimate import Estimate
    from autopar.costmodel.spec.plan import Plan

from .tables import field_table

MAX_ROWS = 24


def mixed_report(plan: Plan, expressed: Sequence[str] = ()) -> Iterator[RenderableType]:
    """The whole of ``autopar plan --pool``; ``expressed`` says which frameworks take the plan."""
    assert plan.mixed is not None, "a report of plans for a mixed cluster"
    yield _headline(plan)
    yield _strategy_table(plan, "strategy" if plan.inputs.imported_from else "best strategy")
    yield _lanes_table(plan)
    yield from lines("hosts start in this order", order_lines(plan))
    yield speed_table(plan.estimate)
    yield time_table(plan.estimate)
    yield _memory_table(plan.estimate)
    if plan.mixed.references:
        yield _references(plan)
    if plan.alternatives:
        yield _alternatives(plan)
    yield from lines("who runs it", expressed)
    yield from lines("assumed", plan.inputs.assumptions)
    yield from lines("constraints", plan.inputs.constraints)
    yield from lines("warnings", plan.estimate.warnings, style="yellow")
    if not plan.inputs.imported_from:
        yield search_line(plan.search)


def pools_text(plan: Plan) -> str:
    """``64 x NVIDIA H100 SXM5 80GB (dgx-h100) + 64 x NVIDIA A100 SXM4 40GB (dgx-a100-40gb)``."""
    assert plan.mixed is not None, "a report of plans for a mixed cluster"
    return " + ".join(f"{pool.cluster.num_gpus:,} x {pool.cluster.device.name} ({pool.cluster.id})" for pool in plan.mixed.pools)


def _headline(plan: Plan) -> Text:
    assert plan.mixed is not None, "a report of plans for a mixed cluster"
    model, training = plan.inputs.model, plan.inputs.training
    active = f", {format_count(model.num_active_parameters)} active" if model.moe else ""
    text = Text(model.name, style="bold")
    text.append(f" ({format_count(model.num_parameters)} parameters{active}) on {pools_text(plan)}", style="not bold")
    rate = f"{plan.mixed.between.bandwidth / 1e9:g} GB/s a GPU between the pools"
    text.append(f"\n{batch_text(training)} a step, {training.precision.name}; {rate}", style="not bold")
    return text


def order_lines(plan: Plan) -> list[str]:
    """Whose hosts have which numbers; nothing of replicas, which no launcher is asked to start, or where one pool is used alone."""
    assert plan.mixed is not None, "a report of plans for a mixed cluster"
    if len(plan.mixed.lanes) > 1 or len(set(plan.mixed.lanes[0].pools)) == 1:
        return []
    try:
        runs = host_order(plan.mixed, plan.strategy)
    except InvalidInputError:
        return []
    return [f"{'node' if run.nodes == 1 else 'nodes'} {run.numbers}: {run.pool}{_named(run)}" for run in runs]


def _named(run: HostRun) -> str:
    return f", {fold_hosts(run.names)}" if run.names else f", {run.nodes} x {run.cluster.id}"


def _strategy_table(plan: Plan, title: str) -> RenderableType:
    """The sizes that all lanes share; what each lane has of its own is in the next table."""
    table = field_table(title)
    for name, value in mixed_strategy_rows(plan):
        table.add_row(name, value)
    return table


def mixed_strategy_rows(plan: Plan) -> Iterator[tuple[str, str]]:
    """The sizes that all lanes share, by name."""
    assert plan.mixed is not None, "a report of plans for a mixed cluster"
    for name, value in strategy_rows(plan.strategy, plan.inputs.training.global_batch_size):
        if name == "micro-batch" and len(plan.mixed.lanes) > 1:
            value = str(plan.strategy.micro_batch_size)
        if name == "recompute" and any(lane.stage_recompute_layers for lane in plan.mixed.lanes):
            value = "full, on other layers in each pool"
        yield name, value


def _lanes_table(plan: Plan) -> RenderableType:
    """Who runs which stages, and how much of the batch."""
    table = plain_table("who does what", *LANE_COLUMNS, left=1)
    for row in lane_rows(plan):
        table.add_row(*row)
    return table


LANE_COLUMNS = ("pool", "GPUs", "pipeline ranks", "layers", "replicas", "micro-batches", "recompute")


def lane_rows(plan: Plan) -> Iterator[tuple[str, ...]]:
    """A row for each run of pipeline ranks in one pool, lane by lane."""
    assert plan.mixed is not None, "a report of plans for a mixed cluster"
    whole = MixedStrategy(strategy=plan.strategy, lanes=plan.mixed.lanes)
    layers = [stage.num_layers for stage in plan.estimate.stages]
    row = 0
    for lane in plan.mixed.lanes:
        first = 0
        for pool, ranks in lane.ranks_by_pool:
            gpus = plan.strategy.tensor_parallel_size * plan.strategy.context_parallel_size * lane.data_parallel_size * ranks
            own = layers[row + first : row + first + ranks]
            yield (
                pool,
                f"{gpus:,}",
                f"{first}" if ranks == 1 else f"{first} to {first + ranks - 1}",
                split_text(own).replace(",", ", "),
                f"{lane.data_parallel_size:,}",
                _microbatches_text(lane, whole.round_size),
                _recompute_text(plan.strategy, lane),
            )
            first += ranks
        row += len(lane.pools)


def _microbatches_text(lane: Lane, round_size: int) -> str:
    if not lane.short_replicas:
        return f"{lane.num_microbatches:,}"
    return f"{lane.num_microbatches:,} ({lane.num_microbatches - round_size:,} on {lane.short_replicas})"


def _recompute_text(strategy: Strategy, lane: Lane) -> str:
    if lane.stage_recompute_layers:
        return split_text(lane.stage_recompute_layers).replace(",", ", ") if any(lane.stage_recompute_layers) else "none"
    return strategy.recompute.value


def _memory_table(estimate: Estimate) -> RenderableType:
    """The peak of each pipeline rank beside what its GPUs have."""
    table = plain_table("where the memory goes (per GPU)", "rank", "pool", "layers", "states", "activ.", "other", "peak", "of", "", left=2)
    stages = sorted(estimate.stages, key=lambda stage: -stage.peak_memory_bytes / (stage.memory_capacity_bytes or 1))[:MAX_ROWS]
    kept = [stage for stage in estimate.stages if stage in stages]
    for stage in kept:
        memory, capacity = stage.memory, stage.memory_capacity_bytes or 0.0
        states = memory.parameters + memory.gradients + memory.master_weights + memory.optimizer_states
        other = memory.total - states - memory.activations
        over = stage.peak_memory_bytes > capacity
        table.add_row(
            str(stage.pipeline_rank),
            stage.pool,
            f"{'emb+' if stage.holds_embedding else ''}{stage.num_layers}{'+head' if stage.holds_head else ''}",
            *(f"{each / GIB:.2f}" for each in (states, memory.activations, other)),
            Text(f"{stage.peak_memory_bytes / GIB:.2f}", style="red" if over else "bold"),
            f"{capacity / GIB:.2f}",
            f"{stage.peak_memory_bytes / capacity:.0%}" if capacity else "",
        )
    table.caption = "GiB" if len(kept) == len(estimate.stages) else f"GiB; the {len(kept)} fullest of {len(estimate.stages)}"
    table.caption_justify = "left"
    return table


def _references(plan: Plan) -> RenderableType:
    assert plan.mixed is not None, "a report of plans for a mixed cluster"
    table = wrapped_table("what planning uniformly would take", "plan", "step", "this one gains")
    for each in plan.mixed.references:
        if each.strategy is None or each.step_time_seconds is None:
            table.add_row(f"{each.name}: nothing fits", "", "")
            continue
        gain = each.step_time_seconds / plan.estimate.step_time_seconds - 1
        table.add_row(f"{each.name}: {each.strategy.describe()}", format_seconds(each.step_time_seconds), f"{gain:+.1%}")
    return table


def _alternatives(plan: Plan) -> RenderableType:
    table = wrapped_table("runners-up", "strategy", "step", "vs best", "memory")
    for other in plan.alternatives:
        slower = other.step_time_seconds / plan.estimate.step_time_seconds - 1
        said = MixedStrategy(strategy=other.strategy, lanes=other.lanes).describe()
        table.add_row(said, format_seconds(other.step_time_seconds), f"{slower:+.1%}", format_bytes(other.peak_memory_bytes))
    return table
