"""``autopar import``."""

from __future__ import annotations

from typing import Any

import click

from .options import COUNT, GPUS, _complete, json_option
from .plan import SeveralValues

EPILOG = """\b
Examples:
  autopar import train.sh --from megatron-lm --gpu a100-sxm4-80gb -o plan.json
  autopar import "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 32 …" --from megatron-lm -o plan.json
  autopar import ds_config.json --from deepspeed --model llama3-8b --gpus 64 -o plan.json
  autopar import train.sh --from megatron-lm --pool a100-40gb=64 h100=64 -o plan.json
  autopar plan --improve plan.json --measured 14.2s

\b
The plan file is one like any other: estimate, explain, export and plan --improve take it.
Exit code 2: the configuration cannot be read, contradicts itself or breaks a rule of the framework.
"""


@click.command("import", cls=SeveralValues, epilog=EPILOG)
@click.argument("configuration", metavar="FILE|COMMAND")
@click.option(
    "--from",
    "framework",
    required=True,
    metavar="FRAMEWORK",
    help="megatron-lm, megatron-bridge, torchtitan, deepspeed, accelerate or nanotron.",
)
@click.option("--model", "-m", metavar="NAME|PATH", shell_complete=_complete("models"), help="Where the configuration does not say it.")
@click.option("--gpus", "-n", type=GPUS, metavar="N", help="Number of GPUs, where the configuration does not say it.")
@click.option("--gpu", metavar="DEVICE", shell_complete=_complete("devices"), help="Device.  [default: h100-sxm5-80gb]")
@click.option("--cluster", "-c", metavar="ID|FILE", shell_complete=_complete("clusters"), help="Node type, or a cluster file.")
@click.option("--pool", multiple=True, metavar="DEVICE=N", help="GPUs of one kind, in the order in which hosts start: a mixed cluster.")
@click.option("--between", metavar="RATE", help="Between pools, a GPU in one direction, e.g. 25GB/s.")
@click.option("--global-batch-size", "--gbs", type=COUNT, metavar="N", help="Sequences a step, in place of the configuration's.")
@click.option("--sequence-length", "--seq", type=COUNT, metavar="N", help="Tokens a sequence, in place of the configuration's.")
@click.option("--mbs", "micro_batch_size", type=COUNT, metavar="N", help="Micro-batch size, in place of the configuration's.")
@click.option("--precision", metavar="NAME", help="In place of the configuration's.")
@click.option("--profile", metavar="FILE", help="Constants that `autopar calibrate` found.")
@click.option("--output", "-o", metavar="FILE", help="Write the plan file here.")
@json_option
def command(configuration: str, framework: str, output: str | None, as_json: bool, **given: Any) -> None:
    """Read what a training framework is told today as a plan."""
    from autopar.api import problem_of, write_plan
    from autopar.interchange import import_plan
    from autopar.report.text import estimate_report

    from .output import note, print_json, print_report

    plan = import_plan(configuration, framework, pools=given.pop("pool") or None, **given)
    if output is not None:
        write_plan(plan, output)
    if as_json:
        print_json(plan)
    elif plan.mixed is not None:
        from autopar.exporters.pools import who_runs_it
        from autopar.report.mixed import mixed_report

        print_report(mixed_report(plan, who_runs_it(plan)))
    else:
        print_report(estimate_report(problem_of(plan), plan.strategy, plan.estimate, plan.inputs.assumptions))
    if output is not None:
        note(f"wrote {output}")
