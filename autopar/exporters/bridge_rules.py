"""Rules that Megatron-Bridge adds to Megatron's: ``training/config.py``, ``training/comm_overlap.py`` (0.6, 2026-08).

Settings are Megatron's flags; ``bridge.…`` are keys that have no flag.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import lcm

from autopar.costmodel.spec.errors import Fault

from .megatron_rules_states import STATE_RULES
from .megatron_sizes import Sizes, flag_fault
from .rule import Configuration, Enforcement, FrameworkRule
from .settings import integer, is_on, text

FINETUNE, PIPELINE_DTYPE, FSDP_VERSION = "bridge.finetune", "bridge.pipeline_dtype", "bridge.megatron_fsdp_version"
_RULES_OF_MEGATRON = {rule.id: rule.check for rule in STATE_RULES}


def _world(c: Configuration) -> Iterator[Fault]:
    """The world size is a multiple of tensor x pipeline x context parallel sizes."""
    sizes = Sizes.of(c)
    ranks = sizes.tp * sizes.pp * sizes.cp
    if sizes.world % ranks:
        yield Fault(field="world size", given=str(sizes.world), required=f"must be a multiple of tp x pp x cp = {ranks}")


def _finetune_sequence(c: Configuration) -> Iterator[Fault]:
    """Fine-tuning's sequences are multiples of the padding of context and sequence parallelism."""
    sizes, length = Sizes.of(c), integer(c.settings, "seq-length", 0)
    step = lcm(2 * sizes.cp if sizes.cp > 1 else 1, sizes.cp * sizes.tp if is_on(c.settings, "sequence-parallel") else 1)
    if is_on(c.settings, FINETUNE) and length % step:
        yield flag_fault(c.settings, "seq-length", f"must be a multiple of {step} for fine-tuning")


def _finetune_padding(c: Configuration) -> Iterator[Fault]:
    """Fine-tuning under a pipeline or with spread experts pads every sequence to the full length."""
    sizes = Sizes.of(c)
    if is_on(c.settings, FINETUNE) and (sizes.pp > 1 or sizes.ep > 1):
        yield Fault(field="dataset", given="", required="sequences are padded to the full length under pp or ep: the estimate counts that")


def _two_fsdps(c: Configuration) -> Iterator[Fault]:
    """Megatron's and torch's FSDP exclude each other, and Megatron's keeps the default rank order and several connections."""
    given = c.settings
    if is_on(given, "use-megatron-fsdp") and is_on(given, "use-torch-fsdp2"):
        yield flag_fault(given, "use-torch-fsdp2", "does not go with --use-megatron-fsdp", "keep one of them")
    if is_on(given, "use-megatron-fsdp") and is_on(given, "use-tp-pp-dp-mapping"):
        yield flag_fault(given, "use-tp-pp-dp-mapping", "does not go with --use-megatron-fsdp", "leave it out")


def _second_fsdp(c: Configuration) -> Iterator[Fault]:
    """Megatron-FSDP of version 2 runs data parallel alone, in bf16, without experts."""
    sizes = Sizes.of(c)
    cut = max(sizes.tp, sizes.pp, sizes.cp, sizes.ep, sizes.virtual) > 1 or sizes.is_moe or "fp8-format" in c.settings
    if integer(c.settings, FSDP_VERSION, 1) == 2 and is_on(c.settings, "use-megatron-fsdp") and cut:
        yield flag_fault(c.settings, "use-megatron-fsdp", "version 2 runs data parallel alone, in bf16, without experts")


def _tensor_overlap(c: Configuration) -> Iterator[Fault]:
    """Overlapped tensor parallelism is quietly off without two ranks and sequence parallelism."""
    if is_on(c.settings, "tp-comm-overlap") and (Sizes.of(c).tp < 2 or not is_on(c.settings, "sequence-parallel")):
        yield flag_fault(c.settings, "tp-comm-overlap", "is quietly switched off without two ranks and sequence parallelism")


def _send_overlap(c: Configuration) -> Iterator[Fault]:
    """Overlapped sends follow from virtual stages, whatever is said."""
    sizes = Sizes.of(c)
    wanted = sizes.pp > 1 and sizes.virtual > 1
    if "overlap-p2p-comm" in c.settings and is_on(c.settings, "overlap-p2p-comm") != wanted:
        yield flag_fault(c.settings, "overlap-p2p-comm", f"is set to {str(wanted).lower()} by the virtual stages")


def _exchange_overlap(c: Configuration) -> Iterator[Fault]:
    """The experts' exchange overlaps under the same conditions as Megatron's."""
    yield from _RULES_OF_MEGATRON["ML-E5"](c)


def _evaluation_batch(c: Configuration) -> Iterator[Fault]:
    """The evaluation batch divides as Megatron's."""
    yield from _RULES_OF_MEGATRON["ML-B3"](c)


def _padding(c: Configuration) -> Iterator[Fault]:
    """Models from Hugging Face may switch padding off: the vocabulary then divides over the tensor-parallel ranks."""
    size, vocabulary = Sizes.of(c).tp, integer(c.settings, "vocab-size", 0)
    if c.settings.get("should-pad-vocab") is False and vocabulary % size:
        yield flag_fault(c.settings, "vocab-size", f"is not padded and must be a multiple of {size}", "model.should_pad_vocab=true")


def _smallest_world(c: Configuration) -> Iterator[Fault]:
    """An expert model needs pp x lcm(tp x cp, ep x etp) GPUs, not the product of all sizes."""
    sizes = Sizes.of(c)
    least = sizes.pp * lcm(sizes.tp * sizes.cp, sizes.ep * sizes.etp)
    if sizes.is_moe and sizes.world and sizes.world % least:
        yield Fault(field="world size", given=str(sizes.world), required=f"must be a multiple of pp x lcm(tp x cp, ep x etp) = {least}")


def _user_buffers(c: Configuration) -> Iterator[Fault]:
    """Segments that grow do not go with NCCL's user buffers."""
    if is_on(c.settings, "use-nccl-ub") and "expandable_segments:True" in c.environment.get("PYTORCH_CUDA_ALLOC_CONF", ""):
        yield Fault(field="PYTORCH_CUDA_ALLOC_CONF", given="expandable_segments:True", required="does not go with NCCL user buffers")


def _pipeline_dtype(c: Configuration) -> Iterator[Fault]:
    """A pipeline needs the type of what is sent between stages; the command line fills it in, a Python configuration does not."""
    if Sizes.of(c).pp > 1 and not text(c.settings, PIPELINE_DTYPE):
        required = "is needed for a pipeline"
        yield Fault(field="model.pipeline_dtype", given="", required=required, fix="model.pipeline_dtype=torch.bfloat16")


def _rank_order(c: Configuration) -> Iterator[Fault]:
    """Stages before replicas in the order of ranks go without expert and context parallelism, by the setting's documentation."""
    sizes = Sizes.of(c)
    if is_on(c.settings, "use-tp-pp-dp-mapping") and max(sizes.ep, sizes.cp) > 1:
        yield flag_fault(c.settings, "use-tp-pp-dp-mapping", f"needs ep = cp = 1, and they are {sizes.ep} and {sizes.cp}", "leave it out")


_H, _S, _D = Enforcement.HARD, Enforcement.SILENT, Enforcement.DOCUMENTED

BRIDGE_RULES: tuple[FrameworkRule, ...] = tuple(
    FrameworkRule(id=name, enforcement=how, check=check)
    for name, how, check in (
        ("ML-P8", _H, _pipeline_dtype), ("MB-1", _H, _world), ("MB-2", _H, _finetune_sequence), ("MB-3", _S, _finetune_padding),
        ("MB-4", _H, _evaluation_batch), ("MB-5", _H, _two_fsdps), ("MB-6", _H, _second_fsdp), ("MB-7", _S, _tensor_overlap),
        ("MB-8", _S, _send_overlap), ("MB-9", _H, _exchange_overlap), ("MB-10", _D, _padding), ("MB-11", _D, _smallest_world),
        ("MB-12", _D, _user_buffers), ("MB-13", _D, _rank_order),
    )
)  # fmt: skip
