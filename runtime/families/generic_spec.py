"""The shape of a model of no known family, for the cost model: told by its modules, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from torch import nn

from autopar.costmodel.spec.model import ModelSpec, Norm, PositionEmbedding

from .family import Family

HEAD_NAMES = ("num_attention_heads", "num_heads", "n_heads", "n_head", "nhead", "heads")
GROUP_NAMES = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_kv_head")
UNBOUNDED_POSITIONS = 2048
"""Taken as ``max_position_embeddings`` where positions are no table; nothing is computed from it then."""


def generic_spec(model: nn.Module, family: Family) -> ModelSpec | None:
    """The decoder-only transformer that has exactly the parameters of ``model``, in each block and in all; None if there is none.

    Hidden size and vocabulary are the token table's, the number of heads is the attribute of that name, the feed-forward is the
    layers that lead from the hidden size and back to it outside the attention. Which biases and norms there are is what the
    numbers of parameters agree with.
    """
    blocks = list(model.get_submodule(family.blocks).children())
    attention = next((module for module in blocks[0].modules() if _attribute(module, HEAD_NAMES)), None)
    if not family.embedding or attention is None:
        return None
    vocab, hidden = (int(size) for size in model.get_submodule(family.embedding).get_parameter("weight").shape)
    heads = _attribute(attention, HEAD_NAMES)
    groups = _attribute(attention, GROUP_NAMES) or heads
    feed_forward = _feed_forward(blocks[0], attention, hidden)
    if feed_forward is None or hidden % heads or heads % groups:
        return None
    features, columns = feed_forward
    positions = _learned_positions(model, family, hidden)
    base = ModelSpec(
        name="model",
        num_layers=len(blocks),
        hidden_size=hidden,
        num_attention_heads=heads,
        num_key_value_heads=groups,
        head_dim=hidden // heads,
        ffn_hidden_size=features,
        vocab_size=vocab,
        max_position_embeddings=positions or UNBOUNDED_POSITIONS,
        gated_mlp=columns == 2,
        position_embedding=PositionEmbedding.LEARNED if positions else PositionEmbedding.ROTARY,
        source="the model's modules",
    )
    layers, total = {_size(block) for block in blocks}, _size(model)
    fitting = (spec for spec in _candidates(base) if layers == {spec.layer_parameters(moe=False)} and spec.num_parameters == total)
    return next(fitting, None)


def _candidates(base: ModelSpec) -> Iterator[ModelSpec]:
    """Every combination of norms, biases and tying."""
    for norms, norm, flags in product((2, 1, 3, 4), (Norm.RMS_NORM, Norm.LAYER_NORM), product((False, True), repeat=7)):
        qkv_bias, output_bias, mlp_bias, tied, head_bias, final_norm, embedding_norm = flags
        yield replace(
            base,
            norm=norm,
            norms_per_layer=norms,
            final_norm=final_norm,
            embedding_norm=embedding_norm,
            qkv_bias=qkv_bias,
            attention_output_bias=output_bias,
            mlp_bias=mlp_bias,
            tied_embeddings=tied,
            lm_head_bias=head_bias,
        )


def _attribute(module: nn.Module, names: tuple[str, ...]) -> int:
    values = (getattr(module, name, None) for name in names)
    return next((value for value in values if isinstance(value, int) and value > 0), 0)


def _feed_forward(block: nn.Module, attention: nn.Module, hidden: int) -> tuple[int, int] | None:
    """Its width, and the number of layers that lead into it."""
    inside = set(attention.modules()) if attention is not block else set()
    shapes = [tuple(m.weight.shape) for m in block.modules() if isinstance(m, nn.Linear) and m not in inside]
    widths = {into for out, into in shapes if out == hidden and (into, hidden) in shapes and into != hidden}
    if len(widths) != 1:
        return None
    width = widths.pop()
    return width, shapes.count((width, hidden))


def _learned_positions(model: nn.Module, family: Family, hidden: int) -> int:
    """Rows of the table of positions: a second embedding before the blocks, or a parameter of the model itself."""
    modules = [model.get_submodule(name) for name in family.prefix if name != family.embedding]
    tables = [module.weight for module in modules if isinstance(module, nn.Embedding)]
    own = [parameter.reshape(-1, parameter.shape[-1]) for parameter in model.parameters(recurse=False) if parameter.dim() > 1]
    rows = [int(table.shape[0]) for table in (*tables, *own) if table.dim() == 2 and table.shape[1] == hidden]
    return rows[0] if len(rows) == 1 else 0


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
