"""What every form of a comparison shows: rows of text, whatever they are printed on."""

from __future__ import annotations

from collections.abc import Sequence

from autopar.comparison import ComparedPlan, Comparison, Movement
from autopar.costmodel.spec.units import format_bytes, format_count, format_seconds

Row = tuple[str, ...]
MOVED = 0.0005
"""A term that moved by less of the whole in every plan is left out of the tables."""


COLUMNS = ("plan", "step", "vs A", "tokens/s/GPU", "MFU", "peak memory", "of")


def headline_row(comparison: Comparison, plan: ComparedPlan) -> Row:
    """The cells under ``COLUMNS``."""
    estimate = plan.estimate
    return (
        plan.label,
        format_seconds(estimate.step_time_seconds),
        "" if plan is comparison.plans[0] else f"{plan.slower_than_first:+.1%}",
        f"{estimate.tokens_per_second_per_gpu:,.0f}",
        f"{estimate.mfu:.1%}",
        f"{format_bytes(estimate.peak_memory_bytes)}{'' if estimate.fits else ' DOES NOT FIT'}",
        format_bytes(estimate.memory_capacity_bytes),
    )


def cost_columns(comparison: Comparison) -> Row:
    """Columns of what a plan costs; money and days only where the user named a price or a number of tokens."""
    columns = ["plan", "GPU-hours/M tokens"]
    priced = comparison.plans[0].price_per_gpu_hour is not None
    columns += ["price/GPU-hour", "cost/M tokens"] if priced else []
    columns += [f"days for {format_count(comparison.tokens)}"] if comparison.tokens is not None else []
    columns += ["total cost"] if priced and comparison.tokens is not None else []
    return tuple(columns)


def cost_row(plan: ComparedPlan) -> Row:
    """The cells under :func:`cost_columns`."""
    cells = [plan.label, f"{plan.gpu_hours_per_million_tokens:.4g}"]
    if plan.price_per_gpu_hour is not None and plan.cost_per_million_tokens is not None:
        cells += [f"{plan.price_per_gpu_hour:,.4g}", money(plan.cost_per_million_tokens)]
    cells += [f"{plan.budget.days:,.1f}"] if plan.budget is not None else []
    cells += [money(plan.budget.cost)] if plan.budget is not None and plan.budget.cost is not None else []
    return tuple(cells)


def money(value: float) -> str:
    """An amount in the currency of the price: three figures below a thousand, whole above."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def question(plan: ComparedPlan) -> str:
    """``gpt-175b on 256 x NVIDIA H100 SXM5 80GB, 1,536 sequences of 2,048 tokens, bf16``."""
    batch = f"{plan.global_batch_size:,} sequences of {plan.sequence_length:,} tokens"
    return f"{plan.model} on {plan.num_gpus:,} x {plan.device}, {batch}, {plan.precision}, {plan.framework}"


def one_question(comparison: Comparison) -> str:
    """The question where all plans answer the same one, else nothing."""
    questions = {question(plan) for plan in comparison.plans}
    return questions.pop() if len(questions) == 1 else ""


def legend(comparison: Comparison) -> tuple[Row, ...]:
    """Label, name, and strategy or question of each plan."""
    same = bool(one_question(comparison))
    described = [plan.strategy.describe() for plan in comparison.plans]
    rows = []
    for plan, strategy in zip(comparison.plans, described, strict=True):
        told = strategy if same else f"{strategy}; {question(plan)}"
        rows.append((plan.label, plan.name, "" if plan.name == told else told))
    return tuple(rows)


def moved(movements: Sequence[Movement]) -> tuple[Movement, ...]:
    """The terms worth a row: those that moved, seen beside the whole."""
    whole = max((sum(movement.values[index] for movement in movements) for index in range(len(movements[0].values))), default=0.0)
    return tuple(one for one in movements if max(map(abs, one.changes)) > MOVED * whole)


def time_row(movement: Movement) -> Row:
    """A term: the first plan's seconds, then the signed change of every other one."""
    return (
        movement.term.replace("_", " "),
        format_seconds(movement.values[0]) if movement.values[0] else "0",
        *map(signed_seconds, movement.changes[1:]),
    )


def memory_row(movement: Movement) -> Row:
    """A kind: the first plan's bytes, then the signed change of every other one."""
    return (
        movement.term.replace("_", " "),
        format_bytes(movement.values[0]) if movement.values[0] else "0",
        *map(signed_bytes, movement.changes[1:]),
    )


def signed_seconds(value: float) -> str:
    """``+1.2 s``, ``-40 ms``, ``0``."""
    return "0" if value == 0 else f"{'+' if value > 0 else '-'}{format_seconds(abs(value))}"


def signed_bytes(value: float) -> str:
    """``+1.20 GiB``, ``-300 MiB``, ``0``."""
    return "0" if round(value) == 0 else f"{'+' if value > 0 else '-'}{format_bytes(abs(value))}"


def total(movements: Sequence[Movement]) -> Movement:
    """All terms together."""
    count = len(movements[0].values)
    values = tuple(sum(movement.values[index] for movement in movements) for index in range(count))
    return Movement(term="total", values=values, changes=tuple(each - values[0] for each in values))


def moved_columns(comparison: Comparison, first: str) -> Row:
    """``term | A | B - A | C - A``."""
    return (first, "A", *(f"{plan.label} - A" for plan in comparison.plans[1:]))


def time_title(comparison: Comparison) -> str:
    """What the time table's seconds are of."""
    return "where the time moved (of a step)" if comparison.time_per == "step" else "where the time moved (for a million tokens)"


def verdict(comparison: Comparison) -> str:
    """Which plan is fastest, and by how much, in one sentence."""
    best = comparison.plans[comparison.fastest]
    fitting = [plan for plan in comparison.plans if plan.estimate.fits]
    if not fitting:
        return "none of the plans fits"
    others = [plan for plan in fitting if plan is not best]
    if not others:
        return f"{best.label} is the only one that fits"
    second = max(others, key=lambda plan: plan.tokens_per_second)
    share = best.tokens_per_second / second.tokens_per_second - 1
    if share < 5e-4:
        return f"{best.label} and {second.label} are equally fast"
    aside = "" if best.model == second.model else ", which trains another model"
    return f"{best.label} is the fastest: {share:.1%} more tokens a second than {second.label}{aside}"
