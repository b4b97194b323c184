"""What a search says while it runs, and how plan takes its effort."""

from __future__ import annotations

from autopar.cli.searching import progress_text, searching
from autopar.search import Progress

SMALL = ("--model", "llama3-8b", "--gpus", 16)


def test_the_line_says_best_bound_gap_and_refusals() -> None:
    told = Progress(
        evaluated=12_345, rejected={"memory": 3021, "heads_divide_tp": 12, "world_size": 0}, best_seconds=24.3, bound_seconds=23.9
    )
    assert progress_text(told) == (
        "searching: 12,345 evaluated, best 24.3 s, bound 23.9 s (gap 1.6%), refused by memory 3,021, heads divide tp 12"
    )


def test_nothing_found_yet() -> None:
    assert progress_text(Progress(evaluated=0, rejected={}, best_seconds=None, bound_seconds=None)) == "searching: 0 evaluated"
    nothing = Progress(evaluated=7, rejected={}, best_seconds=float("inf"), bound_seconds=2.0)
    assert progress_text(nothing) == "searching: 7 evaluated, bound 2 s"


def test_nobody_is_told_where_nobody_looks() -> None:
    with searching() as progress:
        assert progress is None


def test_uneven_stages_say_what_is_left(autopar) -> None:
    document = autopar("plan", *SMALL, "--min", "pp=2", "--stages", "uneven", "--json").document
    search = document["search"]
    assert "stage by stage" in search["optimality"]
    assert 0 < search["bound_seconds"] <= document["estimate"]["step_time_seconds"]
    even = autopar("plan", *SMALL, "--min", "pp=2", "--json").document
    assert even["search"]["bound_seconds"] is None
    assert document["estimate"]["step_time_seconds"] <= even["estimate"]["step_time_seconds"]


def test_a_time_limit_gives_the_best_so_far_or_says_that_there_is_none(autopar) -> None:
    outcome = autopar("plan", *SMALL, "--time-limit", "1e-9")
    assert outcome.code in (1, 2)
    assert "time" in outcome.err
    assert autopar("plan", *SMALL, "--time-limit", "60s").code == 0


def test_wrong_efforts_are_told_together(autopar) -> None:
    outcome = autopar("plan", "--model", "llama3-8b", "--gpus", 16, "--time-limit", "0", "--gpu", "nothing")
    assert outcome.code == 2
    assert "time_limit" in outcome.err
    assert "nothing" in outcome.err
