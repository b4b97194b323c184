"""The layout of a model of no known family, from its modules alone."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from .family import Family


def generic_family(model: nn.Module) -> Family | str:
    """The layout of ``model``, or why it has none.

    The blocks are the list of like modules that holds most parameters. Modules registered before it run before it, as in every
    model that builds its parts in order; the first embedding among them is the token table, the last linear layer after it the
    head. Which linear layers may be split is not decided here.
    """
    blocks = max(_block_lists(model), key=lambda named: _size(named[1]), default=None)
    if blocks is None:
        return "has no repeated blocks: two or more modules of one class, with parameters, in a list"
    path = blocks[0]
    before, after = _around(model, path)
    vocabulary = [name for name in before if type(model.get_submodule(name)) is nn.Embedding]
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


def _around(model: nn.Module, blocks: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Modules with parameters of their own, registered before and after the blocks."""
    before: list[str] = []
    after: list[str] = []
    passed = False
    for path, module in model.named_modules():
        if path == blocks or path.startswith(f"{blocks}."):
            passed = True
        elif path and next(module.parameters(recurse=False), None) is not None:
            (after if passed else before).append(path)
    return tuple(before), tuple(after)
