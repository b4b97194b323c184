"""What the fit of the execution profiles writes into the catalog."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import pytest

from autopar.catalog.hardware import device
from autopar.catalog.profiles import FOLDER, hardware_profile
from benchmarks.calibration import steps
from benchmarks.calibration.constants import CONSTANTS, Constant

FITTED = [constant for constants in CONSTANTS.values() for constant in constants if constant.owner == "device"]


@pytest.fixture
def profiles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    shutil.copytree(FOLDER, tmp_path / "profiles")
    monkeypatch.setattr(steps, "PROFILES", tmp_path / "profiles")
    return tmp_path / "profiles"


@pytest.mark.parametrize("constant", FITTED, ids=lambda constant: f"{constant.name}-{constant.field}")
def test_a_fitted_rate_takes_its_companion_along_and_nothing_else(constant: Constant, profiles: Path) -> None:
    before = tomllib.loads((profiles / f"{constant.name}.toml").read_text())
    steps._write_device(constant, 0.6543)
    after = tomllib.loads((profiles / f"{constant.name}.toml").read_text())
    moved = {constant.field} | ({"gemm_small_efficiency"} if constant.field == "gemm_efficiency" else set())
    assert {name: table for name, table in before.items() if name not in moved} == {
        name: table for name, table in after.items() if name not in moved
    }
    assert after[constant.field]["value"] == 0.6543
    assert after[constant.field]["source"].endswith(", ".join(constant.families))
    if "gemm_small_efficiency" in moved:
        # as the fit itself has it: predictions of the file are those of the fit
        was = hardware_profile(device(constant.name))
        ratio = after["gemm_small_efficiency"]["value"] / after["gemm_efficiency"]["value"]
        assert ratio == pytest.approx(was.gemm_small_efficiency / was.gemm_efficiency, rel=1e-3)


def test_every_fitted_device_has_a_file_of_its_own() -> None:
    assert {constant.name for constant in FITTED} <= {path.stem for path in FOLDER.glob("*.toml")}
