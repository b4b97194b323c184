"""Search held to the measured runs: ``python -m benchmarks.search.published`` prints a table of the comparable sets of public runs.

A set has the strategies that somebody measured of one problem. Three things are asked of each: does the search among those strategies
put first what the accuracy table predicts fastest (one oracle); is the search over everything never predicted slower; and how far was the
chosen one, as measured, from the best measured.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from autopar.accuracy.cases import Case
from autopar.accuracy.runs import read_runs
from autopar.accuracy.score import SMALLEST_SET, Prediction, comparable_set, predict, scorable
from autopar.costmodel.problem import Problem
from autopar.costmodel.spec.strategy import Strategy
from autopar.search import search, search_among

TABLE = Path(__file__).parents[1] / "accuracy" / "published_runs.csv"
SAME = 1e-9
COLUMNS = (
    "framework", "sets", "strategies", "refused", "agree", "slower", "mean regret", "worst regret", "median gain of all strategies",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSet:
    """The strategies of one problem that were measured, with the median measured and the predicted seconds of each."""

    name: str
    problem: Problem
    measured: dict[Strategy, float]
    predicted: dict[Strategy, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the search made of one set."""

    framework: str
    strategies: int
    refused: int
    """Of them, those that a rule or the predicted memory refuses, though they ran."""
    agrees: bool
    """The search among the measured strategies puts the one predicted fastest first, with the accuracy table's very figure."""
    regret: float
    """Measured seconds of that one over the least measured of those not refused, less one."""
    gain: float
    """How much faster the search over everything is predicted to be than that one."""
    best: Strategy
    found: Strategy


def measured_sets(path: Path = TABLE) -> Iterator[MeasuredSet]:
    """The comparable sets of at least three strategies, by name; each problem apart where rows of a set differ in more than strategy."""
    runs, _ = read_runs(path)
    cases = [case for case in map(scorable, runs) if isinstance(case, Case) and case.measured_seconds]
    answered = [(case, answer) for case, answer in zip(cases, predict(cases), strict=True) if isinstance(answer, Prediction)]
    sets: dict[str, list[tuple[Problem, list[tuple[Case, Prediction]]]]] = defaultdict(list)
    for case, answer in answered:
        same = sets[comparable_set(case.run)]
        members = next((rows for problem, rows in same if problem == case.problem), None)
        if members is None:
            same.append((case.problem, members := []))
        members.append((case, answer))
    for name, problems in sorted(sets.items()):
        for problem, rows in problems:
            found = _set_of(name, problem, rows)
            if len(found.measured) >= SMALLEST_SET:
                yield found


def _set_of(name: str, problem: Problem, rows: Sequence[tuple[Case, Prediction]]) -> MeasuredSet:
    times: dict[Strategy, list[float]] = defaultdict(list)
    for case, answer in rows:
        times[case.strategy].append(answer.measured_seconds or 0.0)
    return MeasuredSet(
        name=name,
        problem=problem,
        measured={strategy: median(seconds) for strategy, seconds in times.items()},
        predicted={case.strategy: answer.predicted_seconds for case, answer in rows},
    )


def verdict(members: MeasuredSet) -> Verdict | None:
    """What the search says of one set; None where it would run none of its strategies."""
    ranked = search_among(members.problem, members.predicted, top=len(members.predicted)).ranked
    if not ranked:
        return None
    first, everything = ranked[0], search(members.problem, top=1).ranked[0]
    least = min(members.predicted[each.strategy] for each in ranked)
    return Verdict(
        framework=members.problem.framework.name,
        strategies=len(members.measured),
        refused=len(members.measured) - len(ranked),
        agrees=abs(members.predicted[first.strategy] - least) <= SAME * least and abs(first.step_time_seconds - least) <= SAME * least,
        regret=members.measured[first.strategy] / min(members.measured[each.strategy] for each in ranked) - 1,
        gain=1 - everything.step_time_seconds / first.step_time_seconds,
        best=first.strategy,
        found=everything.strategy,
    )


def row(framework: str, verdicts: Sequence[Verdict]) -> tuple[str, ...]:
    """The cells under ``COLUMNS``."""
    regrets = [each.regret for each in verdicts]
    return (
        framework,
        str(len(verdicts)),
        str(sum(each.strategies for each in verdicts)),
        str(sum(each.refused for each in verdicts)),
        str(sum(each.agrees for each in verdicts)),
        str(sum(each.gain < -SAME for each in verdicts)),
        f"{sum(regrets) / len(regrets):.1%}",
        f"{max(regrets):.1%}",
        f"{median(each.gain for each in verdicts):.1%}",
    )


def main() -> None:
    """Print a row for each framework whose runs are comparable."""
    found: dict[str, list[Verdict]] = defaultdict(list)
    for members in measured_sets():
        if (answer := verdict(members)) is not None:
            found[answer.framework].append(answer)
    rows = [row(framework, verdicts) for framework, verdicts in sorted(found.items())]
    rows.append(row("all", [each for verdicts in found.values() for each in verdicts]))
    print(f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}", *(f"| {' | '.join(cells)} |" for cells in rows), sep="\n")


if __name__ == "__main__":
    main()
