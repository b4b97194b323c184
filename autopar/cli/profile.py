"""``autopar profile``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .app import EXIT_ABSENT
from .options import COUNT, json_option

if TYPE_CHECKING:
    from autopar.costmodel.measured import Use
    from autopar.costmodel.profiler.request import Request
    from autopar.costmodel.spec.cluster import ClusterSpec
    from autopar.costmodel.spec.measured import MeasuredProfile
    from autopar.profiling import Profiled

EPILOG = """\b
Examples:
  autopar profile -o profile.json
  autopar profile -o profile.json --device cpu --budget 60s --for-model gpt2 --gbs 8 --seq 256
  torchrun --nnodes 4 --nproc-per-node 8 -m autopar profile -o profile.json --budget 5m
  autopar profile -o profile.json --for-plan plan.json
  autopar profile -o profile.json --import nccl-tests.log --import trace.json --gpu h100-sxm5-80gb
  autopar plan --model gpt2 --cluster profile.cluster.json --profile profile.json

\b
Beside the profile goes a cluster file of this machine, for `plan --cluster`.
--for-plan and --extend keep the points that are there and add to them.
--import reads nccl-tests output, a torch profiler's trace (Chrome JSON, with shapes) and
  the text of `nvidia-smi topo -m`, and runs nothing.

\b
Exit code 3: no GPU or package to measure with, a device lost, a rank that died or hung
  (what was measured by then is written all the same).
"""

_SECONDS = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(s|sec|m|min|h)?")


class Duration(click.ParamType[float]):
    """``60``, ``60s``, ``5m`` or ``1h``."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Raises:
        click.BadParameter: ``value`` is no duration.
        """
        match = _SECONDS.fullmatch(str(value).strip().lower())
        if match is None:
            self.fail(f"{value!r} is not a duration such as 60s or 5m.", param, ctx)
        return float(match[1]) * {"m": 60, "min": 60, "h": 3600}.get(match[2] or "s", 1)


@click.command("profile", epilog=EPILOG)
@click.option("--output", "-o", metavar="FILE", help="Write the profile here.")
@click.option("--cluster-output", metavar="FILE", help="Write the cluster file here.  [default: FILE.cluster.json]")
@click.option("--budget", type=Duration(), default="60s", show_default=True, metavar="TIME", help="How long to measure.")
@click.option("--device", type=click.Choice(("auto", "cuda", "cpu")), default="auto", show_default=True, help="What to measure.")
@click.option("--dtypes", metavar="bf16,fp8", help="Types of matrix products.  [default: bf16,fp16,tf32,fp8 on a GPU, fp32 on a CPU]")
@click.option("--threads", type=COUNT, metavar="N", help="Host threads a rank.  [default: OMP_NUM_THREADS, else cores over ranks]")
@click.option("--timeout", type=Duration(), default="60s", metavar="TIME", help="How long a rank waits for another.  [default: 60s]")
@click.option("--for-model", "models", multiple=True, metavar="NAME|PATH", help="Measure the shapes this model's best strategies need.")
@click.option("--for-plan", "plan_file", metavar="PLAN", help="Measure just the shapes this plan and its runners-up need.")
@click.option("--extend", metavar="PROFILE", help="Keep the points of this profile.")
@click.option("--import", "imports", multiple=True, metavar="FILE", help="Read nccl-tests output, a torch trace or `nvidia-smi topo -m`.")
@click.option("--gpu", metavar="DEVICE", help="Of --import: the device, where no file names it.")
@click.option("--global-batch-size", "--gbs", type=COUNT, metavar="N", help="Of --for-model: sequences a step.")
@click.option("--sequence-length", "--seq", type=COUNT, metavar="N", help="Of --for-model: tokens a sequence.")
@click.option("--precision", metavar="NAME", help="Of --for-model.")
@click.option("--framework", metavar="NAME", help="Of --for-model.  [default: pytorch-eager]")
@json_option
@click.pass_context
def command(ctx: click.Context, /, output: str | None, cluster_output: str | None, as_json: bool, **options: Any) -> None:
    """Measure this machine's kernels and collectives, for plans that rest on them.

    On one GPU or CPU; under torchrun on all ranks, with their collectives.
    """
    from autopar.costmodel.spec.errors import UnavailableError
    from autopar.io.measured_file import write_measured
    from autopar.profiling import default_cluster_path, profile_machine

    from .output import note

    cluster_path = cluster_output or (None if output is None else default_cluster_path(output))

    def keep(found: Profiled) -> None:
        if output is not None:
            write_measured(found.profile, output)
        if cluster_path is not None:
            _write_cluster(found, cluster_path)

    if options["imports"]:
        from autopar.profile_import import import_profile

        found = import_profile(options["imports"], options["gpu"], _start(options))
        keep(found)
    else:
        wanted = _wanted(options)
        with _progress(options["budget"]) as watch:
            found = profile_machine(wanted, keep=keep, watch=watch)
    if found.rank == 0:
        _answer(found, as_json)
        for line in found.notes:
            note(f"note: {line}")
        if output is not None:
            note(f"wrote {output} and {cluster_path}")
    if found.ended_by is not None:
        kept = f"; {found.profile.num_points} points are kept" if found.rank == 0 else ""
        raise UnavailableError(f"ended early: {found.ended_by}{kept}")
    if not found.profile.num_points:
        ctx.exit(EXIT_ABSENT)


def _wanted(options: dict[str, Any]) -> Any:
    """The flags as what the profiler is asked for."""
    from autopar.profiling import Wanted, environment_threads

    start = _start(options)
    needs, planned = _needs(options)
    return Wanted(
        budget_seconds=options["budget"],
        device=options["device"],
        dtypes=tuple(name.strip() for name in (options["dtypes"] or "").split(",") if name.strip()),
        threads=options["threads"] or environment_threads(),
        timeout_seconds=options["timeout"],
        needs=needs,
        only_needs=options["plan_file"] is not None,
        start=start or planned,
    )


def _start(options: dict[str, Any]) -> MeasuredProfile | None:
    """The profile to add to."""
    if options["extend"] is None:
        return None
    from autopar.io.measured_file import read_measured

    return read_measured(options["extend"])


def _needs(options: dict[str, Any]) -> tuple[Callable[[ClusterSpec, MeasuredProfile], Iterable[Use]] | None, MeasuredProfile | None]:
    """The shapes to measure, once the machine is known, and the profile that the plan was made with."""
    if options["plan_file"] is None and not options["models"]:
        return None, None
    from autopar.needed_shapes import of_model, of_plan

    plan = None
    if options["plan_file"] is not None:
        from autopar.costmodel.spec.errors import UnavailableError
        from autopar.io.plan_file import read_plan

        try:
            plan = read_plan(options["plan_file"])
        except ImportError as error:
            raise UnavailableError(f"--for-plan reads the plan with {error.name}: pip install {error.name}") from None
    inputs: dict[str, Any] = {
        name: options[name] for name in ("global_batch_size", "sequence_length", "precision") if options[name] is not None
    }
    inputs["framework"] = options["framework"] or "pytorch-eager"

    def needs(cluster: ClusterSpec, profile: MeasuredProfile) -> Iterable[Use]:
        found: list[Use] = [] if plan is None else list(of_plan(plan, profile if plan.inputs.cluster.device.id == profile.device else None))
        for model in options["models"]:
            found += of_model(model, cluster, profile, inputs)  # type: ignore[arg-type]
        return found

    return needs, None if plan is None else plan.inputs.measured


def _write_cluster(found: Profiled, path: str | Path) -> None:
    from autopar.io.files import write_text

    write_text(path, json.dumps(found.cluster_document, indent=2, allow_nan=False) + "\n", field="cluster-output")


class _progress:  # noqa: N801 - a context manager
    """A bar of the budget on standard error, on a terminal alone; the shape that is timed beside it."""

    def __init__(self, seconds: float) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description:<44}"), BarColumn(), TimeRemainingColumn(), console=console, disable=not console.is_terminal
        )
        self._seconds = seconds

    def __enter__(self) -> Callable[[Request, float], None]:
        self._bar.start()
        task = self._bar.add_task("", total=self._seconds)
        return lambda request, spent: self._bar.update(task, completed=min(spent, self._seconds), description=str(request)[:44])

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


def _answer(found: Profiled, as_json: bool) -> None:
    from .output import print_json, print_report

    if as_json:
        print_json(found.profile)
    else:
        from autopar.report.profile import profile_report

        print_report(profile_report(found.profile, found.cluster, found.seconds))
