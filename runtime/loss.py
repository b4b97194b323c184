"""The loss of one micro-batch, as its share of the mean over the global batch.

Micro-batches and data-parallel ranks may hold unequal numbers of ignored tokens. So every loss here is a sum over its
items divided by the number of items in the whole global batch; the shares then add up to the single-process loss.

Legend of shapes: B batch, S sequence, V vocabulary, T tokens (B x S).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from autopar.costmodel.spec.errors import Fault, InvalidInputError

IGNORE_INDEX = -100
KEEP_LOGITS_SHARDED = "_autopar_keep_logits_sharded"
"""Set on the model whose loss takes vocabulary-parallel logits as they are; others get them gathered."""

SHIFTED_LABELS = "shift_labels"
"""Key of a batch whose tokens are not all neighbours: what each of them is to predict. Also transformers' name for it."""

Batch = Tensor | Mapping[str, Tensor]
LossFunction = Callable[[Any, Any], Tensor]


class Loss(Protocol):
    """What the engine asks of a loss."""

    def count(self, batch: Batch) -> Tensor:
        """Items of ``batch`` that the mean is over, as an int64 scalar."""

    def inputs(self, batch: Batch, total: Tensor) -> dict[str, Any]:
        """Keyword arguments of the model's forward for ``batch``; ``total`` counts the global batch's items."""

    def share(self, output: Any, batch: Batch, total: Tensor) -> Tensor:
        """The part of the global mean that ``batch`` adds: the sum over its items, divided by ``total``."""


def build_loss(model: nn.Module, loss_fn: LossFunction | None = None) -> Loss:
    """The loss that trains ``model``: ``loss_fn`` where given, the model's own where it takes labels, else next-token loss.

    Called on every part of a cut model, after tensor parallelism is applied.
    """
    if loss_fn is not None:
        return UserLoss(model, loss_fn)
    parameters = inspect.signature(type(model).forward).parameters
    if "labels" in parameters:
        divides = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
        return ModelLoss(model, divides=divides)
    setattr(model, KEEP_LOGITS_SHARDED, True)
    return NextTokenLoss(model)


class NextTokenLoss:
    """Cross-entropy of each token's successor; labels are the batch's own, or its input ids."""

    def __init__(self, model: nn.Module) -> None:
        self._input_name = _input_name(model)

    def count(self, batch: Batch) -> Tensor:
        return (_shifted_labels(batch) != IGNORE_INDEX).sum()

    def inputs(self, batch: Batch, total: Tensor) -> dict[str, Any]:  # noqa: ARG002
        return _without(_named(batch, self._input_name), "labels", SHIFTED_LABELS)

    def share(self, output: Any, batch: Batch, total: Tensor) -> Tensor:
        logits = cast(Tensor, getattr(output, "logits", output))
        return cross_entropy(logits, _shifted_labels(batch)).sum() / total


class ModelLoss:
    """The loss that a model computes from the labels it is given, as Hugging Face's causal language models do.

    ``divides``: the model hands ``num_items_in_batch`` to its loss function, which then divides a sum by it.

    A router's balancing loss, which the model adds, is of the tokens that it sees, a micro-batch's. It is no sum over them: here
    it is the mean over the step's micro-batches, weighted by their items.
    """

    def __init__(self, model: nn.Module, *, divides: bool) -> None:
        self._input_name, self._divides = _input_name(model), divides
        self._balance = float(getattr(model, "router_aux_loss_coef", 0.0))

    def count(self, batch: Batch) -> Tensor:
        return (_shifted_labels(batch) != IGNORE_INDEX).sum()

    def inputs(self, batch: Batch, total: Tensor) -> dict[str, Any]:
        named = {**_named(batch, self._input_name), "labels": _labels(batch)}
        return {**named, "num_items_in_batch": total} if self._divides else named

    def share(self, output: Any, batch: Batch, total: Tensor) -> Tensor:
        loss = output[0] if isinstance(output, tuple) else getattr(output, "loss", None)
        if not isinstance(loss, Tensor):
            raise InvalidInputError(
                Fault(
                    field="loss_fn",
                    given="None",
                    required="the model returned no loss although it was given labels",
                    fix="pass loss_fn=, a function of (output, batch)",
                )
            )
        part = self.count(batch) / total
        if not self._divides:
            return loss * part
        balancing = getattr(output, "aux_loss", None)
        return loss - self._balance * (1 - part) * balancing if isinstance(balancing, Tensor) else loss


class UserLoss:
    """A user's ``loss_fn(output, batch)``: a mean over the micro-batch it is given.

    The mean is over the labels that are not ignored where the batch has ``labels``, else over its examples. A loss that is
    a mean over something else says so by an attribute ``count``, a function of the batch.
    """

    def __init__(self, model: nn.Module, loss_fn: LossFunction) -> None:
        self._input_name, self._loss_fn = _input_name(model), loss_fn
        accepted = inspect.signature(type(model).forward).parameters
        self._takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in accepted.values())
        self._accepted = frozenset(accepted)

    def count(self, batch: Batch) -> Tensor:
        counter = getattr(self._loss_fn, "count", None)
        if counter is not None:
            return torch.as_tensor(counter(batch))
        if isinstance(batch, Tensor):
            return torch.tensor(batch.shape[0], device=batch.device)
        if "labels" in batch:
            return (batch["labels"] != IGNORE_INDEX).sum()
        first = next(iter(batch.values()))
        return torch.tensor(first.shape[0], device=first.device)

    def inputs(self, batch: Batch, total: Tensor) -> dict[str, Any]:  # noqa: ARG002
        named = _without(_named(batch, self._input_name), "labels")
        return named if self._takes_any else {name: value for name, value in named.items() if name in self._accepted}

    def share(self, output: Any, batch: Batch, total: Tensor) -> Tensor:
        return self._loss_fn(output, batch) * (self.count(batch) / total)


def next_token_loss(logits: Tensor, labels: Tensor, total: Tensor | int | None = None) -> Tensor:
    """Cross-entropy of ``labels[:, 1:]`` under ``logits[:, :-1]``, summed and divided by ``total``, or the mean without it.

    Args:
        logits: (B, S, V); whole, or a DTensor sharded over the vocabulary, which is never gathered.
        labels: (B, S); ``IGNORE_INDEX`` is left out.
    """
    shifted = F.pad(labels, (0, 1), value=IGNORE_INDEX)[:, 1:]
    losses = cross_entropy(logits, shifted)
    return losses.sum() / (total if total is not None else (shifted != IGNORE_INDEX).sum())


def cross_entropy(logits: Tensor, targets: Tensor, *, ignore_index: int = IGNORE_INDEX) -> Tensor:
    """Cross-entropy of each token in fp32, shape of ``targets``; 0 where it is ``ignore_index``.

    ``logits`` (…, V) may be a DTensor that one mesh dimension shards over V: the maximum, the normaliser and the target's
    logit are then reduced over the group, three numbers a token (Megatron-LM, arXiv 1909.08053, section 3).
    """
    flat_targets = targets.reshape(-1)
    if isinstance(logits, DTensor):
        mesh_dim = _vocabulary_mesh_dim(logits)
        if mesh_dim is not None:
            first = first_index(logits.shape[-1], logits.device_mesh.size(mesh_dim), logits.device_mesh.get_local_rank(mesh_dim))
            local = logits.to_local()
            group = logits.device_mesh.get_group(mesh_dim)
            arguments = (local.flatten(0, -2), flat_targets, first, group, ignore_index)
            sharded: Tensor = _VocabularyParallelCrossEntropy.apply(*arguments)  # type: ignore[no-untyped-call]
            return sharded.view(targets.shape)
        logits = logits.full_tensor()
    losses = F.cross_entropy(logits.flatten(0, -2).float(), flat_targets, ignore_index=ignore_index, reduction="none")
    return losses.view(targets.shape)


def hugging_face_loss(
    logits: Tensor, labels: Tensor | None, vocab_size: int, num_items_in_batch: Tensor | int | None = None, **options: Any
) -> Tensor:
    """transformers' causal language model loss (its ``ForCausalLMLoss``) for vocabulary-parallel logits."""
    del vocab_size
    ignore_index = options.get("ignore_index", IGNORE_INDEX)
    shifted = options.get("shift_labels")
    if shifted is None:
        shifted = F.pad(cast(Tensor, labels), (0, 1), value=ignore_index)[..., 1:]
    losses = cross_entropy(logits, shifted, ignore_index=ignore_index)
    return losses.sum() / (num_items_in_batch if num_items_in_batch is not None else (shifted != ignore_index).sum())


def first_index(size: int, parts: int, part: int) -> int:
    """Where ``part`` begins when ``size`` is sharded as DTensor does: parts of ceil(size / parts), the last ones smaller."""
    return min(size, -(-size // parts) * part)


def _vocabulary_mesh_dim(logits: DTensor) -> int | None:
    sharded = [dim for dim, placement in enumerate(logits.placements) if placement.is_shard(logits.ndim - 1)]
    others = [placement for placement in logits.placements if isinstance(placement, Shard) and not placement.is_shard(logits.ndim - 1)]
    return sharded[0] if len(sharded) == 1 and not others else None


class _VocabularyParallelCrossEntropy(torch.autograd.Function):
    """Logits (T, V / tp) and targets (T,) to losses (T,)."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, first: int, group: dist.ProcessGroup, ignore_index: int) -> Tensor:
        values = logits.float()
        maximum = values.amax(dim=-1)
        dist.all_reduce(maximum, op=dist.ReduceOp.MAX, group=group)
        values = values - maximum[:, None]
        width = logits.shape[-1]
        index = (targets - first).clamp(0, width - 1)
        here = (targets >= first) & (targets < first + width) & (targets != ignore_index)
        picked = values.gather(-1, index[:, None])[:, 0].where(here, 0.0)
        exponentials = values.exp()
        sums = torch.stack((picked, exponentials.sum(dim=-1)))
        dist.all_reduce(sums, group=group)
        picked, normaliser = sums
        counted = targets != ignore_index
        ctx.save_for_backward(exponentials.div_(normaliser[:, None]), index, here, counted)
        ctx.dtype = logits.dtype
        losses: Tensor = (normaliser.log() - picked).where(counted, 0.0)
        return losses

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        softmax, index, here, counted = ctx.saved_tensors
        per_token = grad.where(counted, 0.0)
        result = softmax * per_token[:, None]
        result.scatter_add_(-1, index[:, None], -per_token.where(here, 0.0)[:, None])
        return result.to(ctx.dtype), None, None, None, None


def _labels(batch: Batch) -> Tensor:
    if isinstance(batch, Tensor):
        return batch
    labels = batch.get("labels", batch.get("input_ids"))
    if labels is None:
        raise InvalidInputError(
            Fault(field="batch", given=f"keys {', '.join(batch)}", required="must hold labels or input_ids", fix="or pass loss_fn=")
        )
    return labels


def _shifted_labels(batch: Batch) -> Tensor:
    given = None if isinstance(batch, Tensor) else batch.get(SHIFTED_LABELS)
    return F.pad(_labels(batch), (0, 1), value=IGNORE_INDEX)[:, 1:] if given is None else given


def _named(batch: Batch, input_name: str) -> dict[str, Any]:
    return {input_name: batch} if isinstance(batch, Tensor) else dict(batch)


def _without(named: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {name: value for name, value in named.items() if name not in keys}


def _input_name(model: nn.Module) -> str:
    """The name of forward's first argument, which a batch given as one tensor goes to."""
    names = list(inspect.signature(type(model).forward).parameters)[1:]
    return "input_ids" if "input_ids" in names or not names else names[0]
