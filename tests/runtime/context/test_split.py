"""Which tokens a context-parallel rank has, and attention over the tokens of all of them."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from autopar.costmodel.spec.errors import InvalidInputError
from autopar.costmodel.spec.layout import RankLayout
from autopar.costmodel.spec.strategy import Strategy
from autopar.runtime.context.attention import Masks, causal_attention
from autopar.runtime.context.split import ContextGroup, context_group
from autopar.runtime.loss import IGNORE_INDEX, SHIFTED_LABELS
from tests.runtime.processes import run_ranks


def place(rank: int, size: int) -> ContextGroup:
    """Without a group: for what needs no communication."""
    return ContextGroup(group=None, rank=rank, size=size)  # type: ignore[arg-type]


@given(size=st.integers(1, 8), length=st.integers(1, 4))
def test_every_token_is_on_one_rank_and_comes_back_to_its_place(size: int, length: int) -> None:
    whole = torch.arange(2 * size * length)[None]
    held = [place(rank, size).take(whole) for rank in range(size)]
    parts = torch.cat(held, dim=1).chunk(2 * size, dim=1)
    order = place(0, size).gathered_order()
    assert torch.equal(torch.cat([parts[index] for index in order], dim=1), whole)
    # Causal attention costs a token as much as its position: all ranks have the same.
    assert len({int(tokens.view(2, -1).float().mean(1).sum()) for tokens in held}) == 1


def test_labels_are_those_of_the_next_token_of_the_whole_sequence() -> None:
    batch = {"input_ids": torch.arange(8)[None], "labels": 10 + torch.arange(8)[None]}
    first, second = (place(rank, 2).batch(batch, masked=rank == 1) for rank in range(2))
    assert first["position_ids"].tolist() == first["input_ids"].tolist() == [[0, 1, 6, 7]]
    assert first[SHIFTED_LABELS].tolist() == [[11, 12, 17, IGNORE_INDEX]]
    assert second[SHIFTED_LABELS].tolist() == [[13, 14, 15, 16]]
    assert "attention_mask" not in first
    assert second["attention_mask"].tolist() == [[1, 1, 1, 1]]


def test_groups_are_those_of_the_rank_layout() -> None:
    layout = RankLayout.of(Strategy(tensor_parallel_size=2, context_parallel_size=2, data_parallel_size=2))

    def group(_: int) -> tuple[tuple[int, ...], int]:
        found = context_group(layout)
        return tuple(dist.get_process_group_ranks(found.group)), found.rank

    for rank, (ranks, index) in enumerate(run_ranks(8, group)):
        assert ranks == layout.group(rank, "cp")
        assert index == layout.coordinates(rank)["cp"]


@pytest.mark.parametrize(("ranks", "flash"), [(2, False), (3, False), (2, True)])
def test_attention_and_its_gradients_are_those_of_whole_sequences(ranks: int, flash: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With grouped heads and a scale of the caller's; on a CPU torch makes a tensor of the mask that flash kernels do without."""
    monkeypatch.setattr("autopar.runtime.context.attention.has_flash_kernel", lambda _: flash)
    generator = torch.Generator().manual_seed(1)
    shapes = ((2, 4, 12, 8), (2, 2, 12, 8), (2, 2, 12, 8))
    query, key, value, grad = (torch.randn(shape, generator=generator) for shape in (*shapes, shapes[0]))

    def part(rank: int) -> list[Tensor]:
        context = ContextGroup(group=dist.group.WORLD, rank=rank, size=ranks)  # type: ignore[arg-type]
        own = [_of_rank(context, tensor).requires_grad_() for tensor in (query, key, value)]
        output = causal_attention(context, Masks(), *own, is_causal=True, scale=0.3, enable_gqa=True)
        output.backward(_of_rank(context, grad))  # type: ignore[no-untyped-call]
        return [output.detach(), *(tensor.grad for tensor in own if tensor.grad is not None)]

    whole = [tensor.clone().requires_grad_() for tensor in (query, key, value)]
    output = F.scaled_dot_product_attention(*whole, is_causal=True, scale=0.3, enable_gqa=True)
    output.backward(grad)  # type: ignore[no-untyped-call]
    expected = [output.detach(), *(tensor.grad for tensor in whole if tensor.grad is not None)]
    for rank, found in enumerate(run_ranks(ranks, part)):
        for mine, right in zip(found, expected, strict=True):
            torch.testing.assert_close(mine, _of_rank(place(rank, ranks), right), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"attn_mask": torch.ones(4, 4, dtype=torch.bool)}, "a mask"),
        ({"is_causal": True, "dropout_p": 0.1}, "dropout"),
        ({}, "attention that is not causal"),
    ],
)
def test_other_attention_is_refused(options: dict[str, object], said: str) -> None:
    tensor = torch.zeros(1, 1, 4, 2)
    with pytest.raises(InvalidInputError, match=f"context_parallel_size={said}: .*plain causal"):
        causal_attention(place(0, 2), Masks(), tensor, tensor, tensor, **options)  # type: ignore[arg-type]


def _of_rank(context: ContextGroup, tensor: Tensor) -> Tensor:
    """The tokens (dimension 2) of a rank."""
    return context.take(tensor.transpose(1, 2)).transpose(1, 2).contiguous()
