"""Profile files: round trip, versions, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar.costmodel.constants import FITTED
from autopar.costmodel.spec.calibration import CalibratedConstant, Calibration, Owner
from autopar.costmodel.spec.errors import InvalidInputError, UnsupportedVersionError
from autopar.io.profile_file import dump_calibration, parse_calibration, read_calibration, write_calibration

SAMPLE = Calibration(
    devices=("h100-sxm5-80gb",), clusters=("dgx-h100",), frameworks=("megatron-core",), rows=12, error_before=0.12, error_after=0.04,
    constants=(CalibratedConstant(owner=Owner.DEVICE, name="h100-sxm5-80gb", field="gemm_efficiency", catalog_value=0.72, value=0.66),),
    validation="leave one out", sources=("runs.csv",), autopar_version="0.1.0",
)  # fmt: skip

constants = st.sampled_from(FITTED).flatmap(
    lambda kind: st.builds(
        CalibratedConstant, owner=st.just(kind.owner), name=st.text(max_size=20), field=st.just(kind.field),
        catalog_value=st.floats(0, 1), value=st.floats(kind.low, kind.high),
    )
)  # fmt: skip


@given(st.lists(constants, max_size=5), st.integers(1, 10**6), st.floats(0, 10))
def test_parse_of_dump_is_identity(found: list[CalibratedConstant], rows: int, error: float) -> None:
    calibration = replace(SAMPLE, constants=tuple(found), rows=rows, error_before=error)
    assert parse_calibration(dump_calibration(calibration)) == calibration


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    write_calibration(SAMPLE, file)
    assert read_calibration(file) == SAMPLE
    assert json.loads(file.read_text())["schema_version"] == "1.0"
    with pytest.raises(InvalidInputError, match="no such file"):
        read_calibration(tmp_path / "absent.json")


def changed(**values: object) -> str:
    return json.dumps(json.loads(dump_calibration(SAMPLE)) | values)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "kind"),
        ("{", "not valid JSON"),
        (changed(kind="hardware"), '"kind": "calibration"'),
        (changed(schema_version=None), "major.minor"),
        (changed(rows=0), "rests on rows"),
        (changed(rows="12"), "rows"),
        (changed(error_after=-1), "0 or more"),
        (changed(extra=1), "not a field"),
        (changed(constants=[{"owner": "model", "name": "x", "field": "y", "catalog_value": 1, "value": 1}]), "owner"),
    ],
)
def test_what_is_not_a_profile_is_told(text: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        parse_calibration(text)


def test_other_versions_are_refused() -> None:
    with pytest.raises(UnsupportedVersionError, match="reads profile files"):
        parse_calibration(changed(schema_version="2.0"))


@pytest.mark.parametrize(("field", "value"), [("gemm_efficiency", 1.7), ("gemm_efficiency", 0.0), ("peak_flops", 0.5)])
def test_values_that_physics_refuses_are_told(field: str, value: float) -> None:
    wrong = replace(SAMPLE, constants=(replace(SAMPLE.constants[0], field=field, value=value),))
    with pytest.raises(InvalidInputError, match=r"\$.constants\[0\].*range"):
        parse_calibration(dump_calibration(wrong))
