"""Which linear layers of an unknown block are proven safe to split over a tensor-parallel group.

A pair is safe where the first layers' outputs reach nothing but the second layer's input, and only through operations on
single elements, or products and sums of two such outputs: each rank can then hold its own features of all of them, and the
second layer's outputs are partial sums. The proof is read from the block's graph (torch.fx), which needs no weights, no
example input and no device. Modules that cannot be traced stay whole.
"""

from __future__ import annotations

import copy
import inspect
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import fx, nn

ELEMENTWISE_MODULES = (
    nn.ReLU, nn.ReLU6, nn.GELU, nn.SiLU, nn.Mish, nn.Sigmoid, nn.Tanh, nn.ELU, nn.CELU, nn.SELU, nn.LeakyReLU, nn.Softplus,
    nn.Hardswish, nn.Hardtanh, nn.Hardsigmoid, nn.LogSigmoid, nn.Softsign, nn.Identity, nn.Dropout,
)  # fmt: skip
ELEMENTWISE_FUNCTIONS: frozenset[Callable[..., Any]] = frozenset({
    F.relu, F.relu6, F.gelu, F.silu, F.mish, F.sigmoid, F.tanh, F.elu, F.celu, F.selu, F.leaky_relu, F.softplus, F.hardswish,
    F.hardtanh, F.logsigmoid, F.softsign, F.dropout, torch.relu, torch.sigmoid, torch.tanh, torch.square, torch.abs, torch.exp,
    torch.erf, operator.neg,
})  # fmt: skip
ELEMENTWISE_METHODS = frozenset({"relu", "sigmoid", "tanh", "square", "abs", "exp", "erf", "float", "contiguous"})
BINARY_FUNCTIONS: frozenset[Callable[..., Any]] = frozenset({
    operator.mul, operator.add, operator.sub, operator.truediv, operator.pow, torch.mul, torch.add, torch.sub, torch.div, torch.pow,
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Layers to split along their output features, and the one that their outputs meet in, by their path in the block."""

    columns: tuple[str, ...]
    row: str
    features: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The pairs that are safe; ``reason`` says why there are none."""

    pairs: tuple[Pair, ...]
    reason: str = ""


def proven_pairs(block: nn.Module) -> Proof:
    """The linear layers of ``block`` that may be split, in training and in evaluation."""
    modes = {id(module): module.training for module in block.modules()}
    try:
        proofs = [_proof(block.train(training)) for training in (True, False)]
    finally:
        for module in block.modules():
            module.training = modes[id(module)]
    if proofs[0].pairs != proofs[1].pairs and all(proof.pairs for proof in proofs):
        return Proof(pairs=tuple(pair for pair in proofs[0].pairs if pair in proofs[1].pairs), reason="training and evaluation differ")
    return min(proofs, key=lambda proof: len(proof.pairs))


def _proof(block: nn.Module) -> Proof:
    tracer = _Tracer()
    try:
        graph = tracer.trace(block)
    except Exception as error:  # a forward may raise anything when it meets a proxy
        return Proof(pairs=(), reason=f"its forward cannot be traced: {_first_line(error)}")
    pairs = tuple(_pairs(block, graph))
    if pairs:
        return Proof(pairs=pairs)
    reason = "no linear layer's output reaches only another linear layer, through operations on single elements"
    return Proof(pairs=(), reason=f"{reason}{tracer.untraced()}")


class _Tracer(fx.Tracer):
    """Traces through user modules; those whose own forward cannot be traced become nodes of the graph."""

    def __init__(self) -> None:
        super().__init__()
        self._leaves: dict[str, str] = {}

    def trace(self, root: nn.Module, concrete_args: dict[str, Any] | None = None) -> fx.Graph:  # type: ignore[override]
        return super().trace(_undecorated(root), concrete_args)

    def keys(self, obj: fx.Proxy) -> Any:
        """``**options`` that a forward passes on are none."""
        del obj
        return iter(())

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if super().is_leaf_module(m, module_qualified_name):
            return True
        if module_qualified_name not in self._leaves:
            try:
                _Tracer().trace(m)
            except Exception as error:  # as above
                self._leaves[module_qualified_name] = f"{type(m).__name__} ({_first_line(error)})"
        return module_qualified_name in self._leaves

    def untraced(self) -> str:
        return f"; not traced: {', '.join(dict.fromkeys(self._leaves.values()))}" if self._leaves else ""


def _undecorated(module: nn.Module) -> nn.Module:
    """``module`` with the forward inside its decorators, whose catch-all arguments torch.fx cannot name."""
    forward = inspect.unwrap(type(module).forward)
    if forward is type(module).forward:
        return module
    kind = type(type(module).__name__, (type(module),), {})
    kind.forward = forward  # type: ignore[attr-defined]  # set late: a base class may decorate what a subclass defines
    bare = copy.copy(module)
    bare.__class__ = kind
    return bare


def _pairs(block: nn.Module, graph: fx.Graph) -> Iterator[Pair]:
    shared = _shared_or_read(block, graph)
    calls: dict[str, int] = {}
    for node in graph.nodes:
        if node.op == "call_module":
            calls[str(node.target)] = calls.get(str(node.target), 0) + 1

    def is_free_linear(node: fx.Node) -> bool:
        name = str(node.target)
        return (
            node.op == "call_module" and type(block.get_submodule(name)) is nn.Linear and calls[name] == 1 and not name.startswith(shared)
        )

    for node in graph.nodes:
        if not is_free_linear(node) or len(node.args) != 1:
            continue
        columns = _origins(node.args[0], block, is_free_linear)
        if columns and all(_reaches_only(column, node, block) for column in columns):
            names = tuple(dict.fromkeys(str(column.target) for column in columns))
            row = block.get_submodule(str(node.target))
            yield Pair(columns=names, row=str(node.target), features=int(row.get_parameter("weight").shape[1]))


def _origins(value: Any, block: nn.Module, is_free_linear: Callable[[fx.Node], bool]) -> tuple[fx.Node, ...]:
    """The linear layers that ``value`` is made of by operations on single elements; empty if it is made of anything else."""
    if not isinstance(value, fx.Node):
        return ()
    if is_free_linear(value):
        return (value,)
    if not _is_elementwise(value, block):
        return ()
    found: list[fx.Node] = []
    for argument in value.all_input_nodes:
        origins = _origins(argument, block, is_free_linear)
        if not origins:
            return ()
        found.extend(origins)
    return tuple(found)


def _reaches_only(node: fx.Node, end: fx.Node, block: nn.Module) -> bool:
    return all(user is end or (_is_elementwise(user, block) and _reaches_only(user, end, block)) for user in node.users)


def _is_elementwise(node: fx.Node, block: nn.Module) -> bool:
    if node.op == "call_module":
        return isinstance(block.get_submodule(str(node.target)), ELEMENTWISE_MODULES)
    if node.op == "call_function":
        single = node.target in ELEMENTWISE_FUNCTIONS and len(node.all_input_nodes) == 1
        return single or node.target in BINARY_FUNCTIONS
    if node.op == "call_method":
        return node.target in ELEMENTWISE_METHODS and len(node.all_input_nodes) == 1
    return False


def _shared_or_read(block: nn.Module, graph: fx.Graph) -> tuple[str, ...]:
    """Prefixes of modules whose parameters are used otherwise than by calling the module."""
    owners: dict[int, list[str]] = {}
    for name, parameter in block.named_parameters(remove_duplicate=False):
        owners.setdefault(id(parameter), []).append(name.rpartition(".")[0])
    shared = {owner for names in owners.values() if len(names) > 1 for owner in names}
    read = {str(node.target).rpartition(".")[0] for node in graph.nodes if node.op == "get_attr"}
    return tuple(sorted((shared | read) - {""}))


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]
