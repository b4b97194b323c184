"""The shipped residuals, and that the error bars made of them cover what they promise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import autopar as package
from autopar.catalog.residuals import FILE, dump_residuals, residual_table
from autopar.costmodel.intervals import FEWEST, bounds, sample
from autopar.costmodel.spec.residuals import ResidualGroup


def rows(groups: tuple[ResidualGroup, ...]) -> list[tuple[ResidualGroup, float]]:
    return [(group, value) for group in groups for value in group.values]


def test_the_file_is_what_it_is_read_as() -> None:
    assert dump_residuals(residual_table()) == FILE.read_text(encoding="utf-8")


def test_there_is_ground_for_every_regime() -> None:
    table = residual_table()
    assert len(rows(table.step_time)) > 1000
    assert len(rows(table.memory)) >= FEWEST
    for groups in (table.step_time, table.memory):
        assert all(np.isfinite(value) and abs(value) < 3 for _, value in rows(groups))
    assert 0 < table.resolvable_gap < 0.3


@pytest.mark.parametrize("seed", range(3))
def test_nine_in_ten_of_the_rows_left_out_are_inside(seed: int) -> None:
    """Tenths of the rows left out in turn, the intervals made of the others."""
    every = rows(residual_table().step_time)
    fold = np.random.default_rng(seed).permutation(len(every)) % 10
    inside = 0
    for number in range(10):
        kept = tuple(replace(group, values=(value,)) for (group, value), where in zip(every, fold, strict=True) if where != number)
        of_regime = {}
        for (group, value), where in zip(every, fold, strict=True):
            if where != number:
                continue
            if group.regime not in of_regime:
                found = sample(kept, group.regime)
                assert found is not None
                of_regime[group.regime] = bounds(found.values)
            low, high = of_regime[group.regime]
            inside += low <= value <= high
    assert inside / len(every) == pytest.approx(0.9, abs=0.03)


def test_plans_show_ties_and_what_would_separate_them() -> None:
    plan = package.plan("gpt-1.2b", gpus=8, gpu="a100-sxm4-80gb", top=20)
    limit = plan.estimate.step_time_seconds * (1 + residual_table().resolvable_gap)
    assert plan.alternatives
    for other in plan.alternatives:
        assert other.tie == (other.step_time_seconds <= limit)
        assert other.separated_by.startswith("run both for") == other.tie
    assert plan.estimate.step_time_interval is not None
    assert plan.estimate.fit_probability is not None
