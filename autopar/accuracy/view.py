"""What every report of accuracy shows: rows of text, whatever they are printed on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from autopar.costmodel.spec.units import format_bytes, format_seconds

from .metrics import ErrorSummary, Ranking
from .runs import Skipped
from .score import Accuracy

ERROR_COLUMNS = ("rows", "mean", "median", "p90", "bias")
RANKING_COLUMNS = ("set", "rows", "Spearman", "Kendall", "pairs right", "regret")
WORST_COLUMNS = ("run", "measured", "predicted", "error", "assumed")
Row = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why rows were skipped, how many, and some of them."""

    text: str
    rows: int
    examples: tuple[str, ...]


def percent(value: float | None, *, signed: bool = False) -> str:
    """``4.2 %``; a dash where there is no figure."""
    if value is None:
        return "-"
    return f"{value * 100:+.1f} %" if signed else f"{value * 100:.1f} %"


def figure(value: float | None) -> str:
    """A correlation, two decimals."""
    return "-" if value is None else f"{value:.2f}"


def error_row(summary: ErrorSummary) -> Row:
    """The cells under ``ERROR_COLUMNS``."""
    sizes = (summary.mean_absolute_error, summary.median_absolute_error, summary.p90_absolute_error)
    return (f"{summary.rows:,}", *(percent(size) for size in sizes), percent(summary.bias, signed=True))


def ranking_row(ranking: Ranking) -> Row:
    """The cells under ``RANKING_COLUMNS``."""
    figures = (figure(ranking.spearman), figure(ranking.kendall), percent(ranking.pairwise), percent(ranking.regret))
    return (ranking.group, str(ranking.rows), *figures)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingMean:
    """Means over comparable sets; a set without a figure does not count for it."""

    sets: int
    spearman: float | None
    kendall: float | None
    pairwise: float | None
    regret: float | None
    worst_spearman: float | None

    @classmethod
    def of(cls, rankings: Sequence[Ranking]) -> RankingMean:
        def known(name: str) -> list[float]:
            return [value for each in rankings if (value := getattr(each, name)) is not None]

        means = {
            name: sum(values) / len(values) if (values := known(name)) else None for name in ("spearman", "kendall", "pairwise", "regret")
        }
        return cls(sets=len(rankings), worst_spearman=min(known("spearman"), default=None), **means)


def reasons(skipped: Sequence[Skipped]) -> tuple[Reason, ...]:
    """Skipped rows by reason, the most frequent first."""
    members: dict[str, list[str]] = defaultdict(list)
    for row in skipped:
        members[row.reason].append(row.run_id)
    ordered = sorted(members.items(), key=lambda item: (-len(item[1]), item[0]))
    return tuple(Reason(text=text, rows=len(ids), examples=tuple(ids[:2])) for text, ids in ordered)


def worst_times(accuracy: Accuracy, count: int) -> tuple[int, ...]:
    """Positions of the rows with the largest step time error."""
    errors = [(row, prediction.time_error) for row, prediction in enumerate(accuracy.predictions)]
    known = [(abs(error), row) for row, error in errors if error is not None]
    return tuple(row for _, row in sorted(known, key=lambda item: (-item[0], item[1]))[:count])


def worst_row(accuracy: Accuracy, row: int) -> Row:
    """The cells under ``WORST_COLUMNS``."""
    prediction = accuracy.predictions[row]
    measured = "-" if prediction.measured_seconds is None else format_seconds(prediction.measured_seconds)
    error = percent(prediction.time_error, signed=True)
    return (prediction.run_id, measured, format_seconds(prediction.predicted_seconds), error, "; ".join(prediction.notes))


def headline(accuracy: Accuracy) -> str:
    """The whole in one line."""
    return f"{len(accuracy.predictions):,} of {accuracy.rows:,} rows scored, {len(accuracy.skipped):,} skipped"


def memory_lines(accuracy: Accuracy) -> tuple[str, ...]:
    """What is said about memory beside its errors."""
    lines = []
    if accuracy.memory.rows:
        lines.append(
            f"peak predicted too large on {percent(accuracy.over_predicted)} of the rows, too small on {percent(accuracy.under_predicted)}"
        )
    verdict = accuracy.out_of_memory
    aside = f"; {verdict.assumed:,} more do not state their recomputation and are not counted" if verdict.assumed else ""
    if verdict.rows:
        lines.append(
            f"fits or not: right on {verdict.right:,} of {verdict.rows:,} runs; {verdict.said_not_to_fit:,} ran though said not to fit,"
            f" {verdict.said_to_fit:,} ran out of memory though said to fit{aside}"
        )
    return tuple(lines)


def memory_text(value: float | None) -> str:
    """Bytes for a person, or a dash."""
    return "-" if value is None else format_bytes(value)
