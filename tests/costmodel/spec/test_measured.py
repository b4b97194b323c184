"""What a measured profile accepts."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from autopar.costmodel.spec.errors import InvalidInputError
from autopar.costmodel.spec.measured import AXES, VARIANTS, Kind, Machine, MeasuredProfile, Point, Series

MACHINE = Machine(
    device_name="a device", host="here", date="2026-01-01T00:00:00Z", driver="", clocks="", libraries={"torch": "2.13.0"},
    world_size=1, ranks_per_node=1, threads_per_rank=1,
)  # fmt: skip


def profile(*points: Point, **series: object) -> MeasuredProfile:
    values = {"kind": Kind.GEMM, "variant": "nt", "dtype": "bf16", "library": "torch", "source": "here", **series}
    one = Series(points=points, **values)  # type: ignore[arg-type]
    return MeasuredProfile(device="h200-sxm-141gb", machine=MACHINE, series=(one,), failures=(), autopar_version="0")


POINT = Point(shape=(64.0, 64.0, 64.0), seconds=1e-5, repeats=5, spread=0.01)


def test_every_kind_has_axes_and_variants() -> None:
    assert set(AXES) == set(VARIANTS) == set(Kind)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seconds": 0.0}, r"series\[0\].points\[0\].seconds=0.0: a time above 0"),
        ({"seconds": math.nan}, "seconds=nan"),
        ({"seconds": -1e-3}, "seconds=-0.001"),
        ({"seconds": 1e9}, "below an hour"),
        ({"shape": (64.0, 64.0)}, "3 numbers: m, n, k"),
        ({"shape": (64.0, 0.0, 64.0)}, "sizes above 0"),
        ({"shape": (64.0, math.inf, 64.0)}, "sizes above 0"),
        ({"repeats": 0}, "repeats=0"),
        ({"spread": -0.5}, "spread=-0.5"),
    ],
)
def test_what_cannot_be_a_measurement_is_refused(change: dict, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        profile(replace(POINT, **change))


def test_unknown_names_and_a_series_told_twice_are_faults_too() -> None:
    with pytest.raises(InvalidInputError, match="of a gemm: nt, nn, tn"):
        profile(POINT, variant="forward")
    with pytest.raises(InvalidInputError, match="one of fp32"):
        profile(POINT, dtype="int4")
    good = profile(POINT)
    with pytest.raises(InvalidInputError, match=r"series\[1\]=gemm nt bf16: occurs twice"):
        replace(good, series=good.series * 2)


def test_all_faults_come_at_once_and_a_flood_is_cut() -> None:
    with pytest.raises(InvalidInputError) as caught:
        profile(*[replace(POINT, seconds=0.0)] * 50)
    assert len(caught.value.faults) == 21
    assert "30 more faults" in str(caught.value)
