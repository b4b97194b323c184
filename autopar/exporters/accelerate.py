"""Accelerate: ``accelerate.yaml`` for ``accelerate launch``, and a script with the flags that a Trainer program takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from autopar.catalog.frameworks import framework
from autopar.costmodel.spec.errors import Fault
from autopar.costmodel.spec.strategy import ContextParallelKind, Recompute

from . import launch
from .accelerate_rules import RULES
from .accelerate_settings import PRECISIONS, TRAINER, settings_of, uses_deepspeed
from .exporter import ExportedFile
from .nested import yaml_text
from .rule import BrokenRule, Configuration, broken, inexpressible

if TYPE_CHECKING:
    from autopar.costmodel.spec.framework import ExecutionProfile

    from .question import Question

NATIVE = ("fsdp", "accelerate")


class Accelerate:
    """Protocol :class:`~autopar.exporters.exporter.Exporter`."""

    name = "accelerate"
    version = "accelerate 1.15.0"

    def profile(self, question: Question) -> ExecutionProfile:
        """The plan's own where it is of FSDP, and Accelerate's with tensor or context parallelism."""
        strategy, own = question.strategy, question.problem.framework
        plain = strategy.tensor_parallel_size == 1 and strategy.context_parallel_size == 1 and strategy.zero_stage != 1
        return own if own.id == "accelerate" or (own.id in NATIVE and plain) else framework("accelerate")

    def configuration(self, question: Question) -> Configuration:
        """The settings, with what the rules need to know: the sequence length, which the files do not hold, too."""
        return Configuration.of(question, {**settings_of(question), "sequence_length": question.training.sequence_length})

    def broken_rules(self, question: Question) -> tuple[BrokenRule, ...]:
        """What Accelerate cannot express, then its own rules over what would be written."""
        impossible = inexpressible(plan_faults(question))
        return impossible or broken(RULES, self.configuration(question))

    def notes(self, question: Question) -> tuple[str, ...]:
        """What is left to the training program."""
        notes = [
            f"The model ({question.model.name}) and its {question.training.sequence_length:,} tokens a sequence are your program's.",
            "A program without a Trainer: DataLoader(batch_size=per_device_train_batch_size), Accelerator(gradient_accumulation_steps=…).",
        ]
        if question.strategy.tensor_parallel_size > 1:
            notes.append("Load the model with the same tp_size: from_pretrained(…, distributed_config=DistributedConfig(tp_size=…)).")
        return tuple(notes)

    def files(self, question: Question, header: Sequence[str]) -> tuple[ExportedFile, ...]:
        """The YAML and the script."""
        settings = settings_of(question)
        trainer = {name.removeprefix(TRAINER): value for name, value in settings.items() if name.startswith(TRAINER)}
        written = {name: value for name, value in settings.items() if not name.startswith(TRAINER)}
        call = ['accelerate launch --config_file "$(dirname "${BASH_SOURCE[0]}")/accelerate.yaml"']
        if question.cluster.num_nodes > 1:
            call += ['--machine_rank "${NODE_RANK:?the number of this node, from 0}"']
            call += ['--main_process_ip "${MASTER_ADDR:?the host of node 0}" --main_process_port "${MASTER_PORT:-29500}"']
        call += ['"${TRAIN_SCRIPT:-train.py}"', *launch.flag_words(trainer), *question.kept, '"$@"']
        return (
            ExportedFile(path="accelerate.yaml", text=yaml_text(written, tuple(header))),
            ExportedFile(path="train.sh", text=launch.script(header, launch.ALLOCATOR, launch.command(call)), executable=True),
        )


def plan_faults(question: Question) -> Iterator[Fault]:
    """What Accelerate has no settings for."""
    strategy, precision = question.strategy, question.training.precision.name
    if strategy.pipeline_parallel_size > 1:
        given = str(strategy.pipeline_parallel_size)
        yield Fault(field="pipeline_parallel_size", given=given, required="Accelerate trains without a pipeline (rule AC-5)", fix="pp=1")
    if strategy.expert_parallel_size > 1 or strategy.expert_tensor_parallel_size > 1:
        given = f"{strategy.expert_parallel_size}, cut in {strategy.expert_tensor_parallel_size}"
        yield Fault(field="expert_parallel_size", given=given, required="Accelerate's sizes have no experts", fix="ep=1,etp=1")
    if strategy.sequence_parallel:
        yield Fault(field="sequence_parallel", given="true", required="its tensor parallelism follows the model's plan", fix="sp=false")
    if strategy.recompute is Recompute.SELECTIVE or strategy.num_recompute_layers:
        required = "layers are recomputed all or not at all"
        yield Fault(field="recompute", given=strategy.recompute.value, required=required, fix="recompute=full or none")
    if precision not in PRECISIONS:
        required = f"exports to Accelerate have {', '.join(PRECISIONS)}"
        yield Fault(field="precision", given=precision, required=required, fix="plan with --precision bf16")
    yield from _sharding_faults(question)


def _sharding_faults(question: Question) -> Iterator[Fault]:
    strategy = question.strategy
    cut = strategy.tensor_parallel_size > 1 or strategy.context_parallel_size > 1
    if strategy.zero_stage == 0 and cut:
        yield Fault(field="zero_stage", given="0", required="tensor and context parallelism go with FSDP2", fix="zero=3 or zero=2")
    if uses_deepspeed(question):
        plain = strategy.context_parallel_size == 1 or strategy.context_parallel_kind is ContextParallelKind.ULYSSES
        if strategy.tensor_parallel_size > 1 or not plain:
            required = "ZeRO-1 and Ulysses are DeepSpeed's, without tensor or context parallelism beside them"
            yield Fault(field="zero_stage", given=str(strategy.zero_stage), required=required, fix="zero=2 or zero=3")
        if strategy.shard_group_size:
            given = str(strategy.shard_group_size)
            yield Fault(field="shard_group_size", given=given, required="DeepSpeed shards over all ranks", fix="shard_group_size=0")
    elif strategy.zero_stage and question.shard_group % strategy.context_parallel_size:
        required = f"must be a multiple of context_parallel_size={strategy.context_parallel_size}"
        yield Fault(field="shard_group_size", given=str(strategy.shard_group_size), required=required, fix="shard_group_size=0")
