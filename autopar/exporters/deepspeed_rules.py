"""DeepSpeed's rules, as its source enforces them: ``runtime/pipe``, ``runtime/config.py``, ``module_inject/auto_ep_folding.py``,
``runtime/sequence_parallel/ulysses_sp.py``, ``runtime/zero/config.py`` (0.19)."""

from __future__ import annotations

from collections.abc import Iterator

from autopar.costmodel.spec.errors import Fault

from . import deepspeed_settings as ds
from .rule import Configuration, Enforcement, FrameworkRule
from .settings import Settings, integer, is_on, text, words


def _fault(settings: Settings, name: str, required: str, fix: str = "") -> Fault:
    value = settings.get(name, "")
    return Fault(field=name, given=str(value).lower() if isinstance(value, bool) else str(value), required=required, fix=fix)


def _size(c: Configuration, name: str) -> int:
    return max(1, integer(c.settings, name, 1))


def data_ranks(c: Configuration) -> int:
    """Ranks that read different data: the world over tensor, pipeline and Ulysses sizes; 0 where it is not known or uneven."""
    ranks = _size(c, ds.TENSOR) * _size(c, ds.PIPELINE) * _size(c, ds.ULYSSES)
    return c.world_size // ranks if c.world_size and c.world_size % ranks == 0 else 0


def _pipeline_stage(c: Configuration) -> Iterator[Fault]:
    """The pipeline engine takes ZeRO stages 0 and 1."""
    if _size(c, ds.PIPELINE) > 1 and integer(c.settings, ds.STAGE, 0) > 1:
        yield _fault(c.settings, ds.STAGE, f"is at most 1 with {ds.PIPELINE} above 1", f"{ds.STAGE}=1")


def _pipeline_world(c: Configuration) -> Iterator[Fault]:
    """Pipeline stages divide the world size, which does not change under way."""
    stages = _size(c, ds.PIPELINE)
    if c.world_size % stages:
        yield _fault(c.settings, ds.PIPELINE, f"must divide the world size {c.world_size}")
    if stages > 1 and is_on(c.settings, "elasticity.enabled"):
        yield _fault(c.settings, "elasticity.enabled", "does not go with a pipeline", "leave it out")


def _batch(c: Configuration) -> Iterator[Fault]:
    """The batch is micro-batch x accumulation steps x data-parallel ranks."""
    ranks = data_ranks(c)
    given = [integer(c.settings, name, 0) for name in (ds.BATCH, ds.MICRO, ds.ACCUMULATION)]
    batch, micro, steps = given
    if ranks and all(given) and batch != micro * steps * ranks:
        required = f"must be micro-batch x accumulation x ranks = {micro} x {steps} x {ranks} = {micro * steps * ranks}"
        yield _fault(c.settings, ds.BATCH, required, f"{ds.BATCH}={micro * steps * ranks}")
    elif ranks and batch and micro and not steps and batch % (micro * ranks):
        yield _fault(c.settings, ds.BATCH, f"must be a multiple of micro-batch x ranks = {micro * ranks}")


def _partition(c: Configuration) -> Iterator[Fault]:
    """Stages are balanced by parameters unless told otherwise, whatever their activations."""
    if _size(c, ds.PIPELINE) > 1 and text(c.settings, ds.PARTITION, "best") in ("best", "parameters"):
        yield _fault(c.settings, ds.PARTITION, "balances parameters, not layers or activations", f"{ds.PARTITION}=uniform")


def _tensor_world(c: Configuration) -> Iterator[Fault]:
    """Tensor parallel ranks divide the world, and are said once."""
    outer, inner = integer(c.settings, ds.TENSOR, 0), integer(c.settings, ds.TENSOR_INNER, 0)
    if outer and inner and outer != inner:
        yield _fault(c.settings, ds.TENSOR_INNER, f"must equal {ds.TENSOR}={outer}")
    if c.world_size % max(outer, inner, 1):
        yield _fault(c.settings, ds.TENSOR, f"must divide the world size {c.world_size}")


def _key_value_heads(c: Configuration) -> Iterator[Fault]:
    """More tensor parallel ranks than key-value heads leave some without attention: a warning alone."""
    size = _size(c, ds.TENSOR)
    if c.model is not None and size > c.model.num_key_value_heads:
        heads = c.model.num_key_value_heads
        yield _fault(c.settings, ds.TENSOR, f"is above num_key_value_heads={heads}: some ranks get no attention", f"{ds.TENSOR}={heads}")


def _expert_folding(c: Configuration) -> Iterator[Fault]:
    """Experts fold over the ranks of a stage, whole, and divide over them."""
    expert, cut, stages = _size(c, ds.EXPERT), _size(c, ds.EXPERT_TENSOR), _size(c, ds.PIPELINE)
    if not is_on(c.settings, ds.EXPERT_ON):
        return
    if cut != 1:
        yield _fault(c.settings, ds.EXPERT_TENSOR, "must be 1: experts are whole", f"{ds.EXPERT_TENSOR}=1")
    if c.world_size and c.world_size // stages % (expert * cut):
        yield _fault(c.settings, ds.EXPERT, f"must divide the {c.world_size // stages} ranks of a stage")
    count = c.model.moe.num_experts if c.model is not None and c.model.moe is not None else 0
    if count and count % expert:
        yield _fault(c.settings, ds.EXPERT, f"must divide num_experts={count}")


def _expert_and_tensor(c: Configuration) -> Iterator[Fault]:
    """Expert with tensor parallelism takes no pipeline, Ulysses, ZeRO-3, offload or DeepCompile, and several expert ranks."""
    given = c.settings
    if not is_on(given, ds.EXPERT_ON) or _size(c, ds.TENSOR) == 1:
        return
    offloads = any(text(given, f"zero_optimization.{part}.device", "none") != "none" for part in ("offload_optimizer", "offload_param"))
    needs = (
        (_size(c, ds.PIPELINE) > 1, ds.PIPELINE, "no pipeline"),
        (_size(c, ds.ULYSSES) > 1, ds.ULYSSES, "no Ulysses"),
        (_size(c, ds.EXPERT) == 1, ds.EXPERT, f"{ds.EXPERT} above 1"),
        (integer(given, ds.STAGE, 0) > 2, ds.STAGE, "ZeRO stage 2 at most"),
        (offloads, "zero_optimization.offload_optimizer.device", "no offload"),
        (is_on(given, "compile.deepcompile"), "compile.deepcompile", "no DeepCompile"),
    )
    for is_broken, name, what in needs:
        if is_broken:
            yield _fault(given, name, f"expert with tensor parallelism needs {what}")


def _experts(c: Configuration) -> Iterator[Fault]:
    """A layer's experts divide over the expert-parallel ranks."""
    count = c.model.moe.num_experts if c.model is not None and c.model.moe is not None else 0
    size = integer(c.settings, ds.EXPERT, 1)
    if size > 1 and is_on(c.settings, ds.EXPERT_ON) and (not count or count % size) and c.model is not None:
        yield _fault(c.settings, ds.EXPERT, f"must divide num_experts={count}" if count else "the model has no experts")


def _ulysses(c: Configuration) -> Iterator[Fault]:
    """Ulysses ranks divide the query heads and the sequence, and divide or are a multiple of the key-value heads."""
    size, length = _size(c, ds.ULYSSES), integer(c.settings, "sequence_length", 0)
    if size == 1 or c.model is None:
        return
    heads, groups = c.model.num_attention_heads, c.model.num_key_value_heads
    if heads % size:
        yield _fault(c.settings, ds.ULYSSES, f"must divide num_attention_heads={heads}")
    if groups % size and size % groups:
        yield _fault(c.settings, ds.ULYSSES, f"must divide or be a multiple of num_key_value_heads={groups}")
    if length % size:
        yield _fault(c.settings, ds.ULYSSES, f"must divide the sequence length {length}")


def _auto_sequence(c: Configuration) -> Iterator[Fault]:
    """Compiled sequence parallelism (AutoSP) takes ZeRO stages 0 and 1."""
    if "autosp" in words(c.settings, "compile.passes") and integer(c.settings, ds.STAGE, 0) > 1:
        yield _fault(c.settings, ds.STAGE, "is at most 1 with the pass autosp", f"{ds.STAGE}=1")


def _partial_offload(c: Configuration) -> Iterator[Fault]:
    """A part of the optimizer is offloaded under ZeRO-3 alone; communication overlaps by default there alone too."""
    ratio = c.settings.get("zero_optimization.offload_optimizer.ratio", 1.0)
    stage = integer(c.settings, ds.STAGE, 0)
    if isinstance(ratio, int | float) and ratio < 1 and stage != 3:
        yield _fault(c.settings, "zero_optimization.offload_optimizer.ratio", "below 1 needs ZeRO stage 3")
    if stage in (1, 2) and ds.OVERLAP not in c.settings:
        yield _fault(c.settings, ds.OVERLAP, f"is off by default at stage {stage}", f"{ds.OVERLAP}=true")


_H, _S, _D = Enforcement.HARD, Enforcement.SILENT, Enforcement.DOCUMENTED

RULES: tuple[FrameworkRule, ...] = tuple(
    FrameworkRule(id=f"DS-{number}", enforcement=how, check=check)
    for number, how, check in (
        (1, _H, _pipeline_stage), (2, _H, _pipeline_world), (3, _H, _batch), (5, _D, _partition), (6, _H, _tensor_world),
        (7, _S, _key_value_heads), (8, _H, _expert_folding), (9, _H, _expert_and_tensor), (10, _H, _experts), (11, _H, _ulysses),
        (12, _H, _auto_sequence), (15, _S, _partial_offload),
    )
)  # fmt: skip
