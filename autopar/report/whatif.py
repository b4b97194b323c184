"""``autopar whatif`` as a person reads it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.text import Text

from autopar.costmodel.spec.units import format_seconds
from autopar.perturbation import Verdict

from .tables import bullet_list, wrapped_table
from .text import headline, lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from autopar.costmodel.problem import Problem
    from autopar.perturbation import Effect, Outcome, WhatIf

STYLES = {Verdict.PLATEAU: "green", Verdict.REPLAN: "yellow", Verdict.CLIFF: "bold red"}
MAX_REASONS = 2


def whatif_report(problem: Problem, found: WhatIf, assumptions: Sequence[str]) -> Iterator[RenderableType]:
    """The plan, a row a change, and what stands behind the rows."""
    yield headline(problem.model, problem.cluster, problem.training)
    yield Text(f"plan: {found.strategy.describe()}, {format_seconds(found.step_time_seconds)} a step")
    yield effects_table(found)
    yield bullet_list("what changes", [text for effect in found.effects for text in _details(found, effect)])
    yield from lines("assumed", assumptions)


def effects_table(found: WhatIf) -> RenderableType:
    """The same strategy beside the re-planned one, each against the ideal time."""
    table = wrapped_table("what if", "change", "ideal", "same strategy", "vs ideal", "re-planned", "vs ideal", "")
    for effect in found.effects:
        table.add_row(
            effect.change,
            format_seconds(effect.ideal_step_time_seconds),
            *_cells(effect.same, "does not run"),
            *_cells(effect.replanned, "nothing fits"),
            Text(effect.verdict.value, style=STYLES[effect.verdict]),
        )
    table.caption = (
        f"ideal: the plan's time by work and GPUs; plateau: the same strategy within {found.tolerance:.0%} of it;"
        " replan: a new one is; cliff: none is"
    )
    table.caption_justify = "left"
    return table


def _cells(outcome: Outcome | None, absent: str) -> tuple[str, str]:
    return (absent, "") if outcome is None else (format_seconds(outcome.step_time_seconds), f"{outcome.loss:+.1%}")


def _details(found: WhatIf, effect: Effect) -> Iterator[str]:
    """Idle GPUs, the refusal, and the new strategy where it is another one."""
    parts = []
    if effect.same is None:
        parts.append(f"the same strategy does not run: {'; '.join(str(fault) for fault in effect.refused[:MAX_REASONS])}")
    elif effect.same.num_gpus < effect.num_gpus:
        parts.append(f"the same strategy leaves {effect.num_gpus - effect.same.num_gpus:,} GPUs idle")
    new = effect.replanned
    if new is not None and (effect.same is None or new.strategy != effect.same.strategy):
        idle = f", {effect.num_gpus - new.num_gpus:,} GPUs idle" if new.num_gpus < effect.num_gpus else ""
        parts.append(f"best then: {new.strategy.describe()}{idle}")
    if parts:
        yield f"{effect.change}: {'. '.join(parts)}"
    elif len(found.effects) == 1:
        yield f"{effect.change}: the plan stays the best"
