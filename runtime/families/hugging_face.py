"""Hugging Face's causal language models, by the ``model_type`` of their config.

Read from the model classes of transformers 5.17 to 5.24; nothing of transformers is imported.
"""

from __future__ import annotations

from typing import cast

from torch import nn

from .family import BlockRegion, Column, Family, LocalAttribute


def _attribute(module: nn.Module, name: str) -> int:
    return cast(int, getattr(module, name))


def _weight_rows(module: nn.Module, name: str) -> int:
    return int(cast(nn.Linear, module.get_submodule(name)).weight.shape[0])


def _head_dim(attention: nn.Module) -> int:
    return _attribute(attention, "head_dim")


def _gpt2_sections(attention: nn.Module) -> tuple[int, ...]:
    return (_attribute(attention, "embed_dim"),) * 3


def _phi3_qkv_sections(attention: nn.Module) -> tuple[int, ...]:
    head_dim, config = _head_dim(attention), attention.config
    query, group = (_attribute(cast(nn.Module, config), name) * head_dim for name in ("num_attention_heads", "num_key_value_heads"))
    return query, group, group


def _phi3_gate_up_sections(mlp: nn.Module) -> tuple[int, ...]:
    return (_weight_rows(mlp, "gate_up_proj") // 2,) * 2


_SPLIT_ATTENTION = BlockRegion(
    module="self_attn",
    columns=(Column(name="q_proj"), Column(name="k_proj", grouped=True), Column(name="v_proj", grouped=True)),
    rows=("o_proj",),
    unit=_head_dim,
    what="heads",
)
_GATED_MLP = BlockRegion(module="mlp", columns=(Column(name="gate_proj"), Column(name="up_proj")), rows=("down_proj",))
_PLAIN_MLP = BlockRegion(module="mlp", columns=(Column(name="up_proj"),), rows=("down_proj",))
_EXPERTS = BlockRegion(module="mlp", experts="experts")
_SHARED_EXPERTS = BlockRegion(
    module="mlp",
    experts="experts",
    columns=(Column(name="shared_expert.gate_proj"), Column(name="shared_expert.up_proj")),
    rows=("shared_expert.down_proj",),
)


def _like_llama(name: str, *regions: BlockRegion) -> Family:
    return Family(
        name=name,
        regions=regions or (_SPLIT_ATTENTION, _GATED_MLP),
        blocks="model.layers",
        prefix=("model.embed_tokens",),
        suffix=("model.norm", "lm_head"),
        embedding="model.embed_tokens",
        final_norm="model.norm",
        head="lm_head",
    )


_PHI = Family(
    name="phi",
    blocks="model.layers",
    prefix=("model.embed_tokens",),
    suffix=("model.final_layernorm", "lm_head"),
    embedding="model.embed_tokens",
    final_norm="model.final_layernorm",
    head="lm_head",
    regions=(
        BlockRegion(module="self_attn", columns=_SPLIT_ATTENTION.columns, rows=("dense",), unit=_head_dim, what="heads"),
        BlockRegion(module="mlp", columns=(Column(name="fc1"),), rows=("fc2",)),
    ),
)

_PHI3_ATTENTION = BlockRegion(
    module="self_attn",
    columns=(Column(name="qkv_proj", sections=_phi3_qkv_sections),),
    rows=("o_proj",),
    unit=_head_dim,
    attributes=(
        LocalAttribute(name="num_attention_heads", of_config=True),
        LocalAttribute(name="num_key_value_heads", of_config=True),
        LocalAttribute(name="num_key_value_heads"),
    ),
    what="heads",
)
_PHI3_MLP = BlockRegion(module="mlp", columns=(Column(name="gate_up_proj", sections=_phi3_gate_up_sections),), rows=("down_proj",))

_GPT2 = Family(
    name="gpt2",
    blocks="transformer.h",
    prefix=("transformer.wte", "transformer.wpe"),
    suffix=("transformer.ln_f", "lm_head"),
    embedding="transformer.wte",
    final_norm="transformer.ln_f",
    head="lm_head",
    regions=(
        BlockRegion(
            module="attn",
            columns=(Column(name="c_attn", sections=_gpt2_sections),),
            rows=("c_proj",),
            unit=_head_dim,
            attributes=(LocalAttribute(name="split_size"), LocalAttribute(name="num_heads")),
            what="heads",
        ),
        BlockRegion(module="mlp", columns=(Column(name="c_fc"),), rows=("c_proj",)),
    ),
)

_GPT_NEOX = Family(
    name="gpt_neox",
    blocks="gpt_neox.layers",
    prefix=("gpt_neox.embed_in",),
    suffix=("gpt_neox.final_layer_norm", "lm_head"),
    embedding="gpt_neox.embed_in",
    final_norm="gpt_neox.final_layer_norm",
    head="lm_head",
    regions=(
        BlockRegion(
            module="attention",
            columns=(Column(name="query_key_value"),),
            rows=("dense",),
            # Query, key and value of one head lie side by side, so a head's rows are contiguous.
            unit=lambda attention: 3 * _attribute(attention, "head_size"),
            what="heads",
        ),
        BlockRegion(module="mlp", columns=(Column(name="dense_h_to_4h"),), rows=("dense_4h_to_h",)),
    ),
)

HUGGING_FACE: dict[str, Family] = {
    **{name: _like_llama(name) for name in ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text")},
    "mixtral": _like_llama("mixtral", _SPLIT_ATTENTION, _EXPERTS),
    "qwen3_moe": _like_llama("qwen3_moe", _SPLIT_ATTENTION, _EXPERTS, _GATED_MLP),
    "qwen2_moe": _like_llama("qwen2_moe", _SPLIT_ATTENTION, _SHARED_EXPERTS, _GATED_MLP),
    "nemotron": _like_llama("nemotron", _SPLIT_ATTENTION, _PLAIN_MLP),
    "phi": _PHI,
    "phi3": _like_llama("phi3", _PHI3_ATTENTION, _PHI3_MLP),
    "gpt2": _GPT2,
    "gpt_neox": _GPT_NEOX,
}
