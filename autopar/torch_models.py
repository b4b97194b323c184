"""Between PyTorch modules and model specs: the shape that a module has, and a module of a shape."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from autopar.costmodel.spec.errors import Fault, InvalidInputError, UnavailableError
from autopar.costmodel.spec.model import MixtureOfExperts, ModelSpec, Norm, PositionEmbedding
from autopar.runtime.reference_gpt import ReferenceGPT, ReferenceGPTConfig
from autopar.runtime.structure import read_structure

if TYPE_CHECKING:
    from autopar.runtime.structure import ModelStructure

COMPARED = (
    "num_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "ffn_hidden_size", "vocab_size", "gated_mlp",
    "tied_embeddings",
)  # fmt: skip
"""What a plan rests on; a model that differs in one of these is another model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltModel:
    """A model made from a shape, on the meta device, and what of the shape it does not have."""

    module: nn.Module
    spec: ModelSpec
    notes: tuple[str, ...] = ()


def spec_of(model: nn.Module, structure: ModelStructure | None = None) -> ModelSpec:
    """The shape of ``model``: from its Hugging Face config, else from what its modules show. Never reads weights.

    Raises:
        InvalidInputError: neither tells.
    """
    structure = structure or read_structure(model)
    if structure.spec is not None:
        return structure.spec
    config: Any = getattr(model, "config", None)
    if hasattr(config, "to_dict"):
        from autopar.io.hf_config import model_from_config

        values = {key: value for key, value in config.to_dict().items() if value is not None and not key.startswith("_")}
        return model_from_config(values, name=_name(config, type(model).__name__))
    raise InvalidInputError(
        Fault(
            field="model",
            given=type(model).__name__,
            required="its shape is not known: it has no Hugging Face config, and its modules do not tell",
            fix="make a plan with autopar.plan(ModelSpec(...)) and pass it",
        )
    )


def model_faults(planned: ModelSpec, given: ModelSpec) -> tuple[Fault, ...]:
    """Where ``given`` is another model than the one that was planned for."""
    return tuple(
        Fault(field=f"model.{name}", given=str(getattr(given, name)), required=f"the plan is for {getattr(planned, name)}")
        for name in COMPARED
        if getattr(given, name) != getattr(planned, name)
    )


def build_model(spec: ModelSpec, *, sequence_length: int) -> BuiltModel:
    """A module of the shape ``spec`` on the meta device: the reference GPT, or Hugging Face's Llama or Mixtral where the shape is one.

    Raises:
        InvalidInputError: none has this shape (latent attention, experts in some of the layers or beside a shared one).
    """
    if (lacking := _not_built_in(spec)) is not None:
        raise InvalidInputError(
            Fault(field="model", given=spec.name, required=f"no model with {lacking} is built in", fix="pass one with --model FOLDER")
        )
    if spec.moe is not None and _transformers() is not None:
        return _mixtral(spec, spec.moe, sequence_length)
    if spec.gated_mlp and _transformers() is not None:
        return _llama(spec, sequence_length)
    return _reference(spec, sequence_length)


def read_hugging_face(path: Path) -> BuiltModel:
    """The model that a Hugging Face ``config.json`` (or its folder) describes, on the meta device; weights are not read.

    Raises:
        UnavailableError: transformers is not installed.
        InvalidInputError: the config cannot be read.
    """
    from autopar.io.hf_config import read_model

    transformers = _transformers()
    if transformers is None:
        raise UnavailableError(f"--model {path}: transformers is needed to build it; pip install transformers")
    spec = read_model(path)
    config = transformers.AutoConfig.from_pretrained(path.parent if path.is_file() else path, local_files_only=True)
    return BuiltModel(module=_from_config(config), spec=spec)


def _not_built_in(spec: ModelSpec) -> str | None:
    """What of ``spec`` no model here has."""
    moe = spec.moe
    if spec.latent_attention is not None:
        return "latent attention"
    if moe is None:
        return None
    if moe.shared_expert_ffn_hidden_size:
        return "a shared expert"
    if spec.num_dense_layers:
        return "experts in some layers alone"
    return None if spec.gated_mlp else "experts that are not gated"


def _reference(spec: ModelSpec, sequence_length: int) -> BuiltModel:
    config = ReferenceGPTConfig(
        vocab_size=spec.vocab_size,
        num_layers=spec.num_layers,
        hidden_size=spec.hidden_size,
        num_attention_heads=spec.num_attention_heads,
        num_key_value_heads=spec.num_key_value_heads,
        ffn_hidden_size=spec.moe.ffn_hidden_size if spec.moe else spec.ffn_hidden_size,
        max_position_embeddings=max(spec.max_position_embeddings, sequence_length),
        num_experts=spec.moe.num_experts if spec.moe else 0,
        experts_per_token=spec.moe.experts_per_token if spec.moe else 1,
        rotary=spec.position_embedding is not PositionEmbedding.LEARNED,
        tied_embeddings=spec.tied_embeddings,
    )
    with torch.device("meta"):
        model = ReferenceGPT(config)
    built = replace(spec_of(model), name=spec.name)
    names = ("gated_mlp", "norm", "qkv_bias", "position_embedding", "head_dim")
    other = [f"{name} {_word(getattr(built, name))}" for name in names if getattr(built, name) != getattr(spec, name)]
    notes = (f"model: the reference GPT in the shape of {spec.name}, but {', '.join(other)}",) if other else ()
    return BuiltModel(module=model, spec=built, notes=notes)


def _llama(spec: ModelSpec, sequence_length: int) -> BuiltModel:
    transformers = _transformers()
    assert transformers is not None
    config = transformers.LlamaConfig(
        intermediate_size=spec.ffn_hidden_size,
        attention_bias=spec.qkv_bias and spec.attention_output_bias,
        mlp_bias=spec.mlp_bias,
        **_sizes(spec, sequence_length),
    )
    return _in_shape_of(spec, config, "Llama")


def _mixtral(spec: ModelSpec, moe: MixtureOfExperts, sequence_length: int) -> BuiltModel:
    transformers = _transformers()
    assert transformers is not None
    config = transformers.MixtralConfig(
        intermediate_size=moe.ffn_hidden_size,
        num_local_experts=moe.num_experts,
        num_experts_per_tok=moe.experts_per_token,
        sliding_window=None,
        **_sizes(spec, sequence_length),
    )
    return _in_shape_of(spec, config, "Mixtral")


def _sizes(spec: ModelSpec, sequence_length: int) -> dict[str, Any]:
    """What every configuration of Hugging Face calls alike."""
    return {
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_attention_heads,
        "num_key_value_heads": spec.num_key_value_heads,
        "head_dim": spec.head_dim,
        "max_position_embeddings": max(spec.max_position_embeddings, sequence_length),
        "tie_word_embeddings": spec.tied_embeddings,
        "use_cache": False,
        **({"rope_theta": spec.rotary_base} if spec.rotary_base else {}),
        **({"rms_norm_eps": spec.norm_epsilon} if spec.norm_epsilon else {}),
    }


def _in_shape_of(spec: ModelSpec, config: Any, kind: str) -> BuiltModel:
    model = _from_config(config)
    built = replace(spec_of(model), name=spec.name)
    if not spec.num_dense_layers:
        built = replace(built, ffn_hidden_size=spec.ffn_hidden_size)  # of dense layers, which there are none of
    plain = spec.norm is Norm.RMS_NORM and built.qkv_bias == spec.qkv_bias and not spec.qk_norm
    notes = (f"model: Hugging Face's {kind} in the shape of {spec.name}",)
    return BuiltModel(module=model, spec=built, notes=notes if plain else (notes[0] + ", without its biases and extra norms",))


def _from_config(config: Any) -> nn.Module:
    transformers = _transformers()
    assert transformers is not None
    config.use_cache = False
    with torch.device("meta"):
        model: nn.Module = transformers.AutoModelForCausalLM.from_config(config)
    return model


def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
        return None
    return transformers


def _name(config: object, default: str) -> str:
    path = getattr(config, "_name_or_path", "") or ""
    return Path(str(path)).name or str(getattr(config, "model_type", "") or default)


def _word(value: object) -> str:
    return str(getattr(value, "value", value)).lower()
