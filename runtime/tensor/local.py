"""Parameters that are DTensors, and forward passes that compute on their local parts.

The state (optimizer, clipping, checkpoints, FSDP2) sees DTensors with the user's names. Arithmetic sees plain tensors: a
DTensor's dispatch costs 1.4 to 1.8 times a step of small shapes, and models index, view and split weights in ways that
have no sharding rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from autopar.runtime.loss import first_index

from .fused import FusedLayout, set_fused_layout

_SHARDED = "_autopar_sharded"
_PARTIAL = "_autopar_partial_gradients"


def shard_parameter(module: nn.Module, name: str, mesh: DeviceMesh, dim: int | None, fused: FusedLayout | None = None) -> None:
    """Make parameter ``name`` of ``module`` a DTensor on ``mesh``: sharded along ``dim``, or replicated where None.

    A parameter that two modules share stays one parameter.
    """
    whole = module._parameters.get(name)
    if whole is None or isinstance(whole, DTensor):
        return
    sharded = getattr(whole, _SHARDED, None)
    if sharded is None:
        local = whole.detach() if fused is None else fused.to_stored(whole.detach())
        if dim is not None:
            size, rank = mesh.size(), mesh.get_local_rank()
            start, end = (first_index(local.shape[dim], size, part) for part in (rank, rank + 1))
            local = local.narrow(dim, start, end - start).clone(memory_format=torch.contiguous_format)
        placement = Replicate() if dim is None else Shard(dim)
        tensor = DTensor.from_local(local, mesh, [placement], run_check=False, shape=whole.shape, stride=whole.stride())
        sharded = nn.Parameter(tensor, requires_grad=whole.requires_grad)
        setattr(whole, _SHARDED, sharded)
    module._parameters[name] = sharded
    if fused is not None:
        set_fused_layout(module, name, fused)


def local_parameter(module: nn.Module, name: str) -> Tensor | None:
    """This rank's part of a parameter, as autograd sees it."""
    parameter = module._parameters[name]
    return _local_part(parameter) if isinstance(parameter, DTensor) else parameter


class _LocalPart(torch.autograd.Function):
    """A parameter to its local part, and that part's gradient to a DTensor laid out as the parameter.

    ``DTensor.to_local`` does the same, and works out anew at each call what is known: 0.2 ms a parameter and pass.
    """

    @staticmethod
    def forward(ctx: Any, parameter: DTensor) -> Tensor:
        ctx.spec = parameter._spec
        ctx.set_materialize_grads(False)
        local = parameter._local_tensor
        return local.view_as(local)  # its own tensor, so that the parameter's keeps no graph

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> DTensor | None:
        return None if grad is None else DTensor(grad.contiguous(), ctx.spec, requires_grad=False)  # type: ignore[no-untyped-call]


def _local_part(parameter: DTensor) -> Tensor:
    return cast(Tensor, _LocalPart.apply(parameter))  # type: ignore[no-untyped-call]


@contextmanager
def local_parameters(*modules: nn.Module) -> Iterator[None]:
    """Within, the modules' own parameters are their local parts; those that FSDP2 holds sharded are left to it."""
    swapped: list[tuple[nn.Module, str, DTensor]] = []
    try:
        for module in modules:
            for name, parameter in module._parameters.items():
                if isinstance(parameter, DTensor) and parameter.device_mesh.ndim == 1:
                    module._parameters[name] = cast(nn.Parameter, _local_part(parameter))
                    swapped.append((module, name, parameter))
        yield
    finally:
        for module, name, held in swapped:
            module._parameters[name] = cast(nn.Parameter, held)


def run_locally(module: nn.Module, *inside: nn.Module) -> None:
    """Make ``module`` compute on local parts of its own parameters, and of those of the modules ``inside`` that it reads itself."""
    forward, read = module.forward, (module, *inside)

    def on_local_parts(*args: Any, **kwargs: Any) -> Any:
        with local_parameters(*read):
            return forward(*args, **kwargs)

    replace_forward(module, on_local_parts)


def replace_forward(module: nn.Module, forward: Callable[..., Any]) -> None:
    module.forward = forward


def mark_partial(module: nn.Module, *names: str) -> None:
    """Say that the gradient of these parameters is, on each rank, a part of a sum over the group."""
    setattr(module, _PARTIAL, getattr(module, _PARTIAL, frozenset()) | set(names))


def partial_gradient_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters whose gradients are still to be summed over the tensor-parallel group, by fully qualified name."""
    found = {}
    for path, module in model.named_modules():
        for name in sorted(getattr(module, _PARTIAL, ())):
            parameter = module._parameters.get(name)
            if parameter is not None:
                found[f"{path}.{name}" if path else name] = parameter
    return found
