"""Reads Accelerate's YAML, or the ``accelerate launch`` command that names one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from autopar.costmodel.spec.errors import Fault, InvalidInputError, raise_if
from autopar.exporters import accelerate_settings as acc
from autopar.exporters.accelerate_rules import RULES
from autopar.exporters.launch import flag_words
from autopar.exporters.rule import Configuration
from autopar.exporters.settings import Settings, integer, text
from autopar.io.files import read_bytes

from . import deepspeed
from .imported import Imported, Source
from .launcher import Launch, flag_values, read_launch
from .yaml_file import read_yaml

_FLAGS = ("per_device_train_batch_size", "gradient_accumulation_steps", "gradient_checkpointing", "tp_plan")
_SECTIONS = (
    "fsdp_config", "parallelism_config", "deepspeed_config", "dynamo_config", "fp8_config", "mpirun_config", "megatron_lm_config",
    "downcast_bf16", "gpu_ids", "same_network", "tpu_env", "tpu_name", "tpu_use_cluster", "tpu_use_sudo", "tpu_zone", "tpu_vm",
    "enable_cpu_affinity", "commands", "command_file", "main_process_ip", "trainer", "dynamo_backend",
)  # fmt: skip


class Accelerate:
    """Protocol :class:`~autopar.importers.imported.Importer`."""

    name = "accelerate"

    def read(self, source: Source) -> Imported:
        """The plan's fields in the YAML or the command; raises as the protocol says."""
        if source.name.endswith((".yaml", ".yml")):
            return _imported(read_yaml(source.text), {}, source.folder)
        launch = read_launch(source.text)
        if "launch" not in source.text or "accelerate" not in source.text:
            required = "a YAML file, or a command with `accelerate launch`, is needed"
            raise InvalidInputError(Fault(field="configuration", given=repr(source.name), required=required))
        given = read_yaml(_config_text(launch, source.folder)) if "config-file" in launch.launcher_flags else {}
        given |= _launcher_settings(launch)
        raw, _, faults = flag_values(launch.words, {})
        raise_if(faults)
        return _imported(given, {name.replace("-", "_"): value for name, value in raw.items()}, source.folder)


def _config_text(launch: Launch, folder: Path | None) -> str:
    named = launch.launcher_flags["config-file"]
    path = (folder or Path.cwd()) / named.removeprefix("/") if named.startswith("/") and not Path(named).exists() else Path(named)
    path = path if path.is_absolute() else (folder or Path.cwd()) / path
    return read_bytes(path, field="--config_file").decode("utf-8", errors="replace")


def _launcher_settings(launch: Launch) -> dict[str, object]:
    """Settings that the launcher's own flags give, over those of its file."""
    names = {
        setting.name.rsplit(".", 1)[-1]: setting.name for setting in acc.VOCABULARY.settings if not setting.name.startswith(acc.TRAINER)
    }
    flags = {name.replace("-", "_"): value for name, value in launch.launcher_flags.items()}
    return {
        names[name]: value for name, value in flags.items() if name in names and value and name not in ("machine_rank", "main_process_ip")
    }


def _imported(flat: dict[str, object], flags: dict[str, object], folder: Path | None) -> Imported:
    trainer = {f"{acc.TRAINER}{name}": value for name, value in flags.items() if name in _FLAGS}
    others = {name: value for name, value in flags.items() if name not in _FLAGS}
    given = {name: value for name, value in {**flat, **trainer}.items() if value is not None and value not in ({}, "null", "auto")}
    settings, faults = acc.VOCABULARY.typed(given)
    raise_if(faults)
    if file := text(settings, "deepspeed_config.deepspeed_config_file"):
        return _with_deepspeed_file(settings, file, folder)
    known = acc.VOCABULARY.names
    unknown = sorted(name for name in settings if name not in known and name.split(".")[0] not in _SECTIONS)
    ignored = sorted(name for name in settings if name not in known and name not in unknown)
    asked = {} if acc.MICRO in settings else {"strategy.micro_batch_size": "the micro-batch size is the program's; give --mbs"}
    steps = acc.STEPS in settings or acc.DS_STEPS in settings
    if not steps:
        asked["training.global_batch_size"] = "the accumulation steps are the program's; give --gbs"
    return Imported(
        name="accelerate",
        framework="accelerate",
        fields=acc.strategy_fields(settings),
        configuration=Configuration(settings=settings, world_size=integer(settings, acc.PROCESSES, 0)),
        rules=RULES,
        world_size=integer(settings, acc.PROCESSES, 0),
        unknown=tuple(unknown),
        ignored=(*ignored, *(f"--{name}" for name in sorted(others))),
        kept=tuple(flag_words({name: value for name, value in others.items() if isinstance(value, bool | int | float | str | tuple)})),
        unsaid=asked,
        shard_copies=max(1, integer(settings, acc.REPLICAS, 1)) if text(settings, acc.KIND) == "FSDP" else 1,
        remarks=tuple(_remarks(settings)),
    )


def _remarks(settings: Settings) -> list[str]:
    offloads = settings.get("fsdp_config.fsdp_offload_params") is True or any(
        text(settings, f"deepspeed_config.offload_{part}_device", "none") != "none" for part in ("optimizer", "param")
    )
    return ["offloading to the host is not modelled: memory is estimated without it"] if offloads else []


def _with_deepspeed_file(settings: Settings, file: str, folder: Path | None) -> Imported:
    path = Path(file) if Path(file).is_absolute() else (folder or Path.cwd()) / file
    text_of_file = read_bytes(path, field="deepspeed_config_file").decode("utf-8", errors="replace")
    found = deepspeed.DeepSpeed().read(Source(text=text_of_file, name=str(path), folder=folder))
    return replace(found, name="accelerate", world_size=integer(settings, acc.PROCESSES, 0))
