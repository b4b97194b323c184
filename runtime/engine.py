"""Trains a model under a strategy: :func:`build_engine` cuts it over the ranks, :class:`Engine` runs steps."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from autopar.costmodel.spec.errors import Fault, InvalidInputError, raise_if
from autopar.costmodel.spec.schedule import Action
from autopar.costmodel.spec.strategy import Strategy

from . import checkpoint
from .batches import batch_faults, micro_batches, num_rows, rows, to_device
from .build import EngineOptions, ParallelModel, default_device, parallelise
from .context import MASK
from .context import batch_faults as context_faults
from .failures import TrainingFailedError
from .gradients import GradientNorm, PartialGradients, SharedGradients
from .local_step import optimizer_step
from .loss import Batch, LossFunction
from .measure import Measurement, measure
from .pipeline.copies import shared_parameters
from .pipeline.executor import Executor
from .pipeline.plan import RankPlan, forward_plan, rank_plan
from .pipeline.transport import Transport, channel_pairs
from .tensor import partial_gradient_parameters, sequence_faults

__all__ = ["Batch", "Engine", "EngineOptions", "LossFunction", "OptimizerBuilder", "build_engine"]

OptimizerBuilder = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
"""Makes the optimizer of the parameters it is given: this rank's."""


class Engine:
    """A model under training; made by :func:`build_engine`.

    Every method but the properties is collective: all ranks of the job call it, in the same order.
    """

    def __init__(
        self, parallel: ParallelModel, strategy: Strategy, options: EngineOptions, *, optimizer: OptimizerBuilder, global_batch_size: int
    ) -> None:
        self.strategy, self.options, self.global_batch_size = strategy, options, global_batch_size
        self.mesh, self.structure, self.schedule = parallel.mesh, parallel.structure, parallel.schedule
        self.step = 0
        """Optimizer steps taken."""
        self.grad_norm: float | None = None
        """Of the last step, before clipping; None where gradients are not clipped."""
        self._parallel = parallel
        rank = self.mesh.coordinate("pp")
        plans = [rank_plan(self.schedule, each) for each in range(strategy.pipeline_parallel_size)]
        self._plan = plans[rank]
        self._forward_plans: dict[int, RankPlan] = {}
        self._transport = Transport(self.mesh)
        self._transport.open_channels(channel_pairs(plans))
        self._executor = Executor(parallel.runners, self._transport, self.mesh.device)
        models = {index: runner.stage.model for index, runner in parallel.runners.items()}
        self.model_parts = tuple(models.values())
        """This rank's stages of the model; their parameters have the whole model's names."""
        self._shared = SharedGradients(shared_parameters(models, self.structure, self.schedule, parallel.layers, self.mesh))
        self._shared.equalise()
        self._parameters = [parameter for part in self.model_parts for parameter in part.parameters() if parameter.requires_grad]
        self.optimizer = optimizer(list(self._parameters))
        self._norm = GradientNorm(self._parameters, self.mesh, self._shared.copies)
        partial = (p for part in self.model_parts for p in partial_gradient_parameters(part).values())
        self._partial = PartialGradients(partial, self.mesh.group("tp"))

    def train_step(self, batch: Batch, *, local_batch: bool = False) -> float:
        """One optimizer step; the mean loss over the items of the global batch, the same on every rank.

        Args:
            batch: the step's whole batch, the same on every rank; with ``local_batch`` this data-parallel rank's own part, the
                same on all ranks of its pipeline and tensor-parallel groups. Token ids, or named tensors with one row a sample.

        Raises:
            InvalidInputError: its rows are not the global batch's; on every rank.
            TrainingFailedError: the loss, or the norm to clip to, is no finite number; on every rank, with the parameters as they were.
        """
        share, total = self._share(batch, self.global_batch_size, local_batch=local_batch)
        self._set_mode(training=True)
        for parameter in self._parameters:
            parameter.grad = None
        loss = self._executor.run(self._plan, micro_batches(share, self.strategy.micro_batch_size), total, self._training_scope(share))
        for runner in self._parallel.runners.values():
            runner.sync.finish()
        self._partial.sum()
        self._shared.sum()
        mean = self._reduce(loss)
        optimizer_step(self.optimizer)
        self.step += 1
        return mean

    @torch.no_grad()
    def eval_step(self, batch: Batch, *, local_batch: bool = False) -> float:
        """The mean loss of a batch of any number of micro-batches, in evaluation mode; arguments as of :meth:`train_step`."""
        share, total = self._share(batch, None, local_batch=local_batch)
        self._set_mode(training=False)
        parts = micro_batches(share, self.strategy.micro_batch_size)
        loss = self._executor.run(self._forward_plan(len(parts)), parts, total, self._scope)
        return self._check(self._sum_over_ranks(loss[None])[0].item())

    def measure(self, batch: Batch, *, steps: int = 5, warmup_steps: int = 2) -> Measurement:
        """Train ``warmup_steps`` and then ``steps`` steps on the global ``batch``, and time the latter."""
        tokens = num_rows(batch) * _sequence_length(batch)
        return measure(lambda: self.train_step(batch), self.mesh.device, tokens_per_step=tokens, steps=steps, warmup_steps=warmup_steps)

    @property
    def executed(self) -> tuple[Action, ...]:
        """What this rank did in the last step: the schedule's actions, in their order."""
        return tuple(self._executor.executed)

    def save(self, path: str | Path) -> Path:
        """Write a checkpoint under ``path``, which any layout reads; :func:`.checkpoint.save`."""
        return checkpoint.save(self._train_state(), path)

    def load(self, path: str | Path) -> None:
        """Go on from the newest checkpoint under ``path``, with its seed; :func:`.checkpoint.load`."""
        state = self._train_state()
        checkpoint.load(state, path)
        self.step = state.step
        self.options = replace(self.options, seed=state.seed)
        self._parallel.dropout.seed = state.seed

    def _train_state(self) -> checkpoint.TrainState:
        return checkpoint.TrainState(
            model_parts=self.model_parts,
            optimizers=(self.optimizer,),
            step=self.step,
            seed=self.options.seed,
            tied=self.structure.tied,
            layout=self.strategy.describe(),
        )

    def _set_mode(self, *, training: bool) -> None:
        for part in self.model_parts:
            if part.training != training:
                part.train(training)

    def _share(self, batch: Batch, expected: int | None, *, local_batch: bool) -> tuple[Batch, Tensor]:
        """This rank's rows of ``batch``, on its device, and the number of items of the global batch."""
        ranks = self.mesh.data_parallel_size
        multiple = self.strategy.micro_batch_size * (1 if local_batch else ranks)
        given = expected if expected is None or not local_batch else expected // ranks
        faults = batch_faults(batch, given, multiple)
        if self._parallel.axes.context is not None and not faults:
            faults += context_faults(batch, _sequence_length(batch), self.strategy, self.model_parts[0])
        elif self.strategy.sequence_parallel and not faults:
            faults += sequence_faults(_sequence_length(batch), self.strategy.tensor_parallel_size)
        loss = next(iter(self._parallel.runners.values())).loss
        if not local_batch:
            raise_if(faults)
            size = num_rows(batch) // ranks
            first = size * self.mesh.data_parallel_rank
            total = loss.count(batch).to(self.mesh.device)
            return self._own_tokens(to_device(rows(batch, first, first + size), self.mesh.device)), total
        counts = torch.stack([torch.tensor(len(faults)), torch.tensor(0) if faults else loss.count(batch).cpu()]).to(self.mesh.device)
        if self.mesh.num_replicas > 1:
            self._sum_over_data(counts)
            counts[1] //= self.mesh.layout.cp  # whose ranks all count whole sequences
        raise_if(faults)
        if counts[0] > 0:
            raise InvalidInputError(Fault(field="batch", given="", required="another data-parallel rank's part does not fit its plan"))
        return self._own_tokens(to_device(batch, self.mesh.device)), counts[1]

    def _own_tokens(self, share: Batch) -> Batch:
        """This rank's tokens of the sequences that it shares with its context-parallel group."""
        context = self._parallel.axes.context
        if context is None:
            return share
        return context.batch(share, masked=MASK in inspect.signature(type(self.model_parts[0]).forward).parameters)

    def _reduce(self, loss: Tensor) -> float:
        """The mean loss; gradients are clipped, and the step refused where the loss is no number."""
        if self.options.max_grad_norm is None:
            return self._check(self._sum_over_ranks(loss[None])[0].item())
        values = self._sum_over_ranks(torch.stack((loss, self._norm.local_square())))
        norm = values[1].sqrt()
        mean, self.grad_norm = (float(value) for value in torch.stack((values[0], norm)).tolist())
        self._check(mean)
        self._check(self.grad_norm, "norm of the gradients")
        self._norm.clip(norm, self.options.max_grad_norm)
        return mean

    def _sum_over_ranks(self, values: Tensor) -> Tensor:
        """Over all ranks; the first is a loss, which tensor-parallel ranks repeat."""
        if self.strategy.world_size > 1:
            values[0] /= self.mesh.layout.tp
            dist.all_reduce(values)
        return values

    def _sum_over_data(self, values: Tensor) -> None:
        for axis in ("dp_shard", "dp_replicate"):
            if self.mesh.size(axis) > 1:
                dist.all_reduce(values, group=self.mesh.group(axis))

    def _check(self, value: float, name: str = "loss") -> float:
        if self.options.check_loss and not math.isfinite(value):
            raise TrainingFailedError(
                f"the {name} of step {self.step + 1} is {value}: the parameters are as before it; lower the learning rate, clip gradients"
                " (max_grad_norm), or look at the batch; check_loss=False goes on regardless"
            )
        return value

    def _forward_plan(self, num_microbatches: int) -> RankPlan:
        """For a batch of any size: a pass has no backward to wait for, so any order of micro-batches will do."""
        plan = self._forward_plans.get(num_microbatches)
        if plan is None:
            plan = forward_plan(self.schedule, self.mesh.coordinate("pp"), num_microbatches)
            self._forward_plans[num_microbatches] = plan
        return plan

    def _training_scope(self, share: Batch) -> Callable[[int], AbstractContextManager[Any]]:
        size = self.strategy.micro_batch_size
        first = num_rows(share) * self.mesh.data_parallel_rank
        sequence = _sequence_length(share)

        @contextmanager
        def scope(microbatch: int) -> Iterator[None]:
            with ExitStack() as stack:
                stack.enter_context(
                    self._parallel.dropout.forward(
                        step=self.step, first_sample=first + microbatch * size, num_samples=size, sequence_length=sequence
                    )
                )
                stack.enter_context(self._scope(microbatch))
                yield

        return scope

    def _scope(self, microbatch: int) -> AbstractContextManager[Any]:
        del microbatch
        return torch.autocast(self.mesh.device.type, torch.bfloat16) if self._parallel.types.autocast else nullcontext()


def build_engine(
    model: nn.Module,
    strategy: Strategy,
    *,
    optimizer: OptimizerBuilder,
    global_batch_size: int,
    loss_fn: LossFunction | None = None,
    options: EngineOptions | None = None,
    device: torch.device | None = None,
) -> Engine:
    """An engine that trains ``model`` under ``strategy``: inside torchrun on all its ranks, or alone in one process.

    Args:
        model: whole, on the CPU or the meta device; the engine takes it over and cuts it in place.
        optimizer: makes the optimizer of this rank's parameters, e.g. ``lambda parameters: AdamW(parameters, lr=3e-4)``.
        loss_fn: of the model's output and a batch, a mean; None: the model's own loss, or next-token cross-entropy.
        device: this rank's; None: its GPU where there is one.

    Raises:
        InvalidInputError: all that keeps the model from being trained so, on every rank alike.
    """
    options = options or EngineOptions()
    parallel = parallelise(
        model, strategy, options, global_batch_size=global_batch_size, loss_fn=loss_fn, device=device or default_device()
    )
    return Engine(parallel, strategy, options, optimizer=optimizer, global_batch_size=global_batch_size)


def _sequence_length(batch: Batch) -> int:
    ids = batch if isinstance(batch, Tensor) else batch.get("input_ids", next(iter(batch.values())))
    return ids.shape[1] if ids.dim() > 1 else 1
