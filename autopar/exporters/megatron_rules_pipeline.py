"""Megatron-LM's rules of context parallelism and the pipeline.

As its source enforces them: ``megatron/training/arguments.py``, ``core/transformer/transformer_config.py``,
``core/parallel_state.py``, ``core/pipeline_parallel/schedules.py`` (2026-08).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from autopar.costmodel.spec.errors import Fault, InvalidInputError

from . import megatron_layout as layout
from .megatron_settings import context_kind
from .megatron_sizes import Sizes, flag_fault, microbatches
from .rule import Configuration, Enforcement, FrameworkRule
from .settings import integer, is_on, text, words

_PP, _CP = "pipeline-model-parallel-size", "context-parallel-size"


# -- context parallelism --------------------------------------------------------------------------------------------------


def _context_split(c: Configuration) -> Iterator[Fault]:
    """The sequence is a multiple of twice the context parallel size."""
    sizes, length = Sizes.of(c), integer(c.settings, "seq-length", 0)
    if sizes.cp > 1 and length % (2 * sizes.cp):
        step = 2 * sizes.cp
        yield flag_fault(
            c.settings, "seq-length", f"must be a multiple of 2 x cp = {step}", f"--seq-length {length // step * step or step}"
        )


def _hierarchy(c: Configuration) -> Iterator[Fault]:
    """Hierarchical sizes multiply to the context parallel size, and a2a+p2p needs them."""
    flag = "hierarchical-context-parallel-sizes"
    given = [int(word) if word.isdecimal() else 0 for word in words(c.settings, flag)]
    if given and math.prod(given) != Sizes.of(c).cp:
        yield flag_fault(c.settings, flag, f"must multiply to --{_CP}={Sizes.of(c).cp}")
    if not given and "a2a+p2p" in words(c.settings, "cp-comm-type"):
        yield flag_fault(c.settings, "cp-comm-type", f"a2a+p2p needs --{flag}")


def _types_per_layer(c: Configuration) -> Iterator[Fault]:
    """There is one communication type, or one a layer."""
    count, layers = len(words(c.settings, "cp-comm-type")), Sizes.of(c).layers
    if count > 1 and count != layers:
        yield flag_fault(c.settings, "cp-comm-type", f"lists {count} types, and there are {layers} layers", "give one")


def _context_attention(c: Configuration) -> Iterator[Fault]:
    """Exchanged heads (a2a) divide over the context ranks; windows and sinks need the types that have them."""
    sizes, given = Sizes.of(c), c.settings
    if sizes.cp == 1:
        return
    kind = (words(given, "cp-comm-type") or ("p2p",))[0]
    heads = integer(given, "num-attention-heads", 1)
    groups = integer(given, "num-query-groups", heads) if is_on(given, "group-query-attention") else heads
    uneven = heads // sizes.tp % sizes.cp or max(1, groups // sizes.tp) % sizes.cp
    if context_kind(given).value == "ulysses" and uneven:
        required = f"a2a spreads {heads // sizes.tp} heads and {max(1, groups // sizes.tp)} groups of a rank over cp = {sizes.cp}"
        yield flag_fault(given, "cp-comm-type", required, "--cp-comm-type p2p")
    if "window-size" in given and kind == "p2p":
        yield flag_fault(given, "cp-comm-type", "p2p has no sliding window", "--cp-comm-type allgather")
    if text(given, "softmax-type", "vanilla") != "vanilla" and kind != "a2a":
        yield flag_fault(given, "cp-comm-type", "only a2a has attention sinks (--softmax-type)", "--cp-comm-type a2a")


def _positions(c: Configuration) -> Iterator[Fault]:
    """There are at least as many positions as tokens in a sequence."""
    length, most = integer(c.settings, "seq-length", 0), integer(c.settings, "max-position-embeddings", 0)
    if most and length > most:
        yield flag_fault(c.settings, "max-position-embeddings", f"must be at least --seq-length={length}")


def _hybrid_context(c: Configuration) -> Iterator[Fault]:
    """Hybrid context parallelism needs one stage, a single data loader and a loss per token, without graphs or FSDP."""
    given = c.settings
    bad = (
        Sizes.of(c).pp > 1 or is_on(given, "enable-cuda-graph") or is_on(given, "use-megatron-fsdp")
        or text(given, "dataloader-type", "single") != "single" or not is_on(given, "calculate-per-token-loss")
    )  # fmt: skip
    if is_on(given, "hybrid-context-parallel") and bad:
        required = f"needs --{_PP} 1, --calculate-per-token-loss, the single data loader, no CUDA graphs and no FSDP"
        yield flag_fault(given, "hybrid-context-parallel", required, "leave it out")


# -- pipeline -------------------------------------------------------------------------------------------------------------

_MODES = (layout.LAYERS_PER_VIRTUAL, layout.VIRTUAL_STAGES, layout.LAYOUT)


def _one_mode(c: Configuration) -> Iterator[Fault]:
    """Layers per virtual stage, virtual stages per rank and a layout exclude each other."""
    given = [f"--{flag}" for flag in _MODES if flag in c.settings]
    if len(given) > 1:
        yield Fault(field=given[1], given="", required=f"does not go with {given[0]}", fix="keep one of them")


def _exclusive_splits(c: Configuration) -> Iterator[Fault]:
    """First and last stages of their own exclude accounting for the ends; a layout excludes both."""
    apart = [flag for flag in (layout.FIRST, layout.LAST) if flag in c.settings]
    accounts = [flag for flag in (layout.FOR_EMBEDDING, layout.FOR_LOSS) if is_on(c.settings, flag)]
    if apart and accounts:
        yield Fault(field=f"--{accounts[0]}", given="", required=f"does not go with --{apart[0]}", fix="keep one of them")
    if layout.LAYOUT in c.settings and (apart or accounts):
        yield Fault(field=f"--{(apart + accounts)[0]}", given="", required=f"does not go with --{layout.LAYOUT}", fix="keep one of them")


def _layers_sum(c: Configuration) -> Iterator[Fault]:
    """The stages hold all of the model's layers, none lost to a division: some of Megatron's ways to split lose them silently."""
    sizes = Sizes.of(c)
    if not sizes.layers or text(c.settings, "hybrid-layer-pattern"):
        return
    try:
        virtual, split = layout.split_fields(c.settings, num_layers=sizes.layers, pipeline=sizes.pp)
        named = text(c.settings, layout.LAYOUT)
        split = tuple(stage.count("t") for stage in layout.layout_stages(named)) if named else split
    except InvalidInputError as error:
        yield from error.faults
        return
    stages = sizes.pp * virtual
    built = sum(split) if split else sizes.layers // stages * stages
    if built != sizes.layers or min(split, default=1) < 0 or (split and len(split) % sizes.pp):
        required = f"a split over {sizes.pp} x {virtual} stages builds {built} layers of {sizes.layers}"
        yield Fault(
            field="--num-layers", given=str(sizes.layers), required=required, fix=f"--{layout.LAYOUT} names the layers of each stage"
        )


def _interleaving_ranks(c: Configuration) -> Iterator[Fault]:
    """Interleaving needs 2 pipeline ranks, 3 without overlapped sends."""
    sizes = Sizes.of(c)
    least = 3 if is_on(c.settings, "no-overlap-p2p-communication") else 2
    if sizes.virtual > 1 and sizes.pp < least:
        yield flag_fault(c.settings, _PP, f"must be at least {least} for {sizes.virtual} virtual stages", f"--{_PP} {least}")


_GROUP = "microbatch-group-size-per-virtual-pipeline-stage"


def _group_range(c: Configuration) -> Iterator[Fault]:
    """The group of micro-batches that a virtual stage runs at a time is from pp to all of them."""
    sizes, count = Sizes.of(c), microbatches(c)
    group = integer(c.settings, _GROUP, sizes.pp)
    if sizes.virtual > 1 and count and not sizes.pp <= group <= count:
        yield Fault(field=f"--{_GROUP}", given=str(group), required=f"must be from pp = {sizes.pp} to the {count} micro-batches")


def _group_remainder(c: Configuration) -> Iterator[Fault]:
    """Micro-batches are a multiple of the group, or leave at least pp over."""
    sizes, count = Sizes.of(c), microbatches(c)
    group = integer(c.settings, _GROUP, sizes.pp)
    rest = count % max(group, 1)
    if sizes.virtual > 1 and count and 0 < rest < sizes.pp:
        required = f"{count} micro-batches leave {rest} over after groups of {group}, fewer than pp = {sizes.pp}"
        yield Fault(field="--global-batch-size", given=str(c.settings.get("global-batch-size", "")), required=required, fix=_next_batch(c))


def _next_batch(c: Configuration) -> str:
    sizes = Sizes.of(c)
    step = sizes.pp * sizes.dp * integer(c.settings, "micro-batch-size", 1)
    batch = integer(c.settings, "global-batch-size", 0)
    return f"--global-batch-size {-(-batch // step) * step}" if step else ""


def _one_overlap(c: Configuration) -> Iterator[Fault]:
    """Sends are overlapped or batched, and overlapped only under interleaving."""
    if is_on(c.settings, "overlap-p2p-comm") and is_on(c.settings, "batch-p2p-comm"):
        yield flag_fault(c.settings, "batch-p2p-comm", "does not go with overlap-p2p-comm", "keep one of them")
    if is_on(c.settings, "overlap-p2p-comm") and Sizes.of(c).virtual == 1:
        yield flag_fault(c.settings, "overlap-p2p-comm", "plain 1F1B does not overlap sends", "leave it out")


def _some_microbatch(c: Configuration) -> Iterator[Fault]:
    """There is at least one micro-batch; plain 1F1B asks for no more."""
    given, sizes = c.settings, Sizes.of(c)
    batch, micro = integer(given, "global-batch-size", 0), integer(given, "micro-batch-size", 1)
    if batch and sizes.dp and batch < micro * sizes.dp:
        yield flag_fault(given, "global-batch-size", f"must be at least micro-batch x dp = {micro * sizes.dp}")


def _hybrid_pattern(c: Configuration) -> Iterator[Fault]:
    """Segments of a hybrid model's pattern divide over the stages, and nothing else splits it."""
    pattern = text(c.settings, "hybrid-layer-pattern").split("/")[0]
    others = [flag for flag in (*_MODES, layout.FIRST, layout.LAST) if flag in c.settings]
    if pattern and ((pattern.count("|") + 1) % Sizes.of(c).pp or others):
        yield flag_fault(c.settings, "hybrid-layer-pattern", "its segments divide over the stages, and no other flag splits layers")


def _offloaded_activations(c: Configuration) -> Iterator[Fault]:
    """Activations are offloaded without a pipeline and without recomputation."""
    if integer(c.settings, "cpu-offloading-num-layers", 0) and (Sizes.of(c).pp > 1 or "recompute-granularity" in c.settings):
        yield flag_fault(c.settings, "cpu-offloading-num-layers", f"needs --{_PP} 1 and no recomputation", "leave it out")


def _hyper_connections(c: Configuration) -> Iterator[Fault]:
    """Hyper-connections (several residual streams) run without a pipeline."""
    if is_on(c.settings, "enable-hyper-connections") and Sizes.of(c).pp > 1:
        yield flag_fault(c.settings, "enable-hyper-connections", f"needs --{_PP} 1")


def _deferred_gradients(c: Configuration) -> Iterator[Fault]:
    """The embedding's weight gradients are deferred under a pipeline, with fused accumulation."""
    fused = not is_on(c.settings, "no-gradient-accumulation-fusion")
    if is_on(c.settings, "defer-embedding-wgrad-compute") and (Sizes.of(c).pp == 1 or not fused):
        yield flag_fault(c.settings, "defer-embedding-wgrad-compute", f"needs --{_PP} above 1 and fused gradient accumulation")


def _bf16_ends(c: Configuration) -> Iterator[Fault]:
    """Layers kept in bf16 at the ends are no more than a stage holds."""
    sizes = Sizes.of(c)
    most = sizes.layers // sizes.pp
    for flag in ("num-layers-at-start-in-bf16", "num-layers-at-end-in-bf16"):
        if is_on(c.settings, "first-last-layers-bf16") and most and integer(c.settings, flag, 1) > most:
            yield flag_fault(c.settings, flag, f"a stage holds {most} layers", f"--{flag} {most}")


_H, _R = Enforcement.HARD, Enforcement.RUNTIME

PIPELINE_RULES: tuple[FrameworkRule, ...] = tuple(
    FrameworkRule(id=f"ML-{name}", enforcement=how, check=check)
    for name, how, check in (
        ("C1", _H, _context_split), ("C2", _H, _hierarchy), ("C3", _H, _types_per_layer), ("C4", _R, _context_attention),
        ("C5", _H, _positions), ("C6", _H, _hybrid_context),
        ("P1", _H, _one_mode), ("P2", _H, _exclusive_splits), ("P3", _H, _layers_sum), ("P4", _H, _interleaving_ranks),
        ("P5", _H, _group_range), ("P6", _H, _group_remainder), ("P7", _H, _one_overlap), ("P9", _H, _some_microbatch),
        ("P10", _H, _hybrid_pattern), ("P11", _H, _offloaded_activations), ("P12", _H, _hyper_connections),
        ("P13", _H, _deferred_gradients),
        ("P14", _H, _bf16_ends),
    )
)  # fmt: skip
