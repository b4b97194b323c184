"""``autopar explain``."""

from __future__ import annotations

from typing import Any

import click

from .estimate import question
from .options import input_options, json_option, strategy_options

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
    from autopar.explanation import explain_strategy

    from .output import print_json, print_report

    problem, strategy, assumptions = question(ctx, plan_file, options)
    found = explain_strategy(problem, strategy)
    if as_json:
        print_json(found)
    else:
        from autopar.report.explain import explanation_report

        print_report(explanation_report(problem, found, assumptions))
    if not found.runs:
        ctx.exit(1)
