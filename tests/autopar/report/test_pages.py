"""The HTML reports: they stand alone, are well formed, can be read without seeing, and say what the plan says."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar.api import build_problem, estimate
from autopar.comparison import Comparison
from autopar.costmodel.spec.strategy import Strategy
from autopar.costmodel.spec.units import format_bytes, format_seconds
from autopar.report import palette
from autopar.report.comparison_page import comparison_page
from autopar.report.mixed_page import mixed_page, mixed_subject
from autopar.report.page import Markup, Section, escape, page, paragraph, table
from autopar.report.strategy_page import strategy_page
from autopar.report.subject import Subject, subject_of_strategy
from tests.autopar.mixed_plans import named, replicas, staged

VOID, CLOSED = {"meta", "br", "hr"}, {"rect", "line", "circle"}


class Reader(HTMLParser):
    """Checks nesting and gathers what a reader without eyes is given."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.headings: list[int] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.unnamed: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag not in VOID:
            self.open.append(tag)
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        self.ids += [value for name, value in attrs if name == "id" and value]
        self.links += [value for name, value in attrs if name == "href" and value]
        if tag == "svg" and "aria-hidden" not in given and not (given.get("role") == "img" and given.get("aria-label")):
            self.unnamed.append(str(attrs))
        if given.get("role") == "region" and not (given.get("aria-label") and given.get("tabindex") == "0"):
            self.unnamed.append(str(attrs))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002 - the parser's signature
        assert tag in CLOSED, tag

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style", "title"} & set(self.open[-1:]):
            self.text.append(data)


def read(document: str) -> Reader:
    reader = Reader()
    reader.feed(document)
    reader.close()
    assert reader.open == []
    return reader


@pytest.fixture(scope="module")
def pages(subject: Subject, comparison: Comparison) -> dict[str, str]:
    problem, assumptions = build_problem("mixtral-8x7b", gpus=16)
    strategy = Strategy(tensor_parallel_size=2, sequence_parallel=True, expert_parallel_size=8, data_parallel_size=8)
    written = subject_of_strategy(problem, strategy, estimate(problem, strategy=strategy), assumptions)
    return {
        "plan": strategy_page(subject),
        "estimate": strategy_page(written),
        "compare": comparison_page(comparison),
        "pools": mixed_page(mixed_subject(named(staged()), ("megatron-lm takes it",))),
        "replicas": mixed_page(mixed_subject(replicas(), ())),
    }


PAGES = ("plan", "estimate", "compare", "pools", "replicas")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_stands_alone(pages: dict[str, str], name: str) -> None:
    document = pages[name]
    assert document.startswith("<!doctype html>")
    assert len(document) < 1_000_000
    for outside in ("src=", "@import", "<script", "url(", "<link", "<iframe"):
        assert outside not in document
    assert all(link.startswith("#") for link in read(document).links)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_can_be_read_without_seeing_it(pages: dict[str, str], name: str) -> None:
    reader = read(pages[name])
    assert reader.headings.count(1) == 1
    assert all(after - before <= 1 for before, after in zip(reader.headings, reader.headings[1:], strict=False))
    assert reader.unnamed == []
    assert len(reader.ids) == len(set(reader.ids))
    assert {link.removeprefix("#") for link in reader.links} <= set(reader.ids)
    assert pages[name].count("<table") == pages[name].count('<thead><tr><th scope="col"') + pages[name].count("<thead><tr><td></td>")


def test_a_plan_has_every_part(pages: dict[str, str], subject: Subject) -> None:
    text = " ".join(read(pages["plan"]).text)
    told = subject.estimate
    parts = [
        format_seconds(told.step_time_seconds), format_bytes(told.peak_memory_bytes), f"{told.mfu:.1%}", "where the time goes",
        "where the memory goes", "the pipeline, micro-batch by micro-batch", "communication", "time against memory", "runners-up",
        "strategies refused", "assumed", "where the numbers come from", "pp=4", "max tp=4", "forbid cp",
    ]  # fmt: skip
    assert [part for part in parts if part.lower() not in text.lower()] == []
    assert all(each.strategy.describe() in text for each in subject.plan.alternatives)
    assert all(assumption in text for assumption in subject.assumptions)
    assert all(name in text for name, count in subject.plan.search.rejected.items() if count)


def test_a_page_of_pools_says_who_does_what_and_why(pages: dict[str, str]) -> None:
    plan = staged()
    text = " ".join(" ".join(read(pages["pools"]).text).split())
    parts = [
        format_seconds(plan.estimate.step_time_seconds),
        "16 x NVIDIA H100 SXM5 80GB (dgx-h100) + 16 x NVIDIA A100 SXM4 40GB (dgx-a100-40gb)",
        "25 GB/s a GPU between the pools", "How evenly the pools are loaded", "Peak memory of the pipeline ranks on h100",
        "Peak memory of the pipeline ranks on a100-40gb", "0 a100-40gb", "3 h100", "nodes 0 to 1: a100-40gb, old[07,03]", "h100 alone",
        "nothing fits", "a layer from h100 to a100-40gb", "megatron-lm takes it", "no measured run of a mixed cluster",
    ]  # fmt: skip
    assert [part for part in parts if part not in text] == []
    other = " ".join(" ".join(read(pages["replicas"]).text).split())
    assert "Of the replicas, those that end last are drawn." in other
    assert "micro-batches from h100 to a100-40gb" in other
    assert "Runners-up" in other


def test_every_rule_that_refused_something_is_explained(subject: Subject) -> None:
    from autopar.search.feasibility import summaries

    said = summaries()
    assert all(said.get(name) for name in subject.plan.search.rejected)


def test_an_estimate_has_the_changes_that_help(pages: dict[str, str]) -> None:
    text = " ".join(read(pages["estimate"]).text)
    assert "Single changes that fit and help" in text
    assert "expert" in text
    assert "strategies refused" not in text.lower()


def test_a_bound_is_told_where_there_is_one(subject: Subject) -> None:
    assert subject.plan is not None
    search = replace(subject.plan.search, bound_seconds=1.25)
    assert "has a step shorter than 1.25 s" in strategy_page(replace(subject, plan=replace(subject.plan, search=search)))
    none = replace(subject.plan.search, bound_seconds=None)
    assert "has a step shorter" not in strategy_page(replace(subject, plan=replace(subject.plan, search=none)))


def test_what_does_not_fit_is_said_first() -> None:
    problem, assumptions = build_problem("gpt-22b", gpus=8)
    strategy = Strategy(data_parallel_size=8)
    document = strategy_page(subject_of_strategy(problem, strategy, estimate(problem, strategy=strategy), assumptions))
    assert "does not fit:" in document[: document.index("<nav")]


def test_a_step_too_long_to_draw_says_so(subject: Subject) -> None:
    document = strategy_page(replace(subject, timeline=None, not_drawn="num_microbatches=9: too many"))
    assert "Not drawn: num_microbatches=9: too many." in document
    assert 'id="communication"' not in document


def test_a_comparison_has_every_part(pages: dict[str, str], comparison: Comparison) -> None:
    text = " ".join(read(pages["compare"]).text)
    for part in (
        "Side by side",
        "What differs",
        "Where the time moved",
        "Where the memory moved",
        "days for 1T",
        "total cost",
        "C does not fit",
    ):
        assert part in text
    assert all(plan.strategy.describe() in text for plan in comparison.plans)


def test_the_same_plan_gives_the_same_page(subject: Subject) -> None:
    assert strategy_page(subject) == strategy_page(subject)


@given(text=st.text(max_size=60))
def test_no_text_gets_out_of_its_element(text: str) -> None:
    hostile = f"</title><script>{text}"
    document = page(
        hostile, [paragraph(hostile)], [Section(id="a", title=hostile, parts=(table((hostile,), [(hostile,)], caption=hostile),))]
    )
    assert "<script" not in document
    assert read(document).headings == [1, 2]


def test_markup_is_kept_and_text_is_escaped() -> None:
    assert escape("<b>&") == "&lt;b&gt;&amp;"
    assert escape(Markup("<b>")) == "<b>"


def test_backticks_are_code_and_still_escaped() -> None:
    assert paragraph("`pip install 'a[b]'` & <b>") == "<p><code>pip install &#x27;a[b]&#x27;</code> &amp; &lt;b&gt;</p>"


def test_a_section_without_content_is_left_out() -> None:
    assert "nothing here" not in page("t", [], [Section(id="n", title="nothing here", parts=(Markup(), paragraph("")))])


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_text_and_marks_stand_out_from_their_ground(dark: bool) -> None:
    ink = {name: pair[dark] for name, pair in palette.INK.items()}
    for ground in (ink["ground"], ink["panel"]):
        for name in ("text", "muted", "link", "good", "bad"):
            assert contrast(ink[name], ground) >= 4.5, (name, ground)
        for name, pair in palette.MARKS.items():
            assert contrast(pair[dark], ground) >= 3.0, (name, ground)
    for name, pair in palette.MARKS.items():
        if name in palette.PASSES.values():  # the micro-batch is written on the pass
            assert contrast(pair[dark], ink["ground"]) >= 4.5, name


@pytest.mark.parametrize("name", ["plan", "estimate", "compare", "pools"])
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (400, True)])
def test_a_browser_shows_it_whole_and_without_complaint(browser, pages, tmp_path: Path, name: str, width: int, dark: bool) -> None:
    path = tmp_path / f"{name}.html"
    path.write_text(pages[name])
    browser.open(path, width=width, dark=dark)
    assert browser.log() == []
    assert browser.script("return document.documentElement.scrollWidth") <= width
    ground = browser.script("return getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(16, 21, 27)" if dark else "rgb(255, 255, 255)")
    narrow = "return [...document.querySelectorAll('td, th')].filter(e => e.clientWidth && e.clientWidth < 20).length"
    assert browser.script(narrow) == 0
    first = "document.activeElement.blur(); document.querySelector('a.skip').focus(); return document.activeElement.textContent"
    assert browser.script(first) == "Skip to the content"
    assert browser.screenshot()[:4] == b"\x89PNG"


def test_it_prints(browser, pages: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "plan.html"
    path.write_text(pages["plan"])
    browser.open(path, width=1280, dark=True)
    assert browser.printed()[:5] == b"%PDF-"
    browser.call("goog/cdp/execute", cmd="Emulation.setEmulatedMedia", params={"media": "print"})
    assert browser.script("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.script("return getComputedStyle(document.querySelector('nav')).display") == "none"
