"""What the figures show, and the files that matplotlib makes of them."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from autopar.api import build_problem, estimate
from autopar.comparison import Comparison
from autopar.costmodel.spec.errors import UnavailableError
from autopar.costmodel.spec.strategy import PipelineSchedule, Strategy
from autopar.costmodel.step_timeline import StepTimeline, step_timeline
from autopar.report import figure_data
from autopar.report.figures import comparison_figures, require_matplotlib, subject_figures
from autopar.report.subject import Subject


def long_step(ranks: int, microbatches: int) -> StepTimeline:
    problem, _ = build_problem("gpt-22b", gpus=ranks, global_batch_size=microbatches, sequence_length=2048)
    return step_timeline(problem, Strategy(pipeline_parallel_size=ranks))


def test_the_waterfall_stands_on_itself_and_ends_at_the_peak(subject: Subject) -> None:
    figure = figure_data.memory_waterfall(subject.estimate)
    *kinds, total = figure.rows
    ends = [0.0, *(row.segments[0].finish for row in kinds)]
    assert [row.segments[0].start for row in kinds] == ends[:-1]
    assert ends[-1] == total.segments[0].finish == pytest.approx(subject.estimate.peak_memory_bytes)
    assert figure.limit == subject.estimate.memory_capacity_bytes <= figure.high


def test_the_bars_of_the_ranks_are_their_peaks(subject: Subject) -> None:
    figure = figure_data.memory_of_ranks(subject.estimate)
    for row, stage in zip(figure.rows, subject.estimate.stages, strict=True):
        assert row.segments[-1].finish == pytest.approx(stage.peak_memory_bytes)
    assert figure.note.count("fullest") == 0


def test_a_long_pipeline_shows_its_fullest_ranks(subject: Subject) -> None:
    stages = tuple(replace(subject.estimate.stages[0], pipeline_rank=rank, peak_memory_bytes=1e9 * (rank % 7 + 1)) for rank in range(40))
    figure = figure_data.memory_of_ranks(replace(subject.estimate, stages=stages))
    assert len(figure.rows) == figure_data.MAX_RANKS
    assert "16 fullest of 40" in figure.note
    assert [int(row.name) for row in figure.rows] == sorted(int(row.name) for row in figure.rows)


def test_the_terms_shown_are_nearly_the_whole_step(subject: Subject) -> None:
    figure = figure_data.time_terms(subject.estimate)
    assert math.fsum(row.segments[0].finish for row in figure.rows) == pytest.approx(subject.estimate.step_time_seconds, rel=0.01)
    assert [row.segments[0].finish for row in figure.rows] == sorted((row.segments[0].finish for row in figure.rows), reverse=True)


def test_a_short_step_is_drawn_whole() -> None:
    drawn = long_step(4, 16)
    (window,) = figure_data.lanes(drawn)
    assert (window.start, window.finish) == (0.0, drawn.step_time_seconds)
    passes = [piece for lane in window.rows for piece in lane.pieces if piece.text]
    assert len(passes) == drawn.num_actions


def test_a_long_step_is_drawn_at_its_ends() -> None:
    drawn = long_step(8, 512)
    first, last = figure_data.lanes(drawn)
    assert first.start == 0.0 < first.finish < last.start < last.finish == drawn.step_time_seconds
    pieces = sum(len(lane.pieces) for window in (first, last) for lane in window.rows)
    assert pieces <= 1.2 * figure_data.MAX_PIECES
    assert all(
        window.start <= piece.start < piece.finish <= window.finish
        for window in (first, last)
        for lane in window.rows
        for piece in lane.pieces
    )


def test_passes_at_the_same_time_are_both_drawn() -> None:
    problem, _ = build_problem("gpt-22b", gpus=4, global_batch_size=16, sequence_length=2048)
    strategy = Strategy(pipeline_parallel_size=4, pipeline_schedule=PipelineSchedule.DUALPIPE)
    (window,) = figure_data.lanes(step_timeline(problem, strategy))
    assert {"forward", "backward"} <= {name for name, _ in window.legend}


def test_the_front_falls_with_memory(subject: Subject) -> None:
    told = subject.estimate
    chosen = [("this plan", subject.strategy, told.step_time_seconds, told.peak_memory_bytes)]
    figure = figure_data.cloud(subject.landscape, chosen, told.memory_capacity_bytes)
    seconds = [point.seconds for point in figure.front]
    assert seconds == sorted(seconds, reverse=True)
    assert len(seconds) >= 3
    for point in figure.points:
        better = [other for other in figure.front if other.memory <= point.memory and other.seconds <= point.seconds]
        assert better


def test_the_best_of_the_landscape_is_the_best_of_the_search(subject: Subject) -> None:
    fitting = [spot for spot in subject.landscape.spots if spot.fits]
    assert min(spot.step_time_seconds for spot in fitting) == pytest.approx(subject.estimate.step_time_seconds, rel=1e-9)
    for spot in fitting[:: max(1, len(fitting) // 5)]:
        told = estimate(subject.problem, strategy=spot.strategy)
        assert told.step_time_seconds == pytest.approx(spot.step_time_seconds, rel=1e-9)
        assert told.peak_memory_bytes == pytest.approx(spot.peak_memory_bytes, rel=1e-9)
        assert spot.strategy.pipeline_parallel_size == 4  # as asked for


def test_parts_of_the_plans_add_up(comparison: Comparison) -> None:
    figure = figure_data.time_of_plans(comparison)
    for row, plan in zip(figure.rows, comparison.plans, strict=True):
        assert row.segments[-1].finish == pytest.approx(plan.estimate.step_time_seconds)
    change = figure_data.moved(comparison.time, 1, title="", of_bytes=False)
    assert change.low == -change.high
    assert all(segment.start * segment.finish == 0 for row in change.rows for segment in row.segments)


def test_figures_are_files_that_open_and_are_the_same_every_time(subject: Subject) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is in autopar[report]")
    first, again = (dict(subject_figures(subject)) for _ in range(2))
    names = ("time_terms", "memory_waterfall", "memory_of_ranks", "timeline", "landscape")
    assert sorted(first) == sorted(f"{name}.{kind}" for name in names for kind in ("svg", "png"))
    assert first == again
    for name, content in first.items():
        if name.endswith("png"):
            assert content.startswith(b"\x89PNG")
        else:
            assert ElementTree.fromstring(content).tag.endswith("svg")


def test_figures_of_a_comparison(comparison: Comparison) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is in autopar[report]")
    names = {name.partition(".")[0] for name, _ in comparison_figures(comparison)}
    assert names == {"time_of_plans", "plans", "time_moved_B", "time_moved_C", "memory_moved_B", "memory_moved_C"}


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UnavailableError, match=r"pip install 'autopar\[report\]'"):
        require_matplotlib()
