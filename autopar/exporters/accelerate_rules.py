"""Rules of Accelerate and of transformers' distributed loading, as their sources enforce them: ``parallelism_config.py``,
``accelerator.py``, ``commands/launch.py`` (accelerate 1.15), ``distributed/utils.py`` (transformers 5)."""

from __future__ import annotations

from collections.abc import Iterator

from autopar.costmodel.spec.errors import Fault

from . import accelerate_settings as acc
from .rule import Configuration, Enforcement, FrameworkRule
from .settings import Settings, integer, is_on, text


def _fault(settings: Settings, name: str, required: str, fix: str = "") -> Fault:
    value = settings.get(name, "")
    return Fault(field=name, given=str(value).lower() if isinstance(value, bool) else str(value), required=required, fix=fix)


def _size(c: Configuration, name: str) -> int:
    return max(1, integer(c.settings, name, 1))


def _parallel_size(c: Configuration) -> int:
    product = 1
    for name in (acc.REPLICAS, acc.SHARDS, acc.TENSOR, acc.CONTEXT, acc.ULYSSES):
        product *= _size(c, name)
    return product


def _has_parallelism(settings: Settings) -> bool:
    return any(name.startswith("parallelism_config.") for name in settings)


def _processes(c: Configuration) -> Iterator[Fault]:
    """The sizes multiply to the number of processes, DeepSpeed's Ulysses aside."""
    processes = c.world_size or integer(c.settings, acc.PROCESSES, 0)
    product = _parallel_size(c)
    if processes and _has_parallelism(c.settings) and _size(c, acc.ULYSSES) == 1 and product != processes:
        yield _fault(c.settings, acc.SHARDS, f"replicate x shard x tp x cp = {product}, and there are {processes} processes")


def _one_split(c: Configuration) -> Iterator[Fault]:
    """Context and Ulysses parallelism exclude each other."""
    if _size(c, acc.CONTEXT) > 1 and _size(c, acc.ULYSSES) > 1:
        yield _fault(c.settings, acc.ULYSSES, f"does not go with {acc.CONTEXT}", "keep one of them")


def _replicas_alone(c: Configuration) -> Iterator[Fault]:
    """Tensor or context parallelism under replicas needs shards too."""
    cut = _size(c, acc.TENSOR) > 1 or _size(c, acc.CONTEXT) > 1
    if cut and _size(c, acc.REPLICAS) > 1 and _size(c, acc.SHARDS) == 1:
        yield _fault(c.settings, acc.SHARDS, f"must be above 1 with {acc.REPLICAS} above 1 and tensor or context parallelism")


def _back_end(c: Configuration) -> Iterator[Fault]:
    """Parallel sizes need FSDP of version 2 with ranks to shard over, several GPUs or DeepSpeed."""
    kind = text(c.settings, acc.KIND, "NO")
    if kind == "FSDP" and _has_parallelism(c.settings):
        if integer(c.settings, acc.FSDP_VERSION, 1) != 2:
            yield _fault(c.settings, acc.FSDP_VERSION, "must be 2 with parallelism_config", f"{acc.FSDP_VERSION}: 2")
        if _size(c, acc.SHARDS) == 1 and _size(c, acc.CONTEXT) == 1:
            yield _fault(c.settings, acc.SHARDS, f"or {acc.CONTEXT} must be above 1: FSDP has nothing to shard over")
    elif kind not in ("FSDP", "DEEPSPEED", "MULTI_GPU") and _parallel_size(c) > 1:
        yield _fault(c.settings, acc.KIND, "parallelism_config needs FSDP, DEEPSPEED or MULTI_GPU", f"{acc.KIND}: FSDP")


def _pipeline(c: Configuration) -> Iterator[Fault]:
    """There is no pipeline parallel training."""
    name = "parallelism_config.parallelism_config_pp_size"
    if integer(c.settings, name, 1) > 1:
        yield _fault(c.settings, name, "there is no pipeline parallel training", "leave it out")


def _loaded_size(c: Configuration) -> Iterator[Fault]:
    """The tensor parallel size is the one that the model is loaded with."""
    loaded = integer(c.settings, "distributed_config.tp_size", 0)
    if loaded and loaded != _size(c, acc.TENSOR):
        yield _fault(c.settings, acc.TENSOR, f"must equal distributed_config.tp_size={loaded}, which the model is loaded with")


def _context_attention(c: Configuration) -> Iterator[Fault]:
    """Context parallelism cuts the sequence into two chunks a rank; Ulysses is DeepSpeed's."""
    size, length = _size(c, acc.CONTEXT), integer(c.settings, "sequence_length", 0)
    if size > 1 and length % (2 * size):
        yield _fault(c.settings, acc.CONTEXT, f"needs a sequence length that is a multiple of {2 * size}, and it is {length}")
    if _size(c, acc.ULYSSES) > 1 and text(c.settings, acc.KIND) != "DEEPSPEED":
        yield _fault(c.settings, acc.ULYSSES, "is DeepSpeed's", f"{acc.KIND}: DEEPSPEED")


_LOADED = "distributed_config."


def _loaded_world(c: Configuration) -> Iterator[Fault]:
    """Tensor and FSDP sizes of the model's loading multiply to the world."""
    tensor, fsdp = integer(c.settings, f"{_LOADED}tp_size", 1), integer(c.settings, f"{_LOADED}fsdp_size", 0)
    if fsdp and c.world_size and tensor * fsdp != c.world_size:
        yield _fault(c.settings, f"{_LOADED}fsdp_size", f"times tp_size={tensor} must be the {c.world_size} processes")


def _loaded_mix(c: Configuration) -> Iterator[Fault]:
    """The model's loading takes FSDP, tensor or pipeline parallelism, not FSDP with another."""
    fsdp = integer(c.settings, f"{_LOADED}fsdp_size", 1)
    for other in ("tp_size", "pp_size"):
        if fsdp > 1 and integer(c.settings, f"{_LOADED}{other}", 1) > 1:
            yield _fault(c.settings, f"{_LOADED}{other}", "does not go with distributed_config.fsdp_size", "keep one of them")


def _key_value_heads(c: Configuration) -> Iterator[Fault]:
    """Key-value heads divide over the tensor parallel ranks: the forward pass fails otherwise."""
    size = _size(c, acc.TENSOR)
    if c.model is not None and size > 1:
        for field in ("num_attention_heads", "num_key_value_heads"):
            if getattr(c.model, field) % size:
                yield _fault(c.settings, acc.TENSOR, f"must divide {field}={getattr(c.model, field)}")


def _ulysses(c: Configuration) -> Iterator[Fault]:
    """Ulysses ranks divide the heads and the sequence."""
    size, length = _size(c, acc.ULYSSES), integer(c.settings, "sequence_length", 0)
    if c.model is not None and size > 1:
        heads, groups = c.model.num_attention_heads, c.model.num_key_value_heads
        if heads % size or length % size or (groups % size and size % groups):
            yield _fault(
                c.settings, acc.ULYSSES, f"must divide {heads} heads, and {length} tokens, and divide or be a multiple of {groups} groups"
            )


def _experts(c: Configuration) -> Iterator[Fault]:
    """Expert parallelism needs a model that brings a plan for it."""
    if is_on(c.settings, f"{_LOADED}enable_expert_parallel") and c.model is not None and c.model.moe is None:
        yield _fault(c.settings, f"{_LOADED}enable_expert_parallel", f"{c.model.name} has no experts")


def _old_arguments(c: Configuration) -> Iterator[Fault]:
    """``tp_plan`` and ``tp_size`` of ``from_pretrained`` are gone."""
    if "trainer.tp_plan" in c.settings:
        yield _fault(c.settings, "trainer.tp_plan", "is gone", "use DistributedConfig(tp_size=…)")


_H, _R, _D = Enforcement.HARD, Enforcement.RUNTIME, Enforcement.DOCUMENTED

RULES: tuple[FrameworkRule, ...] = tuple(
    FrameworkRule(id=name, enforcement=how, check=check)
    for name, how, check in (
        ("AC-1", _H, _processes), ("AC-2", _H, _one_split), ("AC-3", _H, _replicas_alone), ("AC-4", _H, _back_end), ("AC-5", _H, _pipeline),
        ("AC-6", _H, _loaded_size), ("AC-7", _H, _context_attention), ("TR-1", _H, _loaded_world), ("TR-2", _H, _loaded_mix),
        ("TR-3", _R, _key_value_heads), ("TR-4", _H, _ulysses), ("TR-5", _H, _experts), ("TR-6", _D, _old_arguments),
    )
)  # fmt: skip
