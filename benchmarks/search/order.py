"""Where the other order of ranks wins: ``python -m benchmarks.search.order`` prints a table.

``usual`` is the best strategy of the framework's own order alone, ``gain`` what a search over both orders has over it. ``other`` is the
fastest strategy that the other order places otherwise, among the first of the ranking ("-" where there is none). Every boundary of a
pipeline is priced as its farthest one, so that a pipeline of several stages a node pays too much: ``hops free`` is what
the other strategy would take if its stages never waited for a transfer, which no better price of the boundaries can beat.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from autopar.costmodel.estimate import estimate
from autopar.costmodel.problem import Problem
from autopar.costmodel.spec.strategy import RankOrder
from autopar.request import build_problem, resolve_cluster
from autopar.search import Constraints, search

USUAL, OTHER = RankOrder
SLOW = 8
"""How many times less network the slow rows have."""
LOOKED_AT = 300
COLUMNS = ("model", "cluster", "framework", "usual s", "gain", "other s", "hops free s", "other")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A question, and what is fixed in its answer."""

    model: str
    gpus: int
    cluster: str
    framework: str = "megatron-core"
    slow: bool = False
    fixed: Mapping[str, bool | int | str] = field(default_factory=dict)

    @property
    def where(self) -> str:
        """The cluster in words."""
        pinned = ", ".join(f"{name.removesuffix('_parallel_size')} {size}" for name, size in self.fixed.items())
        return f"{self.gpus:,} {self.cluster}{f', network / {SLOW}' if self.slow else ''}{f', {pinned}' if pinned else ''}"


CASES = (
    Case(model="gpt-175b", gpus=256, cluster="dgx-h100"),
    Case(model="gpt-175b", gpus=256, cluster="dgx-a100"),
    Case(model="gpt-175b", gpus=256, cluster="dgx-a100", slow=True),
    Case(model="gpt-175b", gpus=256, cluster="aws-p4d"),
    Case(model="llama3-405b", gpus=1_024, cluster="dgx-h100"),
    Case(model="llama3-405b", gpus=1_152, cluster="nvl72-gb200"),
    Case(model="llama3-70b", gpus=64, cluster="dgx-h100"),
    Case(model="llama3-70b", gpus=64, cluster="aws-p4d"),
    Case(model="llama3-70b", gpus=64, cluster="pcie-box-8"),
    Case(model="llama2-70b", gpus=64, cluster="aws-p4d", framework="autopar"),
    Case(model="llama2-70b", gpus=64, cluster="dgx-a100", framework="autopar", slow=True),
    Case(model="llama3-8b", gpus=16, cluster="dgx-h100"),
    Case(model="llama3-8b", gpus=16, cluster="dgx-a100", slow=True),
    Case(model="llama3-8b", gpus=16, cluster="aws-p4d"),
    Case(model="llama2-13b", gpus=16, cluster="aws-p4d"),
    Case(model="llama2-13b", gpus=16, cluster="aws-p4d", framework="autopar"),
    Case(model="llama2-13b", gpus=16, cluster="aws-p4d", fixed={"pipeline_parallel_size": 4}),
    Case(model="gpt3-6.7b", gpus=16, cluster="dgx-1v"),
    Case(model="mixtral-8x7b", gpus=64, cluster="dgx-h100"),
    Case(model="mixtral-8x7b", gpus=64, cluster="dgx-a100", slow=True),
)


def problem(case: Case) -> Problem:
    """The problem of a case."""
    asked, _ = build_problem(case.model, cluster=resolve_cluster(case.cluster, case.gpus, None, []), framework=case.framework)
    if not case.slow:
        return asked
    *inner, network = asked.cluster.tiers
    slower = replace(network, bandwidth=network.bandwidth / SLOW)
    return replace(asked, cluster=replace(asked.cluster, tiers=(*inner, slower)))


def row(case: Case) -> tuple[str, ...]:
    """The cells under ``COLUMNS``."""
    asked = problem(case)
    usual = search(asked, Constraints(fixed={**case.fixed, "rank_order": USUAL}), top=1).ranked[0].step_time_seconds
    ranked = search(asked, Constraints(fixed=case.fixed), top=LOOKED_AT).ranked
    gain = 1 - ranked[0].step_time_seconds / usual
    cells = (case.model, case.where, case.framework, f"{usual:.2f}", f"{gain:.2%}" if gain > 0 else "0")
    other = next((each for each in ranked if each.strategy.rank_order is OTHER), None)
    if other is None:
        return (*cells, "-", "-", "-")
    waits = estimate(asked, other.strategy).time.exposed_pipeline_communication
    words = other.strategy.describe().replace(f"order={OTHER.value} ", "")
    return (*cells, f"{other.step_time_seconds:.2f}", f"{other.step_time_seconds - waits:.2f}", words)


def main() -> None:
    sys.stdout.write(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}\n")
    for case in CASES:
        sys.stdout.write(f"| {' | '.join(row(case))} |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
