"""The same parallelism written by hand with torch alone: what the engine's step time is held against.

Each class is a training step of the benchmark's task on this rank of two. Names of shapes as in the reference GPT.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from autopar.runtime.reference_gpt import ReferenceGPT

from . import task


def next_token_loss(logits: Tensor, ids: Tensor) -> Tensor:
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def adamw(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=task.LEARNING_RATE)


class DataParallel:
    """DistributedDataParallel: replicas, gradients summed by buckets."""

    def __init__(self) -> None:
        self.model: nn.Module = DistributedDataParallel(task.model())
        self.optimizer = adamw(self.model)
        self.ids = task.token_ids().chunk(dist.get_world_size())[dist.get_rank()]

    def __call__(self) -> float:
        self.optimizer.zero_grad()
        loss = next_token_loss(self.model(self.ids), self.ids)
        loss.backward()
        self.optimizer.step()
        mean = loss.detach()
        dist.all_reduce(mean)
        return mean.item() / dist.get_world_size()


class FullyShardedDataParallel(DataParallel):
    """FSDP2: every block's parameters are gathered for its forward and again for its backward (ZeRO 3)."""

    def __init__(self) -> None:
        model = task.model()
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for block in model.blocks:
            fully_shard(block, mesh=mesh, reshard_after_forward=True)
        fully_shard(model, mesh=mesh, reshard_after_forward=True)
        self.model = model
        self.optimizer = adamw(self.model)
        self.ids = task.token_ids().chunk(dist.get_world_size())[dist.get_rank()]


class TensorParallelDTensor:
    """torch's own tensor parallelism: a plan of column- and row-wise layers, DTensors in between."""

    def __init__(self) -> None:
        model = task.model()
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        plan: dict[str, Any] = {
            "tokens": RowwiseParallel(input_layouts=Replicate()),
            "head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
        }
        for index in range(len(model.blocks)):
            attention, feed_forward = f"blocks.{index}.attention", f"blocks.{index}.feed_forward"
            plan |= {f"{attention}.{name}": ColwiseParallel() for name in ("query", "key", "value")}
            plan |= {
                f"{attention}.output": RowwiseParallel(),
                f"{feed_forward}.up": ColwiseParallel(),
                f"{feed_forward}.down": RowwiseParallel(),
            }
        self.model = parallelize_module(model, mesh, plan)
        self.optimizer = adamw(self.model)
        self.ids = task.token_ids()

    def __call__(self) -> float:
        self.optimizer.zero_grad()
        with loss_parallel():
            loss = F.cross_entropy(self.model(self.ids)[:, :-1].flatten(0, 1), self.ids[:, 1:].flatten())
            loss.backward()
        self.optimizer.step()
        return float(loss.full_tensor().item())  # type: ignore[attr-defined]


class _EnterRegion(torch.autograd.Function):
    """Identity; the gradient is summed over the ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # noqa: ARG004
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # noqa: ARG004
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return grad


class _LeaveRegion(torch.autograd.Function):
    """The sum over the ranks; the gradient passes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # noqa: ARG004
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # noqa: ARG004
        return grad


class _SplitCrossEntropy(torch.autograd.Function):
    """Cross-entropy of logits (T, V / tp): maximum, normaliser and the target's logit are reduced over the ranks."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        largest = logits.max(-1).values
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        exponentials = (logits - largest[:, None]).exp()
        local = targets - dist.get_rank() * logits.shape[-1]
        here = (local >= 0) & (local < logits.shape[-1])
        local = local.clamp(0, logits.shape[-1] - 1)
        chosen = (logits.gather(-1, local[:, None])[:, 0] - largest) * here
        sums = torch.stack((exponentials.sum(-1), chosen))
        dist.all_reduce(sums)
        ctx.save_for_backward(exponentials / sums[0, :, None], local, here)
        return (sums[0].log() - sums[1]).mean()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        softmax, local, here = ctx.saved_tensors
        softmax[torch.arange(len(local)), local] -= here.float()
        return softmax * (grad / len(local)), None


class TensorParallelCollectives:
    """Megatron's tensor parallelism in plain collectives: two all-reduces a block and pass, split vocabulary."""

    def __init__(self) -> None:
        self.model: Any = task.model()  # torch's modules do not type their children
        size, rank = dist.get_world_size(), dist.get_rank()

        def keep(layer: nn.Linear | nn.Embedding, dim: int) -> None:
            layer.weight = nn.Parameter(layer.weight.detach().chunk(size, dim)[rank].contiguous())
            bias = getattr(layer, "bias", None)
            if bias is not None and dim == 0:
                layer.bias = nn.Parameter(bias.detach().chunk(size)[rank].contiguous())

        for whole in (self.model.tokens, self.model.head):
            keep(whole, 0)
        block: Any
        for block in self.model.blocks:
            for wide in (block.attention.query, block.attention.key, block.attention.value, block.feed_forward.up):
                keep(wide, 0)
            for narrow in (block.attention.output, block.feed_forward.down):
                keep(narrow, 1)
        self.optimizer = adamw(self.model)
        self.ids = task.token_ids()

    def forward(self) -> Tensor:
        model, ids = self.model, self.ids
        x_bsh = self._embed(model, ids) + model.positions(torch.arange(ids.shape[1]))
        for block in model.blocks:
            inner = _EnterRegion.apply(block.attention_norm(x_bsh))
            x_bsh = x_bsh + self._attention(block.attention, inner)
            inner = _EnterRegion.apply(block.feed_forward_norm(x_bsh))
            down = block.feed_forward.down
            x_bsh = x_bsh + _LeaveRegion.apply(F.linear(F.gelu(block.feed_forward.up(inner)), down.weight)) + down.bias
        logits = model.head(_EnterRegion.apply(model.norm(x_bsh)))
        loss: Tensor = _SplitCrossEntropy.apply(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        return loss

    def __call__(self) -> float:
        self.optimizer.zero_grad()
        loss = self.forward()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    @staticmethod
    def _embed(model: Any, ids: Tensor) -> Tensor:
        rows = model.tokens.weight.shape[0]
        local = ids - dist.get_rank() * rows
        elsewhere = (local < 0) | (local >= rows)
        found = F.embedding(local.masked_fill(elsewhere, 0), model.tokens.weight).masked_fill(elsewhere[..., None], 0.0)
        summed: Tensor = _LeaveRegion.apply(found)
        return summed

    @staticmethod
    def _attention(attention: Any, x_bsh: Tensor) -> Tensor:
        batch, sequence, _ = x_bsh.shape
        query, key, value = (
            projection(x_bsh).view(batch, sequence, -1, attention.head_dim).transpose(1, 2)
            for projection in (attention.query, attention.key, attention.value)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).reshape(batch, sequence, -1)
        summed: Tensor = _LeaveRegion.apply(F.linear(mixed, attention.output.weight)) + attention.output.bias
        return summed


class _Half(nn.Module):
    """The first or the last half of the model."""

    def __init__(self, model: ReferenceGPT, *, first: bool) -> None:
        super().__init__()
        half = len(model.blocks) // 2
        self.first = first
        self.blocks = model.blocks[:half] if first else model.blocks[half:]
        if first:
            self.tokens, self.positions = model.tokens, model.positions
        else:
            self.norm, self.head = model.norm, model.head

    def forward(self, x: Tensor) -> Tensor:
        if self.first:
            assert self.positions is not None, "the task's model has a table of positions"
            x = self.tokens(x) + self.positions(torch.arange(x.shape[1]))
        for block in self.blocks:
            x = block(x)
        return x if self.first else self.head(self.norm(x))


class Pipeline:
    """torch's 1F1B over two stages."""

    def __init__(self, num_microbatches: int) -> None:
        rank = dist.get_rank()
        self.stage = _Half(task.model(), first=rank == 0)
        stage = PipelineStage(self.stage, rank, dist.get_world_size(), torch.device("cpu"))
        self.schedule = Schedule1F1B(stage, num_microbatches, loss_fn=next_token_loss)
        self.optimizer = adamw(self.stage)
        self.ids = task.token_ids()

    def __call__(self) -> float:
        self.optimizer.zero_grad()
        losses: list[Tensor] = []
        if dist.get_rank() == 0:
            self.schedule.step(self.ids)
        else:
            self.schedule.step(target=self.ids, losses=losses)
        self.optimizer.step()
        mean = torch.stack(losses).mean().detach() if losses else torch.zeros(())
        dist.all_reduce(mean)
        return mean.item()
