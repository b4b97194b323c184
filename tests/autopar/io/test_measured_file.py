"""Files of measured profiles: what is written is read, and nonsense is told with its place."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar.catalog.measured import measured_names, measured_profile
from autopar.costmodel.spec.calibration import Calibration
from autopar.costmodel.spec.errors import InvalidInputError, UnknownNameError, UnsupportedVersionError
from autopar.costmodel.spec.measured import AXES, DTYPES, VARIANTS, Kind, Machine, MeasuredProfile, Point, Series
from autopar.io.measured_file import dump_measured, parse_measured, read_measured, write_measured
from autopar.io.profile_file import dump_calibration, read_profile

TEXT = st.text(max_size=20)
COUNTS = st.integers(1, 10**6)


@st.composite
def profiles(draw: st.DrawFn) -> MeasuredProfile:
    names = [(kind, variant, dtype) for kind in Kind for variant in VARIANTS[kind] for dtype in DTYPES]
    series = []
    for kind, variant, dtype in draw(st.lists(st.sampled_from(names), max_size=3, unique=True)):
        shape = st.tuples(*[st.floats(1, 1e9)] * len(AXES[kind]))
        point = st.builds(Point, shape=shape, seconds=st.floats(1e-9, 3000), repeats=COUNTS, spread=st.floats(0, 10))
        points = tuple(draw(st.lists(point, max_size=4)))
        series.append(Series(kind=kind, variant=variant, dtype=dtype, library=draw(TEXT), source=draw(TEXT), points=points))
    machine = Machine(
        device_name=draw(TEXT), host=draw(TEXT), date=draw(TEXT), driver=draw(TEXT), clocks=draw(TEXT),
        libraries=draw(st.dictionaries(TEXT, TEXT, max_size=3)), world_size=draw(COUNTS), ranks_per_node=draw(COUNTS),
        threads_per_rank=draw(COUNTS),
    )  # fmt: skip
    failures = tuple(draw(st.lists(TEXT, max_size=3)))
    return MeasuredProfile(device=draw(TEXT), machine=machine, series=tuple(series), failures=failures, autopar_version="0")


@given(profiles())
def test_what_is_written_is_read(profile: MeasuredProfile) -> None:
    text = dump_measured(profile)
    assert parse_measured(text) == profile
    assert dump_measured(parse_measured(text)) == text


@pytest.fixture
def document() -> dict[str, Any]:
    return json.loads(dump_measured(measured_profile("h200")))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda d: d.pop("device"), r"\$\.device: is missing"),
        (lambda d: d["series"][0].pop("points"), r"\$\.series\[0\]\.points: is missing"),
        (lambda d: d["series"][0]["points"][3].update(seconds=0), r"\$\.series\[0\]\.points\[3\]\.seconds=0.0: a time above 0"),
        (lambda d: d["series"][0]["points"][3].update(seconds="fast"), r"points\[3\]\.seconds='fast': a number is needed"),
        (lambda d: d["series"][0]["points"][3].update(shape=[1, 2]), r"points\[3\]\.shape"),
        (lambda d: d["series"][0].update(kind="magic"), r"\$\.series\[0\]\.kind='magic': one of gemm"),
        (lambda d: d["machine"].update(world_size=0), r"\$\.machine\.world_size=0"),
        (lambda d: d["machine"].update(world_size=True), r"\$\.machine\.world_size=True"),
        (lambda d: d.update(colour="red"), r"\$\.colour: not a field of this format; remove it"),
        (lambda d: d.update(schema_version="one"), r"\$\.schema_version"),
        (lambda d: d.update(series={}), r"\$\.series=\{\}: a list is needed"),
        (lambda d: d.update(kind="calibration"), r'says "kind": "measured"'),
    ],
)
def test_a_profile_edited_into_nonsense(document: dict[str, Any], edit: Callable[[dict[str, Any]], Any], message: str) -> None:
    edit(document)
    with pytest.raises(InvalidInputError, match=message):
        parse_measured(json.dumps(document))


def test_all_faults_at_once(document: dict[str, Any]) -> None:
    document["device"] = 7
    document["series"][0]["points"][0]["repeats"] = "many"
    document["series"][1]["points"][0]["seconds"] = -1
    with pytest.raises(InvalidInputError) as caught:
        parse_measured(json.dumps(document))
    assert {fault.field for fault in caught.value.faults} >= {"$.device", "$.series[0].points[0].repeats"}


def test_another_major_version_is_told(document: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedVersionError, match="measure again"):
        parse_measured(json.dumps({**document, "schema_version": "2.0"}))


@pytest.mark.parametrize("text", ["", "{", '{"kind": "measured", "x": NaN}', "[1]", "[" * 100_000])
def test_what_is_no_document(text: str) -> None:
    with pytest.raises(InvalidInputError, match="JSON"):
        parse_measured(text)


def test_a_half_written_profile_is_refused(tmp_path: Path) -> None:
    text = dump_measured(measured_profile("h200"))
    path = tmp_path / "half.json"
    path.write_text(text[: len(text) // 2])
    with pytest.raises(InvalidInputError, match="not valid JSON"):
        read_measured(path)


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "profile.json"
    write_measured(measured_profile("h200"), path)
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InvalidInputError, match="No space left"):
        write_measured(measured_profile("h200"), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_both_kinds_of_profile_are_told_apart_by_the_file(tmp_path: Path) -> None:
    calibration = Calibration(
        devices=("h200-sxm-141gb",), clusters=(), frameworks=(), constants=(), rows=4, error_before=0.1, error_after=0.1, validation="",
        sources=(), autopar_version="0",
    )  # fmt: skip
    (tmp_path / "c.json").write_text(dump_calibration(calibration))
    write_measured(measured_profile("h200"), tmp_path / "m.json")
    (tmp_path / "x.json").write_text('{"kind": "plan"}')
    assert read_profile(tmp_path / "c.json") == calibration
    assert read_profile(tmp_path / "m.json") == measured_profile("h200")
    with pytest.raises(InvalidInputError, match='"calibration" or "measured"'):
        read_profile(tmp_path / "x.json")


def test_shipped_profiles_have_names() -> None:
    assert "h200" in measured_names()
    with pytest.raises(UnknownNameError, match="h200"):
        measured_profile("h20")


def test_measuring_needs_neither_pydantic_nor_ortools(tmp_path: Path) -> None:
    program = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("pydantic", "pydantic_core", "ortools"):
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Blocked())
from autopar.cli.app import run
from autopar.catalog.measured import measured_profile
assert measured_profile("h200").num_points
sys.exit(run(["profile", "--device", "cpu", "--budget", "8s", "-o", sys.argv[1]]))
"""
    pytest.importorskip("torch")
    path = tmp_path / "p.json"
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert read_measured(path).num_points > 0
