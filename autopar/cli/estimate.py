"""``autopar estimate``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from .options import given_inputs, given_strategy, input_options, json_option, strategy_options, world_size
from .reporting import REPORT_NAMES, check_targets, report_options, write_mixed, write_reports, write_trace

if TYPE_CHECKING:
    from autopar.costmodel.problem import Problem
    from autopar.costmodel.spec.plan import Plan
    from autopar.costmodel.spec.strategy import Strategy

EPILOG = """\b
Examples:
  autopar estimate --model gpt-175b --gpus 256 --gpu a100-sxm4-80gb --tp 8 --pp 4 --mbs 1
  autopar estimate --model llama3-8b --gpus 8 --framework torchtitan --zero-stage 3 --recompute full --json
  autopar estimate plan.json
  autopar estimate plan.json --report plan.html --trace step.json

\b
Exit code 1: a rule refuses the strategy, or it does not fit in memory
  (the estimate is printed all the same, with "fits": false).
  --json of a refused one: fits (false), reasons, faults, strategy.
"""


@click.command("estimate", epilog=EPILOG)
@click.argument("plan_file", metavar="[PLAN]", required=False)
@input_options(required=False)
@strategy_options()
@report_options
@json_option
@click.pass_context
def command(ctx: click.Context, /, plan_file: str | None, as_json: bool, **options: Any) -> None:
    """Say what one strategy takes: time, throughput and memory.

    With PLAN, the strategy and the inputs of a plan file; else those of the flags.
    """
    from autopar.api import estimate, read_plan

    from .output import answering, print_json, print_report

    check_targets(options)
    if plan_file is not None:
        refuse_beside_plan(ctx)
        if (mixed := read_plan(plan_file)).mixed is not None:
            _print_mixed(ctx, mixed, as_json, options)
            return
    problem, strategy, assumptions = question(ctx, plan_file, options)
    with answering(as_json):
        result = estimate(problem, strategy=strategy)
    if any(options[name] is not None for name in REPORT_NAMES):
        from autopar.report.subject import subject_of_plan, subject_of_strategy

        write_trace(options, problem, strategy)
        if plan_file is not None:
            plan = replace(read_plan(plan_file), estimate=result)
            write_reports(options, lambda: subject_of_plan(plan, problem))
        else:
            write_reports(options, lambda: subject_of_strategy(problem, strategy, result, assumptions))
    if as_json:
        print_json(result)
    else:
        from autopar.report.text import estimate_report

        print_report(estimate_report(problem, strategy, result, assumptions))
    if not result.fits:
        ctx.exit(1)


def _print_mixed(ctx: click.Context, plan: Plan, as_json: bool, options: dict[str, Any]) -> None:
    """The estimate of a plan for a mixed cluster, by this release."""
    from autopar.api import estimate

    from .output import answering, print_json, print_report

    if options["figures"] is not None:
        raise click.UsageError("a plan for a mixed cluster has no --figures yet: leave that out", ctx)
    with answering(as_json):
        result = estimate(plan)
    write_mixed(options, replace(plan, estimate=result))
    if as_json:
        print_json(result)
    else:
        from autopar.report.mixed import mixed_report

        print_report(mixed_report(replace(plan, estimate=result)))
    if not result.fits:
        ctx.exit(1)


def question(ctx: click.Context, plan_file: str | None, options: dict[str, Any]) -> tuple[Problem, Strategy, tuple[str, ...]]:
    """The problem and the strategy that the flags or the plan file name, and what was assumed.

    Raises:
        click.UsageError: neither was given, or both.
    """
    from autopar.api import read_plan, resolve

    strategy = given_strategy(options)
    if plan_file is None:
        if options.get("model") is None:
            raise click.UsageError("give --model, or a plan file", ctx)
        inputs = given_inputs(options)
        inputs["gpus"] = world_size(options, strategy)
        return resolve(options["model"], strategy, **inputs)
    refuse_beside_plan(ctx)
    return resolve(read_plan(plan_file), None)


def refuse_beside_plan(ctx: click.Context, *, allowed: tuple[str, ...] = ()) -> None:
    """Raises:
    click.UsageError: options of the question were given beside a plan file; those named ``allowed`` may be.
    """
    given = [
        parameter.opts[0]
        for parameter in ctx.command.params
        if isinstance(parameter, click.Option)
        and parameter.name not in ("as_json", *REPORT_NAMES, *allowed)
        and ctx.get_parameter_source(parameter.name or "") is click.core.ParameterSource.COMMANDLINE
    ]
    if given:
        raise click.UsageError(f"a plan file brings its own inputs and strategy: leave out {', '.join(given)}", ctx)
