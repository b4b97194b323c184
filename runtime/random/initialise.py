"""Initial weights that do not depend on the layout.

A model on the meta device gets its values shard by shard: the value of a parameter is a function of the seed and of its fully
qualified name, so every layout cuts the same whole. One parameter at a time is built whole, initialised by the model's own
code with everything else still on the meta device (which draws no random numbers), cut, and dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from autopar.costmodel.spec.errors import Fault, raise_if
from autopar.runtime.tensor.fused import FusedLayout, fused_layouts

from .agreement import agree
from .keys import key
from .names import clean_name
from .shards import cut
from .skeleton import Skeleton, Unit, store_of

_Place = tuple[nn.Module, str, str]
"""A module, its attribute that holds a tensor, and the tensor's name in the model."""

Initialiser = Callable[[nn.Module], object]
"""Sets the values of a module in place, as for :meth:`torch.nn.Module.apply`; called for every module, children first."""


class InitialWeights:
    """What the weights of a model are to be, read before the model is cut or sharded.

    Model code that sets values is called as a single process would: ``reset_parameters`` of every module, then the
    ``_init_weights(module)`` of the nearest model around it (Hugging Face's convention, scaled residual projections
    included), then the user's own initialiser.
    """

    def __init__(self, skeleton: Skeleton, *, seed: int) -> None:
        self._skeleton = skeleton
        self._seed = seed

    @classmethod
    def read(cls, model: nn.Module, *, seed: int, initialise: Initialiser | None = None) -> InitialWeights:
        """Note how the parameters and buffers of ``model`` on the meta device are set; real ones are made equal on all ranks.

        Real values stay: where ranks hold different ones (each built the model from its own random numbers), rank 0's win.

        Raises:
            InvalidInputError: parameters or buffers on the meta device that no code sets, all of them at once.
        """
        agree(model)
        skeleton = Skeleton.of(model, initialise)
        raise_if(skeleton.faults())
        return cls(skeleton, seed=seed)

    @torch.no_grad()
    def give_to(self, parts: Iterable[nn.Module], *, device: torch.device) -> None:
        """Replace what is on the meta device in ``parts`` of the model (stages, sharded or not) by values on ``device``.

        A part's modules keep the model's fully qualified names. Sharded parameters are distributed tensors; tied ones get the
        same values, also when their modules are in different parts.
        """
        for part in parts:
            done: dict[int, Tensor] = {}
            fused = fused_layouts(part)
            for unit, holders in self._waiting(part):
                self._give(unit, holders, fused, done, device)
            left = [name for name, tensor in _named(part) if tensor.is_meta]
            raise_if([Fault(field=name, given="on the meta device", required="a name that the uncut model has") for name in left])

    def _give(
        self, unit: Unit, holders: Sequence[_Place], fused: dict[str, FusedLayout], done: dict[int, Tensor], device: torch.device
    ) -> None:
        """``done``: what took the place of a tensor, by the id of the one before, so that tied tensors stay one."""
        values = dict(zip(unit.names, self.values(unit, device), strict=True))
        for module, attribute, name in holders:
            old = store_of(module, attribute)[attribute]
            if id(old) not in done:
                whole = values[self._skeleton.canonical(name)]
                done[id(old)] = _placed(fused[name].to_stored(whole) if name in fused else whole, old)
            store_of(module, attribute)[attribute] = done[id(old)]

    def values(self, unit: Unit, device: torch.device) -> list[Tensor]:
        """The whole tensors of ``unit``, the same for every layout."""
        devices = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(key(self._seed, "weights", unit.names[0]))
            whole = self._skeleton.initialised(unit, device)
            if all(tensor.is_floating_point() for tensor in whole):
                faults = [_partly(name) for name, tensor in zip(unit.names, whole, strict=True) if bool(tensor.isnan().any())]
            else:
                torch.manual_seed(key(self._seed, "weights", unit.names[0]))
                again = self._skeleton.initialised(unit, device, fill=1)
                pairs = zip(unit.names, whole, again, strict=True)
                faults = [_partly(name) for name, first, second in pairs if not torch.equal(first, second)]
        raise_if(faults)
        return whole

    def _waiting(self, part: nn.Module) -> Iterator[tuple[Unit, list[_Place]]]:
        """Units of which ``part`` has tensors on the meta device, with every place of them in the part."""
        places: dict[Unit, list[_Place]] = {}
        for prefix, module in part.named_modules(remove_duplicate=False):
            for attribute, tensor in _own(module):
                name = clean_name(f"{prefix}.{attribute}" if prefix else attribute)
                if tensor.is_meta and (unit := self._skeleton.unit(name)) is not None:
                    places.setdefault(unit, []).append((module, attribute, name))
        yield from places.items()


def _partly(name: str) -> Fault:
    return Fault(field=name, given="", required="initialised in every element", fix="set the rest in reset_parameters or initialise=")


def _placed(whole: Tensor, old: Tensor) -> Tensor:
    """``whole``, or this rank's shard of it, in place and in the type of ``old`` on the meta device."""
    new = whole = whole.to(old.dtype)
    if isinstance(old, DTensor):
        local = cut(whole, old).contiguous()
        local = local.clone() if local.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr() else local
        new = DTensor.from_local(local, old.device_mesh, old.placements, run_check=False, shape=old.shape, stride=old.stride())
    if isinstance(old, nn.Parameter):
        new = nn.Parameter(new, requires_grad=old.requires_grad)
    for name, value in old.__dict__.items():
        setattr(new, name, value)
    return new


def _own(module: nn.Module) -> list[tuple[str, Tensor]]:
    tensors: Sequence[tuple[str, Tensor | None]] = [*module._parameters.items(), *module._buffers.items()]
    return [(name, tensor) for name, tensor in tensors if tensor is not None]


def _named(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]
