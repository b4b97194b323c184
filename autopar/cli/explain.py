"""``autopar explain``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .estimate import question, refuse_beside_plan
from .options import input_options, json_option, strategy_options

if TYPE_CHECKING:
    from autopar.costmodel.spec.plan import Plan

EPILOG = """\b
Examples:
  autopar explain plan.json
  autopar explain --model gpt-175b --gpus 64 --tp 8 --pp 2

\b
Exit code 1: a rule refuses the strategy, or it does not fit in memory
  (explained all the same; --json has fits, false, and refused_by, the faults).
"""


@click.command("explain", epilog=EPILOG)
@click.argument("plan_file", metavar="[PLAN]", required=False)
@input_options(required=False)
@strategy_options()
@json_option
@click.pass_context
def command(ctx: click.Context, /, plan_file: str | None, as_json: bool, **options: Any) -> None:
    """Say where time and memory go, which rule refuses a strategy, and what to change.

    With PLAN, the strategy and the inputs of a plan file; else those of the flags.
    """
    from autopar.api import read_plan
    from autopar.explanation import explain_strategy

    from .output import print_json, print_report

    if plan_file is not None and (plan := read_plan(plan_file)).mixed is not None:
        refuse_beside_plan(ctx)
        _print_mixed(ctx, plan, as_json)
        return
    problem, strategy, assumptions = question(ctx, plan_file, options)
    found = explain_strategy(problem, strategy)
    if as_json:
        print_json(found)
    else:
        from autopar.report.explain import explanation_report

        print_report(explanation_report(problem, found, assumptions))
    if not found.runs:
        ctx.exit(1)


def _print_mixed(ctx: click.Context, plan: Plan, as_json: bool) -> None:
    """The explanation of a plan for a mixed cluster."""
    from autopar.mixed_explanation import explain_mixed

    from .output import print_json, print_report

    found = explain_mixed(plan)
    if as_json:
        print_json(found)
    else:
        from autopar.exporters.pools import who_runs_it
        from autopar.report.mixed_explain import mixed_explanation_report

        print_report(mixed_explanation_report(plan, found, who_runs_it(plan)))
    if not found.fits:
        ctx.exit(1)
