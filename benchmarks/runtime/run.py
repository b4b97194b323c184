"""Measures the runtime on this machine's cores: ``python benchmarks/runtime/run.py``; see README.md beside this file.

Without flags: profiles the machine, runs the loop and the overhead on two ranks, prints tables, and writes results/*.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

RESULTS = Path(__file__).parent / "results"
ROUNDS, STEPS_PER_TURN = 10, 2
PARTS = ("loop", "overhead")


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    if "RANK" in os.environ:
        _rank(options)
        return 0
    RESULTS.mkdir(exist_ok=True)
    if options.profile is None and not options.no_profile:
        options.profile = _profile(options.budget)
    for part in options.parts or PARTS:
        failed = _launch(part, options)
        if failed:
            return failed
        _print(part, json.loads((options.output / f"{part}.json").read_text(encoding="utf-8")))
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", type=_part, metavar="PART", help=f"what to measure: {' or '.join(PARTS)} (default: both)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"turns of each (default {ROUNDS})")
    parser.add_argument("--profile", type=Path, help="a profile of this machine (default: measure one)")
    parser.add_argument("--no-profile", action="store_true", help="plan with the catalog's constants of a CPU")
    parser.add_argument("--budget", default="90s", help="time for the profile (default 90s)")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the results")
    return parser.parse_args(arguments)


def _part(text: str) -> str:
    """One of :data:`PARTS`: argparse's own choices refuse an empty list on Python 3.11."""
    if text not in PARTS:
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(PARTS)}")
    return text


def _profile(budget: str) -> Path | None:
    """Measure what the strategies of a first plan need, on two ranks; None where there is no ``autopar profile``."""
    from autopar.io.plan_file import write_plan
    from benchmarks.runtime.loop import make_plan

    first, path = RESULTS / "first_plan.json", RESULTS / "profile.json"
    write_plan(make_plan(None, None), first)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "autopar"]
    done = subprocess.run(
        [*torchrun, "profile", "--device", "cpu", "--for-plan", str(first), "--budget", budget, "-o", str(path)],
        check=False,
        env=_environment(),
    )
    first.unlink()
    if done.returncode:
        print("no profile was made: planning with the catalog's constants of a CPU", file=sys.stderr)
        return None
    return path


def _launch(part: str, options: argparse.Namespace) -> int:
    """This file again, on two ranks."""
    from autopar.runtime.launch import launch

    command = [sys.executable, __file__, part, "--rounds", str(options.rounds), "--output", str(options.output)]
    if options.profile is not None:
        command += ["--profile", str(options.profile)]
    failure = launch(command, world_size=2, environment=_environment())
    if failure is not None:
        print(f"rank {failure.rank} failed: {failure}", file=sys.stderr)
        return 1
    return 0


def _environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}


def _rank(options: argparse.Namespace) -> None:
    import torch

    from autopar.run_worker import join_job
    from autopar.runtime.launch import leave_with_launcher
    from benchmarks.runtime import loop, overhead
    from benchmarks.runtime.machine import this_machine

    leave_with_launcher()
    torch.set_num_threads(1)
    join_job(torch.device("cpu"), 600)
    machine = this_machine()
    (part,) = options.parts
    result: dict[str, Any]
    if part == "loop":
        plan = loop.make_plan(options.profile, None if options.profile is None else options.profile.with_suffix(".cluster.json"))
        found = loop.measure(plan, _basis(options.profile), rounds=options.rounds, steps_per_turn=STEPS_PER_TURN)
        result = {**asdict(found), "mean_error": found.mean_error, "regret": found.regret}
    else:
        result = {"layouts": [asdict(each) for each in overhead.measure(rounds=options.rounds, steps_per_turn=STEPS_PER_TURN)]}
    if torch.distributed.get_rank() == 0:
        document = {"schema_version": "1.0", "machine": asdict(machine), "rounds": options.rounds, **result}
        (options.output / f"{part}.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    torch.distributed.destroy_process_group()


def _basis(profile: Path | None) -> str:
    return "the catalog's constants of a CPU" if profile is None else "measured on this machine by autopar profile"


def _print(part: str, document: dict[str, Any]) -> None:
    if part == "loop":
        _table(("place", "strategy", "predicted ms", "measured ms", "error", "spread"), [_loop_row(**each) for each in document["tried"]])
        mean, regret = _percent(document["mean_error"]), _percent(document["regret"])
        print(f"\nmean error {mean}; the plan's first takes {regret} longer than the fastest\n")
    else:
        columns = ("layout", "by hand", "engine ms", "by hand ms", "overhead", "spread", "processor time")
        _table(columns, [_overhead_row(**each) for each in document["layouts"]])


def _loop_row(rank: int, strategy: str, predicted_seconds: float, measured_seconds: float, spread: float) -> tuple[str, ...]:
    error = predicted_seconds / measured_seconds - 1
    return str(rank), strategy, _ms(predicted_seconds), _ms(measured_seconds), _percent(error, "+"), _percent(spread)


def _overhead_row(**each: Any) -> tuple[str, ...]:
    times = _ms(each["engine_seconds"]), _ms(each["by_hand_seconds"])
    overheads = _percent(each["overhead"], "+"), _percent(each["spread"]), _percent(each["cpu_overhead"], "+")
    return each["layout"], each["by_hand"], *times, *overheads


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.0f}"


def _percent(part: float, sign: str = "") -> str:
    return f"{100 * part:{sign}.1f} %"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    for row in (head, ["---"] * len(head), *rows):
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    sys.exit(main())
