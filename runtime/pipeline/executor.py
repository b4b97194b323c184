"""Runs the actions of a schedule over this rank's stages.

The actions are those that the cost model simulates (:func:`~autopar.costmodel.spec.schedule.build_schedule`), in their order,
for every kind of schedule and for no pipeline at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

from autopar.costmodel.spec.schedule import Action, ActionKind
from autopar.runtime.data_parallel import GradientSync, gathered_parameters
from autopar.runtime.loss import Batch, Loss

from .plan import RankPlan, Step
from .stage import PipelineStage
from .transport import Transport

Scope = Callable[[int], AbstractContextManager[Any]]
"""What surrounds each forward of micro-batch ``index``: autocast, dropout's random numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRunner:
    """A stage with the loss of its model and the sync of its gradients."""

    stage: PipelineStage
    loss: Loss
    sync: GradientSync
    splits_backward: bool = True
    """Whether the parts of a split backward run apart. Recomputed blocks would be recomputed for each, which costs more than the
    split gains: there all of it is done with the first part."""


@dataclass(slots=True)
class _Live:
    """What a forward leaves for its backward: the stage's input, and its output or loss."""

    received: Tensor | None
    root: Tensor
    gradient: Tensor | None = None
    weights: list[Any] | None = None
    """The graph's own parameters, between the two parts of a split backward."""
    groups: list[dict[str, Any]] | None = None


class Executor:
    """Runs one step at a time; :attr:`executed` has the actions of the last one."""

    def __init__(self, runners: Mapping[int, StageRunner], transport: Transport, device: torch.device) -> None:
        self._runners = runners
        self._transport = transport
        self._device = device
        self._live: dict[tuple[int, int], _Live] = {}
        self._microbatches: Sequence[Batch] = ()
        self._total = torch.ones(())
        self._loss: Tensor | None = None
        self.executed: list[Action] = []

    def run(self, plan: RankPlan, microbatches: Sequence[Batch], total: Tensor, scope: Scope | None = None) -> Tensor:
        """Run ``plan`` over ``microbatches``.

        Args:
            plan: of this rank; one with backwards needs gradients enabled.
            microbatches: all of this data-parallel rank's, of one shape.
            total: items of the global batch that the loss is the mean over.

        Returns:
            This rank's share of the global mean loss, an fp32 scalar: 0 where no last stage is.
        """
        self._microbatches, self._total, self._loss = microbatches, total, None
        self.executed = []
        self._transport.begin(plan, _shape(microbatches[0]))
        steps = plan.steps
        for index, step in enumerate(steps):
            if index + 1 < len(steps) and (following := steps[index + 1]).needs is not None:
                self._transport.ask(following.needs, following.source)
            made = self._perform(step, scope)
            if step.makes is not None:
                assert made is not None
                self._transport.send(step.makes, step.target, made)
            self.executed.append(step.action)
        self._transport.end()
        return torch.zeros((), device=self._device) if self._loss is None else self._loss

    def _perform(self, step: Step, scope: Scope | None) -> Tensor | None:
        action = step.action
        taken = None if step.needs is None else self._transport.take(step.needs, step.source)
        match action.kind:
            case ActionKind.FORWARD:
                with scope(action.microbatch) if scope is not None else nullcontext():
                    return self._forward(action, taken)
            case ActionKind.BACKWARD:
                return self._backward(action, taken, last=step.is_last)
            case ActionKind.BACKWARD_INPUT:
                return self._backward_input(action, taken, last=step.is_last)
            case ActionKind.BACKWARD_WEIGHT:
                self._backward_weight(action, last=step.is_last)
                return None

    def _forward(self, action: Action, received: Tensor | None) -> Tensor | None:
        runner = self._runners[action.stage]
        batch = self._microbatches[action.microbatch]
        if received is not None and torch.is_grad_enabled():
            received = received.detach().requires_grad_()
        root = runner.stage(received, (), runner.loss.inputs(batch, self._total))
        if runner.stage.span.is_last:
            root = runner.loss.share(root, batch, self._total)
            share = root.detach().float()
            self._loss = share if self._loss is None else self._loss + share
        if torch.is_grad_enabled():
            self._live[action.microbatch, action.stage] = _Live(received, root)
        return None if runner.stage.span.is_last else root.detach()

    def _backward(self, action: Action, gradient: Tensor | None, *, last: bool) -> Tensor | None:
        live = self._live.pop((action.microbatch, action.stage))
        self._runners[action.stage].sync.before_backward(last=last, split=False)
        if live.root.requires_grad:  # a first stage whose first layers are frozen has nothing to do
            torch.autograd.backward(live.root, gradient)
        return None if live.received is None else live.received.grad

    def _backward_input(self, action: Action, gradient: Tensor | None, *, last: bool) -> Tensor | None:
        """The gradient of the stage's input; the first stage has none to send, and does all of it with the weights."""
        runner = self._runners[action.stage]
        if not runner.splits_backward:
            return self._backward(action, gradient, last=last)
        live = self._live[action.microbatch, action.stage]
        live.gradient = gradient
        if live.received is None:
            return None
        runner.sync.before_backward(last=False, split=True)
        live.weights = gathered_parameters(runner.stage)
        gradients = None if gradient is None else [gradient]
        (result,), live.groups = stage_backward_input([live.root], gradients, [live.received], iter(live.weights))
        live.received.grad = None
        return result

    def _backward_weight(self, action: Action, *, last: bool) -> None:
        if not self._runners[action.stage].splits_backward:
            return
        live = self._live.pop((action.microbatch, action.stage))
        sync = self._runners[action.stage].sync
        if live.groups is None or live.weights is None:
            sync.before_backward(last=last, split=False)
            if live.root.requires_grad:
                torch.autograd.backward(live.root, live.gradient)
            return
        sync.before_weights()
        stage_backward_weight(iter(live.weights), live.groups)
        sync.after_weights(last=last)


def _shape(batch: Batch) -> object:
    if isinstance(batch, Tensor):
        return batch.shape
    return tuple((name, value.shape) for name, value in batch.items())
