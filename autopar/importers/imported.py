"""What an importer finds in a configuration, before the machines and, where it does not say it, the model are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from autopar.costmodel.spec.model import ModelSpec
from autopar.exporters.rule import Configuration, FrameworkRule
from autopar.exporters.settings import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The text of a configuration, and the folder that its relative paths start from."""

    text: str
    name: str
    folder: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A configuration as plan fields. ``fields`` are dotted (``strategy.tensor_parallel_size``); 0 and None mean "not said"."""

    name: str
    """The importer's."""
    framework: str
    """The execution profile that it runs under."""
    fields: Mapping[str, Value]
    configuration: Configuration
    rules: tuple[FrameworkRule, ...]
    model: ModelSpec | None = None
    model_name: str = ""
    """Catalog name of the model, where the configuration names one."""
    world_size: int = 0
    world_size_is_usual: bool = False
    """The number is the one that a recipe is published for: another may be given."""
    gpus_per_node: int = 0
    device: str = ""
    unknown: tuple[str, ...] = ()
    """Settings that the framework is not known to have: kept as they are."""
    ignored: tuple[str, ...] = ()
    """Settings of the framework that make no difference to an estimate, or whose difference is not modelled."""
    kept: tuple[str, ...] = ()
    """Both of them as they stood, to be written again by an export to the same framework."""
    usual_numbers: Mapping[str, float] = field(default_factory=dict)
    """What the framework takes for numbers of the model (``rotary_base``, ``norm_epsilon``) that the configuration leaves out."""
    unsaid: Mapping[str, str] = field(default_factory=dict)
    """Fields that the configuration leaves to somebody else, and what a person is to do about it."""
    shard_copies: int = 1
    """How many times over the data- and context-parallel ranks hold the sharded states."""
    remarks: tuple[str, ...] = ()
    """What was read in a way that a person should know."""


class Importer(Protocol):
    """Reads one framework's configurations."""

    @property
    def name(self) -> str:
        """As ``--from`` takes it."""

    def read(self, source: Source) -> Imported:
        """The plan's fields in ``source``.

        Raises:
            InvalidInputError: it cannot be read, or contradicts itself; all faults at once.
        """
