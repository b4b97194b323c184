"""Megatron-LM: one script for ``pretrain_gpt.py``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from autopar.catalog.frameworks import framework
from autopar.costmodel.spec.errors import Fault
from autopar.costmodel.spec.strategy import PipelineSchedule, Recompute

from . import launch
from .exporter import ExportedFile
from .megatron_model import MODEL_SETTINGS, model_faults, model_notes
from .megatron_rules_pipeline import PIPELINE_RULES
from .megatron_rules_ranks import RANK_RULES
from .megatron_rules_states import STATE_RULES
from .megatron_settings import PRECISIONS, settings_of
from .rule import BrokenRule, Configuration, broken, inexpressible

if TYPE_CHECKING:
    from autopar.costmodel.spec.framework import ExecutionProfile

    from .question import Question
    from .settings import Settings, Value

RULES = (*RANK_RULES, *PIPELINE_RULES, *STATE_RULES)
NATIVE = (
    "megatron-core", "megatron-fsdp", "megatron-mlperf", "megatron-bridge-25", "megatron-bridge-26", "megatron-2022",
)  # fmt: skip
"""Execution profiles of Megatron-Core: plans made for one of them are estimated with it."""
_PARALLEL = (
    "tensor-model-parallel-size", "sequence-parallel", "pipeline-model-parallel-size", "num-virtual-stages-per-pipeline-rank",
    "pipeline-model-parallel-layout", "context-parallel-size", "cp-comm-type", "expert-model-parallel-size",
    "expert-tensor-parallel-size", "use-distributed-optimizer", "num-distributed-optimizer-instances", "use-megatron-fsdp",
    "data-parallel-sharding-strategy", "ckpt-format", "no-gradient-accumulation-fusion", "overlap-grad-reduce", "overlap-param-gather",
    "moe-token-dispatcher-type", "moe-grouped-gemm",
)  # fmt: skip


class MegatronLM:
    """Writes ``train.sh``; protocol :class:`~autopar.exporters.exporter.Exporter`."""

    name = "megatron-lm"
    version = "megatron-core 0.19.2"

    def profile(self, question: Question) -> ExecutionProfile:
        """The plan's own profile where it is one of Megatron-Core's, with FSDP's stages where the plan shards that far."""
        own = question.problem.framework
        if question.strategy.zero_stage > 1:
            return framework("megatron-fsdp")
        return own if own.id in NATIVE else framework("megatron-core")

    def configuration(self, question: Question) -> Configuration:
        """The flags and the environment, with what the rules need to know."""
        settings = settings_of(question)
        return Configuration.of(question, settings, environment(settings, question))

    def broken_rules(self, question: Question) -> tuple[BrokenRule, ...]:
        """What Megatron cannot express, then its own rules over what would be written."""
        return (*inexpressible(plan_faults(question)), *broken(RULES, self.configuration(question)))

    def notes(self, question: Question) -> tuple[str, ...]:
        """What is left to the person."""
        notes = []
        if not question.kept:
            notes.append(
                "Data, tokenizer, learning rate and checkpoints are yours: this runs 20 steps on mock data; pass your flags after it."
            )
        if question.strategy.sequence_parallel:
            notes.append("--tp-comm-overlap is left off, since it needs Transformer Engine's user buffers: try it where they work.")
        if question.strategy.zero_stage > 1 and max(question.strategy.tensor_parallel_size, question.strategy.context_parallel_size) > 1:
            notes.append("FSDP and tensor or context parallelism want different CUDA_DEVICE_MAX_CONNECTIONS: it is unset, as FSDP needs.")
        return (*notes, *model_notes(question.model))

    def files(self, question: Question, header: Sequence[str]) -> tuple[ExportedFile, ...]:
        """The script."""
        configuration = self.configuration(question)
        groups = grouped(configuration.settings, first_run=not question.kept)
        arrays = {name: launch.flag_words(settings) for name, settings in groups.items()}
        arrays |= {"KEPT": list(question.kept)} if question.kept else {}
        body = [line for name, words in arrays.items() for line in (*launch.array(name, words), "")]
        call = [
            *launch.rendezvous(question.cluster, question.hosts),
            '"${MEGATRON_PATH:-.}/pretrain_gpt.py"',
            *(f'"${{{name}[@]}}"' for name in arrays),
            '"$@"',
        ]
        text = launch.script(header, configuration.environment, [*body, *launch.command(call)])
        return (ExportedFile(path="train.sh", text=text, executable=True),)


def environment(settings: Settings, question: Question) -> dict[str, str]:
    """Variables that Megatron checks, and the allocator's."""
    cut = question.strategy.tensor_parallel_size > 1 or question.strategy.context_parallel_size > 1
    single = cut and 0 < question.capability < 10 and "use-megatron-fsdp" not in settings
    return {**({"CUDA_DEVICE_MAX_CONNECTIONS": "1"} if single else {}), **launch.ALLOCATOR}


def plan_faults(question: Question) -> Iterator[Fault]:
    """What Megatron has no flags for."""
    yield from model_faults(question.model)
    strategy, precision = question.strategy, question.training.precision.name
    interleaved = strategy.virtual_pipeline_stages > 1
    usual = PipelineSchedule.INTERLEAVED if interleaved else PipelineSchedule.ONE_F_ONE_B
    if strategy.pipeline_schedule is not usual:
        required = "Megatron runs 1f1b, and interleaved_1f1b with virtual stages"
        yield Fault(field="pipeline_schedule", given=strategy.pipeline_schedule.value, required=required, fix=f"schedule={usual.value}")
    if precision not in PRECISIONS:
        required = f"Megatron has {', '.join(PRECISIONS)}"
        yield Fault(field="precision", given=precision, required=required, fix="plan with --precision bf16")
    virtual = strategy.virtual_pipeline_stages
    if strategy.recompute is Recompute.FULL and strategy.num_recompute_layers % virtual:
        required = f"layers are counted for each of the {virtual} virtual stages of a rank, so a multiple of {virtual} is needed"
        nearest = -(-strategy.num_recompute_layers // virtual) * virtual
        yield Fault(
            field="num_recompute_layers", given=str(strategy.num_recompute_layers), required=required, fix=f"recompute_layers={nearest}"
        )


def grouped(settings: Settings, *, first_run: bool) -> dict[str, dict[str, Value]]:
    """The flags in three arrays, and those of a first run on mock data where the person has no own."""
    model = {setting.name for setting in MODEL_SETTINGS} | {"moe-router-pre-softmax"}
    job: Mapping[str, Value] = {
        "train-iters": 20, "lr": 1e-4, "mock-data": True, "tokenizer-type": "NullTokenizer", "log-interval": 1, "eval-iters": 0,
        "hidden-dropout": 0.0, "attention-dropout": 0.0,
    }  # fmt: skip
    return {
        "MODEL": {name: value for name, value in settings.items() if name in model},
        "PARALLEL": {name: settings[name] for name in _PARALLEL if name in settings},
        "TRAINING": {name: value for name, value in settings.items() if name not in model and name not in _PARALLEL},
        **({"JOB": dict(job)} if first_run else {}),
    }
