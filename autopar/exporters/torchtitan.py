"""torchtitan: a configuration function in Python, as it takes them since its TOML files went, and a script that starts it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from autopar.catalog.frameworks import framework
from autopar.costmodel.spec.errors import Fault
from autopar.costmodel.spec.strategy import ContextParallelKind, Recompute

from . import launch
from . import torchtitan_settings as titan
from .exporter import ExportedFile
from .model_numbers import other_notes
from .question import one_rank_order
from .rule import BrokenRule, Configuration, Enforcement, broken, inexpressible
from .settings import Settings, Value
from .torchtitan_models import TITAN_MODELS, TitanModel
from .torchtitan_rules import RULES

if TYPE_CHECKING:
    from autopar.costmodel.spec.framework import ExecutionProfile

    from .question import Question

MODULE = "autopar_torchtitan"
FUNCTION = "autopar_plan"
_CHECKPOINTS = {"none": "None", "selective": "SelectiveAC.Config()", "full": "FullAC.Config()"}


class Torchtitan:
    """Writes a config function and ``train.sh``; protocol :class:`~autopar.exporters.exporter.Exporter`."""

    name = "torchtitan"
    version = "torchtitan 0.3.0"

    def profile(self, question: Question) -> ExecutionProfile:  # noqa: ARG002 - the protocol's
        """torchtitan's, whatever the plan was made for."""
        return framework("torchtitan")

    def configuration(self, question: Question) -> Configuration:
        """The settings, with what the rules need to know."""
        return Configuration.of(question, titan.settings_of(question))

    def broken_rules(self, question: Question) -> tuple[BrokenRule, ...]:
        """What torchtitan cannot express, then its own rules over what would be written; a bubble alone refuses nothing."""
        impossible = inexpressible(plan_faults(question))
        if impossible:
            return impossible
        found = broken(RULES, self.configuration(question))
        return tuple(rule for rule in found if rule.enforcement is not Enforcement.SILENT)

    def notes(self, question: Question) -> tuple[str, ...]:
        """What is left to the person."""
        bubble = [rule for rule in broken(RULES, self.configuration(question)) if rule.enforcement is Enforcement.SILENT]
        known = TITAN_MODELS[question.model.name]
        return (
            f"Tokenizer, dataset, learning rate and checkpoints are those of {known.base}, which it starts from: set yours.",
            "Seen as later releases name them: local_batch_size x seq_len is num_tokens_per_microbatch_per_dp_rank x num_pp_microbatches.",
            *(rule.fault.required for rule in bubble),
            *other_notes("torchtitan", question.model, known.numbers, known.rotary_scaling),
        )

    def files(self, question: Question, header: Sequence[str]) -> tuple[ExportedFile, ...]:
        """The function's module, and the script that names it."""
        known, settings = TITAN_MODELS[question.model.name], self.configuration(question).settings
        call = [
            *launch.rendezvous(question.cluster, question.hosts),
            f"-m torchtitan.train --module {MODULE} --config {FUNCTION}",
            *question.kept,
            '"$@"',
        ]  # fmt: skip
        folder = ['export PYTHONPATH="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)${PYTHONPATH:+:$PYTHONPATH}"', ""]
        return (
            ExportedFile(path=f"{MODULE}.py", text=module_text(known, settings, header, question.model.mtp_layers)),
            ExportedFile(path="train.sh", text=launch.script(header, launch.ALLOCATOR, [*folder, *launch.command(call)]), executable=True),
        )


def plan_faults(question: Question) -> Iterator[Fault]:
    """What torchtitan has no settings for."""
    strategy, model, precision = question.strategy, question.model, question.training.precision.name
    if model.name not in TITAN_MODELS:
        yield Fault(field="model", given=model.name, required=f"torchtitan has {', '.join(TITAN_MODELS)}")
    elif model.mtp_layers and not TITAN_MODELS[model.name].multi_token:
        yield Fault(field="model.mtp_layers", given=str(model.mtp_layers), required="torchtitan trains no such modules for it")
    if precision not in titan.PRECISIONS:
        required = f"torchtitan has {', '.join(titan.PRECISIONS)}"
        yield Fault(field="precision", given=precision, required=required, fix="plan with --precision bf16")
    yield from one_rank_order("torchtitan", strategy)
    if not titan.schedule_name(question):
        required = "torchtitan runs gpipe and 1f1b, interleaved_1f1b with virtual stages, and zero_bubble with two of them"
        given = f"{strategy.pipeline_schedule.value} with {strategy.virtual_pipeline_stages} virtual stages"
        yield Fault(field="pipeline_schedule", given=given, required=required, fix="schedule=1f1b,vpp=1")
    if strategy.context_parallel_size > 1 and strategy.context_parallel_kind is not ContextParallelKind.ALL_GATHER:
        required = "torchtitan gathers keys and values"
        yield Fault(field="context_parallel_kind", given=strategy.context_parallel_kind.value, required=required, fix="cp_kind=all_gather")
    if strategy.expert_tensor_parallel_size > 1:
        given = str(strategy.expert_tensor_parallel_size)
        yield Fault(field="expert_tensor_parallel_size", given=given, required="torchtitan does not cut experts", fix="etp=1")
    if strategy.recompute_modules:
        given = "+".join(strategy.recompute_modules)
        required = "torchtitan chooses by operator what selective recomputation repeats"
        yield Fault(field="recompute_modules", given=given, required=required, fix="leave it out")
    if strategy.recompute is Recompute.FULL and strategy.num_recompute_layers:
        required = "torchtitan recomputes all layers or none"
        yield Fault(field="num_recompute_layers", given=str(strategy.num_recompute_layers), required=required, fix="recompute_layers=0")
    yield from _sharding_faults(question)


def _sharding_faults(question: Question) -> Iterator[Fault]:
    strategy = question.strategy
    several, pipelined = question.shard_ranks > 1, strategy.pipeline_parallel_size > 1
    stage = strategy.zero_stage
    if several and stage == 1 and not pipelined:
        yield Fault(field="zero_stage", given="1", required="FSDP2 shards gradients too without a pipeline", fix="zero=2")
    if several and stage == 2 and pipelined:
        required = "under a pipeline FSDP2 keeps whole gradients until the last micro-batch"
        yield Fault(field="zero_stage", given="2", required=required, fix="zero=1")
    if stage and question.shard_group % strategy.context_parallel_size:
        required = f"must be a multiple of context_parallel_size={strategy.context_parallel_size}, whose ranks always shard"
        yield Fault(field="shard_group_size", given=str(strategy.shard_group_size), required=required, fix="shard_group_size=0")
    expert_copies = question.model.moe is not None and strategy.tensor_parallel_size > strategy.expert_parallel_size
    if stage == 0 and (strategy.context_parallel_size > 1 or expert_copies):
        required = "context-parallel ranks, and tensor-parallel ones that hold the same experts, always shard"
        yield Fault(field="zero_stage", given="0", required=required, fix="zero=1 or zero=2")


def module_text(known: TitanModel, settings: Settings, header: Sequence[str], mtp_layers: int) -> str:
    """The Python module with the configuration function."""
    converter = settings.get(titan.CONVERTER)
    recompute = _CHECKPOINTS[str(settings[titan.CHECKPOINTING])]
    registry = [repr(known.flavor), f"attn_backend={settings[titan.ATTENTION]!r}"]
    registry += [f"num_mtp_layers={mtp_layers}"] if mtp_layers else []
    registry += [f"converters=[{converter}.Config(model_compile_enabled=True)]"] if converter else []
    imports = [f"from torchtitan.components.quantization import {converter}"] if converter else []
    imports += [f"from torchtitan.distributed.activation_checkpoint import {recompute.split('.')[0]}"] if recompute != "None" else []
    imports += [
        f"from torchtitan.models.{known.module} import model_registry",
        f"from torchtitan.models.{known.module}.config_registry import {known.base}",
        "from torchtitan.trainer import Trainer",
    ]
    skipped = (titan.CHECKPOINTING, titan.CONVERTER, titan.ATTENTION, titan.STAGES)
    lines = [f"    config.{name} = {value!r}" for name, value in sorted(settings.items()) if name not in skipped]
    return "\n".join(
        [
            '"""' + header[0],
            "",
            *header[1:],
            '"""',
            "",
            *imports,
            "",
            "",
            f"def {FUNCTION}() -> Trainer.Config:",
            f"    config = {known.base}()",
            f"    config.model_spec = model_registry({', '.join(registry)})",
            *lines,
            f"    config.activation_checkpoint = {recompute}",
            *_stage_lines(settings.get(titan.STAGES, ())),
            "    return config",
            "",
        ]
    )


def _stage_lines(stages: Value) -> list[str]:
    if not isinstance(stages, tuple) or not stages:
        return []
    return [f"    config.{titan.STAGES} = [", *(f"        {str(stage).split()!r}," for stage in stages), "    ]"]
