"""``autopar whatif``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .estimate import question, refuse_beside_plan
from .options import given_inputs, given_strategy, input_options, json_option, stages_option, strategy_options

if TYPE_CHECKING:
    from autopar.costmodel.problem import Problem
    from autopar.costmodel.spec.plan import Plan
    from autopar.costmodel.spec.strategy import Strategy

EPILOG = """\b
Examples:
  autopar whatif plan.json
  autopar whatif --model gpt-175b --gpus 256
  autopar whatif plan.json --change nodes=-2 --change batch=x4
  autopar whatif --model llama3-70b --gpus 128 --tp 8 --pp 4 --change sequence=32768

\b
Changes: nodes, gpus, batch and sequence take a number, +n, -n or a factor x2; network (the
  outermost links) and node-links (the innermost) a factor of their bandwidth, x0.5.

\b
A plateau: the same strategy stays within 10 % of the ideal time (the plan's, by work and GPUs).
A replan: it does not, and the best strategy after the change does. A cliff: not even that.

\b
Exit code 1: the strategy itself is refused or does not fit.
"""


@click.command("whatif", epilog=EPILOG)
@click.argument("plan_file", metavar="[PLAN]", required=False)
@click.option("--change", "changes", multiple=True, metavar="NAME=VALUE", help="What to change.  [default: five usual ones]")
@input_options(required=False)
@strategy_options()
@stages_option
@json_option
@click.pass_context
def command(ctx: click.Context, /, plan_file: str | None, changes: tuple[str, ...], stages: str, as_json: bool, **options: Any) -> None:
    """Say whether a plan sits on a plateau or at a cliff.

    The same strategy and a new plan after each of some changes, against the ideal time.

    With PLAN, the strategy and the inputs of a plan file; with --model alone, the plan that `autopar plan` makes.
    """
    from autopar.api import whatif
    from autopar.perturbation import DEFAULT_CHANGES

    from .output import answering, print_json, print_report

    with answering(as_json):
        asked, strategy = _asked(ctx, plan_file, options, stages)
        found = whatif(asked, strategy=strategy, changes=changes or DEFAULT_CHANGES, stages=stages)
    if as_json:
        print_json(found)
        return
    from autopar.api import resolve
    from autopar.report.whatif import whatif_report

    problem, _, assumptions = resolve(asked, strategy)
    print_report(whatif_report(problem, found, assumptions))


def _asked(ctx: click.Context, plan_file: str | None, options: dict[str, Any], stages: str) -> tuple[Plan | Problem, Strategy | None]:
    """The plan of the file, the one that is made now where no strategy is named, or the problem and the strategy of the flags."""
    from autopar.api import plan, read_plan

    if plan_file is not None:
        refuse_beside_plan(ctx, allowed=("changes", "stages"))
        return read_plan(plan_file), None
    if options.get("model") is not None and not given_strategy(options):
        return plan(options["model"], top=1, stages=stages, **given_inputs(options)), None
    problem, strategy, _ = question(ctx, None, options)
    return problem, strategy
