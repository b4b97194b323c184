"""What the runtime refuses, and with which words."""

from __future__ import annotations

import pytest
import torch

from autopar.costmodel.spec.strategy import PipelineSchedule, Recompute, RecomputeModule, Strategy
from autopar.costmodel.spec.training import PRECISIONS
from autopar.runtime.batches import batch_faults as faults_of_batch
from autopar.runtime.precision import precision_faults, tensor_types
from autopar.runtime.structure import read_structure
from autopar.runtime.support import batch_faults, training_faults, unsupported

from .models import tiny
from .oracle import small_gpt


def test_a_plain_plan_has_no_fault() -> None:
    assert unsupported(Strategy()) == ()


def test_kinds_of_context_parallelism_that_the_runtime_does_not_have() -> None:
    (fault,) = unsupported(Strategy(context_parallel_size=2))
    assert str(fault) == (
        "context_parallel_kind=ring: this runtime gathers keys and values (all_gather); use context_parallel_kind=all_gather"
    )


def test_sequence_parallelism_needs_a_tensor_axis() -> None:
    (fault,) = unsupported(Strategy(sequence_parallel=True))
    assert fault.field == "sequence_parallel"


def test_modules_are_not_recomputed_one_by_one() -> None:
    core, mlp = (Strategy(recompute=Recompute.SELECTIVE, recompute_modules=(m,)) for m in (RecomputeModule.CORE_ATTN, RecomputeModule.MLP))
    assert unsupported(core) == ()
    (fault,) = unsupported(mlp)
    assert (fault.field, fault.given) == ("recompute_modules", "mlp")


@pytest.mark.parametrize(
    ("strategy", "rows", "field"),
    [
        (Strategy(data_parallel_size=2, micro_batch_size=3), 8, "global_batch_size"),
        (Strategy(), 0, "global_batch_size"),
        (
            Strategy(pipeline_parallel_size=4, virtual_pipeline_stages=2, pipeline_schedule=PipelineSchedule.INTERLEAVED),
            6,
            "num_microbatches",
        ),
        (Strategy(pipeline_parallel_size=4, pipeline_schedule=PipelineSchedule.DUALPIPE), 6, "num_microbatches"),
        (Strategy(pipeline_parallel_size=2, virtual_pipeline_stages=2), 8, "virtual_pipeline_stages"),
    ],
)
def test_batches_and_schedules_that_do_not_exist(strategy: Strategy, rows: int, field: str) -> None:
    (fault,) = batch_faults(strategy, rows)
    assert fault.field == field
    assert "nearest valid" in fault.fix


@pytest.mark.parametrize("name", PRECISIONS)
def test_every_precision_is_run_as_its_bytes_say_or_refused(name: str) -> None:
    precision = PRECISIONS[name]
    if precision_faults(precision):
        assert name in ("fp16", "fp8", "mxfp8", "nvfp4")
        return
    types = tensor_types(precision)
    copy = types.computed.itemsize if types.is_mixed else 0
    assert types.stored.itemsize + copy == precision.parameter_bytes + precision.master_weight_bytes
    assert types.reduced.itemsize == precision.gradient_reduce_bytes
    assert types.tf32 == (name == "tf32")


def test_a_routers_loss_is_refused_under_a_pipeline() -> None:
    model = tiny("mixtral")
    model.config.output_router_logits = True
    structure = read_structure(model)
    faults = training_faults(model, structure, Strategy(pipeline_parallel_size=2), global_batch_size=2, precision=PRECISIONS["fp32"])
    assert [fault.field for fault in faults] == ["output_router_logits"]
    assert training_faults(model, structure, Strategy(), global_batch_size=2, precision=PRECISIONS["fp32"]) == ()


def test_more_stages_than_blocks_are_refused() -> None:
    model = small_gpt()
    (fault,) = unsupported(Strategy(pipeline_parallel_size=8), read_structure(model))
    assert "at most the model's 4 blocks" in str(fault)


def test_a_batch_tells_each_tensor_at_fault() -> None:
    batch = {"a": torch.zeros(4, 2), "b": torch.zeros(3), "c": torch.tensor(1.0), "d": [1, 2, 3, 4]}
    faults = faults_of_batch(batch, 4, 2)  # type: ignore[arg-type]
    assert [(fault.field, fault.given) for fault in faults] == [("b", "3 rows"), ("c", "shape ()"), ("d", "list")]
    assert faults_of_batch(torch.zeros(6, 2), None, 4)[0].required == "tensors whose rows are a multiple of 4"
    assert faults_of_batch({"a": torch.zeros(4), "b": torch.zeros(8)}, None, 4)[0].given == "tensors of [4, 8] rows"


def test_a_pipeline_rank_with_nothing_to_train_is_refused() -> None:
    model = small_gpt()
    structure = read_structure(model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad = not name.startswith(("tokens", "positions", "blocks.0", "blocks.1"))
    options = {"global_batch_size": 4, "precision": PRECISIONS["fp32"]}
    (fault,) = training_faults(model, structure, Strategy(pipeline_parallel_size=2), **options)  # type: ignore[arg-type]
    assert "rank 0 has frozen ones alone" in str(fault)
    assert training_faults(model, structure, Strategy(pipeline_parallel_size=2, pipeline_layers=(3, 1)), **options) == ()  # type: ignore[arg-type]
    assert training_faults(model, structure, Strategy(), **options) == ()  # type: ignore[arg-type]
    (fault,) = training_faults(model.requires_grad_(False), structure, Strategy(), **options)  # type: ignore[arg-type]
    assert "all frozen" in str(fault)
