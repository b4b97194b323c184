"""Numbers of a model that change what it learns and not how fast it trains: a framework that is not told them takes its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from autopar.costmodel.spec.model import ModelSpec, PositionEmbedding

NUMBERS = {"rotary_base": "rotary base", "norm_epsilon": "norm epsilon"}
"""The model's fields and what people call them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usual:
    """What a framework calls one of ``NUMBERS``, and what it takes where nobody says it."""

    name: str
    value: float


def numbers_of(model: ModelSpec) -> tuple[str, ...]:
    """The fields of ``NUMBERS`` that ``model`` has at all."""
    rotary = model.position_embedding is PositionEmbedding.ROTARY
    return tuple(field for field in NUMBERS if rotary or field != "rotary_base")


def whole(number: float) -> int | float:
    """``number`` as people write it: 500000 for 500000.0."""
    return int(number) if float(number).is_integer() else number


def unsaid_notes(framework: str, model: ModelSpec, usual: Mapping[str, Usual]) -> Iterator[str]:
    """One note for each number that the plan's model leaves open, with the framework's own."""
    for field in numbers_of(model):
        if field in usual and not getattr(model, field):
            known = usual[field]
            yield f"The plan does not say the model's {NUMBERS[field]}: set {known.name}, or {framework} takes {whole(known.value)}."


def scaling_note(model: ModelSpec, how: str) -> Iterator[str]:
    """That the published model stretches its rotary positions, which is left to the person; ``how`` says what adds it."""
    if model.rotary_scaling and model.position_embedding is PositionEmbedding.ROTARY:
        yield f"The published model's scaling of rotary positions ({model.rotary_scaling}) is left to you: {how}."


def other_notes(framework: str, model: ModelSpec, own: Mapping[str, float], scaling: str) -> Iterator[str]:
    """One note for each number, and for the scaling, that the framework's own definition of the model has otherwise."""
    for field in numbers_of(model):
        planned, theirs = getattr(model, field), own.get(field, 0.0)
        if planned and theirs and planned != theirs:
            yield f"{framework} has {NUMBERS[field]} {whole(theirs)} for this model, the plan {whole(planned)}: change it there."
    if model.rotary_scaling and model.rotary_scaling != scaling:
        own_scaling = scaling or "by nothing"
        yield f"{framework} scales rotary positions {own_scaling} for this model, the plan {model.rotary_scaling}: change it there."
