"""The numerics oracle of the runtime: the same model trained by one process with plain PyTorch."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from autopar.costmodel.spec.strategy import Strategy
from autopar.costmodel.spec.training import PRECISIONS
from autopar.runtime.engine import Engine, EngineOptions, build_engine
from autopar.runtime.loss import build_loss
from autopar.runtime.reference_gpt import ReferenceGPT, ReferenceGPTConfig
from autopar.runtime.tensor.fused import fused_layouts

# Gathering whole tensors to compare them is slower than it could be, and says so.
logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)

TOLERANCE = 1e-5
"""Relative to a tensor's largest magnitude, in fp32."""
FP32 = EngineOptions(precision=PRECISIONS["fp32"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """Some steps of training: losses, gradients and parameters after each, by name."""

    losses: tuple[float, ...]
    gradients: tuple[Mapping[str, Tensor], ...]
    parameters: Mapping[str, Tensor]
    norms: tuple[float, ...] = ()


def adamw(parameters: Any) -> torch.optim.Optimizer:
    """A step moves a parameter by a hundredth of its size: enough to see, too little for rounding to grow in a few steps."""
    return torch.optim.AdamW(parameters, lr=2e-3, eps=1e-4)


def small_gpt(**changes: Any) -> ReferenceGPT:
    """Four blocks, 32 wide, with grouped heads; the same weights every time."""
    shapes: dict[str, Any] = {
        "vocab_size": 48, "num_layers": 4, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "ffn_hidden_size": 48,
    }  # fmt: skip
    torch.manual_seed(1)
    model = ReferenceGPT(ReferenceGPTConfig(**(shapes | changes)))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Initial weights are so small, and norms and biases so even, that errors would not show.
            parameter.copy_(torch.randn_like(parameter) * 0.1 + (1.0 if "norm.weight" in name else 0.0))
    return model


def token_batches(steps: int, rows: int, sequence: int = 8, vocab: int = 48, *, ignored: bool = True) -> list[dict[str, Tensor]]:
    """Batches with labels of which some, unequally many a row, are ignored."""
    generator = torch.Generator().manual_seed(7)
    batches = []
    for _ in range(steps):
        ids = torch.randint(vocab, (rows, sequence), generator=generator)
        labels = ids.clone()
        if ignored:
            labels[torch.rand(ids.shape, generator=generator) < torch.linspace(0, 0.6, rows)[:, None]] = -100
        batches.append({"input_ids": ids, "labels": labels})
    return batches


def train_alone(model: nn.Module, batches: list[dict[str, Tensor]], *, max_grad_norm: float | None = None) -> Trained:
    """The oracle: a loop as a tutorial has it, over the whole batch at once."""
    model = copy.deepcopy(model)
    model.train()
    loss = build_loss(model)
    optimizer = adamw(model.parameters())
    losses, gradients, norms = [], [], []
    for batch in batches:
        optimizer.zero_grad()
        total = loss.count(batch)
        value = loss.share(model(**loss.inputs(batch, total)), batch, total)
        value.backward()
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters(remove_duplicate=False) if p.grad is not None})
        if max_grad_norm is not None:
            norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)))
        optimizer.step()
        losses.append(value.item())
    parameters = {name: p.detach().clone() for name, p in model.named_parameters(remove_duplicate=False)}
    return Trained(losses=tuple(losses), gradients=tuple(gradients), parameters=parameters, norms=tuple(norms))


def train_parallel(
    model: nn.Module,
    strategy: Strategy,
    batches: list[dict[str, Tensor]],
    *,
    options: EngineOptions = FP32,
    inspect: Callable[[Engine], None] | None = None,
) -> Trained:
    """This rank's part of the same under ``strategy``: whole tensors of the parameters it holds."""
    rows = len(next(iter(batches[0].values())))
    engine = build_engine(copy.deepcopy(model), strategy, optimizer=adamw, global_batch_size=rows, options=options)
    losses, gradients, norms = [], [], []
    for batch in batches:
        losses.append(engine.train_step(batch))
        gradients.append(whole_tensors(engine, gradients=True))
        if engine.grad_norm is not None:
            norms.append(engine.grad_norm)
    if inspect is not None:
        inspect(engine)
    parameters = whole_tensors(engine)
    return Trained(losses=tuple(losses), gradients=tuple(gradients), parameters=parameters, norms=tuple(norms))


def whole_tensors(engine: Engine, *, gradients: bool = False) -> dict[str, Tensor]:
    """The whole parameters (or gradients) that this rank has parts of, as the user's model holds them; a collective call."""
    found = {}
    for part in engine.model_parts:
        fused = fused_layouts(part)
        for name, parameter in part.named_parameters(remove_duplicate=False):
            tensor = parameter.grad if gradients else parameter.detach()
            if tensor is not None:
                whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
                found[name] = (fused[name].to_user(whole) if name in fused else whole).clone()
    return found


def distances(mine: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> dict[str, float]:
    """Largest difference of each tensor over its largest magnitude, or over a hundredth of that of all tensors together.

    The latter for what nearly cancels out, as the gradient of a key's bias does (softmax does not see it): its rounding errors
    are those of the far larger numbers that it is the sum of, of which fp32 resolves a ten-millionth.
    """
    least = 1e-2 * max(float(tensor.abs().max()) for tensor in right.values())
    return {name: float((tensor - right[name]).abs().max()) / max(float(right[name].abs().max()), least) for name, tensor in mine.items()}


def assert_same(results: list[Trained], alone: Trained, *, tolerance: float = TOLERANCE, compare_gradients: bool = True) -> None:
    """Every rank has the loss of ``alone``, the ranks together all its parameters, and every rank the right values of what it holds."""
    held = {name for result in results for name in result.parameters}
    assert held >= alone.parameters.keys(), alone.parameters.keys() - held
    for rank, result in enumerate(results):
        assert result.losses == results[0].losses
        for mine, right in zip(result.losses, alone.losses, strict=True):
            assert abs(mine - right) <= tolerance * abs(right), (rank, mine, right)
        for mine, right in zip(result.norms, alone.norms, strict=True):
            assert abs(mine - right) <= tolerance * right, (rank, mine, right)
        far = distances(result.parameters, alone.parameters)
        assert max(far.values()) <= 10 * tolerance, (rank, max(far.items(), key=lambda pair: pair[1]))
        for step, gradients in enumerate(result.gradients if compare_gradients else ()):
            far = distances(gradients, alone.gradients[step])
            assert max(far.values()) <= tolerance, (rank, step, max(far.items(), key=lambda pair: pair[1]))
