"""The parts of a report as text and tables, whatever they are printed on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import autopar
from autopar.accuracy.view import figure, percent
from autopar.api import build_problem
from autopar.comparison import Comparison
from autopar.costmodel.spec.errors import AutoparError
from autopar.costmodel.spec.units import format_bytes, format_seconds
from autopar.report import compare_view
from benchmarks.search import speed

from .results import Errors, Planned, Results

MOVED = 0.001
"""A step time that moved by less between two reports is called the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A title, sentences, and a table (none without columns); the columns at ``words`` hold words."""

    title: str
    texts: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    words: tuple[int, ...] = (0,)


def parts(now: Results, then: Results | None, why_not: str = "") -> Iterator[Part]:
    """All parts; ``then`` is the report before, and ``why_not`` why there is none."""
    yield Part(title="What changed", texts=tuple(changes(now, then, why_not)))
    yield _accuracy(now, then)
    yield Part(
        title="Ranking of strategies",
        texts=(
            f"{now.ranking.sets} sets of measured runs that differ in strategy alone: Spearman {figure(now.ranking.spearman)},"
            f" {percent(now.ranking.pairs_right)} of the pairs more than 5 % apart in the right order, and the strategy ranked first"
            f" {percent(now.ranking.regret)} slower than the best measured.",
        ),
    )
    yield _search(now, then)
    yield _plans(now, then)
    yield from _replanned(now, then)
    yield from _runtime(now)


def changes(now: Results, then: Results | None, why_not: str) -> Iterator[str]:
    """What is not as in the report before, in sentences."""
    if then is None:
        yield why_not or "There is no report before this one."
        return
    yield f"Against the report of {then.date} (autopar {then.autopar_version})."
    if then.machine != now.machine:
        yield f"Another machine: {then.machine} then. Times of searches are not comparable."
    before = {each.name: each for each in then.accuracy}
    for errors in now.accuracy[:2]:
        old = before.get(errors.name)
        if old is not None and old.mean is not None and errors.mean is not None:
            yield f"Mean error of {errors.name}: {percent(old.mean)} then, {percent(errors.mean)} now."
    known = {each.question: each for each in then.plans}
    moved = [each for each in now.plans if each.question in known and each.strategy != known[each.question].strategy]
    yield f"{len(moved)} of {len(now.plans)} plans have another strategy." if moved else "All plans have the strategy they had."


def _accuracy(now: Results, then: Results | None) -> Part:
    before = {each.name: each for each in then.accuracy} if then else {}

    def row(errors: Errors) -> tuple[str, ...]:
        old = before.get(errors.name)
        delta = "" if old is None or old.mean is None or errors.mean is None else f"{(errors.mean - old.mean) * 100:+.1f}"
        figures = (percent(errors.mean), percent(errors.median), percent(errors.p90), percent(errors.bias, signed=True))
        return (errors.name, f"{errors.rows:,}", *figures, *((delta,) if then else ()))

    return Part(
        title="Accuracy on public runs",
        texts=("Predicted against measured; docs/accuracy.md says how the runs were chosen and what is left out.",),
        columns=("runs", "rows", "mean", "median", "p90", "bias", *(("mean, points",) if then else ())),
        rows=tuple(map(row, now.accuracy)),
    )


def _search(now: Results, then: Results | None) -> Part:
    before = {(each.model, each.gpus, each.framework): each for each in then.search} if then else {}

    def row(found: speed.Speed) -> tuple[str, ...]:
        old = before.get((found.model, found.gpus, found.framework))
        return (*speed.row(found), *((_relative(found.best_seconds, old.best_seconds) if old else "new",) if then else ()))

    return Part(
        title="Search",
        texts=(f"On {now.machine}. Covered: decided by a rule, by memory or by an argument, without an evaluation of its own.",),
        columns=(*speed.COLUMNS, *(("best s, against then",) if then else ())),
        rows=tuple(map(row, now.search)),
        words=(0, 2),
    )


def _plans(now: Results, then: Results | None) -> Part:
    before = {each.question: each for each in then.plans} if then else {}

    def row(plan: Planned) -> tuple[str, ...]:
        named = f"{plan.model} on {plan.gpus:,} {plan.gpu}, {plan.framework}, {plan.precision}"
        if plan.strategy is None:
            return (named, "nothing fits", *("",) * (4 + bool(then)))
        old = before.get(plan.question)
        delta = (_relative(plan.step_time_seconds, old.step_time_seconds) if old and old.strategy else "new",) if then else ()
        figures = (
            format_seconds(plan.step_time_seconds),
            f"{plan.tokens_per_second_per_gpu:,.0f}",
            f"{plan.mfu:.1%}",
            format_bytes(plan.peak_memory_bytes),
        )
        return (named, plan.strategy.describe(), *figures, *delta)

    return Part(
        title="Plans",
        texts=("The fastest strategy that fits, at each model's usual batch and sequence length.",),
        columns=("question", "strategy", "step", "tokens/s/GPU", "MFU", "memory", *(("step, against then",) if then else ())),
        rows=tuple(map(row, now.plans)),
        words=(0, 1),
    )


def _replanned(now: Results, then: Results | None) -> Iterator[Part]:
    """Where the strategy is another one than before: both, as this release estimates them."""
    before = {each.question: each for each in then.plans} if then else {}
    rows = []
    for plan in now.plans:
        old = before.get(plan.question)
        if old is None or plan.strategy is None or old.strategy is None or plan.strategy == old.strategy:
            continue
        rows.append((f"{plan.model} on {plan.gpus:,} {plan.gpu}", old.strategy.describe(), plan.strategy.describe(), _against(plan, old)))
    if rows:
        yield Part(
            title="Plans that changed",
            texts=("Both strategies as this release estimates them: how much longer the one before would take, and in what.",),
            columns=("question", "then", "now", "then against now"),
            rows=tuple(rows),
            words=(0, 1, 2, 3),
        )


def _against(plan: Planned, old: Planned) -> str:
    problem, _ = build_problem(plan.model, gpus=plan.gpus, gpu=plan.gpu, framework=plan.framework, precision=plan.precision)
    assert plan.strategy is not None
    assert old.strategy is not None
    try:
        found: Comparison = autopar.compare([(problem, plan.strategy), (problem, old.strategy)])
    except AutoparError as error:
        return f"no longer accepted: {str(error).splitlines()[-1].strip()}"
    moved = compare_view.moved(found.time)[:2]
    terms = ", ".join(f"{each.term.replace('_', ' ')} {compare_view.signed_seconds(each.changes[1])}" for each in moved)
    fits = "" if found.plans[1].estimate.fits else "; does not fit any more"
    return f"{found.plans[1].slower_than_first:+.1%}{f' ({terms})' if terms else ''}{fits}"


def _runtime(now: Results) -> Iterator[Part]:
    if not now.runtime:
        yield Part(title="Runtime", texts=("Not measured: `python benchmarks/runtime/run.py` measures it where torch is installed.",))
    for table in now.runtime:
        yield Part(
            title=f"Runtime, {table.title}",
            texts=(table.note,) if table.note else (),
            columns=table.columns,
            rows=table.rows,
            words=tuple(index for index in range(len(table.columns)) if not _is_figures(table.rows, index)),
        )


def _is_figures(rows: Sequence[Sequence[str]], index: int) -> bool:
    return all(row[index][:1].isdigit() or row[index][:1] in "+-" for row in rows if row[index])


def _relative(now: float, then: float) -> str:
    change = now / then - 1 if then else 0.0
    return "same" if abs(change) < MOVED else f"{change:+.1%}"
