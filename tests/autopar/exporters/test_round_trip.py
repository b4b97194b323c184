"""What is exported is read back as the same strategy, for every framework."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from autopar.costmodel.spec.strategy import ContextParallelKind, PipelineSchedule, RankOrder, Recompute, Strategy
from autopar.exporters import exporter
from autopar.exporters.export import unsound
from autopar.exporters.exporter import ExportedFile
from autopar.exporters.question import canonical
from autopar.importers import importer
from autopar.importers.complete import Given, complete
from autopar.importers.imported import Imported, Source
from autopar.request import problem_of

from .questions import Case, cases

HEADER = ["a header"]
SETTINGS = settings(max_examples=40, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow, HealthCheck.data_too_large])
USUAL = RankOrder.TP_CP_DP_PP
LOW_PRECISIONS = ("bf16", "fp16", "fp8", "fp32")


def _megatron(strategy: Strategy) -> Strategy:
    count = strategy.num_recompute_layers // strategy.virtual_pipeline_stages * strategy.virtual_pipeline_stages
    schedule = PipelineSchedule.INTERLEAVED if strategy.virtual_pipeline_stages > 1 else PipelineSchedule.ONE_F_ONE_B
    return replace(strategy, num_recompute_layers=count, pipeline_schedule=schedule)


def _titan(strategy: Strategy) -> Strategy:
    pipelined = strategy.pipeline_parallel_size > 1
    stage = strategy.zero_stage if strategy.zero_stage == 3 else (1 if pipelined else 2) if strategy.zero_stage else 0
    return replace(
        strategy, rank_order=USUAL, zero_stage=stage, context_parallel_kind=ContextParallelKind.ALL_GATHER, expert_tensor_parallel_size=1,
        num_recompute_layers=0,
    )  # fmt: skip


def _deepspeed(strategy: Strategy) -> Strategy:
    return replace(
        strategy, rank_order=USUAL, sequence_parallel=False, virtual_pipeline_stages=1,
        pipeline_schedule=PipelineSchedule.ONE_F_ONE_B, pipeline_layers=(),
        context_parallel_kind=ContextParallelKind.ULYSSES, expert_tensor_parallel_size=1, shard_group_size=0, num_recompute_layers=0,
        recompute=Recompute.NONE if strategy.recompute is Recompute.SELECTIVE else strategy.recompute,
    )  # fmt: skip


def _accelerate(strategy: Strategy) -> Strategy:
    plain = replace(
        _deepspeed(strategy), shard_group_size=strategy.shard_group_size, context_parallel_kind=strategy.context_parallel_kind,
        expert_parallel_size=1,
    )  # fmt: skip
    ranks = strategy.pipeline_parallel_size * strategy.virtual_pipeline_stages
    return replace(
        plain, pipeline_parallel_size=1, data_parallel_size=strategy.data_parallel_size * ranks // strategy.virtual_pipeline_stages
    )


def _nanotron(strategy: Strategy) -> Strategy:
    return replace(
        _deepspeed(strategy), sequence_parallel=strategy.sequence_parallel, context_parallel_kind=ContextParallelKind.RING,
        zero_stage=min(strategy.zero_stage, 1), expert_parallel_size=1, pipeline_schedule=strategy.pipeline_schedule
        if strategy.virtual_pipeline_stages == 1 else PipelineSchedule.ONE_F_ONE_B,
    )  # fmt: skip


ADAPT: dict[str, Callable[[Strategy], Strategy]] = {
    "megatron-lm": _megatron, "megatron-bridge": _megatron, "torchtitan": _titan, "deepspeed": _deepspeed, "accelerate": _accelerate,
    "nanotron": _nanotron,
}  # fmt: skip
"""A strategy as near as the framework comes to it, so that few draws are thrown away."""
FILES = {"megatron-lm": "train.sh", "megatron-bridge": "autopar_bridge.py", "torchtitan": "autopar_torchtitan.py",
         "deepspeed": "ds_config.json", "accelerate": "train.sh", "nanotron": "config.yaml"}  # fmt: skip
MODELS = {"torchtitan": ("llama3-8b", "qwen3-30b-a3b"), "nanotron": ("llama3-8b", "llama2-7b")}
PRECISIONS = {"megatron-lm": LOW_PRECISIONS, "megatron-bridge": ("bf16", "fp16", "fp8"), "torchtitan": ("bf16", "fp8", "fp32")}


def _read_back(name: str, files: tuple[ExportedFile, ...]) -> Imported:
    with tempfile.TemporaryDirectory() as folder:
        for file in files:
            Path(folder, file.path).write_text(file.text, encoding="utf-8")
        texts = {file.path: file.text for file in files}
        return importer(name).read(Source(text=texts[FILES[name]], name=FILES[name], folder=Path(folder)))


@pytest.mark.parametrize("name", sorted(ADAPT))
@SETTINGS
@given(data=st.data())
def test_export_then_import_gives_the_same_strategy(name: str, data: st.DataObject) -> None:
    precisions = PRECISIONS.get(name, ("bf16", "fp16", "fp32"))
    drawn = data.draw(cases(models=MODELS.get(name, ("llama3-8b", "gpt3-6.7b", "mixtral-8x7b")), precisions=precisions))
    asked = replace(drawn, strategy=ADAPT[name](drawn.strategy)).question
    target = exporter(name)
    assume(not unsound(asked) and not target.broken_rules(asked))
    found = _read_back(name, target.files(asked, HEADER))
    training = asked.training
    plan = complete(
        found,
        Given(
            model=asked.model.name,
            gpus=asked.strategy.world_size,
            sequence_length=training.sequence_length if name in ("deepspeed", "accelerate") else None,
        ),
    )
    expected = canonical(problem_of(plan), asked.strategy)
    assert plan.strategy == expected
    assert (plan.inputs.training.global_batch_size, plan.inputs.training.sequence_length) == (
        training.global_batch_size,
        training.sequence_length,
    )
    assert plan.inputs.training.precision.name == training.precision.name
    assert not found.unknown


@pytest.mark.parametrize("name", sorted(ADAPT))
@SETTINGS
@given(drawn=cases())
def test_layers_always_sum(name: str, drawn: Case) -> None:
    asked = drawn.question
    target = exporter(name)
    if not unsound(asked) and not target.broken_rules(asked):
        assert sum(asked.layers) == asked.model.num_layers
