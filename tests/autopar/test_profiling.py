"""A whole run over kernels that answer by a formula: its phases, and what is left when it ends early."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from autopar.costmodel.measured import Coverage, Use
from autopar.costmodel.profiler.discovery import Machine, Processor
from autopar.costmodel.profiler.request import CannotMeasureError, DeviceLostError, Request
from autopar.costmodel.spec.errors import InvalidInputError, UnavailableError
from autopar.costmodel.spec.measured import Kind, Point, Series
from autopar.profiling import Profiled, Wanted, default_cluster_path, merged, profile_machine

FOUND = Machine(
    host="here",
    processor=Processor(name="A Processor", cores=4, cache_bytes=2**20, memory_bytes=2**34),
    gpus=(), topology=None, networks=(), notes=("GPUs: none",),
)  # fmt: skip


class Formula:
    """Times that a formula gives at once; ``ends_after`` requests it raises ``error`` for ever."""

    library = "a formula"

    def __init__(self, ends_after: int = 10**9, error: BaseException | None = None) -> None:
        self.asked: list[Request] = []
        self._ends_after, self._error = ends_after, error

    def prepare(self, request: Request) -> Formula:
        self.asked.append(request)
        if len(self.asked) > self._ends_after and self._error is not None:
            raise self._error
        if request.kind is Kind.ATTENTION:
            raise CannotMeasureError("no attention here")
        self._seconds = 1e-6 + request.work / 1e11
        return self

    def seconds(self, calls: int) -> float:
        assert calls >= 1
        return self._seconds

    def release(self) -> None: ...


def run(backend: Formula, **wanted: object) -> tuple[Profiled, list[Profiled]]:
    kept: list[Profiled] = []
    options = {"device": "cpu", "budget_seconds": 3.0, **wanted}
    found = profile_machine(Wanted(**options), keep=kept.append, found=FOUND, backend=backend)  # type: ignore[arg-type]
    return found, kept


def test_a_run_fills_every_series_it_can_and_notes_the_rest() -> None:
    found, kept = run(Formula())
    names = {one.name for one in found.profile.series}
    assert {"gemm nt fp32", "operator copy fp32", "optimizer adamw fp32", "launch kernel fp32"} <= names
    assert any(line.startswith("attention forward") and "no attention here" in line for line in found.profile.failures)
    assert found.profile.device == found.cluster.device.id == "cpu-a-processor-4t"
    assert kept[-1].profile.series == found.profile.series
    assert any("one rank ran" in note for note in found.notes)


def test_refinement_goes_on_until_the_budget_ends() -> None:
    backend = Formula()
    found, _ = run(backend, budget_seconds=4.0)
    points = next(len(one.points) for one in found.profile.series if one.name == "gemm nt fp32")
    grid = {64.0, 192.0, 512.0, 1536.0, 4096.0}
    refined = [each for each in backend.asked if each.kind is Kind.GEMM and not set(each.shape) <= grid]
    assert refined
    assert points > 20


def test_what_models_need_is_measured_and_nothing_else_for_a_plan() -> None:
    use = Use(
        kind=Kind.GEMM, variant="tn", dtype="fp32", shape=(96.0, 96.0, 96.0), seconds=1.0, coverage=Coverage.INTERPOLATED, deviation=0.1
    )

    def needs(*_: object) -> Iterable[Use]:
        return [use, replace(use, coverage=Coverage.MEASURED, shape=(32.0, 32.0, 32.0))]

    start = run(Formula())[0].profile
    backend = Formula()
    found, _ = run(backend, needs=needs, only_needs=True, start=start)
    assert backend.asked[0].shape == (96.0, 96.0, 96.0)
    assert (32.0, 32.0, 32.0) not in {each.shape for each in backend.asked}
    assert found.profile.num_points >= start.num_points + 1


@pytest.mark.parametrize("error", [DeviceLostError("the device answers no more: Xid 79"), KeyboardInterrupt()])
def test_an_early_end_keeps_what_was_measured(error: BaseException) -> None:
    kept: list[Profiled] = []
    backend = Formula(ends_after=5, error=error)
    wanted = Wanted(device="cpu", budget_seconds=3.0)
    if isinstance(error, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            profile_machine(wanted, keep=kept.append, found=FOUND, backend=backend)
    else:
        found = profile_machine(wanted, keep=kept.append, found=FOUND, backend=backend)
        assert found.ended_by is error
    assert 0 < kept[-1].profile.num_points <= 5


def test_a_device_lost_before_anything_was_measured_is_an_error() -> None:
    with pytest.raises(DeviceLostError, match="Xid"):
        run(Formula(ends_after=0, error=DeviceLostError("Xid 79")))


def test_bad_wishes_are_told_together() -> None:
    with pytest.raises(InvalidInputError) as caught:
        run(Formula(), dtypes=("int4", "fp32"), budget_seconds=0.0, device="tpu")
    assert {fault.field for fault in caught.value.faults} == {"dtypes", "budget", "device"}
    with pytest.raises(UnavailableError, match="GPUs: none; `autopar profile --device cpu`"):
        run(Formula(), device="cuda")


def test_new_times_replace_old_ones_shape_by_shape() -> None:
    def series(*seconds: float) -> Series:
        points = tuple(Point(shape=(float(n), 1.0, 1.0), seconds=s, repeats=1, spread=0.0) for n, s in enumerate(seconds, start=1))
        return Series(kind=Kind.GEMM, variant="nt", dtype="fp32", library="", source="", points=points)

    (found,) = merged([series(1.0, 2.0, 3.0)], [series(9.0)])
    assert [point.seconds for point in found.points] == [9.0, 2.0, 3.0]


def test_the_cluster_file_lies_beside_the_profile() -> None:
    assert default_cluster_path("a/profile.json") == Path("a/profile.cluster.json")
