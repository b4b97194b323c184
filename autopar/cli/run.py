"""``autopar run``."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .app import EXIT_INTERNAL, EXIT_INTERRUPTED, describe
from .options import COUNT, WholeNumber, json_option

if TYPE_CHECKING:
    from autopar.costmodel.spec.plan import Plan
    from autopar.run_result import RunOptions, RunResult
    from autopar.runtime.failures import Failure

EPILOG = """\b
Examples:
  autopar plan --model gpt2 --gpus 8 --framework autopar -o plan.json
  autopar run plan.json --steps 50 -o runs.csv
  autopar run plan.json --top 3 --write-plan best.json
  autopar run plan.json --model ./my-model --data tokens.bin --save ckpt --save-every 100
  torchrun --nnodes 4 --nproc-per-node 8 ... -m autopar run plan.json
  autopar run plan.json --dry-run --rank 513

\b
Outside torchrun the ranks of this machine are started here, one for each rank of the plan; they end with
it. Without --model the model is built from the plan's shape. RUNS.csv is read by `autopar accuracy` and
`autopar calibrate`. A plan for GPUs runs on the cores of a machine with --device cpu.

\b
Exit codes: 0 done, 1 it cannot go on (out of memory, the loss is no number), 2 the plan, model or data is
wrong, 3 a GPU or package is absent, or a port is taken, 4 a bug, 130 interrupted. torchrun itself ends
with 1 where a rank fails.
"""


@click.command("run", epilog=EPILOG)
@click.argument("plan", metavar="PLAN")
@click.option("--steps", type=COUNT, default=20, show_default=True, metavar="N", help="Optimizer steps.")
@click.option("--warmup", type=WholeNumber(0, 10**6), default=2, show_default=True, metavar="N", help="First steps that are not timed.")
@click.option(
    "--data", default="synthetic", show_default=True, metavar="synthetic|FILE", help="Token ids: .npy, .bin (uint16) or .txt (bytes)."
)
@click.option("--model", "-m", metavar="PATH", help="A Hugging Face config.json or its folder.  [default: the plan's shape]")
@click.option("--device", type=click.Choice(("cuda", "cpu")), help="Where to run.  [default: what the plan is for]")
@click.option("--learning-rate", "--lr", type=click.FloatRange(0, 10), default=3e-4, show_default=True, metavar="RATE", help="Of AdamW.")
@click.option("--max-grad-norm", type=click.FloatRange(0, min_open=True), metavar="NORM", help="Clip gradients to this norm.")
@click.option("--seed", type=WholeNumber(0, 2**31 - 1), default=0, show_default=True, metavar="N", help="Of weights, dropout and data.")
@click.option("--save", metavar="FOLDER", help="Write checkpoints here, the last step's at least.")
@click.option("--save-every", type=COUNT, metavar="N", help="Write one every N steps.")
@click.option("--resume", metavar="FOLDER", help="Go on from the newest checkpoint here, whatever layout wrote it.")
@click.option("--output", "-o", metavar="RUNS.csv", help="Add what was measured to this table.")
@click.option("--top", type=WholeNumber(1, 100), metavar="K", help="Run the plan's first K strategies and keep the fastest.")
@click.option("--write-plan", metavar="FILE", help="With --top: write the plan with the fastest first.")
@click.option("--timeout", type=COUNT, default=600, show_default=True, metavar="SECONDS", help="Wait of a rank for another.")
@click.option("--dry-run", is_flag=True, help="Build one rank without hardware and report its parameters and memory.")
@click.option("--rank", type=WholeNumber(0, 10**7), metavar="R", help="With --dry-run: which rank.  [default: 0]")
@json_option
@click.pass_context
def command(ctx: click.Context, /, plan: str, as_json: bool, **options: Any) -> None:
    """Train under a plan on this machine or inside torchrun, and say how fast it was."""
    from autopar.io.plan_file import read_plan

    _check(options)
    _require_torch()
    if _inside_a_job():
        code = be_a_rank(plan, options, as_json=as_json)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # threads of a group that failed may never end
    found = read_plan(plan)
    _refuse_pools(found, dry_run=options["dry_run"])
    if options["dry_run"]:
        _dry_run(found, options, as_json=as_json)
    elif options["top"] is not None:
        _top(ctx, found, options, as_json=as_json)
    else:
        _require_machine(found, options["device"])
        failure = _launch(plan, options, as_json=as_json)
        if failure is not None:
            _tell(failure, found.strategy.world_size)
            ctx.exit(failure.exit_code)


def _refuse_pools(plan: Plan, *, dry_run: bool) -> None:
    """Raise where a plan is for a mixed cluster: one machine has one kind of device. A rank of stages by pool can be built dry."""
    from autopar.costmodel.spec.errors import Fault, raise_if
    from autopar.mixed_problem import unequal_faults

    if plan.mixed is None:
        return
    if dry_run:
        raise_if(unequal_faults(plan))
        return
    given = f"a plan for a mixed cluster ({', '.join(f'{pool.name}={pool.cluster.num_gpus}' for pool in plan.mixed.pools)})"
    fix = "autopar export --to torchrun starts its hosts in order; --dry-run builds one rank"
    raise_if([Fault(field="plan", given=given, required="autopar run measures one kind of GPU", fix=fix)])


def _check(options: dict[str, Any]) -> None:
    """Raise where options do not belong together, for all of them at once."""
    from autopar.costmodel.spec.errors import Fault, raise_if

    faults = [
        Fault(field=f"--{name.replace('_', '-')}", given=str(options[name]), required=f"goes with {needed}")
        for name, needed, present in (
            ("rank", "--dry-run", options["dry_run"]),
            ("write_plan", "--top", options["top"] is not None),
            ("save_every", "--save FOLDER", options["save"] is not None),
        )
        if options[name] is not None and not present
    ]
    if options["top"] is not None:
        faults += [
            Fault(field="--top", given=str(options["top"]), required=f"does not go with {flag}")
            for flag, given in (
                ("--dry-run", options["dry_run"]),
                ("--save", options["save"]),
                ("--resume", options["resume"]),
                ("torchrun: it starts each strategy's ranks itself", _inside_a_job()),
            )
            if given
        ]
    raise_if(faults)
    if options["output"] is not None:
        from autopar.accuracy.record import require_table

        require_table(options["output"])


def _require_torch() -> None:
    from importlib.util import find_spec

    from autopar.costmodel.spec.errors import UnavailableError

    if find_spec("torch") is None:
        raise UnavailableError("torch is needed to run a plan; pip install 'autopar[runtime]'")


def _inside_a_job() -> bool:
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def _options(options: dict[str, Any]) -> RunOptions:
    from autopar.run_result import RunOptions

    def path(name: str) -> Path | None:
        return Path(options[name]) if options[name] is not None else None

    return RunOptions(
        steps=options["steps"],
        warmup_steps=options["warmup"],
        data=options["data"],
        model=path("model"),
        device=options["device"],
        learning_rate=options["learning_rate"],
        max_grad_norm=options["max_grad_norm"],
        seed=options["seed"],
        save=path("save"),
        save_every=options["save_every"] or 0,
        resume=path("resume"),
        timeout_seconds=options["timeout"],
    )


# -- inside a job ------------------------------------------------------------------------------------


def be_a_rank(plan: str, options: dict[str, Any], *, as_json: bool) -> int:
    """Run as one rank of the job; the exit code."""
    from autopar.runtime.launch import leave_with_launcher

    leave_with_launcher()
    try:
        _train(plan, options, as_json=as_json)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:
        return _failed(error)
    return 0


def _train(plan: str, options: dict[str, Any], *, as_json: bool) -> None:
    from autopar.accuracy.record import append_runs, run_of
    from autopar.io.plan_file import read_plan
    from autopar.run_worker import train

    from .output import note, print_json, print_report
    from .progress import progress_bar

    first = os.environ["RANK"] == "0"
    with progress_bar(options["steps"], shown=first) as progress:
        given = read_plan(plan)
        _refuse_pools(given, dry_run=False)
        result, measured = train(given, _options(options), progress)
    if not first:
        return
    if (where := os.environ.get(RESULT_VARIABLE)) is not None:
        from autopar.io.codec import to_json

        Path(where).write_text(to_json(result), encoding="utf-8")
    elif as_json:
        print_json(result)
    else:
        from autopar.report.run import run_report

        print_report(run_report(result))
    if options["output"] is not None:
        run_id = f"{measured.model.name} {measured.strategy.describe()} {time.strftime('%Y%m%dT%H%M%S', time.gmtime())}"
        append_runs(options["output"], [run_of(measured, run_id)])
        note(f"wrote {options['output']}")


def _failed(error: Exception) -> int:
    """Say why this rank failed, to the launcher or, where another one started the job, on standard error once."""
    from autopar.runtime.failures import Failure, is_consequence, record, tells, understood

    now = time.time()
    error = understood(error)
    message, code = describe(error)
    if os.environ.get("AUTOPAR_DEBUG"):
        import traceback

        traceback.print_exception(error)
    rank, consequence = int(os.environ["RANK"]), is_consequence(error)
    if consequence:
        message = f"another rank went away: {message}"
    failure = Failure(rank=rank, exit_code=code, message=message, time=now, consequence=consequence)
    if not record(failure) and tells(rank, consequence=consequence):
        _tell(failure, int(os.environ["WORLD_SIZE"]))
    return code


def _tell(failure: Failure, world_size: int) -> None:
    from .output import note

    where = f"rank {failure.rank}: " if world_size > 1 and failure.exit_code in (1, EXIT_INTERNAL) else ""
    first, *rest = failure.message.splitlines() or [""]
    note("\n".join([f"error: {where}{first}", *(f"       {line}" for line in rest)]))


# -- starting a job ----------------------------------------------------------------------------------

RESULT_VARIABLE = "AUTOPAR_RESULT"
"""File for rank 0's result, in place of standard output."""
RANKS_PER_CORE = 8
"""More processes than this on each core would only wait for one another."""


def _launch(plan: str, options: dict[str, Any], *, as_json: bool, result: Path | None = None) -> Failure | None:
    from autopar.io.plan_file import read_plan
    from autopar.runtime.launch import launch

    command = [sys.executable, "-m", "autopar", "run", plan, *_arguments(options), *(["--json"] if as_json else [])]
    environment = {} if result is None else {RESULT_VARIABLE: str(result)}
    return launch(command, world_size=read_plan(plan).strategy.world_size, environment=environment)


def _arguments(options: dict[str, Any]) -> list[str]:
    """The options of a run as its ranks get them."""
    names = (
        "steps", "warmup", "data", "model", "device", "learning_rate", "max_grad_norm", "seed", "save", "save_every", "resume", "output",
        "timeout",
    )  # fmt: skip
    return [f"--{name.replace('_', '-')}={options[name]}" for name in names if options[name] is not None]


def _require_machine(plan: Plan, device: str | None) -> None:
    """Raise where this machine cannot hold the plan's ranks.

    Raises:
        UnavailableError: too few GPUs, or far too few cores.
    """
    from autopar.catalog.cpu import CPU, kind_of
    from autopar.costmodel.spec.errors import UnavailableError

    from .doctor import visible_gpus

    ranks, planned = plan.strategy.world_size, kind_of(plan.inputs.cluster.device)
    if device == "cpu" or (device is None and planned == CPU):
        cores = os.cpu_count() or 1
        if ranks > cores * RANKS_PER_CORE:
            raise UnavailableError(f"the plan has {ranks:,} ranks, this machine {cores} cores; --dry-run checks one rank of any plan")
        return
    here = len(visible_gpus())
    if ranks > here:
        more = "torchrun starts them on several machines" if here else "--device cpu runs the plan on cores, --dry-run checks one rank"
        what = f"{ranks:,} GPU{'s' * (ranks > 1)} ({planned})"
        raise UnavailableError(f"the plan needs {what}, this machine has {here or 'none'}; {more}")


def _top(ctx: click.Context, plan: Plan, options: dict[str, Any], *, as_json: bool) -> None:
    """Run the plan's first strategies, each as a job of its own, and keep the fastest."""
    import tempfile

    from autopar.io.codec import from_json_as
    from autopar.io.plan_file import write_plan
    from autopar.plan_choice import choose, strategies
    from autopar.report.run import comparison_report
    from autopar.run_result import Comparison, Contender, RunResult

    from .output import note, print_json, print_report

    _require_machine(plan, options["device"])
    contenders: list[Contender] = []
    with tempfile.TemporaryDirectory(prefix="autopar-") as folder:
        for index, strategy in enumerate(strategies(plan, options["top"])):
            file, answer = Path(folder) / f"{index}.json", Path(folder) / f"{index}.result.json"
            write_plan(choose(plan, strategy), file)
            note(f"running {index + 1}: {strategy.describe()}")
            failure = _launch(str(file), options, as_json=False, result=answer)
            if failure is not None:
                _tell(failure, strategy.world_size)
                contenders.append(Contender(strategy=strategy.describe(), failure=failure.message, result=None))
                code = failure.exit_code
                continue
            result: RunResult = from_json_as(RunResult, answer.read_bytes())
            contenders.append(Contender(strategy=strategy.describe(), failure="", result=result))
    compared = Comparison.of(contenders)
    if as_json:
        print_json(compared)
    else:
        print_report(comparison_report(compared))
    if compared.best is None:
        ctx.exit(code)
    if options["write_plan"] is not None:
        write_plan(choose(plan, strategies(plan, options["top"])[compared.best]), options["write_plan"])
        note(f"wrote {options['write_plan']}")


def _dry_run(plan: Plan, options: dict[str, Any], *, as_json: bool) -> None:
    from autopar.report.run import dry_run_report
    from autopar.run_dry import dry_run

    from .output import print_json, print_report

    found = dry_run(plan, rank=options["rank"] or 0, folder=Path(options["model"]) if options["model"] else None)
    if as_json:
        print_json(found)
    else:
        print_report(dry_run_report(found))
