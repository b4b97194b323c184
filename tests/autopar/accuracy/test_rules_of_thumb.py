"""The page of folklore: each verdict follows from figures, and the page is made of findings alone."""

from __future__ import annotations

import pytest

from benchmarks import rules_of_thumb
from benchmarks.folklore import layout, memory, pipeline
from benchmarks.folklore.rule import Bounds, Finding, Question, Verdict


@pytest.mark.parametrize(
    ("bounds", "value", "verdict"),
    [
        (Bounds(confirmed=0.85, refuted=0.75), 0.9, Verdict.CONFIRMED),
        (Bounds(confirmed=0.85, refuted=0.75), 0.8, Verdict.PARTLY),
        (Bounds(confirmed=0.85, refuted=0.75), 0.7, Verdict.REFUTED),
        (Bounds(confirmed=0.05, refuted=0.15), 0.01, Verdict.CONFIRMED),
        (Bounds(confirmed=0.05, refuted=0.15), 0.1, Verdict.PARTLY),
        (Bounds(confirmed=0.05, refuted=0.15), 0.2, Verdict.REFUTED),
    ],
)
def test_a_verdict_is_judged_in_the_direction_of_its_bounds(bounds: Bounds, value: float, verdict: Verdict) -> None:
    assert bounds.judge(value) is verdict


def test_busy_share_of_a_deep_pipeline_is_what_the_closed_form_says() -> None:
    """m / (m + p - 1) of 1F1B, less what the ends of a model of uneven stages and the step's tail add."""
    (row,) = pipeline.four_microbatches_a_stage(sizes=(8,)).rows
    for cell, ratio in zip(row[1:5], (1, 2, 4, 8), strict=True):
        busy = float(cell.removesuffix(" %")) / 100
        assert busy == pytest.approx(8 * ratio / (8 * ratio + 7), abs=0.06)


def test_the_verdict_on_four_microbatches_follows_the_efficiency_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    verdicts = []
    for wanted in (0.5, 0.99):
        monkeypatch.setattr(pipeline, "WANTED_EFFICIENCY", wanted)
        verdicts.append(pipeline.four_microbatches_a_stage(sizes=(4,)).verdict)
    assert verdicts == [Verdict.CONFIRMED, Verdict.REFUTED]


def test_the_verdict_on_selective_recomputation_follows_what_nearly_free_means(monkeypatch: pytest.MonkeyPatch) -> None:
    verdicts = []
    for nearly_free in (0.001, 0.5):
        monkeypatch.setattr(memory, "NEARLY_FREE", nearly_free)
        verdicts.append(memory.selective_recompute().verdict)
    assert verdicts == [Verdict.REFUTED, Verdict.CONFIRMED]


def test_the_expert_grid_is_folded() -> None:
    found = layout.expert_parallel_needs_gpus_of_its_own()
    assert found.verdict is Verdict.REFUTED
    assert [row[0] for row in found.rows if row[1] == "runs"] == ["2,048"]


def test_sharding_is_compared_at_every_size_asked() -> None:
    found = memory.sharding_beats_layouts(names=("gpt3-1.3b", "gpt3-6.7b"), gpus=(16,))
    assert [row[0] for row in found.rows] == ["gpt3-1.3b", "gpt3-6.7b"]
    assert "at 16 GPUs" in found.text
    assert found.verdict in Verdict


def test_the_order_never_beats_the_best_plan() -> None:
    found = layout.tensor_then_pipeline_then_data((Question(model="gpt3-6.7b", gpus=16, batch=64, tokens=2048),))
    ((*_, first, second),) = found.rows
    assert {float(cell.removesuffix(" %")) >= 0 for cell in (first, second)} == {True}


def test_the_page_has_every_rule_with_its_verdict(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(rules_of_thumb, "PAGE", None)  # printed, never written
    rules_of_thumb.main(["--only", "fp8-memory", "expert-grid", "vocabulary-padding"])
    text = capsys.readouterr().out
    for name in ("fp8-memory", "expert-grid", "vocabulary-padding"):
        rule = next(rule for rule in rules_of_thumb.RULES if rule.name == name)
        finding: Finding = rule.examine()
        assert f"[{rule.claim}](#{name}) | **{finding.verdict}** |" in text
        assert f"**{finding.verdict.capitalize()}.** {finding.text}" in text
    assert text.count("Setting: ") == 3


def test_rules_have_names_of_their_own() -> None:
    names = [rule.name for rule in rules_of_thumb.RULES]
    assert len(set(names)) == len(names) >= 10
