"""DeepSpeed: ``ds_config.json``, and a script that starts the person's training program with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from autopar.catalog.frameworks import framework
from autopar.costmodel.spec.errors import Fault
from autopar.costmodel.spec.strategy import ContextParallelKind, PipelineSchedule, Recompute, split_text

from . import launch
from .deepspeed_rules import RULES
from .deepspeed_settings import PRECISIONS, settings_of
from .exporter import ExportedFile
from .nested import json_text
from .question import one_rank_order
from .rule import BrokenRule, Configuration, broken, inexpressible

if TYPE_CHECKING:
    from autopar.costmodel.spec.framework import ExecutionProfile

    from .question import Question

NATIVE = ("deepspeed", "megatron-deepspeed")


class DeepSpeed:
    """Protocol :class:`~autopar.exporters.exporter.Exporter`."""

    name = "deepspeed"
    version = "deepspeed 0.19.8"

    def profile(self, question: Question) -> ExecutionProfile:
        """The plan's own where it is one of DeepSpeed's."""
        own = question.problem.framework
        return own if own.id in NATIVE else framework("deepspeed")

    def configuration(self, question: Question) -> Configuration:
        """The settings, with what the rules need to know: the sequence length, which DeepSpeed's file does not hold, too."""
        return Configuration.of(question, {**settings_of(question), "sequence_length": question.training.sequence_length})

    def broken_rules(self, question: Question) -> tuple[BrokenRule, ...]:
        """What DeepSpeed cannot express, then its own rules over what would be written."""
        return (*inexpressible(plan_faults(question)), *broken(RULES, self.configuration(question)))

    def notes(self, question: Question) -> tuple[str, ...]:
        """What is left to the training program."""
        strategy = question.strategy
        notes = [f"The model ({question.model.name}) and its {question.training.sequence_length:,} tokens a sequence are your program's."]
        if strategy.pipeline_parallel_size > 1:
            stages = strategy.pipeline_parallel_size
            notes.append(
                f"The pipeline is Python: PipelineModule(layers, num_stages={stages}, partition_method='type:…' of your layer class)."
            )
        if strategy.recompute is Recompute.FULL:
            notes.append("Recomputation is the program's: checkpoint every layer (gradient_checkpointing_enable, deepspeed.checkpointing).")
        return tuple(notes)

    def files(self, question: Question, header: Sequence[str]) -> tuple[ExportedFile, ...]:
        """The configuration, and the script."""
        call = [
            *launch.rendezvous(question.cluster, question.hosts),
            '"${TRAIN_SCRIPT:-train.py}"',
            '--deepspeed_config "$(dirname "${BASH_SOURCE[0]}")/ds_config.json"',
            *question.kept,
            '"$@"',
        ]
        return (
            ExportedFile(path="ds_config.json", text=json_text(settings_of(question))),
            ExportedFile(path="train.sh", text=launch.script(header, launch.ALLOCATOR, launch.command(call)), executable=True),
        )


def plan_faults(question: Question) -> Iterator[Fault]:
    """What DeepSpeed has no settings for."""
    strategy, precision = question.strategy, question.training.precision.name
    if strategy.sequence_parallel:
        yield Fault(field="sequence_parallel", given="true", required="DeepSpeed's tensor parallelism has none", fix="sp=false")
    yield from one_rank_order("DeepSpeed", strategy)
    if strategy.virtual_pipeline_stages > 1 or strategy.pipeline_schedule is not PipelineSchedule.ONE_F_ONE_B:
        given = f"{strategy.pipeline_schedule.value} with {strategy.virtual_pipeline_stages} virtual stages"
        yield Fault(field="pipeline_schedule", given=given, required="its pipeline engine runs 1f1b", fix="schedule=1f1b,vpp=1")
    if strategy.pipeline_layers:
        required = "its pipeline engine splits layers by itself, evenly where they divide"
        yield Fault(
            field="pipeline_layers", given=split_text(strategy.pipeline_layers), required=required, fix="a pipeline that divides the layers"
        )
    if strategy.pipeline_parallel_size > 1 and question.model.moe is not None:
        required = "its pipeline engine takes no layers of experts"
        yield Fault(field="pipeline_parallel_size", given=str(strategy.pipeline_parallel_size), required=required, fix="pp=1")
    if strategy.context_parallel_size > 1 and strategy.context_parallel_kind is not ContextParallelKind.ULYSSES:
        given = strategy.context_parallel_kind.value
        yield Fault(field="context_parallel_kind", given=given, required="DeepSpeed has Ulysses", fix="cp_kind=ulysses")
    if strategy.shard_group_size:
        required = "sharding over a part of the ranks (MiCS) is gone"
        yield Fault(field="shard_group_size", given=str(strategy.shard_group_size), required=required, fix="shard_group_size=0")
    if strategy.recompute is Recompute.SELECTIVE or strategy.num_recompute_layers:
        given = replace(strategy).recompute.value + (f" of {strategy.num_recompute_layers} layers" if strategy.num_recompute_layers else "")
        yield Fault(field="recompute", given=given, required="layers are recomputed all or not at all", fix="recompute=full or none")
    if strategy.expert_tensor_parallel_size > 1:
        given = str(strategy.expert_tensor_parallel_size)
        yield Fault(field="expert_tensor_parallel_size", given=given, required="DeepSpeed does not cut experts", fix="etp=1")
    if precision not in PRECISIONS:
        required = f"DeepSpeed has {', '.join(PRECISIONS)}"
        yield Fault(field="precision", given=precision, required=required, fix="plan with --precision bf16")
