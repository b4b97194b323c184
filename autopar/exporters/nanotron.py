"""nanotron: ``config.yaml`` for ``run_train.py``, and a script that starts it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from autopar.catalog.frameworks import framework
from autopar.costmodel.spec.errors import Fault
from autopar.costmodel.spec.model import Norm, PositionEmbedding
from autopar.costmodel.spec.strategy import ContextParallelKind, Recompute, split_text

from . import launch
from .exporter import ExportedFile
from .model_numbers import scaling_note, unsaid_notes
from .nanotron_rules import RULES
from .nanotron_settings import CONTEXT, ENGINES, PRECISIONS, RECOMPUTE, ROTARY_BASE, USUAL, settings_of
from .nested import yaml_text
from .question import one_rank_order
from .rule import BrokenRule, Configuration, broken, inexpressible

if TYPE_CHECKING:
    from autopar.costmodel.spec.framework import ExecutionProfile

    from .question import Question
    from .settings import Value

_JOB: Mapping[str, Value | None] = {
    "general.project": "autopar", "general.run": "plan", "general.seed": 42,
    "checkpoints.checkpoints_path": "checkpoints", "checkpoints.checkpoint_interval": 1000,
    "tokenizer.tokenizer_name_or_path": "gpt2", "data.dataset": None, "data.seed": 42,
    "model.init_method.std": 0.02,
    "tokens.train_steps": 20,
    "optimizer.weight_decay": 0.1, "optimizer.clip_grad": 1.0, "optimizer.adam_eps": 1e-8, "optimizer.adam_beta1": 0.9,
    "optimizer.adam_beta2": 0.95, "optimizer.torch_adam_is_fused": True,
    "optimizer.learning_rate_scheduler.learning_rate": 0.0001, "optimizer.learning_rate_scheduler.lr_warmup_steps": 2,
    "optimizer.learning_rate_scheduler.lr_warmup_style": "linear", "optimizer.learning_rate_scheduler.lr_decay_style": "cosine",
    "optimizer.learning_rate_scheduler.min_decay_lr": 0.00001,
}  # fmt: skip
MAIN = "main of 2026-04 (2411b022)"


class Nanotron:
    """Protocol :class:`~autopar.exporters.exporter.Exporter`."""

    name = "nanotron"
    version = "nanotron 0.4"

    def profile(self, question: Question) -> ExecutionProfile:  # noqa: ARG002 - the protocol's
        """nanotron's, whatever the plan was made for."""
        return framework("nanotron")

    def configuration(self, question: Question) -> Configuration:
        """The settings, with what the rules need to know."""
        return Configuration.of(question, settings_of(question))

    def broken_rules(self, question: Question) -> tuple[BrokenRule, ...]:
        """What nanotron cannot express, then its own rules over what would be written."""
        return inexpressible(plan_faults(question)) or broken(RULES, self.configuration(question))

    def notes(self, question: Question) -> tuple[str, ...]:
        """What is left to the person, and where a newer release is needed."""
        settings = settings_of(question)
        newer = [name for name in (CONTEXT, RECOMPUTE, ROTARY_BASE) if name in settings]
        notes = ["Tokenizer, data, learning rate and checkpoints are placeholders: set yours."]
        notes += [f"{name} is of nanotron's {MAIN}: release 0.4 does not have it." for name in newer]
        unsaid = unsaid_notes("nanotron", question.model, USUAL)
        return (*notes, *unsaid, *scaling_note(question.model, "nanotron's Llama has none"))

    def files(self, question: Question, header: Sequence[str]) -> tuple[ExportedFile, ...]:
        """The YAML and the script."""
        call = [
            *launch.rendezvous(question.cluster, question.hosts),
            '"${NANOTRON_PATH:-.}/run_train.py" --config-file "$(dirname "${BASH_SOURCE[0]}")/config.yaml"',
            '"$@"',
        ]  # fmt: skip
        environment = {"CUDA_DEVICE_MAX_CONNECTIONS": "1", **launch.ALLOCATOR}
        return (
            ExportedFile(path="config.yaml", text=yaml_text(written(question), tuple(header))),
            ExportedFile(path="train.sh", text=launch.script(header, environment, launch.command(call)), executable=True),
        )


def written(question: Question) -> dict[str, Value | None]:
    """The whole configuration, the job's placeholders included, section by section."""
    settings: dict[str, Value | None] = {**_JOB, **settings_of(question)}
    return dict(sorted(settings.items(), key=lambda item: item[0].split(".")[0]))


def plan_faults(question: Question) -> Iterator[Fault]:
    """What nanotron has no settings for."""
    yield from _model_faults(question)
    strategy, precision = question.strategy, question.training.precision.name
    yield from one_rank_order("nanotron", strategy)
    if strategy.pipeline_schedule not in ENGINES or strategy.virtual_pipeline_stages > 1:
        given = f"{strategy.pipeline_schedule.value} with {strategy.virtual_pipeline_stages} virtual stages"
        yield Fault(field="pipeline_schedule", given=given, required="nanotron runs 1f1b and gpipe (afab)", fix="schedule=1f1b,vpp=1")
    if strategy.pipeline_layers:
        given = split_text(strategy.pipeline_layers)
        yield Fault(field="pipeline_layers", given=given, required="nanotron splits layers by their cost itself", fix="an even split")
    if strategy.context_parallel_size > 1 and strategy.context_parallel_kind is not ContextParallelKind.RING:
        given = strategy.context_parallel_kind.value
        yield Fault(field="context_parallel_kind", given=given, required="nanotron has rings", fix="cp_kind=ring")
    if strategy.zero_stage > 1 or strategy.shard_group_size:
        given = (
            f"{strategy.zero_stage} over groups of {strategy.shard_group_size}" if strategy.shard_group_size else str(strategy.zero_stage)
        )
        yield Fault(field="zero_stage", given=given, required="nanotron has stages 0 and 1, over all replicas", fix="zero=1")
    if strategy.recompute is Recompute.SELECTIVE or strategy.num_recompute_layers:
        required = "layers are recomputed all or not at all"
        yield Fault(field="recompute", given=strategy.recompute.value, required=required, fix="recompute=full or none")
    if precision not in PRECISIONS:
        required = f"nanotron has {', '.join(PRECISIONS)}"
        yield Fault(field="precision", given=precision, required=required, fix="plan with --precision bf16")


def _model_faults(question: Question) -> Iterator[Fault]:
    model = question.model
    absent = (
        ("moe", model.moe is not None, "no experts in release 0.4"),
        ("latent_attention", model.latent_attention is not None, "no latent attention"),
        ("gated_mlp", not model.gated_mlp, "gated feed-forwards"),
        ("norm", model.norm is not Norm.RMS_NORM or model.norms_per_layer != 2, "two RMSNorms a layer"),
        ("position_embedding", model.position_embedding is not PositionEmbedding.ROTARY, "rotary positions"),
        ("qkv_bias", model.qkv_bias or model.attention_output_bias or model.mlp_bias, "no biases"),
        ("qk_norm", model.qk_norm, "no norms of queries and keys"),
        ("head_dim", model.head_dim * model.num_attention_heads != model.hidden_size, "heads of hidden_size / num_attention_heads"),
        ("num_sliding_layers", bool(model.num_sliding_layers), "no sliding windows"),
        ("mtp_layers", bool(model.mtp_layers), "no multi-token prediction"),
        ("parallel_residual", model.parallel_residual, "one sub-layer after the other"),
    )
    for field, is_absent, what in absent:
        if is_absent:
            yield Fault(field=f"model.{field}", given=model.name, required=f"nanotron's Llama has {what}")
