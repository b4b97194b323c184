"""Losses: the vocabulary-parallel one against torch's, and shares of micro-batches against the whole batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from autopar.costmodel.spec.errors import InvalidInputError
from autopar.runtime.loss import IGNORE_INDEX, build_loss, cross_entropy, first_index, hugging_face_loss, next_token_loss
from autopar.runtime.reference_gpt import ReferenceGPT, ReferenceGPTConfig

from .models import batches, tiny
from .processes import run_ranks


def _logits(vocab: int, scale: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = (scale * torch.randn(3, 5, vocab, generator=generator)).to(dtype)
    targets = torch.randint(0, vocab, (3, 5), generator=generator)
    targets[0, :2] = IGNORE_INDEX
    return logits, targets


def _sharded_losses(rank: int, vocab: int, scale: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    logits, targets = _logits(vocab, scale, dtype)
    start, end = (first_index(vocab, mesh.size(), part) for part in (rank, rank + 1))
    local = logits[..., start:end].clone().requires_grad_()
    sharded = DTensor.from_local(local, mesh, [Shard(2)], run_check=False, shape=logits.shape, stride=logits.stride())
    losses = cross_entropy(sharded, targets)
    (losses * torch.arange(15.0).view(3, 5)).sum().backward()
    assert local.grad is not None
    return losses.detach(), local.grad


@pytest.mark.parametrize(
    ("vocab", "scale", "dtype"), [(10, 1.0, torch.float32), (7, 1.0, torch.float32), (9, 200.0, torch.float32), (10, 1.0, torch.bfloat16)]
)
def test_vocabulary_parallel_cross_entropy_is_torchs(vocab: int, scale: float, dtype: torch.dtype) -> None:
    """Unequal shards, ignored targets and large logits too; gradients come in the logits' type."""
    logits, targets = _logits(vocab, scale, dtype)
    logits.requires_grad_()
    expected = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none").view(3, 5)
    (expected * torch.arange(15.0).view(3, 5)).sum().backward()
    results = run_ranks(3, _sharded_losses, vocab, scale, dtype)
    for losses, gradient in results:
        torch.testing.assert_close(losses, expected.detach(), rtol=1e-6, atol=1e-6)
        assert gradient.dtype == dtype
    torch.testing.assert_close(torch.cat([gradient for _, gradient in results], dim=-1), logits.grad)


@given(size=st.integers(1, 200), parts=st.integers(1, 12))
def test_shards_begin_where_dtensor_begins_them(size: int, parts: int) -> None:
    chunks = torch.arange(size).chunk(parts)
    starts = [first_index(size, parts, part) for part in range(parts + 1)]
    assert starts == [*(int(chunk[0]) for chunk in chunks), *[size] * (parts + 1 - len(chunks))]


def test_the_loss_for_hugging_face_is_its_own() -> None:
    transformers = pytest.importorskip("transformers.loss.loss_utils")
    logits, labels = torch.randn(2, 6, 11), torch.randint(0, 11, (2, 6))
    labels[1, 3:] = IGNORE_INDEX
    for options in ({}, {"num_items_in_batch": torch.tensor(5)}, {"shift_labels": labels.clamp(min=0), "ignore_index": 3}):
        ours = hugging_face_loss(logits, labels, 11, **options)
        torch.testing.assert_close(ours, transformers.ForCausalLMLoss(logits, labels, 11, **options))


class _Plain(nn.Module):
    """Returns a mean loss of its own for labels, and knows nothing of the batch's number of items."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, ids: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.scale * F.one_hot(ids, 97).float()
        if labels is None:
            return logits
        return next_token_loss(logits, labels), logits


def _user_loss(output: Any, batch: Any) -> Tensor:
    return F.cross_entropy(getattr(output, "logits", output).flatten(0, 1), batch["labels"].flatten())


@pytest.mark.parametrize("kind", ["next-token", "hugging-face", "model", "user", "user-count"])
def test_shares_of_micro_batches_add_up_to_the_loss_of_the_batch(kind: str) -> None:
    """The first half has ignored labels, so that a mean of means would be another number."""
    loss_fn: Any = None
    if kind == "model":
        model: nn.Module = _Plain()
    else:
        model = tiny("llama") if kind == "hugging-face" else ReferenceGPT(ReferenceGPTConfig(vocab_size=97, num_layers=1))
    if kind.startswith("user"):
        loss_fn = _user_loss
    if kind == "user-count":

        def loss_fn(output: Any, batch: Any) -> Tensor:  # noqa: ARG001
            return output.square().mean()

        loss_fn.count = lambda batch: batch["input_ids"].numel()
    loss = build_loss(model, loss_fn)
    batch = next(batches(1, size=4))
    if kind == "model":
        batch = {"ids": batch["input_ids"], "labels": batch["labels"]}
    total = loss.count(batch)
    whole = loss.share(model(**loss.inputs(batch, total)), batch, total)
    halves = [{name: value[start : start + 2] for name, value in batch.items()} for start in (0, 2)]
    shares = [loss.share(model(**loss.inputs(half, total)), half, total) for half in halves]
    torch.testing.assert_close(shares[0] + shares[1], whole)
    assert loss.count(halves[0]) + loss.count(halves[1]) == total


def test_a_batch_may_be_one_tensor_of_ids() -> None:
    ids = torch.randint(0, 97, (2, 8))
    for model in (tiny("llama"), ReferenceGPT(ReferenceGPTConfig(vocab_size=97))):
        loss = build_loss(model)
        total = loss.count(ids)
        assert int(total) == 2 * 7
        share = loss.share(model(**loss.inputs(ids, total)), ids, total)
        output = model(input_ids=ids)
        logits = getattr(output, "logits", output)
        torch.testing.assert_close(share, F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()))


def test_a_batch_without_labels_or_ids_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="must hold labels or input_ids"):
        build_loss(ReferenceGPT(ReferenceGPTConfig())).count({"pixels": torch.zeros(1)})


class _Silent(nn.Module):
    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Tensor:  # noqa: ARG002
        return input_ids


def test_a_model_that_returns_no_loss_for_labels_is_refused() -> None:
    ids = torch.zeros(1, 4, dtype=torch.long)
    loss = build_loss(_Silent())
    with pytest.raises(InvalidInputError, match="returned no loss"):
        loss.share(ids, ids, loss.count(ids))
