"""Where the parts of a model are: its repeated blocks, what runs before and after them, and which parameters are one.

Works on real and on meta modules alike, and reads shapes, never weights.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from autopar.costmodel.spec.errors import Fault, InvalidInputError
from autopar.costmodel.spec.model import ModelSpec

from .families.family import Family
from .families.generic import generic_family
from .families.generic_spec import generic_spec
from .families.hugging_face import HUGGING_FACE
from .families.reference import REFERENCE_GPT, reference_spec
from .reference_gpt import ReferenceGPT


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStructure:
    """The parts of a model by fully qualified names.

    ``prefix`` and ``suffix`` name the modules with parameters that run before and after the blocks, in that order.
    ``tied`` pairs the names of parameters that are one tensor. ``spec`` holds the shapes where the modules tell them, None for
    Hugging Face's models (whose config does) and where they cannot be known.
    """

    family: str
    blocks: str
    num_blocks: int
    prefix: tuple[str, ...]
    suffix: tuple[str, ...]
    tied: tuple[tuple[str, str], ...] = ()
    hidden_size: int = 0
    vocab_size: int = 0
    layout: Family
    """How the family's modules split over a tensor-parallel group."""
    spec: ModelSpec | None = None


def read_structure(model: nn.Module) -> ModelStructure:
    """The structure of ``model``.

    A Hugging Face causal language model is known by its config's ``model_type``, and any other model by what its modules show:
    the largest list of like modules is its blocks.

    Raises:
        InvalidInputError: there are no repeated blocks, or the model's own layout is not the one of its family.
    """
    family = _family(model)
    blocks = model.get_submodule(family.blocks)
    embedding = _weight_shape(model, family.embedding)
    return ModelStructure(
        family=family.name,
        blocks=family.blocks,
        num_blocks=len(blocks._modules),
        prefix=_with_parameters(model, family.prefix),
        suffix=_with_parameters(model, family.suffix),
        tied=_tied(model),
        hidden_size=embedding[1] if embedding else 0,
        vocab_size=embedding[0] if embedding else 0,
        layout=family,
        spec=_spec(model, family),
    )


def _family(model: nn.Module) -> Family:
    if isinstance(model, ReferenceGPT):
        return REFERENCE_GPT
    model_type = getattr(getattr(model, "config", None), "model_type", None)
    family = HUGGING_FACE.get(model_type) if isinstance(model_type, str) else None
    if family is not None and _has(model, family.blocks) and _has(model, family.embedding) and _has(model, family.head):
        return family
    found = generic_family(model)
    if isinstance(found, Family):
        return found
    raise InvalidInputError(Fault(field="model", given=type(model).__name__, required=found, fix="keep the blocks in an nn.ModuleList"))


def _spec(model: nn.Module, family: Family) -> ModelSpec | None:
    if isinstance(model, ReferenceGPT):
        return reference_spec(model.config)
    return generic_spec(model, family) if not family.regions else None


def _has(model: nn.Module, path: str) -> bool:
    parent, _, name = path.rpartition(".")
    try:
        return getattr(model.get_submodule(parent), name, None) is not None
    except AttributeError:
        return False


def _with_parameters(model: nn.Module, paths: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(path for path in paths if _has(model, path) and next(model.get_submodule(path).parameters(), None) is not None)


def _weight_shape(model: nn.Module, path: str) -> tuple[int, ...]:
    if not path:
        return ()
    weight = model.get_submodule(path)._parameters.get("weight")
    return tuple(weight.shape) if weight is not None else ()


def _tied(model: nn.Module) -> tuple[tuple[str, str], ...]:
    first: dict[int, str] = {}
    pairs = []
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in first and first[id(parameter)] != name:
            pairs.append((first[id(parameter)], name))
        first.setdefault(id(parameter), name)
    return tuple(pairs)
