"""``autopar calibrate``."""

from __future__ import annotations

from typing import Any

import click

from .options import COUNT, json_option

EPILOG = """\b
Examples:
  autopar calibrate runs.csv -o profile.json
  autopar calibrate logs/*.log --gpu h100-sxm5-80gb -o profile.json
  autopar calibrate ds-*.log --model ./config.json --cluster my-cluster.toml --seq 4096 --recompute full -o profile.json
  autopar plan --model llama3-70b --gpus 128 --profile profile.json

\b
RUNS.csv has the columns that `autopar accuracy` reads. A LOG is the output of one run of Megatron-LM,
torchtitan or DeepSpeed: several logs are several rows. What a row does not say comes from the flags.
The error is that of rows left out of the fit. Where it does not fall by at least 5 %, the catalog's
constants are kept, the profile holds none, and the exit code is 0 all the same.

\b
Exit code 1: too few rows to tell (at least 4, of at least 2 configurations); 2: no usable row.
"""

_STRATEGY = {
    "tp": "tensor_parallel_size",
    "pp": "pipeline_parallel_size",
    "vpp": "virtual_pipeline_stages",
    "cp": "context_parallel_size",
    "ep": "expert_parallel_size",
    "mbs": "micro_batch_size",
    "zero_stage": "sharding_as_stated",
    "recompute": "recompute",
}


@click.command("calibrate", epilog=EPILOG)
@click.argument("files", metavar="RUNS.csv|LOG...", nargs=-1, required=True)
@click.option("--output", "-o", metavar="FILE", help="Write the profile here.")
@click.option("--model", "-m", metavar="NAME|PATH", help="Catalog name, or a Hugging Face config.json.")
@click.option("--gpu", metavar="DEVICE", help="Device, in the nodes it usually comes in.")
@click.option("--cluster", "-c", metavar="ID|FILE", help="Node type of the catalog, or a cluster file.")
@click.option("--gpus", "-n", type=COUNT, metavar="N", help="Number of GPUs.")
@click.option("--framework", metavar="NAME", help="Execution profile.  [default: what the row or the log says]")
@click.option("--precision", metavar="NAME", help="bf16, fp16, fp8, …")
@click.option("--global-batch-size", "--gbs", type=COUNT, metavar="N", help="Sequences a step.")
@click.option("--sequence-length", "--seq", type=COUNT, metavar="N", help="Tokens a sequence.")
@click.option("--tp", type=COUNT, metavar="N", help="Tensor parallel size.")
@click.option("--pp", type=COUNT, metavar="N", help="Pipeline parallel size.")
@click.option("--vpp", type=COUNT, metavar="N", help="Virtual stages per pipeline rank.")
@click.option("--cp", type=COUNT, metavar="N", help="Context parallel size.")
@click.option("--ep", type=COUNT, metavar="N", help="Expert parallel size.")
@click.option("--mbs", type=COUNT, metavar="N", help="Micro-batch size.")
@click.option("--zero-stage", type=click.Choice(("0", "1", "2", "3")), help="What data parallel ranks share out.")
@click.option("--recompute", type=click.Choice(("none", "selective", "full")), help="Activations computed again in the backward pass.")
@json_option
def command(files: tuple[str, ...], output: str | None, as_json: bool, **options: Any) -> None:
    """Refine the constants of your cluster with your own measured steps."""
    from autopar.accuracy.calibration import Stated, calibrate, read_measured
    from autopar.io.profile_file import write_calibration

    from .output import note, print_json, print_report

    strategy = {column: options.pop(name) for name, column in _STRATEGY.items()}
    measured = read_measured(files, Stated(strategy=strategy, **options))
    found = calibrate(measured)
    skipped = [f"{left.run_id}: {left.reason}" for left in measured.skipped]
    if output is not None:
        write_calibration(found, output)
    if as_json:
        print_json(found)
        for line in skipped:
            note(f"not used: {line}")
    else:
        from autopar.report.calibration import calibration_report

        print_report(calibration_report(found, measured.assumptions, skipped))
    if output is not None:
        note(f"wrote {output}")
