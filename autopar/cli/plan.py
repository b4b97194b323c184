"""``autopar plan``."""

from __future__ import annotations

from typing import Any

import click

from .app import EXIT_INTERRUPTED
from .options import WholeNumber, given_inputs, input_options, json_option
from .reporting import REPORT_NAMES, check_targets, report_options, write_reports, write_trace

EPILOG = """\b
Examples:
  autopar plan --model gpt-175b --gpus 256
  autopar plan --model llama3-70b --gpus 128 --gpu h200-sxm-141gb --fix tp=8 --max pp=4
  autopar plan --model ~/models/my-model --cluster dgx-a100 --gpus 64 --gbs 512 --seq 8192 -o plan.json
  autopar plan --model mixtral-8x7b --gpus 64 --forbid cp --top 10 --json
  autopar plan --model gpt-175b --gpus 256 --report plan.html --trace step.json

\b
Names of --fix, --max, --min and --forbid: tp pp vpp dp cp cp_kind ep etp mbs zero sp
  recompute recompute_layers schedule, or the full names of a plan file.

\b
Exit code 1: no strategy fits. --json then has fits (false), reasons, faults,
  nearest (strategies that need least memory, with their bytes) and
  smallest_cluster (num_gpus and strategy, or null).
"""


class SeveralValues(click.Command):
    """Lets ``--fix tp=8 pp=4`` give two values to one flag: every word up to the next flag is one."""

    repeated: tuple[str, ...] = ("--fix", "--max", "--min", "--forbid")

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
@input_options(required=True)
@click.option("--fix", multiple=True, metavar="NAME=VALUE", help="Keep to this value, e.g. tp=8.")
@click.option("--max", "maximum", multiple=True, metavar="NAME=N", help="No more than this, e.g. tp=8.")
@click.option("--min", "minimum", multiple=True, metavar="NAME=N", help="No less than this, e.g. pp=2.")
@click.option("--forbid", multiple=True, metavar="NAME", help="Leave this technique out, e.g. cp.")
@click.option("--top", type=WholeNumber(1, 1000), default=5, show_default=True, metavar="K", help="Strategies reported, the best included.")
@click.option("--output", "-o", metavar="FILE", help="Write the plan file here.")
@report_options
@json_option
@click.pass_context
def command(ctx: click.Context, /, as_json: bool, output: str | None, **options: Any) -> None:
    """Find the fastest strategy that fits, and the runners-up."""
    from autopar.api import plan, problem_of, was_interrupted, write_plan

    from .output import answering, note, print_json, print_report

    check_targets({**options, "output": output})
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
    if any(options[name] is not None for name in REPORT_NAMES):
        from autopar.report.subject import subject_of_plan

        problem = problem_of(found)
        write_trace(options, problem, found.strategy)
        write_reports(options, lambda: subject_of_plan(found, problem))
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
