"""What the order of hosts is worth: ``python -m benchmarks.search.placement`` prints a table.

32 nodes of 8 H100s under leaf switches that one spine joins. ``planned`` is the plan with its hosts in the order that autopar chose,
``listed`` the best plan for the order in which they were listed, ``kept`` the plan's own strategy under that order.
"""

from __future__ import annotations

import random
import sys
from dataclasses import replace

import autopar
from autopar.costmodel.estimate import estimate
from autopar.io.switch_tree import SwitchLevel, SwitchTree, tree_of_paths
from autopar.placing import as_listed
from autopar.request import problem_of
from autopar.search import search

NODES = 32
MODELS = ("llama3-70b", "mixtral-8x7b")
OVERSUBSCRIPTIONS = (2.0, 8.0)


def listings() -> dict[str, str]:
    """A letter for the leaf of each node, in the order in which they are listed."""
    chance = random.Random(3)
    return {
        "20, then 12": "a" * 20 + "b" * 12,
        "alternating on 2": "ab" * (NODES // 2),
        "at random on 8 of 4": "".join(chance.sample("abcdefgh" * 4, NODES)),
        "at random on 5": "".join(chance.choices("abcde", k=NODES)),
    }


def tree(leaves: str, oversubscription: float) -> SwitchTree:
    """The nodes under their leaves, and the spine."""
    listed = [(f"n{place:02}", (leaf, "spine")) for place, leaf in enumerate(leaves)]
    return tree_of_paths(listed, [SwitchLevel(), SwitchLevel(oversubscription=oversubscription)], "benchmark")


def measure(model: str, leaves: str, oversubscription: float) -> tuple[float, float, float]:
    """Step times: planned, the best for the listed order, and the planned strategy under it."""
    plan = autopar.plan(model, gpu="h100", topology=tree(leaves, oversubscription), top=1)
    problem = problem_of(plan)
    listed = replace(problem, cluster=as_listed(problem.cluster))
    best = search(listed, top=1).ranked[0].step_time_seconds
    return plan.estimate.step_time_seconds, best, estimate(listed, plan.strategy).step_time_seconds


def main() -> None:
    names = ("model", "hosts as listed, leaves", "uplinks", "planned s", "listed s", "gain", "kept s")
    sys.stdout.write(f"| {' | '.join(names)} |\n|{'---|' * len(names)}\n")
    for model in MODELS:
        for name, leaves in listings().items():
            for oversubscription in OVERSUBSCRIPTIONS:
                planned, listed, kept = measure(model, leaves, oversubscription)
                cells = (
                    model,
                    name,
                    f"1:{oversubscription:g}",
                    f"{planned:.2f}",
                    f"{listed:.2f}",
                    f"{1 - planned / listed:.1%}",
                    f"{kept:.2f}",
                )
                sys.stdout.write(f"| {' | '.join(cells)} |\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
