"""The fit of execution constants: what it recovers, and what the two pulls do where rows say nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autopar.accuracy.cases import Case, case_of
from benchmarks.accuracy.tables import shipped_runs
from benchmarks.calibration import fitting
from benchmarks.calibration.constants import CONSTANTS, RELATIVES, Constant
from benchmarks.calibration.fitting import Fitter, Rows, documented, fit, left_out


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    """A few dense rows of two releases of one framework on one device."""
    wanted = {"megatron-core": 6, "megatron-mlperf": 6}
    found: list[Case] = []
    for run in shipped_runs()[0]:
        if run.device == "h100-sxm5-80gb" and not run.num_experts and isinstance(case := case_of(run), Case) and case.measured_seconds:
            name = case.problem.framework.id
            if wanted.get(name, 0) > 0:
                wanted[name] -= 1
                found.append(case)
    assert sum(wanted.values()) == 0
    return found


PASSES = tuple(Constant("framework", name, "elementwise_forward_passes", 0.8, 4.0) for name in ("megatron-core", "megatron-mlperf"))


def errors_of(cases: list[Case], constants: tuple[Constant, ...], values: np.ndarray) -> np.ndarray:
    """Signed relative error of each case under these values."""
    return np.expm1(Rows.of(cases, constants).log_errors(constants, values))


def measured_as(cases: list[Case], constants: tuple[Constant, ...], values: np.ndarray) -> list[Case]:
    """The cases with the step times that the model gives under ``values``."""
    wrong = 1 + errors_of(cases, constants, values)
    return [replace(case, measured_seconds=float((case.measured_seconds or 0) * factor)) for case, factor in zip(cases, wrong, strict=True)]


def test_constants_that_made_the_measurements_are_found_again(cases: list[Case], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "PULL", 1e-4)
    monkeypatch.setattr(fitting, "KINSHIP", 0.0)
    truth = np.array([2.5, 1.4])
    found = fit(measured_as(cases, PASSES, truth), PASSES)
    assert found.values == pytest.approx(truth, rel=0.01)
    assert np.max(np.abs(found.errors)) < 1e-3


def test_many_settings_in_one_evaluation_are_the_same_as_one_by_one(cases: list[Case]) -> None:
    rows = Rows.of(cases, PASSES)
    settings = np.array([[1.0, 2.0, 3.5], [1.5, 1.0, 0.9]])
    together = rows.repeated(3).log_errors(PASSES, np.repeat(settings, len(cases), axis=1)).reshape(3, -1)
    for each, values in zip(together, settings.T, strict=True):
        assert np.array_equal(each, rows.log_errors(PASSES, values))


def test_a_framework_without_rows_follows_its_relatives_and_one_without_relatives_its_documents(cases: list[Case]) -> None:
    core = [case for case in cases if case.problem.framework.id == "megatron-core"]
    stranger = Constant("framework", "hai-llm", "elementwise_forward_passes", 0.8, 4.0)
    constants = (*PASSES, stranger)
    moved, kin, alone = fit(measured_as(core, PASSES, np.array([3.0, 1.0])), constants).values
    before = documented(constants)
    assert before[1] < kin < moved
    assert alone == pytest.approx(before[2], abs=0.01)


def test_rows_left_out_do_not_set_the_constants_that_predict_them(cases: list[Case]) -> None:
    slow = [
        replace(case, measured_seconds=(case.measured_seconds or 0) * 3) for case in cases if case.problem.framework.id != "megatron-core"
    ]
    kept = [case for case in cases if case.problem.framework.id == "megatron-core"]
    names = [case.problem.framework.id for case in kept + slow]
    errors = left_out(Fitter.of(kept + slow, PASSES), names)
    alone = errors_of(slow, PASSES, fit(kept, PASSES).values)
    assert errors[len(kept) :] == pytest.approx(alone, abs=1e-6)
    assert np.all(np.isnan(left_out(Fitter.of(kept, PASSES), names[: len(kept)])))


def test_no_setting_near_the_fit_has_a_smaller_sum(cases: list[Case]) -> None:
    fitter = Fitter.of(measured_as(cases, PASSES, np.array([3.0, 1.2])), PASSES)
    found = fitter.whole()

    def total(unit: np.ndarray) -> float:
        return fitting.soft_sum(fitter.residuals(fitter.at(unit), fitter.weight, np.zeros_like(unit)))

    best = total(found.unit)
    for move in (np.array([0.03, 0.0]), np.array([-0.03, 0.0]), np.array([0.0, 0.03]), np.array([0.02, -0.02])):
        assert total(found.unit + move) > best * (1 - fitting.GAIN)


def test_a_row_whose_notes_set_a_constant_keeps_it(cases: list[Case]) -> None:
    own = replace(cases[0].problem, framework=replace(cases[0].problem.framework, elementwise_forward_passes=3.9))
    both = [cases[0], replace(cases[0], problem=own)]
    before, after = (Rows.of(both, PASSES).log_errors(PASSES, np.array([value, value])) for value in (1.0, 2.0))
    assert after[0] > before[0]
    assert after[1] == before[1]


def test_every_constant_starts_inside_its_range_and_relatives_have_ranges_alike() -> None:
    ranges: dict[tuple[int, str], tuple[float, float]] = {}
    for constants in CONSTANTS.values():
        for constant in constants:
            assert constant.low <= constant.documented() <= constant.high, f"{constant.name}.{constant.field}"
    for number, kin in enumerate(RELATIVES):
        for constants in CONSTANTS.values():
            for constant in constants:
                if constant.name in kin and constant.owner == "device":
                    assert ranges.setdefault((number, constant.field), (constant.low, constant.high)) == (constant.low, constant.high)


def test_no_owner_has_two_constants_of_one_field() -> None:
    owned = [(name, c.field) for constants in CONSTANTS.values() for c in constants for name in c.names]
    assert len(owned) == len(set(owned))
