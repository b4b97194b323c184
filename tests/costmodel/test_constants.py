"""Constants in a problem: the columns that the fit moves and the problem that a profile makes are one cost model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autopar.costmodel.calibrate import fit
from autopar.costmodel.constants import FITTED, Rows, calibrated, concerns, link_name, unknown_constants
from autopar.costmodel.estimate import estimate
from autopar.costmodel.inputs import Inputs
from autopar.costmodel.problem import Problem
from autopar.costmodel.spec.calibration import CalibratedConstant, Calibration, Owner
from autopar.costmodel.spec.framework import ExecutionProfile
from autopar.costmodel.spec.hardware import HardwareProfile, LinkProfile
from autopar.costmodel.spec.strategy import Strategy
from autopar.costmodel.step import evaluate
from autopar.request import build_problem


def questions() -> list[tuple[Problem, Strategy]]:
    """Two devices, a single node and several, 16-bit and FP8, dense and MoE."""
    a100, _ = build_problem("gpt-22b", gpus=64, gpu="a100-sxm4-80gb", global_batch_size=128)
    h100, _ = build_problem("llama3-8b", gpus=8, gpu="h100-sxm5-80gb", global_batch_size=64)
    fp8, _ = build_problem("mixtral-8x7b", gpus=16, gpu="h100-sxm5-80gb", global_batch_size=64, precision="fp8")
    return [
        (a100, Strategy(tensor_parallel_size=8, pipeline_parallel_size=4, data_parallel_size=2, sequence_parallel=True)),
        (a100, Strategy(tensor_parallel_size=4, pipeline_parallel_size=8, data_parallel_size=2)),
        (a100, Strategy(tensor_parallel_size=2, pipeline_parallel_size=4, data_parallel_size=8, recompute="full")),
        (h100, Strategy(tensor_parallel_size=2, data_parallel_size=4)),
        (h100, Strategy(tensor_parallel_size=1, data_parallel_size=8)),
        (fp8, Strategy(tensor_parallel_size=2, expert_parallel_size=4, data_parallel_size=8)),
    ]


@pytest.fixture(scope="module")
def rows() -> Rows:
    problems, strategies = zip(*questions(), strict=True)
    return Rows(problems, strategies)


def calibration(rows: Rows, values: np.ndarray) -> Calibration:
    constants = tuple(
        CalibratedConstant(owner=t.kind.owner, name=t.name, field=t.kind.field, catalog_value=t.start, value=float(value))
        for t, value in zip(rows.targets, values, strict=True)
    )
    return Calibration(
        devices=("a100-sxm4-80gb",), clusters=("selene",), frameworks=("megatron-core",), constants=constants, rows=9,
        error_before=0.1, error_after=0.05, validation="leave one out", sources=("a.csv",), autopar_version="0",
    )  # fmt: skip


def seconds(problems: list[Problem], rows: Rows) -> np.ndarray:
    return evaluate(Inputs.stacked(problems), rows.strategies, simulate=False).step_time_seconds


@pytest.mark.parametrize("seed", range(4))
def test_the_fit_moves_what_the_profile_moves(rows: Rows, seed: int) -> None:
    prior = rows.prior()
    shift = np.random.default_rng(seed).normal(0, 1, len(prior))
    values = prior.values(shift)
    found = calibration(rows, values)
    by_columns = rows.predict()(values[np.newaxis])[0] - rows.predict()(prior.start[np.newaxis])[0]
    after = seconds([calibrated(problem, found) for problem in rows.problems], rows)
    by_problem = np.log(after / seconds(list(rows.problems), rows))
    assert by_columns == pytest.approx(by_problem, abs=1e-12)
    assert np.abs(by_columns).max() > 1e-3


def test_constants_of_tiers_beyond_the_network_move_alike_in_both() -> None:
    """Two depths in one table: pairs, PCIe and a network; leaves and a spine that blocks; and one node."""
    pairs, _ = build_problem("gpt-1.2b", gpus=32, cluster="a40-box", global_batch_size=64)
    leaves, _ = build_problem("gpt-1.2b", gpus=512, gpu="h100", global_batch_size=256, topology="dgx-superpod")
    spine = replace(leaves.cluster.tiers[2], oversubscription=8.0)
    leaves = replace(leaves, cluster=replace(leaves.cluster, tiers=(*leaves.cluster.tiers[:2], spine)))
    one, _ = build_problem("gpt-1.2b", gpus=8, gpu="h100", global_batch_size=64)
    strategies = (
        Strategy(tensor_parallel_size=2, pipeline_parallel_size=4, data_parallel_size=4),
        Strategy(tensor_parallel_size=8, pipeline_parallel_size=2, data_parallel_size=32),
        Strategy(tensor_parallel_size=8),
    )
    table = Rows((pairs, leaves, one), strategies)
    assert {f"{leaves.cluster.id}/spine", f"{pairs.cluster.id}/network", f"{pairs.cluster.id}/pcie"} <= {t.name for t in table.targets}
    prior = table.prior()
    values = prior.values(np.random.default_rng(0).normal(0, 1, len(prior)))
    by_columns = table.predict()(values[np.newaxis])[0] - table.predict()(prior.start[np.newaxis])[0]
    after = seconds([calibrated(problem, calibration(table, values)) for problem in table.problems], table)
    assert by_columns == pytest.approx(np.log(after / seconds(list(table.problems), table)), abs=1e-12)


def test_known_constants_of_a_cluster_are_recovered(rows: Rows) -> None:
    prior = rows.prior()
    truth = prior.start.copy()
    (place,) = (i for i, t in enumerate(rows.targets) if (t.name, t.kind.field) == ("a100-sxm4-80gb", "gemm_efficiency"))
    truth[place] *= 0.85
    measured = rows.predict()(truth[np.newaxis])[0]
    found = fit(rows.predict(), measured, prior, noise=0.002)
    assert found[place] == pytest.approx(truth[place], rel=0.05)
    others = [i for i, target in enumerate(rows.targets) if target.kind.owner is Owner.DEVICE and target.name != "a100-sxm4-80gb"]
    assert found[others] == pytest.approx(prior.start[others], rel=0.02)


def test_only_constants_that_some_row_hears_are_fitted(rows: Rows) -> None:
    fitted = {(target.name, target.kind.field) for target in rows.targets}
    assert ("h100-sxm5-80gb", "fp8_efficiency") in fitted
    assert ("a100-sxm4-80gb", "fp8_efficiency") not in fitted
    assert ("megatron-core", "sharded_overlap") not in fitted
    assert all(target.rows.any() for target in rows.targets)


def test_the_catalog_stays_whole() -> None:
    problem, strategy = questions()[0]
    none = replace_constants(problem, strategy, ())
    assert estimate(calibrated(problem, none), strategy).step_time_seconds == estimate(problem, strategy).step_time_seconds


def replace_constants(problem: Problem, strategy: Strategy, constants: tuple[CalibratedConstant, ...]) -> Calibration:
    one = Rows([problem], [strategy])
    return replace(calibration(one, one.prior().start), constants=constants)


def test_provenance_says_on_how_many_rows(rows: Rows) -> None:
    problem, strategy = questions()[0]
    found = calibration(rows, rows.prior().values(np.ones(len(rows.targets)) * 0.3))
    text = estimate(calibrated(problem, found), strategy).provenance["calibration"]
    assert text.startswith("calibrated on 9 rows")
    assert "gemm_efficiency of a100-sxm4-80gb" in text
    assert "h100" not in text
    assert "calibration" not in estimate(problem, strategy).provenance


def test_constants_of_other_machines_change_nothing(rows: Rows) -> None:
    problem, strategy = questions()[3]
    found = calibration(rows, rows.prior().values(np.ones(len(rows.targets)) * -0.5))
    others = replace(found, constants=tuple(c for c in found.constants if not concerns(problem, c)))
    assert others.constants
    assert estimate(calibrated(problem, others), strategy).step_time_seconds == estimate(problem, strategy).step_time_seconds


def test_ratios_of_companions_are_kept() -> None:
    problem, strategy = questions()[0]
    link = link_name(problem, 0)
    constant = CalibratedConstant(owner=Owner.LINK, name=link, field="efficiency", catalog_value=problem.links[0].efficiency, value=0.4)
    after = calibrated(problem, replace_constants(problem, strategy, (constant,))).links
    assert after[0].efficiency == 0.4
    assert after[0].p2p_efficiency / after[0].efficiency == pytest.approx(problem.links[0].p2p_efficiency / problem.links[0].efficiency)
    assert after[1:] == problem.links[1:]


@pytest.mark.parametrize("kind", FITTED, ids=lambda kind: f"{kind.owner}-{kind.field}")
def test_every_constant_is_a_field_of_its_owner(kind) -> None:
    owner = {Owner.DEVICE: HardwareProfile, Owner.LINK: LinkProfile, Owner.FRAMEWORK: ExecutionProfile}[kind.owner]
    assert {kind.field, *kind.companions} <= set(owner.__dataclass_fields__)
    assert kind.low < kind.high
    assert kind.deviation > 0


@pytest.mark.parametrize(("field", "value"), [("gemm_efficiency", 1.5), ("gemm_efficiency", -0.1), ("peak", 0.5)])
def test_values_out_of_range_are_told(field: str, value: float) -> None:
    constant = CalibratedConstant(owner=Owner.DEVICE, name="x", field=field, catalog_value=0.5, value=value)
    assert unknown_constants([constant]) == (constant,)
    assert unknown_constants([replace(constant, field="gemm_efficiency", value=0.5)]) == ()


def test_the_same_configuration_measured_again_is_one_group() -> None:
    problem, strategy = questions()[0]
    assert Rows([problem, problem], [strategy, strategy]).groups.tolist() == [0, 0]
    assert Rows([problem, problem], [strategy, replace(strategy, recompute="full")]).groups.tolist() == [0, 1]
