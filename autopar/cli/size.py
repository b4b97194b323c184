"""``autopar size``."""

from __future__ import annotations

import sys
from typing import Any

import click

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
from .plan import SeveralValues

EPILOG = """\b
Examples:
  autopar size --model llama3-70b --tokens 15T --deadline 60d --price 2.5
  autopar size --model llama3-8b --tokens 2T --deadline 30d --price h100=2.5 b200=5 a100=1.3
  autopar size --model gpt-175b --tokens 300B --deadline '30 days' --cluster aws-p5 --max-gpus 4096
  autopar size --model llama3-70b --tokens 15T --deadline 90d --mtbf-node 4000h --checkpoint-seconds 60

\b
Clusters: the one of --gpu or --cluster; else every device and node type with a price;
  else the default GPU. --price 2.5 is for all of them.

\b
Exit code 1: no number of GPUs meets the deadline; says why, and the least change that does.
  --json is then the same document, with fits (false) and missed.
"""


@click.command("size", cls=SeveralValues, epilog=EPILOG)
@input_options(required=True, sized=False)
@click.option("--tokens", required=True, metavar="COUNT", help="Tokens of the whole run, e.g. 15T, 300B or 1.4e12.")
@click.option("--deadline", required=True, metavar="TIME", help="Time for the whole run, e.g. 30d or '12 hours'.")
@click.option("--max-gpus", type=WholeNumber(1, 131_072), metavar="N", help="Look at no more GPUs than these.  [default: 131,072]")
@constraint_options()
@stages_option
@aims_options()
@json_option
def command(as_json: bool, **options: Any) -> None:
    """Find the fewest GPUs for a deadline, and the cheapest.

    Of each cluster asked about; with prices the clusters are ranked by cost.
    """
    from autopar.api import size

    from .output import answering, note, print_json, print_report

    with answering(as_json):
        found = size(
            options["model"],
            tokens=options["tokens"],
            deadline=options["deadline"],
            max_gpus=options["max_gpus"],
            stages=options["stages"],
            progress=note if sys.stderr.isatty() else None,
            **given_constraints(options),
            **given_aims(options),
            **given_inputs(options),
        )
    if as_json:
        print_json(found)
    else:
        from autopar.report.size import size_report

        print_report(size_report(found))
