"""Megatron-LM's rules of ranks and of tensor parallelism.

As its source enforces them: ``megatron/training/arguments.py``, ``core/transformer/transformer_config.py``,
``core/parallel_state.py``, ``core/pipeline_parallel/schedules.py`` (2026-08).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from autopar.costmodel.spec.errors import Fault

from .megatron_sizes import Sizes, flag_fault, is_full_recompute, uses_fsdp
from .rule import Configuration, Enforcement, FrameworkRule
from .settings import integer, is_on

_TP, _CP, _EP, _ETP = "tensor-model-parallel-size", "context-parallel-size", "expert-model-parallel-size", "expert-tensor-parallel-size"
_SHARDS, _INSTANCES = "tensor-parallel-num-weight-shards", "num-distributed-optimizer-instances"


# -- ranks --------------------------------------------------------------------------------------------------------------


def _world(c: Configuration) -> Iterator[Fault]:
    """The world size is a multiple of tensor x pipeline x context parallel sizes."""
    sizes = Sizes.of(c)
    ranks = sizes.tp * sizes.pp * sizes.cp
    if sizes.world and sizes.world % ranks:
        below = sizes.world // ranks * ranks
        required = f"must be a multiple of tp x pp x cp = {sizes.tp} x {sizes.pp} x {sizes.cp} = {ranks}"
        yield Fault(
            field="world size", given=str(sizes.world), required=required, fix=f"nearest: {f'{below} or ' * bool(below)}{below + ranks}"
        )


def _expert_world(c: Configuration) -> Iterator[Fault]:
    """The world size is a multiple of expert-tensor x expert x pipeline parallel sizes."""
    sizes = Sizes.of(c)
    ranks = sizes.etp * sizes.ep * sizes.pp
    if sizes.world and (sizes.is_moe or _ETP in c.settings) and sizes.world % ranks:
        required = f"must be a multiple of etp x ep x pp = {sizes.etp} x {sizes.ep} x {sizes.pp} = {ranks}"
        fix = f"nearest: {(sizes.world // ranks + 1) * ranks}" + (", or --expert-tensor-parallel-size 1" if sizes.etp > 1 else "")
        yield Fault(field="world size", given=str(sizes.world), required=required, fix=fix)


def _same_pipeline(c: Configuration) -> Iterator[Fault]:
    """The dense and the expert grid put each rank in the same pipeline stage."""
    sizes = Sizes.of(c)
    if is_on(c.settings, "use-tp-pp-dp-mapping") and sizes.pp > 1 and sizes.tp * sizes.cp != sizes.etp * sizes.ep:
        required = f"strides of the stages differ: tp x cp = {sizes.tp * sizes.cp}, etp x ep = {sizes.etp * sizes.ep}"
        yield flag_fault(c.settings, "use-tp-pp-dp-mapping", required, _alike(sizes))


def _pipeline_last(c: Configuration) -> Iterator[Fault]:
    """Where the pipeline is not the slowest axis, expert and dense data-parallel sizes are equal."""
    sizes = Sizes.of(c)
    if is_on(c.settings, "use-tp-pp-dp-mapping") and sizes.pp > 1 and sizes.dp and sizes.dp != sizes.edp:
        required = f"needs equal data-parallel sizes, and they are {sizes.dp} (dense) and {sizes.edp} (experts)"
        yield flag_fault(c.settings, "use-tp-pp-dp-mapping", required, _alike(sizes))


def _alike(sizes: Sizes) -> str:
    """What puts both grids in the same stages: a dense model's experts' grid has no members, and may be cut in any way."""
    return "leave it out" if sizes.is_moe else f"--{_ETP} {sizes.tp * sizes.cp}"


def _folded(c: Configuration) -> Iterator[Fault]:
    """Context and expert parallelism live on two grids: both fold over the ranks of a stage."""
    sizes = Sizes.of(c)
    ranks = sizes.tp * sizes.cp * sizes.dp
    if sizes.is_moe and sizes.cp > 1 and sizes.ep > 1 and ranks and ranks % (sizes.etp * sizes.ep):
        yield flag_fault(c.settings, _EP, f"times etp={sizes.etp} must divide the {ranks} ranks of a stage")


def _expert_tensor_unset(c: Configuration) -> Iterator[Fault]:
    """Without its own value the experts' tensor parallel size is that of the dense layers."""
    sizes = Sizes.of(c)
    if sizes.is_moe and sizes.tp > 1 and _ETP not in c.settings:
        yield flag_fault(c.settings, _ETP, f"is not given, so Megatron takes {sizes.tp}, the tensor parallel size", f"--{_ETP} 1")


def _instances(c: Configuration) -> Iterator[Fault]:
    """Distributed-optimizer instances divide data x context parallel sizes."""
    sizes, count = Sizes.of(c), integer(c.settings, _INSTANCES, 1)
    if sizes.dp and (count < 1 or sizes.dp * sizes.cp % count):
        yield flag_fault(c.settings, _INSTANCES, f"must divide dp x cp = {sizes.dp * sizes.cp}")


def _weight_shards(c: Configuration) -> Iterator[Fault]:
    """Weight shards are a multiple of the tensor parallel size, and not used with several optimizer instances."""
    sizes, shards = Sizes.of(c), integer(c.settings, _SHARDS, 0)
    if shards and (shards < sizes.tp or shards % sizes.tp):
        yield flag_fault(c.settings, _SHARDS, f"must be a multiple of the tensor parallel size {sizes.tp}", f"--{_SHARDS} {sizes.tp}")
    elif shards > sizes.tp and integer(c.settings, _INSTANCES, 1) > 1:
        yield flag_fault(c.settings, _SHARDS, f"does not go with several instances of --{_INSTANCES}")


def _rank_order(c: Configuration) -> Iterator[Fault]:
    """Ranks are numbered tp, cp, ep, dp, pp, fastest first, or with the flag pp before dp, which FSDP does not take."""
    if is_on(c.settings, "use-tp-pp-dp-mapping") and uses_fsdp(c.settings):
        yield flag_fault(c.settings, "use-tp-pp-dp-mapping", "does not go with FSDP, which shards over neighbours", "leave it out")


# -- tensor parallelism ---------------------------------------------------------------------------------------------------


def _heads(c: Configuration) -> Iterator[Fault]:
    """Attention heads are a multiple of the tensor parallel size."""
    sizes, heads = Sizes.of(c), integer(c.settings, "num-attention-heads", 0)
    if heads % sizes.tp:
        fix = f"--{_TP} {max(size for size in range(1, sizes.tp) if heads % size == 0)}"
        yield flag_fault(c.settings, _TP, f"must divide --num-attention-heads={heads}", fix)


def _query_groups(c: Configuration) -> Iterator[Fault]:
    """Query groups are a multiple or a divisor of the tensor parallel size."""
    sizes, groups = Sizes.of(c), integer(c.settings, "num-query-groups", 1)
    if is_on(c.settings, "group-query-attention") and groups % sizes.tp and sizes.tp % max(groups, 1):
        fix = f"--{_TP} {math.gcd(groups, sizes.tp)}"
        yield flag_fault(c.settings, _TP, f"must divide or be a multiple of --num-query-groups={groups}", fix)


def _widths(c: Configuration) -> Iterator[Fault]:
    """Widths of the feed-forwards divide over the ranks that cut them."""
    sizes = Sizes.of(c)
    cut = [("ffn-hidden-size", sizes.tp, _TP), ("moe-shared-expert-intermediate-size", sizes.tp, _TP)]
    cut += [("moe-ffn-hidden-size", sizes.etp, _ETP)] if sizes.is_moe else []
    for flag, size, axis in cut:
        width = integer(c.settings, flag, 0)
        if width % size:
            yield flag_fault(c.settings, flag, f"must be a multiple of --{axis}={size}", f"--{axis} {math.gcd(width, size)}")


def _padding(c: Configuration) -> Iterator[Fault]:
    """The vocabulary is padded to a multiple of 128 x the tensor parallel size; the estimate counts the padding."""
    multiple = integer(c.settings, "make-vocab-size-divisible-by", 128)
    if multiple != 128:
        yield flag_fault(c.settings, "make-vocab-size-divisible-by", "the estimate pads to 128 x the tensor parallel size")


def _padded_vocabulary(c: Configuration) -> Iterator[Fault]:
    """A vocabulary that is not padded divides over the tensor parallel ranks."""
    sizes, vocabulary = Sizes.of(c), integer(c.settings, "vocab-size", 0)
    if c.settings.get("should-pad-vocab") is False and vocabulary % sizes.tp:
        yield flag_fault(c.settings, "vocab-size", f"is not padded and must be a multiple of {sizes.tp}", "switch padding on")


def _channels(c: Configuration) -> Iterator[Fault]:
    """The hidden size divides by the heads where the width of a head is not given."""
    hidden, heads = integer(c.settings, "hidden-size", 0), max(1, integer(c.settings, "num-attention-heads", 1))
    if "kv-channels" not in c.settings and hidden % heads:
        yield flag_fault(c.settings, "hidden-size", f"must be a multiple of --num-attention-heads={heads}", "give --kv-channels")


def _linear_attention(c: Configuration) -> Iterator[Fault]:
    """Heads of linear attention are multiples of tensor x context parallel sizes."""
    yield from _multiples(c, ("linear-num-key-heads", "linear-num-value-heads"), Sizes.of(c).tp * Sizes.of(c).cp, "tp x cp")


def _mamba(c: Configuration) -> Iterator[Fault]:
    """Heads and groups of Mamba layers are multiples of the tensor parallel size."""
    yield from _multiples(c, ("mamba-num-heads", "mamba-num-groups"), Sizes.of(c).tp, "tp")


def _multiples(c: Configuration, flags: tuple[str, ...], size: int, name: str) -> Iterator[Fault]:
    for flag in flags:
        if integer(c.settings, flag, 0) % size:
            yield flag_fault(c.settings, flag, f"must be a multiple of {name} = {size}")


def _latent(c: Configuration) -> Iterator[Fault]:
    """Latent attention does not go with grouped queries."""
    if is_on(c.settings, "multi-latent-attention") and is_on(c.settings, "group-query-attention"):
        yield flag_fault(c.settings, "group-query-attention", "does not go with --multi-latent-attention", "leave it out")


def _sequence_needs_tensor(c: Configuration) -> Iterator[Fault]:
    """Sequence parallelism needs several tensor-parallel ranks; the command line switches it off without them."""
    if is_on(c.settings, "sequence-parallel") and Sizes.of(c).tp == 1:
        yield flag_fault(c.settings, "sequence-parallel", f"needs --{_TP} above 1", "leave it out")


def _overlap_needs_sequence(c: Configuration) -> Iterator[Fault]:
    """Overlapped tensor-parallel communication needs sequence parallelism."""
    if is_on(c.settings, "tp-comm-overlap") and not is_on(c.settings, "sequence-parallel"):
        yield flag_fault(c.settings, "tp-comm-overlap", "needs --sequence-parallel", "add it")


def _sequence_split(c: Configuration) -> Iterator[Fault]:
    """A context rank's part of the sequence splits into tensor-parallel pieces."""
    sizes, length = Sizes.of(c), integer(c.settings, "seq-length", 0)
    pieces = sizes.cp * sizes.tp
    if is_on(c.settings, "sequence-parallel") and length % pieces:
        fix = f"--seq-length {length // pieces * pieces or pieces}"
        yield flag_fault(c.settings, "seq-length", f"must be a multiple of cp x tp = {pieces} for --sequence-parallel", fix)


def _distributed_activations(c: Configuration) -> Iterator[Fault]:
    """Saved activations are distributed under tensor parallelism and full recomputation, without sequence parallelism."""
    given = c.settings
    recomputes = is_full_recompute(given) and "recompute-method" in given
    if is_on(given, "distribute-saved-activations") and (Sizes.of(c).tp == 1 or not recomputes or is_on(given, "sequence-parallel")):
        required = f"needs --{_TP} above 1, --recompute-granularity full with a method, and no --sequence-parallel"
        yield flag_fault(given, "distribute-saved-activations", required, "leave it out")


def _connections(c: Configuration) -> Iterator[Fault]:
    """Before Blackwell, tensor or context parallelism needs CUDA_DEVICE_MAX_CONNECTIONS=1."""
    sizes, value = Sizes.of(c), c.environment.get("CUDA_DEVICE_MAX_CONNECTIONS", "")
    overlaps = is_on(c.settings, "overlap-moe-expert-parallel-comm")
    if 0 < c.capability < 10 and (sizes.tp > 1 or sizes.cp > 1) and not uses_fsdp(c.settings) and not overlaps and value != "1":
        yield Fault(
            field="CUDA_DEVICE_MAX_CONNECTIONS", given=value, required=f"must be 1 with --{_TP} or --{_CP} above 1", fix="set it to 1"
        )


_H, _S, _R, _D = Enforcement.HARD, Enforcement.SILENT, Enforcement.RUNTIME, Enforcement.DOCUMENTED

RANK_RULES: tuple[FrameworkRule, ...] = tuple(
    FrameworkRule(id=f"ML-{name}", enforcement=how, check=check)
    for name, how, check in (
        ("W1", _H, _world), ("W2", _H, _expert_world), ("W3", _H, _same_pipeline), ("W4", _H, _pipeline_last), ("W5", _H, _folded),
        ("W6", _S, _expert_tensor_unset), ("W7", _H, _instances), ("W8", _H, _weight_shards), ("W9", _D, _rank_order),
        ("T1", _H, _heads), ("T2", _H, _query_groups), ("T3", _H, _widths), ("T4", _S, _padding), ("T5", _H, _padded_vocabulary),
        ("T6", _H, _channels), ("T7", _H, _linear_attention), ("T8", _H, _mamba), ("T9", _H, _latent),
        ("T10", _S, _sequence_needs_tensor),
        ("T11", _H, _overlap_needs_sequence), ("T12", _R, _sequence_split), ("T13", _H, _distributed_activations),
        ("T14", _H, _connections),
    )
)  # fmt: skip
