"""Reads the command or script that starts Megatron-LM."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

from autopar.costmodel.spec.errors import Fault, InvalidInputError, raise_if
from autopar.costmodel.spec.strategy import RecomputeModule
from autopar.exporters import megatron_layout as layout
from autopar.exporters.launch import flag_words
from autopar.exporters.megatron_lm import RULES
from autopar.exporters.megatron_model import USUAL, model_from_settings
from autopar.exporters.megatron_settings import VOCABULARY, strategy_fields
from autopar.exporters.megatron_sizes import uses_fsdp
from autopar.exporters.rule import Configuration
from autopar.exporters.settings import Settings, integer, is_on, text

from .imported import Imported, Source
from .launcher import Launch, flag_values, read_launch

_FLAGS = Path(layout.__file__).with_name("megatron_lm_flags.tsv")
RENAMED = {
    "use-custom-fsdp": "use-megatron-fsdp",
    "num-layers-in-first-pipeline-stage": layout.FIRST,
    "num-layers-in-last-pipeline-stage": layout.LAST,
    "virtual-pipeline-model-parallel-size": layout.VIRTUAL_STAGES,
}
"""Older spellings and what they are called now."""
REMOVED = {
    "batch-size": "--micro-batch-size and --global-batch-size",
    "model-parallel-size": "--tensor-model-parallel-size",
    "warmup": "--lr-warmup-fraction",
    "checkpoint-activations": "--recompute-activations, or --recompute-granularity and --recompute-method",
}
"""Flags that Megatron refuses by name, and what took their place."""


@cache
def known_flags() -> dict[str, str]:
    """Every flag of the release that exports are written for, and how many words it takes."""
    rows = (line.split("\t") for line in _FLAGS.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
    return {row[0]: row[1] for row in rows}


class MegatronLM:
    """Protocol :class:`~autopar.importers.imported.Importer`."""

    name = "megatron-lm"

    def read(self, source: Source) -> Imported:
        """The plan's fields in a script or command line; raises as the protocol says."""
        launch = read_launch(source.text)
        taking = {**known_flags(), **{old: known_flags().get(new, "1") for old, new in RENAMED.items()}}
        raw, _, faults = flag_values(launch.words, taking)
        faults += [
            Fault(field=f"--{name}", given="", required="Megatron no longer takes it", fix=f"use {REMOVED[name]}")
            for name in raw
            if name in REMOVED
        ]
        remarks = [f"--{old} is called --{new} now" for old, new in RENAMED.items() if old in raw]
        named = {RENAMED.get(name, name): value for name, value in raw.items()}
        settings, more = VOCABULARY.typed(named)
        raise_if([*faults, *more])
        unknown = sorted(name for name in raw if name not in taking and VOCABULARY[name] is None)
        ignored = sorted(name for name in raw if name in taking and name not in RENAMED and VOCABULARY[name] is None)
        found = imported(settings, launch)
        kept = flag_words({name: settings[name] for name in (*unknown, *ignored, *(name for name in _JOB if name in settings))})
        return replace(
            found,
            unknown=tuple(f"--{name}" for name in unknown),
            ignored=tuple(f"--{name}" for name in ignored),
            kept=tuple(kept),
            remarks=(*remarks, *found.remarks),
        )


_JOB = (
    "mock-data",
    "tokenizer-type",
    "train-iters",
    "dataloader-type",
    "transformer-impl",
    "cuda-graph-impl",
    "eval-global-batch-size",
    "eval-micro-batch-size",
)
"""Flags that the rules know and that are the job's, not the plan's."""


def imported(settings: Settings, launch: Launch) -> Imported:
    """The plan's fields that Megatron's ``settings`` mean; raises as :meth:`MegatronLM.read`."""
    if "hybrid-layer-pattern" in settings:
        required = "mixes Mamba and attention layers, which autopar does not model"
        raise InvalidInputError(Fault(field="--hybrid-layer-pattern", given=text(settings, "hybrid-layer-pattern"), required=required))
    model = model_from_settings(settings)
    needs = {"CUDA_DEVICE_MAX_CONNECTIONS": "8" if uses_fsdp(settings) else "1"}
    configuration = Configuration(
        settings=settings, world_size=launch.world_size, model=model, environment={**needs, **launch.environment}, layers=()
    )
    fields = strategy_fields(settings, num_layers=model.num_layers)
    instances = integer(settings, "num-distributed-optimizer-instances", 1)
    remarks = _remarks(settings, instances)
    split = fields["strategy.pipeline_layers"]
    if isinstance(split, tuple) and 0 in split[1:-1]:
        fields["strategy.pipeline_layers"] = without_empty_stages([int(count) for count in split])
        remarks.append("a stage between the ends that has no decoder layers is estimated with one of its neighbour's")
    return Imported(
        name="megatron-lm",
        framework="megatron-fsdp" if uses_fsdp(settings) else "megatron-core",
        fields=fields,
        configuration=configuration,
        rules=RULES,
        model=model,
        world_size=launch.world_size,
        gpus_per_node=launch.gpus_per_node,
        usual_numbers={field: usual.value for field, usual in USUAL.items()},
        shard_copies=max(1, instances),
        remarks=tuple(remarks),
    )


def without_empty_stages(layers: list[int]) -> tuple[int, ...]:
    """``layers`` with one layer moved to each stage that has none, from the nearest stage that has several."""
    for stage, count in enumerate(layers):
        givers = [other for other, held in enumerate(layers) if held > 1]
        if count == 0 and givers:
            layers[min(givers, key=lambda other, stage=stage: abs(other - stage))] -= 1  # type: ignore[misc]
            layers[stage] = 1
    return tuple(layers)


def _remarks(settings: Settings, instances: int) -> list[str]:
    said = []
    modules = settings.get("recompute-modules", ())
    if text(settings, "recompute-granularity") == "selective" and modules:
        others = [str(module) for module in modules if module not in set(RecomputeModule)] if isinstance(modules, tuple) else []
        said += [f"recomputation of {', '.join(others)} is not modelled: memory is estimated without it"] if others else []
    if text(settings, "moe-token-dispatcher-type") == "flex":
        said.append("the flex dispatcher (DeepEP, HybridEP) is estimated as a plain all-to-all")
    if is_on(settings, "optimizer-cpu-offload") or integer(settings, "cpu-offloading-num-layers", 0):
        said.append("offloading to the host is not modelled: memory is estimated without it")
    if instances > 1:
        said.append(f"states are sharded {instances} times over: over a part of the data-parallel ranks each")
    if integer(settings, "vocab-size", 0) < 1:
        said.append(
            "--vocab-size is not given (the tokenizer has it): give --model, or the embedding and the loss are estimated as nothing"
        )
    return said
