"""Trains a model under a strategy: one object from a plan to optimizer steps.

:func:`build_engine` cuts the model over this rank's axes, in this order: pipeline stages, tensor shards, recomputation,
data-parallel shards; then gives the parameters their values. :class:`Engine` runs steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from autopar.costmodel.spec.strategy import Strategy
from autopar.costmodel.spec.training import PRECISIONS, Precision

from .mesh import ParallelMesh

Batch = torch.Tensor | Mapping[str, torch.Tensor]
"""Token ids, or named tensors (input_ids, labels, attention_mask …) whose first dimension is the batch."""
OptimizerBuilder = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
LossFunction = Callable[..., torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What a strategy does not say about a training run."""

    precision: Precision = PRECISIONS["fp32"]
    max_grad_norm: float | None = None
    """Largest norm of all gradients together; larger ones are scaled down to it. None: not clipped."""
    seed: int = 0
    check_loss: bool = True
    """Raise on every rank when the loss is not finite, before the optimizer takes the step."""


class Engine:
    """A model under training; made by :func:`build_engine`."""

    strategy: Strategy
    mesh: ParallelMesh
    model_parts: tuple[nn.Module, ...]
    optimizer: torch.optim.Optimizer

    def train_step(self, batch: Batch, *, local_batch: bool = False) -> float:
        """One optimizer step over the step's batch; the mean loss of all its tokens, the same on every rank."""
        raise NotImplementedError

    def eval_step(self, batch: Batch, *, local_batch: bool = False) -> float:
        """The mean loss of a batch, without gradients."""
        raise NotImplementedError

    def save(self, path: str | Path) -> None:
        raise NotImplementedError

    def load(self, path: str | Path) -> None:
        raise NotImplementedError


def build_engine(
    model: nn.Module,
    strategy: Strategy,
    *,
    optimizer: OptimizerBuilder,
    loss_fn: LossFunction | None = None,
    global_batch_size: int,
    options: EngineOptions = EngineOptions(),  # noqa: B008 (frozen)
    device: torch.device | None = None,
    **future: Any,
) -> Engine:
    """An engine that trains ``model`` under ``strategy``, inside torchrun or alone."""
    raise NotImplementedError
