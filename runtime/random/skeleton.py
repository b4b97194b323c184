"""The shape of a whole model on the meta device, and which of its code sets which of its tensors."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from autopar.costmodel.spec.errors import Fault, InvalidInputError

Call = Callable[[], object]
"""Model code, bound to the module of the skeleton whose tensors it sets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Tensors that are initialised together: one parameter, or all buffers of one module.

    ``names``: their fully qualified names, the first ones where tied tensors have several.
    """

    names: tuple[str, ...]


class Skeleton:
    """A copy of a model's modules without values, in which one unit at a time can be made real."""

    def __init__(self, root: nn.Module, places: dict[str, list[tuple[nn.Module, str]]], alias: dict[str, str]) -> None:
        self._root = root
        self._places = places
        self._alias = alias
        self._units: dict[str, Unit] = {}
        self._calls: dict[str, dict[int, Call]] = {}
        self._attributes: list[str] = []

    @classmethod
    def of(cls, model: nn.Module, initialise: Callable[[nn.Module], object] | None) -> Skeleton:
        """Copy ``model`` and run its initialising code once on the meta device, to see what each part of it sets."""
        root = _copy_module(model, {}, {})
        places, alias = _places(root)
        skeleton = cls(root, places, alias)
        skeleton._attributes = _meta_attributes(model)
        on_meta = {alias[name] for name, tensor in _named(model) if tensor.is_meta}
        skeleton._units = _units(root, places, alias, on_meta)
        if skeleton._units:
            skeleton._calls = _setters(list(_calls(root, initialise)), places)
        return skeleton

    def canonical(self, name: str) -> str:
        """The first name of the tensor called ``name``."""
        return self._alias[name]

    def unit(self, name: str) -> Unit | None:
        """The unit that sets the tensor called ``name``; None where the model has no such tensor on the meta device."""
        return self._units.get(self._alias.get(name, ""))

    @property
    def units(self) -> tuple[Unit, ...]:
        return tuple(dict.fromkeys(self._units.values()))

    def faults(self) -> tuple[Fault, ...]:
        """Tensors on the meta device that no code sets."""
        required, fix = (
            "needs code that sets its values",
            "give its module a reset_parameters that sets it, pass initialise=, or build real values",
        )
        unset = [
            Fault(field=name, given="on the meta device", required=required, fix=fix) for name in self._units if not self._calls.get(name)
        ]
        lost = [
            Fault(field=name, given="a tensor on the meta device", required="a registered buffer or parameter", fix="use register_buffer")
            for name in self._attributes
        ]
        return (*unset, *lost)

    def initialised(self, unit: Unit, device: torch.device, *, fill: float = 0) -> list[Tensor]:
        """The tensors of ``unit`` after all code that sets any of them; what is left unset is NaN, or ``fill`` in integers."""
        calls = {order: call for name in unit.names for order, call in self._calls[name].items()}
        with self._real(unit, device, fill) as tensors, torch.no_grad():
            for order in sorted(calls):
                calls[order]()
        return [tensor.detach() for tensor in tensors]

    @contextmanager
    def _real(self, unit: Unit, device: torch.device, fill: float) -> Iterator[list[Tensor]]:
        tensors = []
        for name in unit.names:
            module, attribute = self._places[name][0]
            store = store_of(module, attribute)
            meta = store[attribute]
            value = float("nan") if meta.is_floating_point() else fill
            tensor = torch.full(meta.shape, value, dtype=meta.dtype, device=device)
            tensors.append(nn.Parameter(tensor, requires_grad=meta.requires_grad) if isinstance(meta, nn.Parameter) else tensor)
        metas = [store_of(*self._places[name][0])[self._places[name][0][1]] for name in unit.names]
        try:
            self._put(unit, tensors)
            yield tensors
        finally:
            self._put(unit, metas)

    def _put(self, unit: Unit, tensors: Sequence[Tensor]) -> None:
        for name, tensor in zip(unit.names, tensors, strict=True):
            for module, attribute in self._places[name]:
                store_of(module, attribute)[attribute] = tensor


def _copy_module(module: nn.Module, modules: dict[int, nn.Module], tensors: dict[int, Tensor]) -> nn.Module:
    """``module`` and its children with every tensor on the meta device; other attributes are shared."""
    if id(module) in modules:
        return modules[id(module)]
    twin = modules[id(module)] = copy.copy(module)
    twin._parameters = {name: _copy_tensor(tensor, tensors) for name, tensor in module._parameters.items()}  # type: ignore[misc]
    twin._buffers = {name: _copy_tensor(tensor, tensors) for name, tensor in module._buffers.items()}
    twin._modules = {name: None if child is None else _copy_module(child, modules, tensors) for name, child in module._modules.items()}
    return twin


def _copy_tensor(tensor: Tensor | None, tensors: dict[int, Tensor]) -> Tensor | None:
    if tensor is None:
        return None
    if id(tensor) not in tensors:
        twin = torch.empty_like(tensor, device="meta")
        tensors[id(tensor)] = nn.Parameter(twin, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else twin
    return tensors[id(tensor)]


def _places(root: nn.Module) -> tuple[dict[str, list[tuple[nn.Module, str]]], dict[str, str]]:
    """The places of each tensor by its first name, and the first name of every name."""
    first: dict[int, str] = {}
    places: dict[str, list[tuple[nn.Module, str]]] = {}
    alias: dict[str, str] = {}
    for prefix, module in root.named_modules(remove_duplicate=False):
        for attribute, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                name = f"{prefix}.{attribute}" if prefix else attribute
                alias[name] = first.setdefault(id(tensor), name)
                places.setdefault(alias[name], []).append((module, attribute))
    return places, alias


def _units(root: nn.Module, places: dict[str, list[tuple[nn.Module, str]]], alias: dict[str, str], on_meta: set[str]) -> dict[str, Unit]:
    """The unit of each first name that is on the meta device."""
    units: dict[str, Unit] = {}
    for prefix, module in root.named_modules():
        dot = f"{prefix}." if prefix else ""
        for attribute, parameter in module._parameters.items():
            if parameter is not None and (name := alias[dot + attribute]) in on_meta:
                units.setdefault(name, Unit(names=(name,)))
        buffers = [alias[dot + attribute] for attribute, buffer in module._buffers.items() if buffer is not None]
        names = tuple(name for name in dict.fromkeys(buffers) if name in on_meta and name not in units)
        units.update(dict.fromkeys(names, Unit(names=names)))
    assert set(units) <= set(places)
    return units


def _calls(root: nn.Module, initialise: Callable[[nn.Module], object] | None) -> Iterator[tuple[str, Call]]:
    """Everything that may set values, in the order of a single process: constructors, the model's own code, the user's."""
    modules = list(_post_order(root, "", root, set()))
    for name, module, _ in modules:
        for method in ("reset_parameters", "_reset_parameters"):
            if callable(reset := getattr(module, method, None)):
                yield f"{name}.{method}".lstrip("."), reset
                break
    for name, module, model in modules:
        if callable(getattr(model, "_init_weights", None)):
            yield f"_init_weights({name})", partial(model._init_weights, module)
    if initialise is not None:
        for name, module, _ in modules:
            yield f"initialise({name})", partial(initialise, module)


def _post_order(module: nn.Module, name: str, model: nn.Module, seen: set[int]) -> Iterator[tuple[str, nn.Module, Any]]:
    """Modules, children first, each with its name and the nearest module around it that has ``_init_weights``."""
    if id(module) in seen:
        return
    seen.add(id(module))
    nearest = module if callable(getattr(module, "_init_weights", None)) else model
    for child_name, child in module.named_children():
        yield from _post_order(child, f"{name}.{child_name}".lstrip("."), nearest, seen)
    yield name, module, nearest


def _setters(calls: Sequence[tuple[str, Call]], places: dict[str, list[tuple[nn.Module, str]]]) -> dict[str, dict[int, Call]]:
    """The calls that write each tensor, by their order, found by running all of them on the meta device."""
    owner = {store_of(*found[0])[found[0][1]].untyped_storage()._cdata: name for name, found in places.items()}
    setters: dict[str, dict[int, Call]] = {}
    for order, (label, call) in enumerate(calls):
        watch = _Writes()
        try:
            with watch, torch.no_grad():
                call()
        except Exception as error:
            required = "code that runs on the meta device, where tensors have shapes and no values"
            raise InvalidInputError(Fault(field=label, given=f"{type(error).__name__}: {error}", required=required)) from error
        for name in dict.fromkeys(owner[storage] for storage in watch.storages if storage in owner):
            setters.setdefault(name, {})[order] = call
    return setters


class _Writes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the storages that operators write."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.storages: dict[int, None] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        named = kwargs or {}
        for index, argument in enumerate(func._schema.arguments):
            value = args[index] if index < len(args) else named.get(argument.name)
            if argument.alias_info is not None and argument.alias_info.is_write and isinstance(value, Tensor):
                self.storages[value.untyped_storage()._cdata] = None
        return func(*args, **named)


def _meta_attributes(model: nn.Module) -> list[str]:
    return [
        f"{prefix}.{name}".lstrip(".")
        for prefix, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, Tensor) and value.is_meta
    ]


def _named(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]


def store_of(module: nn.Module, attribute: str) -> dict[str, Any]:
    """The dictionary of ``module`` that holds the parameter or buffer ``attribute``."""
    return module._parameters if attribute in module._parameters else module._buffers
