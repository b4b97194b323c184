"""Reads Megatron-Bridge's configurations: a command with a recipe and ``section.key=value`` overrides, or a Python module."""

from __future__ import annotations

import ast
import csv
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from autopar.catalog.models import model as model_named
from autopar.costmodel.spec.errors import Fault, InvalidInputError, raise_if
from autopar.costmodel.spec.model import ModelSpec
from autopar.exporters.bridge_recipes import model_of_recipe
from autopar.exporters.bridge_rules import BRIDGE_RULES, FINETUNE, FSDP_VERSION, PIPELINE_DTYPE
from autopar.exporters.bridge_settings import megatron_flags
from autopar.exporters.megatron_layout import layout_string
from autopar.exporters.megatron_lm import RULES
from autopar.exporters.megatron_model import model_settings
from autopar.exporters.megatron_settings import VOCABULARY
from autopar.exporters.rule import FrameworkRule
from autopar.exporters.settings import Settings

from . import megatron_lm
from .imported import Imported, Source
from .launcher import Launch, read_launch
from .python_config import python_settings

_RECIPES = Path(__file__).with_name("bridge_recipes.csv")
_OVERRIDE = re.compile(r"\+*([a-z_]+(?:\.[a-z_0-9]+)*)=(.*)", re.DOTALL)
_COLUMNS = {
    "tp": "model.tensor_model_parallel_size", "pp": "model.pipeline_model_parallel_size", "cp": "model.context_parallel_size",
    "vp": "model.virtual_pipeline_model_parallel_size", "ep": "model.expert_model_parallel_size",
    "etp": "model.expert_tensor_parallel_size", "gbs": "train.global_batch_size", "mbs": "train.micro_batch_size",
    "seq": "model.seq_length", "recompute_granularity": "model.recompute_granularity", "recompute_method": "model.recompute_method",
    "recompute_num_layers": "model.recompute_num_layers", "recompute_modules": "model.recompute_modules",
    "layout": "model.pipeline_model_parallel_layout", "account_embedding": "model.account_for_embedding_in_pipeline_split",
    "account_loss": "model.account_for_loss_in_pipeline_split", "cp_comm_type": "model.cp_comm_type",
}  # fmt: skip
_DEVICES = {
    "h100": "h100-sxm5-80gb", "b200": "b200-sxm", "b300": "b300-sxm", "gb200": "gb200-nvl72", "gb300": "gb300-nvl72",
}  # fmt: skip
_NAME = re.compile(r"_(\d+)gpu_([a-z0-9]+)_([a-z0-9]+)")
_PRECISIONS = {
    "bf16": "bf16_mixed", "fp8cs": "bf16_with_fp8_current_scaling_mixed", "fp8ds": "bf16_with_fp8_delayed_scaling_mixed",
    "fp8sc": "bf16_with_fp8_subchannel_scaling_mixed", "fp8mx": "bf16_with_mxfp8_mixed", "nvfp4": "bf16_with_nvfp4_mixed",
}  # fmt: skip


class MegatronBridge:
    """Protocol :class:`~autopar.importers.imported.Importer`."""

    name = "megatron-bridge"

    def read(self, source: Source) -> Imported:
        """The plan's fields in a command, a recipe's name or a module; raises as the protocol says."""
        if source.name.endswith(".py"):
            found = python_settings(source.text)
            return _imported(found.values, found.base, Launch(program="", words=(), launcher_flags={}, environment={}))
        launch = read_launch(source.text if "=" in source.text or "-" in source.text else f"run --recipe {source.text.strip()}")
        keys, recipe, stray = _overrides(launch)
        module = source.folder / Path(launch.program).name if source.folder is not None and launch.program.endswith(".py") else None
        if module is not None and module.is_file() and not recipe:
            found = python_settings(module.read_text(encoding="utf-8"))
            keys, recipe = {**found.values, **keys}, found.base
        if not keys and not recipe:
            required = "has neither --recipe nor section.key=value"
            raise InvalidInputError(Fault(field="command", given="", required=required, fix="give the command that trains"))
        found_fields = _imported(keys, recipe, launch)
        return replace(found_fields, ignored=(*found_fields.ignored, *stray))


def _overrides(launch: Launch) -> tuple[dict[str, object], str, list[str]]:
    """``section.key=value`` words, the recipe, and the words that are neither."""
    keys: dict[str, object] = {}
    stray: list[str] = []
    recipe = ""
    words = list(launch.words)
    while words:
        word = words.pop(0)
        if word == "--recipe" and words:
            recipe = words.pop(0)
        elif word.startswith("--recipe="):
            recipe = word.partition("=")[2]
        elif (match := _OVERRIDE.fullmatch(word)) and "." in match[1]:
            keys[match[1]] = _literal(match[2])
        else:
            stray.append(word)
    return keys, recipe, stray


def _literal(text: str) -> object:
    plain = {"null": None, "none": None, "true": True, "false": False}.get(text.lower(), text)
    try:
        return ast.literal_eval(plain) if isinstance(plain, str) else plain
    except (ValueError, SyntaxError, RecursionError):
        return plain


def _imported(keys: Mapping[str, object], recipe: str, launch: Launch) -> Imported:
    """The plan's fields of ``keys`` over what the recipe says itself."""
    base = recipe_keys(recipe)
    name = model_of_recipe(recipe)
    model = model_named(name) if name else None
    given = _one_split(_laid_out({**base, **keys}, model))
    flags, left = megatron_flags(given)
    length = given.get("model.seq_length", 1)
    shapes = {**model_settings(model, length if isinstance(length, int) else 1), **_shapes(model)} if model else {}
    settings, faults = VOCABULARY.typed({**shapes, **{flag: value for flag, value in flags.items() if value is not None}})
    raise_if(faults)
    settings |= _own(given, recipe)
    parsed = _NAME.search(recipe)
    world = launch.world_size or (int(parsed[1]) if parsed else 0)
    found = megatron_lm.imported(settings, replace(launch, world_size=world))
    known = [key for key in left if key not in ("model.pipeline_dtype", "ddp.megatron_fsdp_version")]
    remarks = list(found.remarks)
    if given.get(_LAYOUT) and not {**base, **keys}.get(_LAYOUT):
        remarks.append(f"layers of stages, which the recipe's code computes, taken as {given[_LAYOUT]}")
    if recipe and not base:
        remarks.append(f"what the recipe {recipe} sets itself is not known: Megatron's defaults are taken")
    rules: tuple[FrameworkRule, ...] = (*RULES, *BRIDGE_RULES)
    return replace(
        found,
        name="megatron-bridge",
        framework="megatron-fsdp" if found.framework == "megatron-fsdp" else "megatron-bridge-26",
        rules=rules,
        model_name=name,
        model=found.model,
        world_size_is_usual=not launch.world_size,
        device=_DEVICES.get(parsed[2], "") if parsed else "",
        ignored=tuple(sorted(known)),
        kept=tuple(f"{key}={keys[key]!r}" for key in known if key in keys),
        remarks=tuple(remarks),
    )


_LAYOUT = "model.pipeline_model_parallel_layout"


def _laid_out(keys: dict[str, object], model: ModelSpec | None) -> dict[str, object]:
    """``keys`` with the layout that recipes of 61 layers compute: full stages first, what is left over on the last one.

    Where that leaves none for the last stage (such recipes keep the loss alone there), one layer is taken to be on it.
    """
    sizes = [keys.get(f"model.{name}_size") or 1 for name in ("pipeline_model_parallel", "virtual_pipeline_model_parallel")]
    stages = sizes[0] * sizes[1] if isinstance(sizes[0], int) and isinstance(sizes[1], int) else 1
    said = any(keys.get(key) for key in (_LAYOUT, "model.account_for_loss_in_pipeline_split", "model.num_layers_in_last_pipeline_stage"))
    if model is None or model.moe is None or said or stages < 2 or model.num_layers % stages == 0:
        return keys
    each = -(-model.num_layers // stages)
    rest = model.num_layers - each * (stages - 1)
    split: tuple[int, ...] = (*((each,) * (stages - 1)), rest)
    if rest < 1:
        base, spare = divmod(model.num_layers, stages)
        split = (base, *((base + 1,) * spare), *((base,) * (stages - spare - 1)))
    if min(split) < 1:
        return keys
    return {**keys, _LAYOUT: layout_string(split, mtp_layers=model.mtp_layers)}


def _one_split(keys: dict[str, object]) -> dict[str, object]:
    """``keys`` without a split where there is one stage, and without virtual stages beside a layout: recipes keep both."""
    single = keys.get("model.pipeline_model_parallel_size", 1) == 1
    dropped = {_LAYOUT} if single else set()
    dropped |= {"model.virtual_pipeline_model_parallel_size"} if single or keys.get(_LAYOUT) else set()
    return {name: value for name, value in keys.items() if name not in dropped}


def _shapes(model: ModelSpec) -> dict[str, object]:
    """The shapes that are one flag each."""
    return {
        "num-layers": model.num_layers, "hidden-size": model.hidden_size, "num-attention-heads": model.num_attention_heads,
        "kv-channels": model.head_dim, "vocab-size": model.vocab_size,
    }  # fmt: skip


def _own(given: Mapping[str, object], recipe: str) -> Settings:
    """Settings that have no flag in Megatron, as the rules name them; a recipe sets the type of what is sent itself."""
    dtype = given.get("model.pipeline_dtype") or ("torch.bfloat16" if recipe else "")
    version = given.get("ddp.megatron_fsdp_version", 1)
    finetunes = "_sft_" in recipe or "_peft_" in recipe or "finetune" in recipe
    return {PIPELINE_DTYPE: str(dtype), FINETUNE: finetunes, FSDP_VERSION: version if isinstance(version, int) else 1}


def recipe_keys(recipe: str) -> dict[str, object]:
    """What a published recipe sets, by Bridge's keys; nothing for one that is not known."""
    row = _recipes().get(recipe)
    if row is None:
        return {}
    keys: dict[str, object] = {key: _literal(row[column]) for column, key in _COLUMNS.items() if row[column]}
    keys = {key: value for key, value in keys.items() if value is not None and value != []}
    parsed = _NAME.search(recipe)
    if parsed is not None and parsed[3] in _PRECISIONS:
        keys["mixed_precision"] = _PRECISIONS[parsed[3]]
    sharded = row["megatron_fsdp"] == "yes"
    keys |= {"ddp.use_distributed_optimizer": True, "ddp.overlap_grad_reduce": True, "ddp.overlap_param_gather": True}
    if sharded:
        keys |= {"ddp.use_megatron_fsdp": True, "ddp.data_parallel_sharding_strategy": "optim_grads_params"}
        keys["checkpoint.ckpt_format"] = "fsdp_dtensor"
    tensor = keys.get("model.tensor_model_parallel_size", 1)
    keys["model.sequence_parallel"] = isinstance(tensor, int) and tensor > 1
    keys.setdefault("model.expert_tensor_parallel_size", 1)
    keys["model.moe_grouped_gemm"] = True
    return keys


@cache
def _recipes() -> dict[str, dict[str, str]]:
    with _RECIPES.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        return {row["recipe"]: row for row in rows}
