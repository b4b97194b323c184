"""What going non-uniform gains on clusters of two and more device types: ``python -m benchmarks.search.mixed`` prints two tables.

The first compares with planning uniformly: all GPUs as the slowest kind with the smallest memory, and the faster pool alone. The second
holds the genetic search (two seeds) against looking at every use of the pools.
"""

from __future__ import annotations

import sys
import time

from autopar.mixed import posed
from autopar.search.mixed import Method, MixedResult, mixed_search

CASES: tuple[tuple[str, dict[str, int]], ...] = (
    ("llama3-8b", {"h100": 16, "a100-40gb": 16}),
    ("llama3-70b", {"h100": 64, "a100-40gb": 64}),
    ("llama3-70b", {"h100": 64, "a100": 64}),
    ("gpt-175b", {"h100": 128, "a100": 128}),
    ("gpt-175b", {"h100": 128, "a100-40gb": 128}),
    ("llama3-70b", {"b200": 32, "h100": 64, "a100-40gb": 64}),
)
SEEDS = (0, 1)


def timed(model: str, pools: dict[str, int], method: Method, seed: int = 0) -> tuple[MixedResult, float]:
    """The result and the processor seconds it took."""
    asked = posed(model, pools, None, ((), (), (), ()), {})
    started = time.process_time()
    return mixed_search(asked.problem, method=method, seed=seed), time.process_time() - started


def gain(seconds: float | None, best: float) -> str:
    """``165 s, +97 %``: what another plan takes, and how much faster the best is."""
    return "does not fit" if seconds is None else f"{seconds:.1f} s, {seconds / best - 1:+.0%}"


def gains(name: str, result: MixedResult, seconds: float) -> str:
    """One line of the first table."""
    if result.best is None:
        return f"| {name} | does not fit |"
    best = result.best.step_time_seconds
    slowest, *alone = (each.step_time_seconds for each in result.references)
    fastest = min((each for each in alone if each is not None), default=None)
    bound = result.summary.bound_seconds
    cells = [name, f"{best:.1f} s", result.best.mixed.describe(), gain(slowest, best), gain(fastest, best)]
    return f"| {' | '.join([*cells, '-' if bound is None else f'{1 - bound / best:.1%}', f'{seconds:.1f} s'])} |"


def main() -> None:
    sys.stdout.write(
        "| cluster | step | plan | all as the slowest | best pool alone | left at most | search |\n|---|---|---|---|---|---|---|\n"
    )
    rows = []
    for model, pools in CASES:
        name = f"{model}, {' + '.join(f'{count} {gpu}' for gpu, count in pools.items())}"
        exact, seconds = timed(model, pools, Method.EXACT)
        sys.stdout.write(gains(name, exact, seconds) + "\n")
        sys.stdout.flush()
        cells = [name, f"{exact.summary.evaluated:,}", f"{seconds:.1f} s"]
        for seed in SEEDS:
            found, took = timed(model, pools, Method.GENETIC, seed)
            if found.best is not None and exact.best is not None:
                gap = found.best.step_time_seconds / exact.best.step_time_seconds - 1
                cells.append(f"{gap:.2%}, {found.summary.evaluated:,}, {took:.1f} s")
        rows.append(f"| {' | '.join(cells)} |\n")
    heads = [f"genetic, seed {seed}: gap, strategies, time" for seed in SEEDS]
    sys.stdout.write(f"\n| cluster | looked at | exact | {' | '.join(heads)} |\n|{'---|' * (3 + len(SEEDS))}\n{''.join(rows)}")


if __name__ == "__main__":
    main()
