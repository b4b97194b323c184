"""Money, energy and failures of a plan as a person reads them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from autopar.costmodel.spec.economics import Objective
from autopar.costmodel.spec.units import format_bytes, format_seconds
from autopar.io.quantities import format_duration, format_money

from .tables import bullet_list, field_table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from autopar.costmodel.spec.economics import Economics
    from autopar.costmodel.spec.goodput import AfterLoss, Goodput
    from autopar.costmodel.spec.plan import Plan

BEST = {
    Objective.STEP_TIME: "best strategy",
    Objective.COST: "best strategy (least cost)",
    Objective.ENERGY: "best strategy (least energy)",
    Objective.MEMORY: "best strategy (least memory)",
}
KWH = 3.6e6


def aims_parts(plan: Plan) -> Iterator[RenderableType]:
    """What a plan says of money, energy and failures; nothing where neither was asked about."""
    if plan.economics is not None:
        yield economics_table(plan.economics)
        if plan.inputs.objective in (Objective.COST, Objective.ENERGY):
            word = "cheapest" if plan.inputs.objective is Objective.COST else "least energy-hungry, by rated power,"
            yield bullet_list(
                "objective",
                [
                    f"on {plan.economics.num_gpus:,} GPUs the {word} strategy is the fastest one: all GPUs are paid for and powered"
                    f" while a step lasts; `--pareto gpus,{plan.inputs.objective.value}` compares numbers of GPUs"
                ],
            )
    if plan.goodput is not None:
        yield goodput_table(plan.goodput)
        yield after_loss_table(plan.goodput)


def economics_table(found: Economics) -> RenderableType:
    """Cost and energy of a step and of tokens."""
    table = field_table("cost and energy")
    if found.price is not None and found.cost_per_step is not None and found.cost_per_million_tokens is not None:
        money = found.price.currency
        table.add_row("price of a GPU-hour", format_money(found.price.per_gpu_hour, money))
        table.add_row("cost of a step", format_money(found.cost_per_step, money))
        table.add_row("cost of a million tokens", format_money(found.cost_per_million_tokens, money))
    joules, token = found.energy_joules_per_step, found.energy_joules_per_token
    table.add_row("energy of a step", f"at most {joules / KWH:.3g} kWh ({found.power_watts_per_gpu:,.0f} W a GPU; {token:.3g} J a token)")
    table.add_row("", found.energy_basis)
    return table


def goodput_table(found: Goodput) -> RenderableType:
    """What failures leave."""
    table = field_table("failures and checkpoints")
    every, between = found.steps_between_checkpoints, format_duration(found.job_mtbf_seconds)
    interval, repair = format_duration(found.checkpoint_interval_seconds), format_duration(found.reliability.repair_seconds)
    lost = f"checkpoints {found.checkpoint_fraction:.1%}, failures {found.failure_fraction:.1%}"
    table.add_row("failures", f"{found.failures_per_day:.3g} a day: {found.num_nodes:,} nodes, one every {between}")
    table.add_row("checkpoint", f"every {every:,} step{'s' * (every != 1)} (Daly: {interval} of work)")
    table.add_row("useful time", f"{found.useful_fraction:.1%}; {lost}")
    table.add_row("a kept step takes", format_seconds(found.expected_step_seconds))
    table.add_row(
        "spare nodes",
        f"{found.spare_nodes:,} (enough {found.spare_coverage:.0%} of the time with repairs of {repair});"
        f" one that takes over reads {format_bytes(found.spare_load_bytes)}",
    )
    table.add_row("checkpoint holds", format_bytes(found.checkpoint_bytes))
    return table


def after_loss_table(found: Goodput) -> RenderableType:
    """The plan with one node less."""
    after = found.after_loss
    table = field_table("after losing a node, without a spare")
    if after is None:
        table.add_row("no plan", found.after_loss_refused)
        return table
    idle = f", {after.idle_gpus:,} idle" if after.idle_gpus else ""
    table.add_row("GPUs", f"{after.num_gpus:,}{idle} (planned for {', '.join(f'{gpus:,}' for gpus in after.looked_at)})")
    table.add_row("strategy", after.strategy.describe())
    table.add_row("step time", f"{format_seconds(after.step_time_seconds)} ({after.slowdown - 1:+.0%})")
    table.add_row("resharding", _resharding_text(after))
    for change in after.resharding.changed:
        table.add_row("", change)
    return table


def _resharding_text(after: AfterLoss) -> str:
    moved = after.resharding
    return (
        f"{format_bytes(moved.moved_bytes)} of {format_bytes(moved.loaded_bytes)} lie on other GPUs than before;"
        f" at most {format_bytes(moved.largest_load_bytes)} a GPU"
    )
