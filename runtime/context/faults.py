"""What keeps the sequences of a model from being split over context-parallel ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor, nn

from autopar.costmodel.spec.errors import Fault
from autopar.costmodel.spec.strategy import ContextParallelKind, Strategy
from autopar.runtime.loss import Batch, LossFunction
from autopar.runtime.structure import ModelStructure

from .split import MASK

FIELD = "context_parallel_size"
DROPOUTS = ("attention_dropout", "attn_pdrop", "dropout_p", "hidden_dropout")
"""Attributes in which attention modules keep their rate of dropout."""


def kind_faults(strategy: Strategy) -> list[Fault]:
    """Whether this runtime has the strategy's kind."""
    kind = strategy.context_parallel_kind
    if strategy.context_parallel_size == 1 or kind is ContextParallelKind.ALL_GATHER:
        return []
    required = "this runtime gathers keys and values (all_gather)"
    return [Fault(field="context_parallel_kind", given=kind.value, required=required, fix="use context_parallel_kind=all_gather")]


def context_faults(model: nn.Module, structure: ModelStructure, strategy: Strategy) -> list[Fault]:
    """Why the tokens of ``model`` cannot be split as ``strategy`` says."""
    size = strategy.context_parallel_size
    if size == 1:
        return []
    reasons = [*_attention_reasons(model, structure), *_dropout_reasons(model)]
    return [Fault(field=FIELD, given=str(size), required=required, fix=fix) for required, fix in reasons]


def loss_faults(loss_fn: LossFunction | None, strategy: Strategy) -> list[Fault]:
    """A user's loss is of whole sequences, with their labels."""
    if loss_fn is None or strategy.context_parallel_size == 1:
        return []
    required = "a function of whole sequences, of which context-parallel ranks have parts"
    fix = f"leave it out (the model's own loss, or next-token loss), or use {FIELD}=1"
    return [Fault(field="loss_fn", given="a function", required=required, fix=fix)]


def _attention_reasons(model: nn.Module, structure: ModelStructure) -> Iterator[tuple[str, str]]:
    if not structure.layout.regions:
        yield f"the attention of {type(model).__name__} is of no known family", f"use {FIELD}=1"
    config = getattr(model, "config", None)
    attention = getattr(config, "_attn_implementation", "sdpa")
    if attention != "sdpa":
        yield (
            f"attention is gathered in torch's scaled_dot_product_attention, not in {attention!r}",
            "load it with attn_implementation='sdpa'",
        )


def _dropout_reasons(model: nn.Module) -> Iterator[tuple[str, str]]:
    """Masks of dropout are told by places in the sequence, which are not this rank's own here."""
    for name, module in model.named_modules():
        rates = [module.p] if isinstance(module, nn.Dropout) else [getattr(module, attribute, 0.0) for attribute in DROPOUTS]
        if any(isinstance(rate, float) and rate > 0 for rate in rates):
            yield f"{name} drops out, which this runtime does not do in split sequences", "set its dropout to 0"
            return


def batch_faults(batch: Batch, length: int, strategy: Strategy, model: nn.Module) -> list[Fault]:
    """Whether the sequences of ``batch``, of ``length`` tokens, can be split."""
    faults = sequence_faults(length, strategy, model)
    return [*faults, *_tensor_faults(batch)] if isinstance(batch, Mapping) else faults


def sequence_faults(length: int, strategy: Strategy, model: nn.Module) -> list[Fault]:
    """Whether sequences of ``length`` tokens can be split."""
    if strategy.context_parallel_size == 1:
        return []
    parts = 2 * strategy.context_parallel_size
    multiple = parts * (strategy.tensor_parallel_size if strategy.sequence_parallel else 1)
    faults = []
    if length % multiple:
        required = f"a multiple of {multiple}: two parts for each of {FIELD}={strategy.context_parallel_size}" + (
            ", each of them over the tensor-parallel ranks" if multiple > parts else ""
        )
        faults.append(
            Fault(field="sequence_length", given=str(length), required=required, fix=f"pad to {-(-length // multiple) * multiple}")
        )
    window = getattr(getattr(model, "config", None), "sliding_window", None)
    if isinstance(window, int) and 0 < window < length:
        required = "a sliding window that is shorter than the sequence is not split"
        faults.append(Fault(field="sliding_window", given=str(window), required=required, fix=f"sequences of {window}, or {FIELD}=1"))
    return faults


def _tensor_faults(batch: Mapping[str, Tensor]) -> Iterator[Fault]:
    for name, value in batch.items():
        if name == MASK and bool((value != 1).any()):
            required = "sequences without padding: split attention has no mask; labels may be ignored"
            yield Fault(field=name, given="zeros", required=required, fix=f"leave it out, or use {FIELD}=1")
        elif name not in ("input_ids", "labels", MASK):
            yield Fault(field=name, given="", required=f"input_ids and labels alone under {FIELD} above 1", fix="leave it out")
    if "input_ids" not in batch:
        yield Fault(field="batch", given=f"keys {', '.join(batch)}", required="must hold input_ids")
