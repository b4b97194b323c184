"""The catalog of published models: names, aliases and shapes, each with the place it is published.

Files under ``models/`` hold one family each. Names are found by a scan of the headers, and only the
file that holds the wanted model is parsed, so that planning starts at once.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from autopar.costmodel.spec.errors import UnknownNameError
from autopar.costmodel.spec.model import LatentAttention, MixtureOfExperts, ModelSpec, Norm, PositionEmbedding

_FOLDER = Path(__file__).with_name("models")
_ENTRY = re.compile(r'^\[models\.(?:"([^"\n]+)"|([\w-]+))\]\n(?:aliases = \[([^\]\n]*)\]\n)?', re.MULTILINE)
_ABOUT_COUNT = ("aliases", "parameters", "parameters_source")


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedCount:
    """The parameters a model is published to have, and where that is said."""

    parameters: int
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    file: Path
    name: str


def model(name: str) -> ModelSpec:
    """The model of this name or alias; case does not matter, and ``_`` reads as ``-``.

    Raises:
        UnknownNameError: the catalog has no such model; names the close matches.
    """
    return _spec(_place(name))


def model_names() -> tuple[str, ...]:
    """Every model of the catalog, sorted, without aliases."""
    return tuple(sorted({place.name for place in _index().values()}))


def model_aliases() -> dict[str, str]:
    """Every alias, with the name it stands for."""
    return {alias: place.name for alias, place in sorted(_index().items()) if alias != place.name}


def published_count(name: str) -> PublishedCount:
    """How many parameters the model is published to have, which its shape must add up to.

    Raises:
        UnknownNameError: the catalog has no such model; names the close matches.
    """
    place = _place(name)
    table = _parsed(place.file)["models"][place.name]
    return PublishedCount(parameters=table["parameters"], source=table["parameters_source"])


def _place(name: str) -> _Place:
    index = _index()
    place = index.get(name.strip().lower().replace("_", "-"))
    if place is None:
        raise UnknownNameError("model", name, index)
    return place


@cache
def _index() -> dict[str, _Place]:
    index: dict[str, _Place] = {}
    for file in sorted(_FOLDER.glob("*.toml")):
        for name, aliases in _headers(file.read_text(encoding="utf-8")):
            place = _Place(file=file, name=name)
            index.update(dict.fromkeys((name, *aliases), place))
    return index


def _headers(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Name and aliases of each entry. The list of aliases stands on the line after the header, in every file."""
    for quoted, bare, aliases in _ENTRY.findall(text):
        yield quoted or bare, tuple(re.findall(r'"([^"]+)"', aliases))


@cache
def _parsed(file: Path) -> dict[str, Any]:
    return tomllib.loads(file.read_text(encoding="utf-8"))


@cache
def _spec(place: _Place) -> ModelSpec:
    tables = _parsed(place.file)
    shape = {**tables.get("defaults", {}), **tables["models"][place.name]}
    for key in _ABOUT_COUNT:
        shape.pop(key, None)
    for key, kind in (("norm", Norm), ("position_embedding", PositionEmbedding)):
        if key in shape:
            shape[key] = kind(shape[key])
    if "moe" in shape:
        shape["moe"] = MixtureOfExperts(**shape["moe"])
    if "latent_attention" in shape:
        shape["latent_attention"] = LatentAttention(**shape["latent_attention"])
    return ModelSpec(name=place.name, **shape)
