"""The ``[fabric]`` table of cluster and topology files; imported where such a file is read, since pydantic is slow to load."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from .fabric import fabric_names

Oversubscription = Annotated[float, Field(ge=1, le=1000)]


def _known_preset(name: str) -> str:
    if name not in fabric_names():
        raise PydanticCustomError("unknown_preset", "{required}", {"required": f"one of {', '.join(fabric_names())}"})
    return name


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class RegionsTable(_Strict):
    """Fields of :class:`~autopar.catalog.fabric.Regions`."""

    nodes: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1, max_length=1000)]
    bandwidth: Annotated[float, Field(ge=1e6, le=1e15)]
    latency_seconds: Annotated[float, Field(ge=0, le=10)]


class FabricTable(_Strict):
    """Fields of :class:`~autopar.catalog.fabric.Fabric`, and the preset that gives the others."""

    preset: Annotated[str, AfterValidator(_known_preset)] | None = None
    kind: Literal["fat-tree", "rail-optimized"] | None = None
    nodes_per_leaf: Annotated[int, Field(ge=1, le=100_000)] | None = None
    switch_ports: Annotated[int, Field(ge=2, le=4096)] | None = None
    leaves_per_pod: Annotated[int, Field(ge=1, le=100_000)] | None = None
    leaf_oversubscription: Oversubscription | None = None
    spine_oversubscription: Oversubscription | None = None
    regions: RegionsTable | None = None
