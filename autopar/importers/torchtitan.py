"""Reads torchtitan's configurations: a Python function that returns one, or a command with ``--section.key value`` flags."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path
from typing import cast

from autopar.catalog.models import model as model_named
from autopar.costmodel.spec.errors import Fault, InvalidInputError, raise_if
from autopar.exporters import torchtitan_settings as titan
from autopar.exporters.launch import flag_words
from autopar.exporters.rule import Configuration
from autopar.exporters.settings import Settings, integer
from autopar.exporters.torchtitan_models import catalog_name, name_of_base
from autopar.exporters.torchtitan_rules import RULES

from .imported import Imported, Source
from .launcher import Launch, flag_values, read_launch

_CHECKPOINTS = {"SelectiveAC.Config": "selective", "FullAC.Config": "full", "MemoryBudgetAC.Config": "full"}
_SECTIONS = ("parallelism", "training", "activation_checkpoint", "model", "compile", "comm", "debug")
_TOML_SECTIONS = frozenset({"job", "model", "training", "parallelism", "experimental", "activation_checkpoint"})


class Torchtitan:
    """Protocol :class:`~autopar.importers.imported.Importer`."""

    name = "torchtitan"

    def read(self, source: Source) -> Imported:
        """The plan's fields in a module or a command; raises as the protocol says."""
        _refuse_toml(source)
        if source.name.endswith(".py"):
            given, launch = python_settings(source.text), Launch(program="", words=(), launcher_flags={}, environment={})
            unread: list[str] = []
        else:
            launch = read_launch(source.text)
            given, unread = _command_settings(launch, source.folder)
        settings, faults = titan.VOCABULARY.typed({name: value for name, value in given.items() if value is not None})
        model_name = catalog_name(str(given.get(titan.MODULE, "")), str(given.get(titan.FLAVOR, ""))) or str(given.get("model.name", ""))
        raise_if(faults)
        return _imported(settings, launch, model_name, unread)


def _imported(settings: Settings, launch: Launch, model_name: str, unread: list[str]) -> Imported:
    model = model_named(model_name) if model_name else None
    known = titan.VOCABULARY.names | {"model.name"}
    others = {name: value for name, value in settings.items() if name not in known}
    unknown = [name for name in others if name.split(".")[0] not in _SECTIONS]
    return Imported(
        name="torchtitan",
        framework="torchtitan",
        fields=titan.strategy_fields(settings, num_layers=model.num_layers if model else 0),
        configuration=Configuration(settings=settings, world_size=launch.world_size, model=model),
        rules=RULES,
        model_name=model_name,
        world_size=launch.world_size,
        gpus_per_node=launch.gpus_per_node,
        unknown=tuple(f"--{name}" for name in sorted(unknown)),
        ignored=tuple(f"--{name}" for name in sorted(set(others) - set(unknown))),
        kept=tuple(flag_words(others)),
        shard_copies=max(1, integer(settings, titan.REPLICAS, 1)),
        remarks=tuple(unread),
    )


def _refuse_toml(source: Source) -> None:
    """torchtitan's TOML files are gone, and their keys have changed since.

    Raises:
        InvalidInputError: ``source`` is one.
    """
    if source.name.endswith(".py"):
        return
    try:
        table = tomllib.loads(source.text)
    except tomllib.TOMLDecodeError:
        if not source.name.endswith(".toml"):
            return
        table = {}
    if source.name.endswith(".toml") or _TOML_SECTIONS & set(table):
        required = "is a TOML file; torchtitan takes Python functions since they were removed, with other keys"
        fix = "give the module that has the function, or the command: --module llama3 --config llama3_8b --parallelism.… N"
        raise InvalidInputError(Fault(field="configuration", given=repr(source.name), required=required, fix=fix))


# -- Python ---------------------------------------------------------------------------------------------------------------


def python_settings(text: str) -> dict[str, object]:
    """Settings by dotted names that the functions of a module assign, read without running it.

    Raises:
        InvalidInputError: the text is not Python, or sets nothing that torchtitan has.
    """
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise InvalidInputError(
            Fault(field="configuration", given=f"line {error.lineno}", required=f"is not Python: {error.msg}")
        ) from None
    found: dict[str, object] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torchtitan.models."):
            found[titan.MODULE] = (node.module or "").split(".")[2]
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            name = _dotted(node.targets[0])
            found |= _assigned(name.partition(".")[2] if name.count(".") else "", node.value)
        elif isinstance(node, ast.Call) and _dotted(node.func).endswith("Trainer.Config"):
            found |= _assigned("", node)
    if not any(name.startswith(("parallelism.", "training.")) for name in found):
        required = "sets none of torchtitan's parallelism or training"
        raise InvalidInputError(Fault(field="configuration", given="", required=required, fix="give the module with the config function"))
    return found


def _dotted(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attribute):
            return f"{_dotted(value)}.{attribute}"
    return ""


def _assigned(name: str, value: ast.expr) -> dict[str, object]:
    """Settings under ``name`` that an expression gives: a literal, a call of a config class, or of ``model_registry``."""
    if isinstance(value, ast.Call):
        called = _dotted(value.func)
        if called.endswith("model_registry"):
            return _registry(value)
        if called in _CHECKPOINTS:
            return {titan.CHECKPOINTING: _CHECKPOINTS[called]}
        found: dict[str, object] = {}
        for keyword in value.keywords:
            found |= _assigned(f"{name}.{keyword.arg}" if name else str(keyword.arg), keyword.value)
        return found if called.endswith("Config") else {}
    try:
        literal = ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError, RecursionError):
        return {}
    if name == titan.CHECKPOINTING:
        return {name: "none"} if literal is None else {}
    if name == titan.STAGES and isinstance(literal, list):
        return {name: tuple(" ".join(map(str, cast("list[object]", stage))) for stage in literal if isinstance(stage, list))}
    return {name: literal} if name else {}


def _registry(call: ast.Call) -> dict[str, object]:
    found: dict[str, object] = {}
    if call.args and isinstance(call.args[0], ast.Constant):
        found[titan.FLAVOR] = call.args[0].value
    for keyword in call.keywords:
        if keyword.arg == "attn_backend" and isinstance(keyword.value, ast.Constant):
            found[titan.ATTENTION] = keyword.value.value
        if keyword.arg == "converters" and isinstance(keyword.value, ast.List):
            names = [_dotted(item.func).split(".")[0] for item in keyword.value.elts if isinstance(item, ast.Call)]
            found |= {titan.CONVERTER: names[0]} if names else {}
    return found


# -- command --------------------------------------------------------------------------------------------------------------


def _command_settings(launch: Launch, folder: Path | None) -> tuple[dict[str, object], list[str]]:
    """Settings of a command, over those of the module that it names where that lies beside it."""
    raw, _, faults = flag_values(launch.words, {})
    raise_if(faults)
    module = str(raw.pop("module", "") or launch.environment.get("MODULE", ""))
    config = str(raw.pop("config", "") or launch.environment.get("CONFIG", ""))
    beside = folder / f"{module}.py" if folder is not None and module.isidentifier() else None
    base: dict[str, object] = {}
    unread: list[str] = []
    if beside is not None and beside.is_file():
        base = python_settings(beside.read_text(encoding="utf-8"))
    elif config:
        base = {titan.MODULE: module, "model.name": name_of_base(module, config)}
        unread.append(f"what the function {config} sets itself is not read: torchtitan's defaults are taken for it")
    if not base and not raw:
        required = "has no --module, --config or --section.key"
        raise InvalidInputError(Fault(field="command", given="", required=required, fix="give the command that trains"))
    for mode in [name for name in raw if name.startswith("activation_checkpoint") or ":" in name]:
        base[titan.CHECKPOINTING] = str(raw.pop(mode)) if mode.endswith("mode") else "full" if "full" in mode else "selective"
    return {**base, **{name.replace("-", "_"): value for name, value in raw.items()}}, unread
