"""What a user hands the engine under tensor parallelism: losses of their own, and batches that cannot be split."""

from __future__ import annotations

from typing import Any

import pytest
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from autopar.costmodel.spec.errors import InvalidInputError
from autopar.costmodel.spec.strategy import Strategy
from autopar.runtime.engine import build_engine

from .models import VOCAB, batches, tiny
from .oracle import FP32, adamw
from .processes import run_ranks

TWO = Strategy(tensor_parallel_size=2, sequence_parallel=True, micro_batch_size=2)


class _MeanOfTokens:
    """A user's loss: needs every logit of a token, and says what its mean is over."""

    def __call__(self, output: Any, batch: Any) -> Tensor:
        logits = getattr(output, "logits", output)
        assert type(logits) is Tensor
        assert logits.shape[-1] == VOCAB
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())

    def count(self, batch: Any) -> Tensor:
        return (batch["labels"][:, 1:] != -100).sum()


def _own_loss_function(logits: Tensor, labels: Tensor, vocab_size: int, num_items_in_batch: Any = None, **_: Any) -> Tensor:
    assert type(logits) is Tensor
    assert logits.shape[-1] == vocab_size
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum") / num_items_in_batch


def _losses(_: int, name: str, kind: str) -> list[float]:
    model: nn.Module = tiny(name)
    if kind == "loss_function":
        model.loss_function = _own_loss_function  # type: ignore[assignment]
    loss_fn = _MeanOfTokens() if kind == "loss_fn" else None
    engine = build_engine(model, TWO, optimizer=adamw, loss_fn=loss_fn, global_batch_size=4, options=FP32)
    losses = [engine.train_step(batch) for batch in batches(3, size=4)]
    return [*losses, engine.eval_step(next(batches(1, size=4)))]


@pytest.mark.parametrize("name", ["llama", "reference-gpt"])
def test_a_users_loss_gets_whole_logits_and_trains_alike(name: str) -> None:
    """Over three steps, so that gradients of the gathered logits are right too."""
    expected = run_ranks(2, _losses, name, "")[0]
    kinds = ["loss_fn", "loss_function"] if name == "llama" else ["loss_fn"]
    for kind in kinds:
        for losses in run_ranks(2, _losses, name, kind):
            assert losses == pytest.approx(expected, rel=1e-5)


def _odd_length(_: int) -> str:
    strategy = Strategy(tensor_parallel_size=2, sequence_parallel=True, pipeline_parallel_size=2, micro_batch_size=2)
    engine = build_engine(tiny("llama"), strategy, optimizer=adamw, global_batch_size=4, options=FP32)
    batch = {name: value[:, :15] for name, value in next(batches(1, size=4)).items()}
    with pytest.raises(InvalidInputError) as caught:
        engine.train_step(batch)
    return str(caught.value)


def test_a_length_that_does_not_split_is_refused_on_every_rank() -> None:
    said = "sequence_length=15: sequence_parallel needs a multiple of tensor_parallel_size=2; pad to 16, or turn sequence_parallel off"
    assert run_ranks(4, _odd_length) == [said] * 4
