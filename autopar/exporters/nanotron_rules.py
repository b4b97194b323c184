"""nanotron's rules, as its source enforces them: ``parallel/context.py``, ``config/config.py``, ``models/llama.py``,
``parallel/pipeline_parallel/engine.py``, ``trainer.py`` (0.4 and main of 2026-04)."""

from __future__ import annotations

from collections.abc import Iterator

from autopar.costmodel.spec.errors import Fault

from . import nanotron_settings as nt
from .rule import Configuration, Enforcement, FrameworkRule
from .settings import Settings, integer, is_on, text


def _fault(settings: Settings, name: str, required: str, fix: str = "") -> Fault:
    return Fault(field=name, given=str(settings.get(name, "")), required=required, fix=fix)


def _size(c: Configuration, name: str) -> int:
    return max(1, integer(c.settings, name, 1))


def _world(c: Configuration) -> Iterator[Fault]:
    """tp x pp x cp x dp is the world size, and experts are not spread."""
    product = _size(c, nt.TENSOR) * _size(c, nt.PIPELINE) * _size(c, nt.CONTEXT) * _size(c, nt.DATA)
    if c.world_size and product != c.world_size:
        yield _fault(c.settings, nt.DATA, f"tp x pp x cp x dp = {product}, and there are {c.world_size} processes")
    if _size(c, nt.EXPERT) > 1:
        yield _fault(c.settings, nt.EXPERT, "does not fit the mesh of the other sizes", f"{nt.EXPERT}: 1")


def _heads(c: Configuration) -> Iterator[Fault]:
    """Heads and key-value heads divide over the tensor parallel ranks, and heads over key-value heads."""
    size, heads = _size(c, nt.TENSOR), integer(c.settings, nt.HEADS, 0)
    groups = integer(c.settings, nt.GROUPS, heads)
    for name, count in ((nt.HEADS, heads), (nt.GROUPS, groups)):
        if count % size:
            valid = max(n for n in range(1, size) if count % n == 0)
            yield _fault(c.settings, nt.TENSOR, f"must divide {name}={count}", f"{nt.TENSOR}: {valid}")
    if groups and heads % groups:
        yield _fault(c.settings, nt.GROUPS, f"must divide {nt.HEADS}={heads}")


def _vocabulary(c: Configuration) -> Iterator[Fault]:
    """The vocabulary is padded to a multiple of the tensor parallel size alone; the estimate counts that."""
    multiple = integer(c.settings, "model.make_vocab_size_divisible_by", 1)
    if multiple != 1:
        yield _fault(c.settings, "model.make_vocab_size_divisible_by", "the estimate pads to the tensor parallel size")


def _sequence(c: Configuration) -> Iterator[Fault]:
    """The sequence is a multiple of the context parallel size, of twice it in rings."""
    size, length = _size(c, nt.CONTEXT), integer(c.settings, nt.LENGTH, 0)
    if size > 1 and length % (2 * size):
        yield _fault(c.settings, nt.LENGTH, f"must be a multiple of 2 x cp = {2 * size}", f"{nt.LENGTH}: {length // (2 * size) * 2 * size}")


def _microbatches(c: Configuration) -> Iterator[Fault]:
    """1F1B needs at least pp - 1 micro-batches."""
    count, stages = integer(c.settings, nt.STEPS, 1), _size(c, nt.PIPELINE)
    if stages > 1 and text(c.settings, nt.ENGINE, "afab").lower() == "1f1b" and count < stages - 1:
        yield _fault(c.settings, nt.STEPS, f"must be at least pp - 1 = {stages - 1} for 1f1b", f"{nt.STEPS}: {stages - 1}")


def _context_replicas(c: Configuration) -> Iterator[Fault]:
    """Context parallelism runs with replicas that DistributedDataParallel keeps in step."""
    if _size(c, nt.CONTEXT) > 1 and _size(c, nt.DATA) == 1:
        yield _fault(c.settings, nt.CONTEXT, f"needs {nt.DATA} above 1", f"{nt.CONTEXT}: 1")


def _slow_defaults(c: Configuration) -> Iterator[Fault]:
    """By default all micro-batches are kept until the last forward pass, and tensor-parallel results are all-reduced."""
    if _size(c, nt.PIPELINE) > 1 and nt.ENGINE not in c.settings:
        yield _fault(c.settings, nt.ENGINE, "is not given, so all micro-batches are kept (afab)", f"{nt.ENGINE}: 1f1b")
    if _size(c, nt.TENSOR) > 1 and nt.MODE not in c.settings:
        yield _fault(c.settings, nt.MODE, "is not given, so results are all-reduced", f"{nt.MODE}: REDUCE_SCATTER")


def is_llama(settings: Settings) -> bool:
    """The model is of the kind that exports are written for."""
    return is_on(settings, "model.model_config.is_llama_config")


_H, _S, _D = Enforcement.HARD, Enforcement.SILENT, Enforcement.DOCUMENTED

RULES: tuple[FrameworkRule, ...] = tuple(
    FrameworkRule(id=f"NT-{number}", enforcement=how, check=check)
    for number, how, check in (
        (1, _H, _world), (2, _H, _heads), (3, _S, _vocabulary), (4, _H, _sequence), (5, _H, _microbatches), (6, _H, _context_replicas),
        (7, _D, _slow_defaults),
    )
)  # fmt: skip
