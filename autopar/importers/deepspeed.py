"""Reads DeepSpeed's JSON."""

from __future__ import annotations

from autopar.costmodel.spec.errors import Fault, InvalidInputError, raise_if
from autopar.exporters import deepspeed_settings as ds
from autopar.exporters.deepspeed_rules import RULES
from autopar.exporters.nested import flattened
from autopar.exporters.rule import Configuration
from autopar.exporters.settings import Settings, integer, text
from autopar.io.codec import load_json

from .imported import Imported, Source

REMOVED = {
    "zero_optimization.mics_shard_size": "MiCS is gone: use zero_hpz_partition_size, or leave it out",
    "sparse_attention": "DeepSpeed's sparse attention is gone: leave it out",
    "compression_training": "the compression library is gone: leave it out",
    "amp": "use bf16, fp16 or torch_autocast",
    "zero_optimization.cpu_offload": "use offload_optimizer.device: cpu",
}
"""Keys that DeepSpeed refuses by name, and what took their place."""
_SECTIONS = frozenset({
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "optimizer", "scheduler", "bf16", "fp16",
    "zero_optimization", "tensor_parallel", "expert_parallel", "sequence_parallel_size", "pipeline", "activation_checkpointing",
    "gradient_clipping", "steps_per_print", "wall_clock_breakdown", "torch_autocast", "compile", "data_types", "checkpoint", "aio",
    "flops_profiler", "comms_logger", "tensorboard", "wandb", "csv_monitor", "communication_data_type", "prescale_gradients",
    "gradient_predivide_factor", "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "memory_breakdown", "dump_state",
    "data_efficiency", "autotuning", "seq_parallel_communication_data_type", "dataloader_drop_last", "elasticity", "timers",
})  # fmt: skip
_ASKED = {
    ds.MICRO: ("strategy.micro_batch_size", "--mbs"),
    ds.BATCH: ("training.global_batch_size", "--gbs"),
}


class DeepSpeed:
    """Protocol :class:`~autopar.importers.imported.Importer`."""

    name = "deepspeed"

    def read(self, source: Source) -> Imported:
        """The plan's fields in a JSON document; raises as the protocol says."""
        document = load_json(source.text)
        if not isinstance(document, dict):
            raise InvalidInputError(
                Fault(field="$", given=type(document).__name__, required="DeepSpeed's configuration is one JSON object")
            )
        return imported(flattened(document), world_size=0)


def imported(flat: dict[str, object], *, world_size: int) -> Imported:
    """The plan's fields that DeepSpeed's dotted settings mean; raises as :meth:`DeepSpeed.read`."""
    gone = [
        Fault(field=name, given="", required="DeepSpeed no longer takes it", fix=REMOVED[name])
        for name in REMOVED
        if any(key == name or key.startswith(f"{name}.") for key in flat)
    ]
    automatic = sorted(name for name, value in flat.items() if value == "auto")
    given = {name: value for name, value in flat.items() if value != "auto" and value is not None and value != {}}
    settings, faults = ds.VOCABULARY.typed(given)
    raise_if([*gone, *faults])
    unknown = sorted(name for name in settings if name.split(".")[0] not in _SECTIONS)
    ignored = sorted(name for name in settings if ds.VOCABULARY[name] is None and name not in unknown)
    fields = ds.strategy_fields(settings)
    if any(name in automatic for name in (ds.BF16, ds.FP16)):
        fields.pop("training.precision")
    return Imported(
        name="deepspeed",
        framework="deepspeed",
        fields=fields,
        configuration=Configuration(settings=settings, world_size=world_size),
        rules=RULES,
        world_size=world_size,
        unknown=tuple(unknown),
        ignored=tuple(ignored),
        unsaid=_unsaid(settings, automatic),
        remarks=tuple(_remarks(settings, automatic)),
    )


def _unsaid(settings: Settings, automatic: list[str]) -> dict[str, str]:
    """Fields that the Trainer fills in, or nobody: what a person has to give."""
    asked = {
        _ASKED[name][0]: f'{name} is "auto", which the Trainer fills in; give {_ASKED[name][1]}' for name in automatic if name in _ASKED
    }
    if not asked and ds.MICRO not in settings and ds.BATCH not in settings:
        asked["strategy.micro_batch_size"] = f"{ds.MICRO} or {ds.BATCH} is needed; give --mbs"
    return asked


def _remarks(settings: Settings, automatic: list[str]) -> list[str]:
    said = [f'"auto", filled in by the Trainer: {", ".join(automatic)}'] if automatic else []
    devices = {text(settings, f"zero_optimization.{part}.device", "none") for part in ("offload_optimizer", "offload_param")}
    if devices - {"none"}:
        said.append("offloading to the host is not modelled: memory is estimated without it")
    if integer(settings, "zero_optimization.zero_hpz_partition_size", 1) > 1:
        said.append("the secondary copy of zero_hpz_partition_size is not modelled")
    return said
