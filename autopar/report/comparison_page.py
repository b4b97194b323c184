"""``autopar compare --html``: plans side by side as one HTML file."""

from __future__ import annotations

from collections.abc import Iterator

from autopar.comparison import Comparison

from . import compare_view as view
from . import figure_data, svg
from .page import Markup, Section, bullets, page, paragraph, table


def comparison_page(comparison: Comparison) -> str:
    """The whole comparison, one document of HTML."""
    models = list(dict.fromkeys(plan.model for plan in comparison.plans))
    title = f"{len(comparison.plans)} plans side by side: {', '.join(models)}"
    lead = [paragraph(view.one_question(comparison)), paragraph(f"{view.verdict(comparison)}.", "verdict")]
    return page(title, lead, _sections(comparison))


def _sections(comparison: Comparison) -> Iterator[Section]:
    labels = [plan.label for plan in comparison.plans]
    yield Section(
        id="plans", title="The plans", parts=(table(("", "name", "strategy"), view.legend(comparison), words=(0, 1, 2), caption="Plans"),)
    )
    yield Section(
        id="figures",
        title="Side by side",
        parts=(
            table(view.COLUMNS, [view.headline_row(comparison, plan) for plan in comparison.plans], caption="Time and memory"),
            svg.bars(figure_data.time_of_plans(comparison)),
            svg.scatter(figure_data.plans_cloud(comparison)),
            paragraph("Ringed: the plans. Dashed: the least memory of a GPU among them.", "note"),
        ),
    )
    yield Section(
        id="cost",
        title="What a token takes",
        parts=(table(view.cost_columns(comparison), map(view.cost_row, comparison.plans), caption="GPU-hours and what was given a price"),),
    )
    yield Section(id="notes", title="What to keep in mind", parts=(bullets(comparison.notes),))
    rows = [(each.field, *each.values) for each in comparison.differences]
    differing = (
        table(("", *labels), rows, words=range(len(labels) + 1), caption="Fields that are not the same in all plans") if rows else Markup()
    )
    yield Section(id="differences", title="What differs", parts=(differing,))
    yield Section(id="time", title=_capital(view.time_title(comparison)), parts=tuple(_time(comparison)))
    yield Section(id="memory", title="Where the memory moved", parts=tuple(_memory(comparison)))


def _differences(comparison: Comparison) -> Markup:
    columns = ("", *(plan.label for plan in comparison.plans))
    rows = [(each.field, *each.values) for each in comparison.differences]
    return table(columns, rows, words=range(len(columns)), caption="Fields that are not the same in all plans") if rows else Markup()


def _time(comparison: Comparison) -> Iterator[Markup]:
    for index, plan in enumerate(comparison.plans[1:], 1):
        yield _bars(figure_data.moved(comparison.time, index, title=f"{plan.label} against A", of_bytes=False))
    rows = [view.time_row(each) for each in (*view.moved(comparison.time), view.total(comparison.time))]
    yield table(view.moved_columns(comparison, "term"), rows, caption="In figures", last=True)


def _memory(comparison: Comparison) -> Iterator[Markup]:
    for index, plan in enumerate(comparison.plans[1:], 1):
        yield _bars(figure_data.moved(comparison.memory, index, title=f"{plan.label} against A, fullest rank of each", of_bytes=True))
    rows = [view.memory_row(each) for each in (*view.moved(comparison.memory), view.total(comparison.memory))]
    yield table(view.moved_columns(comparison, "kind"), rows, caption="In figures", last=True)


def _bars(figure: figure_data.Bars) -> Markup:
    return svg.bars(figure) if figure.rows else paragraph(f"{figure.title}: nothing moved.", "note")


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
