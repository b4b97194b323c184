"""Problems as columns."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace

import numpy as np
import pytest

from autopar.catalog.frameworks import framework, framework_names
from autopar.costmodel.columns import gather
from autopar.costmodel.inputs import FrameworkColumns, Inputs, TrainingColumns, wide_type
from autopar.costmodel.spec.training import PRECISIONS, ComputeType, Optimizer, TrainingSpec

from .problems import DENSE, EXPERTS, problem


@pytest.mark.parametrize("name", framework_names())
def test_framework_columns_are_the_profiles_fields(name: str) -> None:
    profile = framework(name)
    columns = FrameworkColumns.of(profile)
    for field in fields(columns):
        value = getattr(columns, field.name)
        assert value.dtype == np.float64
        assert float(value) == float(getattr(profile, field.name))
    assert float(FrameworkColumns.of(profile, memory_reserve_bytes=7.0).memory_reserve_bytes) == 7


@pytest.mark.parametrize(
    ("gpu", "fused"), [("v100-sxm2-32gb", 0), ("t4-16gb", 0), ("a100-sxm4-80gb", 1), ("h100-sxm5-80gb", 1), ("mi250x", 1)]
)
def test_flash_attention_starts_at_ampere(gpu: str, fused: int) -> None:
    assert float(Inputs.of(problem(DENSE, gpu=gpu, precision="fp16")).framework.fused_attention) == fused
    unfused = problem(DENSE, gpu=gpu, precision="fp16", fused_attention=False)
    assert float(Inputs.of(unfused).framework.fused_attention) == 0


def test_low_precision_is_for_linear_layers_alone() -> None:
    assert {kind: wide_type(kind) for kind in ComputeType if wide_type(kind) is not kind} == dict.fromkeys(
        (ComputeType.FP8, ComputeType.MXFP8, ComputeType.FP4), ComputeType.BF16
    )
    asked = Inputs.of(problem(DENSE, precision="fp8"))
    assert float(asked.device.peak_flops) == pytest.approx(2 * float(asked.wide_device.peak_flops), rel=1e-3)


@pytest.mark.parametrize("name", PRECISIONS)
def test_bytes_are_the_precisions_where_the_framework_says_nothing(name: str) -> None:
    silent = replace(
        framework("megatron-core"), gradient_bytes=0, gradient_reduce_bytes=0, sharded_gradient_bytes=0, low_precision_copies=0
    )
    training = TrainingSpec(global_batch_size=1, sequence_length=1, precision=PRECISIONS[name])
    columns = TrainingColumns.of(training, silent)
    kinds = ("parameter", "gradient", "sharded_gradient", "master_weight", "optimizer_state", "cached_weight")
    total = sum(float(getattr(columns, f"{kind}_bytes")) for kind in kinds)
    assert total == PRECISIONS[name].bytes_per_parameter
    assert float(columns.gradient_reduce_bytes) == PRECISIONS[name].gradient_reduce_bytes


def test_sgd_keeps_no_moments() -> None:
    training = TrainingSpec(global_batch_size=1, sequence_length=1, optimizer=Optimizer.SGD)
    assert float(TrainingColumns.of(training, framework("megatron-core")).optimizer_state_bytes) == 0


def same(left: object, right: object) -> bool:
    if is_dataclass(left):
        return all(same(getattr(left, f.name), getattr(right, f.name)) for f in fields(left))
    return bool(np.array_equal(np.asarray(left), np.asarray(right)))


def test_stacked_rows_are_the_problems() -> None:
    problems = [problem(DENSE), problem(EXPERTS, gpus=64, framework="torchtitan"), problem(DENSE, gpu="a100-sxm4-80gb", precision="fp16")]
    stacked = Inputs.stacked(problems)
    assert stacked.num_gpus.tolist() == [16, 64, 16]
    for row, asked in enumerate(problems):
        (mine,) = (gather(stacked, np.array([row])),)
        assert same(mine, Inputs.stacked([asked]))


def test_a_processor_overlaps_nothing() -> None:
    """Its cores send what they have computed."""
    profile = framework("megatron-core")
    overlaps = [f.name for f in fields(FrameworkColumns) if "_overlap" in f.name]
    assert len(overlaps) >= 8
    elsewhere = FrameworkColumns.of(profile)
    assert any(float(getattr(elsewhere, name)) > 0 for name in overlaps)
    alone = FrameworkColumns.of(profile, sends_while_computing=False)
    assert all(float(getattr(alone, name)) == 0 for name in overlaps)
    assert float(alone.loss_passes) == float(elsewhere.loss_passes)
