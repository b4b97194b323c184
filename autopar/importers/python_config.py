"""Reads a configuration function in Python without running it: assignments to ``config.section.key``."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from autopar.costmodel.spec.errors import Fault, InvalidInputError


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonConfig:
    """What the functions of a module assign, by dotted names without the variable's, and the function that they start from."""

    values: dict[str, object]
    base: str


def python_settings(text: str) -> PythonConfig:
    """The assignments of a module.

    Raises:
        InvalidInputError: the text is not Python, or assigns nothing of this form.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise InvalidInputError(Fault(field="configuration", given="", required=f"is not Python: {error}")) from None
    values: dict[str, object] = {}
    base = ""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        name = dotted(node.targets[0]).partition(".")[2]
        if name:
            values |= {name: value} if (value := _value(node.value)) is not None or _is_none(node.value) else {}
        elif isinstance(node.value, ast.Call) and dotted(node.value.func).endswith("_config"):
            base = dotted(node.value.func).rsplit(".", 1)[-1]
    if not values:
        required = "assigns no config.section.key"
        raise InvalidInputError(Fault(field="configuration", given="", required=required, fix="give the module with the function"))
    return PythonConfig(values=values, base=base)


def dotted(node: ast.expr) -> str:
    """``a.b.c`` of a name with attributes; empty for any other expression."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attribute):
            return f"{dotted(value)}.{attribute}"
    return ""


def _value(node: ast.expr) -> object:
    """A literal, the words of a name (``torch.bfloat16``), or a list pattern such as ``[0] * 3 + [1] * 58`` as text."""
    if isinstance(node, ast.Attribute):
        return dotted(node)
    if isinstance(node, ast.BinOp):
        return ast.unparse(node)
    try:
        value: object = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError):
        return None
    return tuple(value) if isinstance(value, list) else value


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
