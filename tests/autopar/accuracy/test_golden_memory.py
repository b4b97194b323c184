"""Megatron-LM's own records: every one accounted for, and what is exact is exact."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from benchmarks.accuracy.golden_memory import Comparison, comparisons, goldens, group_rows, section


@pytest.fixture(scope="module")
def compared() -> Sequence[Comparison]:
    return comparisons()[0]


def test_every_record_is_compared_or_has_a_reason(compared: Sequence[Comparison]) -> None:
    reasons = comparisons()[1]
    assert len(compared) + sum(reasons.values()) == len(goldens())
    assert len(compared) > 250
    assert all(reasons)


def test_states_of_a_data_parallel_gpt_are_counted_to_the_byte(compared: Sequence[Comparison]) -> None:
    """12 layers of 512: embeddings, layers with biases and norms; 18 bytes each without the distributed optimizer."""
    row = next(each for each in compared if each.golden.case == "gpt3_mcore_te_tp1_pp1_uniform_full_recompute")
    padded = 50_304
    parameters = padded * 512 + 1024 * 512 + 12 * (12 * 512**2 + 13 * 512) + 2 * 512
    memory = row.memory
    states = memory.parameters + memory.gradients + memory.master_weights + memory.optimizer_states
    assert states == pytest.approx(18 * parameters, rel=1e-3)
    assert row.states_bytes == pytest.approx(row.golden.steady_bytes, rel=0.02)


def test_states_between_steps_are_what_was_recorded(compared: Sequence[Comparison]) -> None:
    """Of the dense models in BF16 without context parallelism: nothing but parameters and workspaces is there between steps."""
    plain = [
        each
        for each in compared
        if each.golden.text("suite") == "gpt" and each.golden.has("bf16") and not each.golden.text("context-parallel-size")
    ]
    errors = sorted(abs(each.states_bytes / each.golden.steady_bytes - 1) for each in plain)
    assert len(plain) > 150
    assert errors[len(errors) // 2] < 0.05


def test_the_section_names_groups_and_what_is_left_out(compared: Sequence[Comparison]) -> None:
    text = "\n".join(section())
    assert f"{len(compared)} of {len(goldens())} records" in text
    assert "| suite | moe |" in text
    assert sum(int(row[2]) for row in group_rows(compared) if row[0] == "suite") == len(compared)
    assert "not a decoder-only transformer" in text
