"""The layout of a model of no known family, from its modules and the order in which it calls them."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from .family import Family
from .meta_run import order_of_calls


def generic_family(model: nn.Module) -> Family | str:
    """The layout of ``model``, or why it has none.

    The blocks are the list of like modules that holds most parameters; what is called before and after them comes from a run on
    the meta device. The first embedding before them is the token table, the last linear layer after them the head. Which linear
    layers may be split is not decided here.
    """
    blocks = max(_block_lists(model), key=lambda named: _size(named[1]), default=None)
    if blocks is None:
        return "has no repeated blocks: two or more modules of one class, with parameters, in a list"
    path = blocks[0]
    before, after, proven = _around(model, path)
    vocabulary = [name for name in before if isinstance(model.get_submodule(name), nn.Embedding)]
    heads = [name for name in after if type(model.get_submodule(name)) is nn.Linear]
    return Family(
        name="generic",
        blocks=path,
        prefix=before,
        suffix=after,
        regions=(),
        embedding=vocabulary[0] if vocabulary else "",
        final_norm="",
        head=heads[-1] if heads else "",
        order_is_known=proven,
    )


def _block_lists(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for path, module in model.named_modules():
        if not path or not isinstance(module, nn.ModuleList | nn.Sequential):
            continue
        children = list(module.children())
        alike = len(children) > 1 and len({type(child) for child in children}) == 1
        if alike and all(next(child.parameters(), None) is not None for child in children):
            yield path, module


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _around(model: nn.Module, blocks: str) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    """Modules with parameters of their own that run before and after the blocks, and whether that was seen.

    Where it was not, a module is taken to run when it is registered.
    """
    outside, index_of_blocks = _outside(model, blocks)
    calls = order_of_calls(model)
    in_blocks = [place for place, name in enumerate(calls) if name.startswith(f"{blocks}.")] or [-1]
    indices = [name.removeprefix(f"{blocks}.") for name in calls if name.startswith(f"{blocks}.")]
    seen = [name for name in indices if "." not in name] == list(model.get_submodule(blocks)._modules)
    before: list[str] = []
    after: list[str] = []
    for index, name in enumerate(outside):
        places = [place for place, called in enumerate(calls) if called == name]
        if places and places[-1] < in_blocks[0]:
            before.append(name)
        elif places and seen and places[0] > in_blocks[-1]:
            after.append(name)
        else:
            seen = False
            (before if index < index_of_blocks else after).append(name)
    if seen:
        before.sort(key=calls.index)
        after.sort(key=calls.index)
    return tuple(before), tuple(after), seen


def _outside(model: nn.Module, blocks: str) -> tuple[list[str], int]:
    """Modules with parameters of their own outside the blocks, and how many of them are registered before the blocks."""
    names: list[str] = []
    before = 0
    for path, module in model.named_modules():
        if path == blocks:
            before = len(names)
        elif path and not path.startswith(f"{blocks}.") and next(module.parameters(recurse=False), None) is not None:
            names.append(path)
    return names, before
