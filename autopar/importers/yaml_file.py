"""YAML, read where the package for it is installed."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from autopar.costmodel.spec.errors import Fault, InvalidInputError, UnavailableError
from autopar.exporters.nested import flattened


def read_yaml(text: str) -> dict[str, object]:
    """The document's values by dotted names.

    Raises:
        InvalidInputError: it is not YAML, or no table.
        UnavailableError: PyYAML is not installed.
    """
    try:
        yaml = import_module("yaml")
    except ImportError:
        raise UnavailableError("reading YAML needs PyYAML: `pip install autopar[yaml]`") from None
    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise InvalidInputError(Fault(field="configuration", given="", required=f"is not YAML: {' '.join(str(error).split())}")) from None
    if not isinstance(document, Mapping):
        raise InvalidInputError(Fault(field="configuration", given=type(document).__name__, required="one table of settings is needed"))
    return flattened({str(name): value for name, value in document.items()})
