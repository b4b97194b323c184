"""Dropout: masks are even and independent, and the same for an element under every layout."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.checkpoint import checkpoint

from autopar.costmodel.spec.errors import InvalidInputError
from autopar.runtime.random.dropout import LayoutFreeDropout
from autopar.runtime.random.mask import Samples, dropped
from autopar.runtime.tensor.region import WHOLE, Extent, Region, current_region, set_region

CPU = torch.device("cpu")


def mask(
    shape: Sequence[int], *, p: float = 0.3, first: int = 0, count: int, tokens: int = 8, region: Region = WHOLE, stream: int = 7
) -> Tensor:
    samples = Samples(first=first, count=count, sequence_length=tokens)
    return dropped(shape, p, stream=stream, samples=samples, region=region, device=CPU)


@pytest.mark.parametrize("p", [0.02, 0.1, 0.5, 0.9])
def test_masks_are_even_and_independent(p: float) -> None:
    """Within 5 standard deviations: the share dropped, and correlations of neighbours along each dimension and across streams."""
    shape = (4, 128, 512)
    scaled = {stream: (mask(shape, p=p, count=4, stream=stream).double() - p) / (p * (1 - p)) ** 0.5 for stream in (1, 2)}
    one, other = scaled[1], scaled[2]
    assert abs(one.mean().item()) * one.numel() ** 0.5 < 5
    pairs = [(one, other), *((one.narrow(dim, 1, size - 1), one.narrow(dim, 0, size - 1)) for dim, size in enumerate(shape))]
    pairs += [(one[..., 256:], one[..., :256]), (one[:, 64:], one[:, :64])]
    for left, right in pairs:
        assert abs((left * right).mean().item()) * left.numel() ** 0.5 < 5


def test_rows_and_columns_are_independent_of_each_other() -> None:
    """Correlations of all pairs of rows, and of columns, spread as those of independent ones: variance 1 / elements."""
    p = 0.5
    scaled = (mask((2, 256, 512), p=p, count=2).double() - p) / 0.5
    for matrix in (scaled.view(512, 512), scaled.view(512, 512).T):
        pairs = (matrix @ matrix.T / 512**0.5)[~torch.eye(512, dtype=torch.bool)]
        assert pairs.var().item() == pytest.approx(1, abs=0.03)
        assert pairs.abs().max() < 6


@settings(max_examples=30)
@given(
    batch=st.integers(1, 6),
    tokens=st.integers(1, 6),
    heads=st.integers(1, 3),
    width=st.integers(1, 5),
    ranks=st.integers(1, 4),
    data=st.data(),
)
def test_every_shard_has_its_part_of_the_whole_mask(
    batch: int, tokens: int, heads: int, width: int, ranks: int, data: st.DataObject
) -> None:
    split = data.draw(st.integers(1, batch))
    rank = data.draw(st.integers(0, ranks - 1))
    samples = slice(batch - split, batch)
    whole = mask((batch, tokens * ranks, width + 7), count=batch, tokens=tokens * ranks)
    region = Region(extent=Extent.SEQUENCE, rank=rank, size=ranks)
    part = mask((split, tokens, width + 7), count=split, first=batch - split, tokens=tokens * ranks, region=region)
    assert torch.equal(part, whole[samples, rank * tokens : (rank + 1) * tokens])

    region = Region(extent=Extent.FEATURES, rank=rank, size=ranks)
    whole = mask((batch, tokens + 7, width * ranks), count=batch)
    part = mask((split, tokens + 7, width), count=split, first=batch - split, region=region)
    assert torch.equal(part, whole[samples, :, rank * width : (rank + 1) * width])

    whole = mask((batch, heads * ranks, tokens, tokens), count=batch)
    part = mask((split, heads, tokens, tokens), count=split, first=batch - split, region=region)
    assert torch.equal(part, whole[samples, rank * heads : (rank + 1) * heads])


def test_flattened_and_sequence_first_tensors_have_the_masks_of_their_samples() -> None:
    whole = mask((4, 6, 5), count=4)
    assert torch.equal(mask((24, 5), count=4), whole.view(24, 5))
    assert torch.equal(mask((12, 5), count=2, first=2), whole[2:].reshape(12, 5))
    assert torch.equal(mask((6, 4, 5), count=4), whole.transpose(0, 1))
    assert mask((7, 5), count=4).shape == (7, 5)
    assert mask((4,), count=4).shape == (4,)


class Block(nn.Module):
    def __init__(self, width: int, p: float) -> None:
        super().__init__()
        self.project = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.dropout = nn.Dropout(p)
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        query, key, value = (y.view(batch, tokens, 2, -1).transpose(1, 2) for y in self.project(x).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, dropout_p=self.p if self.training else 0.0)
        x = x + self.dropout(self.out(mixed.transpose(1, 2).reshape(batch, tokens, width)))
        return x + self.dropout(F.gelu(x))


class Model(nn.Module):
    def __init__(self, p: float = 0.25, width: int = 8) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, p) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def _gradients(model: nn.Module, dropout: LayoutFreeDropout, batch: Tensor, rows: int, step: int = 0) -> dict[str, Tensor]:
    model.zero_grad()
    for first in range(0, len(batch), rows):
        micro = batch[first : first + rows]
        with dropout.forward(step=step, first_sample=first, num_samples=len(micro), sequence_length=micro.shape[1]):
            output = model(micro)
        output.square().sum().backward()
    return {name.replace("_checkpoint_wrapped_module.", ""): parameter.grad.clone() for name, parameter in model.named_parameters()}


def _assert_close(mine: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert mine.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert (mine[name] - tensor).abs().max() <= 1e-5 * tensor.abs().max(), name


def _model(p: float = 0.25) -> Model:
    torch.manual_seed(0)
    return Model(p)


BATCH = torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(1))


def test_micro_batches_and_recomputation_find_the_same_masks() -> None:
    model = _model()
    dropout = LayoutFreeDropout([model], seed=5)
    whole = _gradients(model, dropout, BATCH, 4)
    _assert_close(_gradients(model, dropout, BATCH, 1), whole)
    assert not torch.allclose(_gradients(model, dropout, BATCH, 4, step=1)["blocks.0.out.weight"], whole["blocks.0.out.weight"], rtol=1e-2)
    other = _gradients(model, LayoutFreeDropout([model], seed=6), BATCH, 4)
    assert not torch.allclose(other["blocks.0.out.weight"], whole["blocks.0.out.weight"], rtol=1e-2)

    wrapped = _model()
    late: list[LayoutFreeDropout] = []
    for index, block in enumerate(wrapped.blocks):
        wrapped.blocks[index] = checkpoint_wrapper(block, context_fn=lambda: late[0].recompute_contexts())
    late.append(LayoutFreeDropout([wrapped], seed=5))
    _assert_close(_gradients(wrapped, late[0], BATCH, 2), whole)


def test_recomputation_after_other_micro_batches_restores_its_own() -> None:
    """As in a pipeline: two forwards, then two backwards; and only a part of a module is recomputed."""
    model = _model()
    dropout = LayoutFreeDropout([model], seed=5)
    expected = _gradients(model, dropout, BATCH, 2)
    for block in model.blocks:
        inner = block.forward
        block.forward = lambda x, inner=inner: checkpoint(inner, x, use_reentrant=False, context_fn=dropout.recompute_contexts)
    model.zero_grad()
    outputs = []
    for first in (0, 2):
        with dropout.forward(step=0, first_sample=first, num_samples=2, sequence_length=6):
            set_region(WHOLE)
            outputs.append(model(BATCH[first : first + 2]))
    set_region(Region(extent=Extent.FEATURES, rank=1, size=2))  # what another pass left behind
    try:
        for output in outputs:
            output.square().sum().backward()
        assert current_region().extent is Extent.FEATURES
    finally:
        set_region(WHOLE)
    _assert_close({name: parameter.grad for name, parameter in model.named_parameters()}, expected)


def test_each_use_has_a_mask_of_its_own() -> None:
    """Of one shared dropout module, of its module's copies, and of its sisters."""
    seen: list[Tensor] = []

    class Uses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shared = nn.Dropout(0.5)
            self.other = nn.Dropout(0.5)

        def forward(self, x: Tensor) -> Tensor:
            seen.extend([self.shared(x), self.shared(x), self.other(x), F.dropout(x, 0.5), F.dropout(x, 0.5), torch.dropout(x, 0.5, True)])
            return x

    model = nn.Sequential(Uses(), Uses())
    with LayoutFreeDropout([model], seed=0).forward(step=0, first_sample=0, num_samples=2, sequence_length=50):
        model(torch.ones(2, 50, 10))
    assert len(seen) == 12
    assert all(not torch.equal(left, right) for index, left in enumerate(seen) for right in seen[:index])
    assert all(set(each.unique().tolist()) == {0.0, 2.0} for each in seen)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("masked", [None, "bool", "float"])
def test_attention_with_dropout_is_attention_with_dropped_weights(causal: bool, masked: str | None) -> None:
    if causal and masked:
        return
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, 4, 5, 3, generator=generator)
    key, value = (torch.randn(2, 2, 5, 3, generator=generator) for _ in range(2))
    allowed = torch.ones(5, 5, dtype=torch.bool).tril()
    allowed[2] = False
    attn_mask = {None: None, "bool": allowed, "float": torch.randn(5, 5, generator=generator)}[masked]
    dropout = LayoutFreeDropout([nn.Identity()], seed=0)
    arguments = {"attn_mask": attn_mask, "is_causal": causal, "scale": 0.7, "enable_gqa": True}
    plain = F.scaled_dot_product_attention(query, key, value, **arguments)
    with dropout.forward(step=0, first_sample=0, num_samples=2, sequence_length=5):
        nearly_none = F.scaled_dot_product_attention(query, key, value, dropout_p=1e-9, **arguments)
    assert torch.allclose(nearly_none, plain, atol=1e-6)
    with dropout.forward(step=0, first_sample=0, num_samples=2, sequence_length=5):
        one = F.scaled_dot_product_attention(query, key, torch.eye(5).expand(2, 2, 5, 5), dropout_p=0.5, **arguments)
    weights = F.scaled_dot_product_attention(query, key, torch.eye(5).expand(2, 2, 5, 5), **arguments)
    kept = one != 0
    assert 0 < kept.sum() < kept.numel()
    assert torch.allclose(one[kept], 2 * weights[kept], atol=1e-6)


def test_attention_with_dropout_keeps_no_weights() -> None:
    """Only its inputs, as fused kernels do, and its gradients are those of weights that are kept."""
    saved: list[int] = []
    query, key, value = (torch.randn(2, 2, 64, 4, generator=torch.Generator().manual_seed(s), requires_grad=True) for s in range(3))
    dropout = LayoutFreeDropout([nn.Identity()], seed=0)
    saving = torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor.numel()) or tensor, lambda tensor: tensor)
    with saving, dropout.forward(step=0, first_sample=0, num_samples=2, sequence_length=64):
        output = F.scaled_dot_product_attention(query, key, value, dropout_p=0.3)
    assert sum(saved) <= 3 * query.numel()
    with dropout.forward(step=0, first_sample=0, num_samples=2, sequence_length=64):
        kept = F.scaled_dot_product_attention(query, key, torch.eye(64).expand(2, 2, 64, 64), dropout_p=0.3)
    mine = torch.autograd.grad(output.square().sum(), (query, key, value))
    theirs = torch.autograd.grad((kept @ value).square().sum(), (query, key, value))
    assert all(torch.allclose(one, other, atol=1e-4) for one, other in zip(mine, theirs, strict=True))


@pytest.mark.parametrize("need_weights", [False, True])
def test_torch_own_multi_head_attention_and_layers(need_weights: bool) -> None:
    torch.manual_seed(0)
    model = nn.MultiheadAttention(8, 2, dropout=0.4, batch_first=True)
    dropout = LayoutFreeDropout([model], seed=1)

    def run(rows: slice) -> Tensor:
        micro = BATCH[rows]
        with dropout.forward(step=0, first_sample=rows.start, num_samples=len(micro), sequence_length=6):
            return model(micro, micro, micro, need_weights=need_weights)[0]

    whole = run(slice(0, 4))
    assert torch.allclose(torch.cat([run(slice(0, 2)), run(slice(2, 4))]), whole, atol=1e-6)
    assert torch.equal(run(slice(0, 4)), whole)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True)
    dropout = LayoutFreeDropout([layer], seed=1)
    gradients = _gradients(layer, dropout, BATCH, 4)
    _assert_close(_gradients(layer, dropout, BATCH, 2), gradients)


def test_what_is_off_stays_off() -> None:
    model = _model()
    dropout = LayoutFreeDropout([model], seed=5)
    model.eval()
    with dropout.forward(step=0, first_sample=0, num_samples=4, sequence_length=6):
        assert torch.equal(model(BATCH), model(BATCH))
    for p in (0.0, 1.0):
        with dropout.forward(step=0, first_sample=0, num_samples=4, sequence_length=6):
            assert torch.equal(F.dropout(BATCH, p), BATCH * (1 - p))
    assert torch.equal(dropout.dropout(BATCH, 0.5, training=False), BATCH)


def test_without_dropout_nothing_runs_after_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    model = _model(0.0)
    dropout = LayoutFreeDropout([model], seed=5)
    calls: list[str] = []
    monkeypatch.setattr(dropout, "_running", lambda *_, **__: calls.append("on") or torch.no_grad())
    for step in (3, 3, 4, 5):
        with dropout.forward(step=step, first_sample=0, num_samples=4, sequence_length=6):
            model(BATCH)
        first, again = dropout.recompute_contexts()
        with first, again:
            pass
    assert calls == ["on", "on"]


def test_inplace_changes_its_input() -> None:
    dropout = LayoutFreeDropout([nn.Identity()], seed=5)
    with dropout.forward(step=0, first_sample=0, num_samples=4, sequence_length=6):
        values = BATCH.clone()
        assert F.dropout(values, 0.5, inplace=True) is values
    assert (values == 0).any()


def test_dropout_of_whole_channels_is_refused() -> None:
    dropout = LayoutFreeDropout([nn.Identity()], seed=5)
    with dropout.forward(step=0, first_sample=0, num_samples=4, sequence_length=6):
        with pytest.raises(InvalidInputError, match=r"alpha_dropout\(p=0.5\)"):
            F.alpha_dropout(BATCH, 0.5, training=True)
        assert torch.equal(F.alpha_dropout(BATCH, 0.5, training=False), BATCH)
