"""Neighbours of a strategy: one change away, at the same number of GPUs."""

from __future__ import annotations

from dataclasses import fields

from hypothesis import given
from hypothesis import strategies as st

import autopar
from autopar.costmodel.spec.strategy import PipelineSchedule, Recompute, Strategy
from autopar.explanation import neighbours

powers = st.sampled_from((1, 2, 4, 8))
strategies = st.builds(
    Strategy,
    tensor_parallel_size=powers,
    sequence_parallel=st.booleans(),
    pipeline_parallel_size=powers,
    virtual_pipeline_stages=st.sampled_from((1, 2)),
    context_parallel_size=powers,
    expert_parallel_size=powers,
    data_parallel_size=powers,
    micro_batch_size=powers,
    zero_stage=st.integers(0, 3),
    recompute=st.sampled_from(Recompute),
)
FOLLOWING = {
    "data_parallel_size", "sequence_parallel", "pipeline_layers", "pipeline_schedule", "virtual_pipeline_stages", "num_recompute_layers",
}  # fmt: skip


@given(strategies)
def test_neighbours_are_other_strategies_of_the_same_size_one_change_away(strategy: Strategy) -> None:
    found = list(neighbours(strategy))
    candidates = [candidate for _, candidate in found]
    assert len(set(candidates)) == len(candidates)
    assert strategy not in candidates
    assert len({label for label, _ in found}) == len(found)
    for label, candidate in found:
        assert candidate.world_size == strategy.world_size
        changed = {f.name for f in fields(Strategy) if getattr(candidate, f.name) != getattr(strategy, f.name)}
        assert len(changed - FOLLOWING) <= (2 if label.startswith("tp") else 1)


def test_the_usual_moves_are_there() -> None:
    strategy = Strategy(
        tensor_parallel_size=4, sequence_parallel=True, pipeline_parallel_size=4, data_parallel_size=2, recompute=Recompute.FULL
    )
    moves = dict(neighbours(strategy))
    assert moves["tp 4 -> 8 (dp 2 -> 1)"].data_parallel_size == 1
    assert moves["tp 4 -> 2 (pp 4 -> 8)"].pipeline_parallel_size == 8
    assert moves["vpp 1 -> 2"].pipeline_schedule is PipelineSchedule.INTERLEAVED
    assert moves["recompute full -> none"].recompute is Recompute.NONE
    assert moves["recompute full -> full(2 layers)"].num_recompute_layers == 2
    assert moves["zero 1 -> 3"].zero_stage == 3
    assert moves["sequence parallel off"].sequence_parallel is False
    assert not any(candidate.sequence_parallel for label, candidate in moves.items() if candidate.tensor_parallel_size == 1)


def test_a_heavy_head_is_offered_a_lighter_last_stage() -> None:
    strategy = {"tp": 1, "pp": 8, "mbs": 1}
    found = autopar.explain("llama3-8b", gpus=64, strategy=strategy)
    assert found.runs
    (spread,) = (change for change in found.changes if change.change.startswith("layers of stages even"))
    assert spread.strategy.pipeline_layers == (4, 4, 4, 5, 5, 4, 4, 2)
    assert found.estimate is not None
    assert spread.step_time_seconds < found.estimate.step_time_seconds
    back = autopar.explain("llama3-8b", gpus=64, strategy=spread.strategy)
    assert not any(change.change.startswith("layers of stages") for change in back.changes)


def test_two_changes_are_tried_where_one_does_not_do() -> None:
    question = {"gpus": 64, "gpu": "a100-sxm4-80gb"}
    found = autopar.explain("gpt-22b", **question, strategy={"tp": 1})
    assert found.refused_by
    assert found.changes
    assert not found.instead
    assert all(", then " in change.change for change in found.changes)
    for change in found.changes:
        again = autopar.estimate("gpt-22b", **question, strategy=change.strategy)
        assert again.fits
        assert again.step_time_seconds == change.step_time_seconds
