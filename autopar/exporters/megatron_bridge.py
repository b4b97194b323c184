"""Megatron-Bridge: a configuration in Python that starts from one of its recipes, and a script that runs it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from autopar.catalog.frameworks import framework
from autopar.costmodel.spec.errors import Fault

from . import launch
from .bridge_recipes import RECIPES, VANILLA
from .bridge_rules import BRIDGE_RULES, PIPELINE_DTYPE
from .bridge_settings import PRECISIONS, bridge_settings
from .exporter import ExportedFile
from .megatron_lm import NATIVE, RULES, environment, plan_faults
from .megatron_model import USUAL
from .megatron_settings import settings_of
from .model_numbers import scaling_note, unsaid_notes
from .rule import BrokenRule, Configuration, broken, inexpressible

if TYPE_CHECKING:
    from autopar.costmodel.spec.framework import ExecutionProfile

    from .question import Question

MODULE, FUNCTION = "autopar_bridge", "autopar_plan"
_NUMBER_KEYS = {"rotary_base": "config.model.rotary_base", "norm_epsilon": "config.model.layernorm_epsilon"}
DTYPES = {"fp16": "torch.float16", "fp32": "torch.float32"}


class MegatronBridge:
    """Protocol :class:`~autopar.exporters.exporter.Exporter`."""

    name = "megatron-bridge"
    version = "megatron-bridge 0.6.2"

    def profile(self, question: Question) -> ExecutionProfile:
        """The plan's own profile where it is one of Megatron-Core's, with FSDP's stages where the plan shards that far."""
        own = question.problem.framework
        if question.strategy.zero_stage > 1:
            return framework("megatron-fsdp")
        return own if own.id in NATIVE else framework("megatron-bridge-26")

    def configuration(self, question: Question) -> Configuration:
        """Megatron's flags and the environment, with what the rules need to know."""
        flags = settings_of(question)
        settings = {**flags, PIPELINE_DTYPE: DTYPES.get(question.training.precision.name, "torch.bfloat16")}
        return Configuration.of(question, settings, environment(flags, question))

    def broken_rules(self, question: Question) -> tuple[BrokenRule, ...]:
        """What Bridge cannot express, then Megatron's rules and its own over what would be written."""
        impossible = inexpressible((*plan_faults(question), *_own_faults(question)))
        return (*impossible, *broken((*RULES, *BRIDGE_RULES), self.configuration(question)))

    def notes(self, question: Question) -> tuple[str, ...]:
        """What is left to the person."""
        _, function = RECIPES.get(question.model.name, VANILLA)
        own = f"Data, tokenizer, optimizer and checkpoints are those of the recipe {function}: set yours."
        if question.model.name in RECIPES:
            return (own,)
        shapes = "Shapes are set on a plain GPT: check its activation function."
        keys = {field: replace(USUAL[field], name=key) for field, key in _NUMBER_KEYS.items()}
        unsaid = unsaid_notes("Megatron-Bridge", question.model, keys)
        return (own, shapes, *unsaid, *scaling_note(question.model, "set it on config.model"))

    def files(self, question: Question, header: Sequence[str]) -> tuple[ExportedFile, ...]:
        """The configuration's module, and the script."""
        call = [*launch.rendezvous(question.cluster, question.hosts), f'"$(dirname "${{BASH_SOURCE[0]}}")/{MODULE}.py"', '"$@"']
        script = launch.script(header, self.configuration(question).environment, launch.command(call))
        return (
            ExportedFile(path=f"{MODULE}.py", text=_module(question, header)),
            ExportedFile(path="train.sh", text=script, executable=True),
        )


def _own_faults(question: Question) -> Iterator[Fault]:
    model, precision = question.model, question.training.precision.name
    if model.name not in RECIPES and model.latent_attention is not None:
        yield Fault(field="model", given=model.name, required="Megatron-Bridge has no recipe for it, and its plain GPT no latent attention")
    if precision not in PRECISIONS:
        required = f"Megatron-Bridge has {', '.join(PRECISIONS)}"
        yield Fault(field="precision", given=precision, required=required, fix="plan with --precision bf16")


def _module(question: Question, header: Sequence[str]) -> str:
    recipe = RECIPES.get(question.model.name)
    module, function = recipe or VANILLA
    precision = question.training.precision.name
    flags = settings_of(question)
    settings = bridge_settings(flags, precision=precision, with_model=recipe is None)
    lines = [f"    config.{key} = {list(value) if isinstance(value, tuple) else value!r}" for key, value in settings.items()]
    if recipe is None and (pattern := flags.get("moe-layer-freq")):
        lines.append(f"    config.model.moe_layer_freq = {pattern}")
    return "\n".join(
        [
            '"""' + header[0], "", *header[1:], '"""', "",
            "import torch",
            f"from megatron.bridge.recipes.{module} import {function}",
            "from megatron.bridge.training.config import ConfigContainer",
            "from megatron.bridge.training.gpt_step import forward_step",
            "from megatron.bridge.training.pretrain import pretrain",
            "", "",
            f"def {FUNCTION}() -> ConfigContainer:",
            f"    config = {function}()",
            *lines,
            *(f"    config.{name} = {value}" for name, _, value in (word.partition("=") for word in question.kept)),
            f"    config.model.pipeline_dtype = {DTYPES.get(precision, 'torch.bfloat16')}",
            "    return config",
            "", "",
            'if __name__ == "__main__":',
            f"    pretrain({FUNCTION}(), forward_step)",
            "",
        ]
    )  # fmt: skip
