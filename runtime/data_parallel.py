"""Data parallelism and ZeRO over one stage: what is sharded, and when gradients are reduced.

ZeRO 1 to 3, and every precision that computes in another type than it stores, run on torch's FSDP2 over the mesh's
(dp_replicate, dp_shard) axes. ZeRO 0 in one type needs no copies of parameters, so its gradients are summed in place, by
buckets (:class:`~.gradient_buckets.GradientBuckets`).

The losses of micro-batches are shares of the global mean, so gradients are summed over ranks, never averaged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Protocol

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from autopar.costmodel.spec.strategy import Strategy

from .experts import ExpertGrid, stacked_experts
from .gradient_buckets import GradientBuckets
from .mesh import ParallelMesh
from .pipeline.stage import PipelineStage
from .precision import TensorTypes
from .structure import ModelStructure


class GradientSync(Protocol):
    """When the gradients of one stage are reduced over data-parallel ranks, told from outside what runs next."""

    def before_backward(self, *, last: bool, split: bool) -> None:
        """A backward comes. ``last``: no further one of this stage in this step. ``split``: of the input alone, weights later."""

    def before_weights(self) -> None:
        """The weights' part of a split backward comes."""

    def after_weights(self, *, last: bool) -> None:
        """The weights' part of a split backward is done."""

    def finish(self) -> None:
        """The step's backwards are done: wait until the gradients are summed."""


class NoSync:
    """One data-parallel rank."""

    def before_backward(self, *, last: bool, split: bool) -> None:
        pass

    def before_weights(self) -> None:
        pass

    def after_weights(self, *, last: bool) -> None:
        pass

    def finish(self) -> None:
        pass


class ShardedSync:
    """FSDP2's switches by ZeRO stage.

    Parameters stay gathered between the micro-batches of a step below stage 3. Gradients are reduced once a step below stage
    2, each micro-batch from there on; over the copies of the shards (HSDP) always once.
    """

    def __init__(self, stage: PipelineStage, zero_stage: int) -> None:
        assert isinstance(stage, FSDPModule)
        self._stage = stage
        self._reduce_always, self._reshard_always = zero_stage >= 2, zero_stage >= 3
        self._switches: tuple[bool, bool, bool] | None = None

    def before_backward(self, *, last: bool, split: bool) -> None:
        # The first part of a split backward has no weight gradients yet, and the second needs the parameters gathered.
        if split:
            self._switch(reduce=False, reshard=False, last=False)
        else:
            self._switch(reduce=last or self._reduce_always, reshard=last or self._reshard_always, last=last)

    def before_weights(self) -> None:
        if self._reshard_always:
            for module in self._stage.modules():
                if isinstance(module, FSDPModule):
                    module.unshard()

    def after_weights(self, *, last: bool) -> None:
        self._switch(reduce=last or self._reduce_always, reshard=last or self._reshard_always, last=last)
        for state in _states(self._stage):
            for group in _parameter_groups(state):
                group.post_backward()
        fully_shard.state(self._stage)._root_post_backward_final_callback()  # type: ignore[attr-defined]

    def finish(self) -> None:
        pass

    def _switch(self, *, reduce: bool, reshard: bool, last: bool) -> None:
        """Set what differs from before: each switch walks over all modules."""
        assert isinstance(self._stage, FSDPModule)
        if (reduce, reshard, last) == self._switches:
            return
        self._switches = (reduce, reshard, last)
        self._stage.set_requires_gradient_sync(reduce)
        self._stage.set_requires_all_reduce(last)
        self._stage.set_reshard_after_backward(reshard)
        self._stage.set_is_last_backward(last)


def shards(strategy: Strategy, types: TensorTypes, experts: ExpertGrid | None) -> bool:
    """Whether the parameters are held by FSDP2. Replicas of tensor- and expert-parallel ones are: buckets hold plain tensors."""
    if types.is_mixed or types.reduced != types.computed or (experts is not None and experts.num_copies > 1):
        return True
    replicas = strategy.data_parallel_size * strategy.context_parallel_size
    return replicas > 1 and (strategy.zero_stage > 0 or strategy.tensor_parallel_size > 1 or experts is not None)


def data_parallelize(
    stage: PipelineStage,
    structure: ModelStructure,
    mesh: ParallelMesh,
    experts: ExpertGrid | None,
    strategy: Strategy,
    types: TensorTypes,
) -> GradientSync:
    """Shard or replicate the parameters of ``stage``, which are cut, tensor-sharded and recomputed already. In place."""
    if shards(strategy, types, experts):
        _fully_shard(stage, structure, mesh, experts, strategy, types)
        return ShardedSync(stage, strategy.zero_stage)
    if mesh.num_replicas > 1:
        # Without shards there is one data axis: dp_replicate.
        return GradientBuckets(stage, mesh.group("dp_replicate"))
    return NoSync()


def _fully_shard(
    stage: PipelineStage,
    structure: ModelStructure,
    mesh: ParallelMesh,
    experts: ExpertGrid | None,
    strategy: Strategy,
    types: TensorTypes,
) -> None:
    policy = MixedPrecisionPolicy(
        param_dtype=types.computed if types.is_mixed else None, reduce_dtype=types.reduced if types.reduced != types.computed else None
    )
    options: dict[str, Any] = {"mesh": _sharding_mesh(mesh), "mp_policy": policy, "reshard_after_forward": strategy.zero_stage >= 3}
    if experts is not None:
        _shard_experts(stage, structure, experts, options)
    blocks = stage.model.get_submodule(structure.blocks)
    for block in blocks.children():
        fully_shard(block, **options)
    # What the root holds (embeddings, head) is needed again at once, when the backward begins.
    fully_shard(stage, **(options | {"reshard_after_forward": False}))
    assert isinstance(stage, FSDPModule)
    if mesh.num_replicas > 1:
        for module in stage.modules():
            if isinstance(module, FSDPModule):
                _sum_gradients(module)


def _shard_experts(stage: PipelineStage, structure: ModelStructure, grid: ExpertGrid, options: dict[str, Any]) -> None:
    """Experts over the ranks that hold the same ones; before the blocks around them, which take what is left."""
    # Their input is in the block's type already, and routing weights stay in the router's.
    policy = replace(options["mp_policy"], cast_forward_inputs=False)
    for _, module in stacked_experts(stage.model, structure.layout):
        fully_shard(module, **(options | {"mesh": grid.sharding, "mp_policy": policy, "shard_placement_fn": grid.placement}))
        assert isinstance(module, FSDPModule)
        if grid.num_copies > 1:
            _sum_gradients(module)


def _sum_gradients(module: FSDPModule) -> None:
    module.set_gradient_divide_factor(1.0)
    module.set_force_sum_reduction_for_comms(True)


def _sharding_mesh(mesh: ParallelMesh) -> DeviceMesh:
    """1-D where there is one copy of the shards, (copies, shards) otherwise (HSDP)."""
    return mesh.data if mesh.size("dp_replicate") > 1 else mesh.device_mesh["dp_shard"]


def _states(stage: nn.Module) -> Iterator[Any]:
    yield from fully_shard.state(stage)._state_ctx.all_states  # type: ignore[attr-defined]


def _parameter_groups(state: Any) -> list[Any]:
    """One a module up to torch 2.11, a list since."""
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:
        groups = [state._fsdp_param_group] if state._fsdp_param_group else []
    return list(groups)


def gathered_parameters(stage: PipelineStage) -> list[nn.Parameter]:
    """The parameters that the graph of the last forward of ``stage`` ends in: FSDP's gathered ones, or the stage's own."""
    if not isinstance(stage, FSDPModule):
        return [parameter for parameter in stage.parameters() if parameter.requires_grad]
    held = (parameter for state in _states(stage) for group in _parameter_groups(state) for parameter in group.fsdp_params)
    return [p.unsharded_param for p in held if p.sharded_param.requires_grad and hasattr(p, "_unsharded_param")]
