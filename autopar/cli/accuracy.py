"""``autopar accuracy``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .options import json_option

if TYPE_CHECKING:
    from autopar.accuracy.runs import Run, Skipped

EPILOG = """\b
Examples:
  autopar accuracy runs.csv
  autopar accuracy runs.csv more.csv --by device,framework --json
  autopar accuracy runs.csv --html accuracy.html

\b
Columns of RUNS.csv are those of benchmarks/accuracy/published_runs.csv, which benchmarks/accuracy/README.md
documents. Needed: device, num_gpus, sequence_length, global_batch_size, tensor_parallel_size,
pipeline_parallel_size, the model's shape, and one of step_time_seconds, tokens_per_second_per_gpu,
peak_memory_gb, out_of_memory. A row that cannot be scored is listed with its reason.

\b
Exit code 1: no row could be scored.
"""


@click.command("accuracy", epilog=EPILOG)
@click.argument("files", metavar="RUNS.csv...", nargs=-1, required=True)
@click.option("--by", metavar="COLUMN,...", default="family,device", show_default=True, help="Columns to group the errors by.")
@click.option("--html", metavar="FILE", help="Write a report with scatter plots here, one file that stands alone.")
@json_option
@click.pass_context
def command(ctx: click.Context, /, files: tuple[str, ...], by: str, html: str | None, as_json: bool) -> None:
    """Predict measured runs, and say how far off the predictions are.

    For each row the step time and the peak memory; over all and by group the error; for runs that differ in strategy alone,
    whether the right one is ranked first.
    """
    from autopar.accuracy.score import group_columns, score

    from .output import note, print_json, print_report

    columns = group_columns(by)
    runs, skipped = _read(files)
    accuracy = score(runs, skipped, by=columns)
    if as_json:
        from autopar.accuracy.document import document

        print_json(document(accuracy))
    else:
        from autopar.accuracy.report import accuracy_report

        print_report(accuracy_report(accuracy))
    if not accuracy.predictions:
        note(f"error: nothing to score: {'all of ' if accuracy.rows else ''}{accuracy.rows:,} rows skipped")
        ctx.exit(1)
    if html is not None:
        from autopar.accuracy.page import accuracy_page
        from autopar.io.files import write_text

        write_text(html, accuracy_page(accuracy, f"Accuracy on {', '.join(files)}"), field="--html")
        note(f"wrote {html}")


def _read(files: tuple[str, ...]) -> tuple[tuple[Run, ...], tuple[Skipped, ...]]:
    """The rows of all files.

    Raises:
        InvalidInputError: files that cannot be read, all of them at once.
    """
    from pathlib import Path

    from autopar.accuracy.runs import read_runs
    from autopar.costmodel.spec.errors import Fault, InvalidInputError, raise_if

    runs: list[Run] = []
    skipped: list[Skipped] = []
    faults: list[Fault] = []
    for file in files:
        try:
            found, unread = read_runs(Path(file))
        except InvalidInputError as error:
            faults.extend(error.faults)
        else:
            runs += found
            skipped += unread
    raise_if(faults)
    return tuple(runs), tuple(skipped)
