"""``autopar plan``."""

from __future__ import annotations

from typing import Any

import click

from .app import EXIT_INTERRUPTED
from .options import WholeNumber, given_inputs, input_options, json_option

EPILOG = """\b
Examples:
  autopar plan --model gpt-175b --gpus 256
  autopar plan --model llama3-70b --gpus 128 --gpu h200-sxm-141gb --fix tp=8 --max pp=4
  autopar plan --model ~/models/my-model --cluster dgx-a100 --gpus 64 --gbs 512 --seq 8192 -o plan.json
  autopar plan --model mixtral-8x7b --gpus 64 --forbid cp --top 10 --json
  autopar plan --improve plan.json --measured 14.2s -o better.json

\b
Names of --fix, --max, --min and --forbid: tp pp vpp dp cp cp_kind ep etp mbs zero sp
  recompute recompute_layers schedule, or the full names of a plan file.

\b
Exit code 1: no strategy fits. --json then has fits (false), reasons, faults,
  nearest (strategies that need least memory, with their bytes) and
  smallest_cluster (num_gpus and strategy, or null).
"""


class SeveralValues(click.Command):
    """Lets ``--fix tp=8 pp=4`` give two values to one flag: this command takes no other bare words."""

    repeated = ("--fix", "--max", "--min", "--forbid")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        expanded: list[str] = []
        flag = ""
        for arg in args:
            if arg.startswith("-"):
                flag = arg if arg in self.repeated else ""
            elif flag and expanded[-1] != flag:
                expanded.append(flag)
            expanded.append(arg)
        return super().parse_args(ctx, expanded)


@click.command("plan", cls=SeveralValues, epilog=EPILOG)
@input_options(required=False)
@click.option("--fix", multiple=True, metavar="NAME=VALUE", help="Keep to this value, e.g. tp=8.")
@click.option("--max", "maximum", multiple=True, metavar="NAME=N", help="No more than this, e.g. tp=8.")
@click.option("--min", "minimum", multiple=True, metavar="NAME=N", help="No less than this, e.g. pp=2.")
@click.option("--forbid", multiple=True, metavar="NAME", help="Leave this technique out, e.g. cp.")
@click.option("--top", type=WholeNumber(1, 1000), default=5, show_default=True, metavar="K", help="Strategies reported, the best included.")
@click.option("--output", "-o", metavar="FILE", help="Write the plan file here.")
@click.option("--improve", metavar="PLAN", help="Diagnose this plan file, and name the best changes of one knob and of two.")
@click.option("--measured", metavar="TIME", help="With --improve: what a step takes, e.g. 14.2s; says what explains the difference.")
@json_option
@click.pass_context
def command(ctx: click.Context, /, as_json: bool, output: str | None, **options: Any) -> None:
    """Find the fastest strategy that fits, and the runners-up.

    With --improve: what a plan (searched or imported) costs, and what to change first.
    """
    from autopar.api import plan, was_interrupted, write_plan

    if options["improve"] is not None:
        improve(ctx, options, output, as_json)
        return
    if options["measured"] is not None:
        raise click.UsageError("--measured goes with --improve PLAN", ctx)
    if options["model"] is None:
        raise click.MissingParameter(ctx=ctx, param_type="option", param_hint="'--model' / '-m'")

    from .output import answering, note, print_json, print_report

    with answering(as_json):
        found = plan(
            options["model"],
            top=options["top"],
            fix=options["fix"],
            maximum=options["maximum"],
            minimum=options["minimum"],
            forbid=options["forbid"],
            **given_inputs(options),
        )
    if output is not None:
        write_plan(found, output)
    if as_json:
        print_json(found)
    else:
        from autopar.report.text import plan_report

        print_report(plan_report(found))
    if output is not None:
        note(f"wrote {output}")
    if was_interrupted(found.search):
        note("interrupted: this is the best of the strategies seen so far")
        ctx.exit(EXIT_INTERRUPTED)


def improve(ctx: click.Context, options: dict[str, Any], output: str | None, as_json: bool) -> None:
    """``plan --improve``: the diagnosis of a plan file; with -o the best change of it is written as a plan.

    Raises:
        click.UsageError: other options than --measured, --output and --json were given.
    """
    from autopar.api import changed_plan, diagnose, problem_of, read_plan, write_plan

    from .output import note, print_json, print_report

    taken = ("improve", "measured", "output", "as_json", "top")
    given = [name for name in options if name not in taken and ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE]
    if given:
        raise click.UsageError(f"a plan file brings its own inputs: leave out --{given[0].replace('_', '-')}", ctx)
    today = read_plan(options["improve"])
    found = diagnose(today, measured=options["measured"])
    better = found.best
    if output is not None and better is not None:
        write_plan(changed_plan(today, better), output)
    if as_json:
        print_json(found)
    else:
        from autopar.report.diagnosis import diagnosis_report

        print_report(diagnosis_report(problem_of(today), found, today.inputs.assumptions))
    if output is not None:
        note(f"wrote {output}: {better.describe()}" if better is not None else "no change is worth while: nothing was written")
    if found.refused_by:
        ctx.exit(1)
