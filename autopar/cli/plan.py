"""``autopar plan``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from .app import EXIT_INTERRUPTED
from .options import (
    WholeNumber,
    aims_options,
    constraint_options,
    given_aims,
    given_constraints,
    given_inputs,
    input_options,
    json_option,
    stages_option,
)  # fmt: skip
from .reporting import REPORT_NAMES, check_targets, report_options, write_mixed, write_reports, write_trace

if TYPE_CHECKING:
    from autopar.costmodel.spec.plan import Plan

EPILOG = """\b
Examples:
  autopar plan --model gpt-175b --gpus 256
  autopar plan --model llama3-70b --gpus 128 --gpu h200-sxm-141gb --fix tp=8 --max pp=4
  autopar plan --model ~/models/my-model --cluster dgx-a100 --gpus 64 --gbs 512 --seq 8192 -o plan.json
  autopar plan --model mixtral-8x7b --gpus 64 --forbid cp --top 10 --json
  autopar plan --model gpt-175b --gpus 256 --report plan.html --trace step.json
  autopar plan --model llama3-70b --gpus 256 --objective cost --price 2.5USD
  autopar plan --model llama3-8b --gpus 64 --pareto time,gpus,cost --price 2.5 --plot front.svg
  autopar plan --model gpt-175b --gpus 1024 --mtbf-node 4000h --checkpoint-seconds 60
  autopar plan --model llama3-70b --pool h100=64 a100-40gb=64 --between 25GB/s
  autopar plan --model llama3-70b --cluster mixed.toml --pools-as stages -o mixed.json
  autopar plan --improve plan.json --measured 14.2s -o better.json

\b
Names of --fix, --max, --min and --forbid: tp pp vpp dp cp cp_kind ep etp mbs zero sp
  recompute recompute_layers schedule order, or the full names of a plan file.

\b
A Pareto front is of two or more of time, gpus, memory, cost, energy. With gpus, cost
  or energy it compares numbers of GPUs up to --gpus, else strategies on that number.

\b
Exit code 1: no strategy fits. --json then has fits (false), reasons, faults,
  nearest (strategies that need least memory, with their bytes), smallest_cluster
  (num_gpus and strategy, or null) and reopened_by (changes that give a plan).
"""


class SeveralValues(click.Command):
    """Lets ``--fix tp=8 pp=4`` give two values to one flag: every word up to the next flag is one."""

    repeated: tuple[str, ...] = ("--fix", "--max", "--min", "--forbid", "--price", "--pool")

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
@constraint_options()
@click.option("--top", type=WholeNumber(1, 1000), default=5, show_default=True, metavar="K", help="Strategies reported, the best included.")
@click.option(
    "--objective",
    type=click.Choice(("step-time", "cost", "energy", "memory")),
    default="step-time",
    show_default=True,
    help="What the best strategy is best in.",
)
@stages_option
@click.option(
    "--pool", multiple=True, metavar="DEVICE=N", help="GPUs of one kind (a device or a node type); two pools or more: a mixed cluster."
)
@click.option("--between", metavar="RATE", help="Between pools, a GPU in one direction, e.g. 25GB/s.  [default: the slower pool's network]")
@click.option(
    "--pools-as",
    type=click.Choice(("any", "stages", "replicas")),
    default="any",
    show_default=True,
    help="One pipeline through the pools, or replicas in each with micro-batches by speed (which no framework runs).",
)
@click.option(
    "--search",
    type=click.Choice(("auto", "exact", "genetic")),
    default="auto",
    show_default=True,
    help="Of pools: look at every use of them, or as a genetic search comes upon them; auto: the first while they are few.",
)
@click.option(
    "--seed", type=WholeNumber(0, 2**31 - 1), default=0, show_default=True, metavar="N", help="Of the genetic search: same seed, same plan."
)
@click.option("--time-limit", metavar="TIME", help="Stop after this long with the best so far, e.g. 10s.")
@aims_options()
@click.option("--pareto", metavar="AXIS,...", help="Print the Pareto front of these axes instead, e.g. time,memory.")
@click.option("--plot", metavar="FILE", help="Draw the Pareto front here: .svg, .png or .pdf.")
@click.option("--output", "-o", metavar="FILE", help="Write the plan file here.")
@click.option("--improve", metavar="PLAN", help="Diagnose this plan file, and name the best changes of one knob and of two.")
@click.option("--measured", metavar="TIME", help="With --improve: what a step takes, e.g. 14.2s; says what explains the difference.")
@report_options
@json_option
@click.pass_context
def command(ctx: click.Context, /, as_json: bool, output: str | None, **options: Any) -> None:
    """Find the fastest strategy that fits, and the runners-up.

    With --improve: what a plan (searched or imported) costs, and what to change first.
    """
    if options["improve"] is not None:
        improve(ctx, options, output, as_json)
        return
    if options["measured"] is not None:
        raise click.UsageError("--measured goes with --improve PLAN", ctx)
    if options["model"] is None:
        raise click.MissingParameter(ctx=ctx, param_type="option", param_hint="'--model' / '-m'")
    check_targets({**options, "output": output})
    if options["pool"] or _has_pools(options["cluster"]):
        _print_pools(ctx, as_json, output, options)
    elif beside := [f"--{name.replace('_', '-')}" for name in ("between", "search", "pools_as") if _was_given(ctx, name)]:
        raise click.UsageError(f"{' and '.join(beside)} goes with pools: give --pool too, e.g. --pool h100=64 a100-40gb=64", ctx)
    elif options["pareto"] is not None:
        _print_front(ctx, as_json, options)
    elif options["plot"] is not None:
        raise click.UsageError("--plot draws a Pareto front: give --pareto too, e.g. --pareto time,memory", ctx)
    else:
        _print_plan(ctx, as_json, output, options)


def _print_plan(ctx: click.Context, as_json: bool, output: str | None, options: dict[str, Any]) -> None:
    from autopar.api import plan, problem_of, write_plan

    from .output import answering, print_json, print_report
    from .searching import searching

    with answering(as_json), searching() as progress:
        found = plan(
            options["model"],
            top=options["top"],
            objective=options["objective"],
            stages=options["stages"],
            time_limit=options["time_limit"],
            progress=progress,
            **given_constraints(options),
            **given_aims(options),
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
    _end(ctx, found, output)


def _print_pools(ctx: click.Context, as_json: bool, output: str | None, options: dict[str, Any]) -> None:
    """``--pool``: the plan of a mixed cluster."""
    from autopar.api import plan, write_plan

    from .output import answering, print_json, print_report
    from .searching import searching

    if clashing := [f"--{name}" for name in ("pareto", "plot", "figures") if options[name] is not None]:
        raise click.UsageError(f"a mixed cluster has no {', '.join(clashing)} yet: leave out that, or plan for one kind of GPU", ctx)
    with answering(as_json), searching() as progress:
        found = plan(
            options["model"],
            top=options["top"],
            objective=options["objective"],
            stages=options["stages"],
            time_limit=options["time_limit"],
            progress=progress,
            pools=options["pool"] or None,
            between=options["between"],
            pools_as=options["pools_as"],
            search=options["search"],
            seed=options["seed"],
            **given_constraints(options),
            **given_aims(options),
            **given_inputs(options),
        )
    if output is not None:
        write_plan(found, output)
    write_mixed(options, found)
    if as_json:
        print_json(found)
    else:
        from autopar.exporters.pools import who_runs_it
        from autopar.report.mixed import mixed_report

        print_report(mixed_report(found, who_runs_it(found)))
    _end(ctx, found, output)


def _has_pools(cluster: str | None) -> bool:
    """Whether ``--cluster`` is a file with pools."""
    from autopar.api import pools_of_file

    return cluster is not None and pools_of_file(cluster) is not None


def _end(ctx: click.Context, found: Plan, output: str | None) -> None:
    """What is said after a plan: where it was written, and whether it is what was found before an interrupt."""

    from .output import note

    if output is not None:
        note(f"wrote {output}")
    if found.search.interrupted:
        note("interrupted: this is the best of the strategies seen so far")
        ctx.exit(EXIT_INTERRUPTED)


def _print_front(ctx: click.Context, as_json: bool, options: dict[str, Any]) -> None:
    """``--pareto``: the front in place of one plan."""
    from autopar.api import pareto

    from .output import answering, note, print_json, print_report

    of_one_plan = ("objective", "top", "output", *REPORT_NAMES)
    clashing = [f"--{name.replace('_', '-')}" for name in of_one_plan if _was_given(ctx, name)]
    if clashing:
        raise click.UsageError(f"a Pareto front is not one plan: leave out {', '.join(clashing)}, or --pareto", ctx)
    if options["plot"] is not None:
        from autopar.report.pareto import plot_format

        plot_format(options["plot"])
    with answering(as_json):
        front = pareto(
            options["model"],
            options["pareto"],
            stages=options["stages"],
            time_limit=options["time_limit"],
            progress=note if sys.stderr.isatty() else None,
            **given_constraints(options),
            **given_aims(options),
            **given_inputs(options),
        )
    if as_json:
        print_json(front)
    else:
        from autopar.report.pareto import pareto_report

        print_report(pareto_report(front))
    if options["plot"] is not None:
        from autopar.report.pareto import write_drawing

        write_drawing(front, options["plot"])
        note(f"wrote {options['plot']}")
    if front.interrupted:
        note("interrupted: this is the front of what was seen so far")
        ctx.exit(EXIT_INTERRUPTED)


def _was_given(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


def improve(ctx: click.Context, options: dict[str, Any], output: str | None, as_json: bool) -> None:
    """``plan --improve``: the diagnosis of a plan file; with -o the best change of it is written as a plan.

    Raises:
        click.UsageError: other options than --measured, --output and --json were given.
    """
    from autopar.api import problem_of, read_plan, write_plan
    from autopar.interchange import changed_plan, diagnose

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
