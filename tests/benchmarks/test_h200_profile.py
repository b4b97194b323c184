"""The shipped profile of the H200: made from its tables, and as good as asked."""

from __future__ import annotations

from statistics import fmean

import numpy as np

from autopar.catalog.measured import measured_profile
from autopar.io.measured_file import dump_measured
from benchmarks.accuracy.profiled import GEMM_TARGET, MEMORY_TARGET, STEP_TARGET, gemm_left_out, profiled_steps
from benchmarks.calibration.h200_profile import OUTPUT, h200_profile


def test_the_shipped_file_is_what_the_tables_make() -> None:
    assert OUTPUT.read_text(encoding="utf-8") == dump_measured(h200_profile())


def test_it_says_where_its_numbers_come_from() -> None:
    profile = measured_profile("h200")
    assert all("own medians on one NVIDIA H200" in one.source for one in profile.series)
    assert profile.machine.driver
    assert profile.machine.libraries["cuda"]
    assert any("spread" in line for line in profile.failures)


def test_products_left_out_are_predicted() -> None:
    errors = np.concatenate(list(gemm_left_out(measured_profile("h200")).values()))
    assert len(errors) > 1000
    assert np.median(errors) < GEMM_TARGET


def test_whole_steps_are_predicted_under_it() -> None:
    steps = profiled_steps()
    assert len(steps) == 14
    assert fmean(abs(step.profile) for step in steps) < STEP_TARGET
    assert fmean(abs(step.memory) for step in steps) < MEMORY_TARGET
    assert all(abs(step.profile) < 0.12 for step in steps)
