"""``autopar export``."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from .options import json_option

EPILOG = """\b
Examples:
  autopar export plan.json --to megatron-lm -o run/
  autopar export plan.json --to torchtitan --nearest -o run/
  autopar export plan.json --to deepspeed

\b
Without -o the files are printed. Exit code 1: the framework does not take the plan; says which of
  its rules refuse it and the nearest plan that it takes, and writes nothing.
"""


def _names(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001 - click's signature
    from autopar.exporters import exporter_names

    return [CompletionItem(name) for name in exporter_names() if name.startswith(incomplete)]


@click.command("export", epilog=EPILOG)
@click.argument("plan_file", metavar="PLAN")
@click.option(
    "--to", "framework", required=True, metavar="FRAMEWORK", shell_complete=_names,
    help="megatron-lm, megatron-bridge, torchtitan, deepspeed, accelerate, nanotron, torchrun or slurm.",
)  # fmt: skip
@click.option("--output", "-o", metavar="DIR", help="Write the files here: all of them or none.")
@click.option("--nearest", is_flag=True, help="Where the framework cannot express the plan, export the nearest one that it can.")
@json_option
def command(plan_file: str, framework: str, output: str | None, nearest: bool, as_json: bool) -> None:
    """Write a plan as the configuration of a training framework, checked by that framework's rules first."""
    from autopar.api import read_plan
    from autopar.exporters.folder import write_files
    from autopar.interchange import export

    from .output import answering, note, print_json

    plan = read_plan(plan_file)
    with answering(as_json):
        done = export(plan, framework, nearest=nearest)
    if output is not None:
        for path in write_files(done.files, output):
            note(f"wrote {path}")
    if as_json:
        print_json(done)
    elif output is None:
        for file in done.files:
            click.echo(f"==> {file.path} <==", err=True)
            click.echo(file.text, nl=False)
    for remark in done.notes:
        note(remark)
