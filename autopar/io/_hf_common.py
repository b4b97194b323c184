"""What Hugging Face families share: the sizes every config states, sliding windows, and the keys that change no shape."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from autopar.costmodel.spec.model import MAX_LAYERS, MAX_ROTARY_BASE, MAX_VOCAB, ModelSpec

from ._hf_fields import Fields

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
MAX_POSITIONS = 1_000_000_000


def inert(words: str) -> frozenset[str]:
    """The inert keys of a family, written as one string."""
    return frozenset(words.split())


INERT = inert(
    """
    _attn_implementation _attn_implementation_autoset _commit_hash _flash_attn_2_enabled _name_or_path
    architectures attention_dropout auto_map bos_token_id chunk_size_feed_forward cross_attention_hidden_size custom_pipelines
    decoder_start_token_id dtype embd_pdrop embedding_dropout eos_token_id finetuning_task forced_bos_token_id forced_eos_token_id
    gradient_checkpointing hidden_act hidden_dropout id2label initializer_range is_decoder keys_to_ignore_at_inference
    label2id language license mask_token_id max_length model_type name output_attentions
    output_hidden_states output_past output_router_logits output_scores pad_token_id prefix pretraining_tp problem_type quantization_config
    resid_pdrop return_dict sep_token_id task_specific_params tf_legacy_loss
    tokenizer_class torch_dtype torchscript transformers_version unk_token_id unsloth_fixed unsloth_version use_bfloat16 use_cache
    bad_words_ids begin_suppress_tokens diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size
    exponential_decay_length_penalty length_penalty min_length no_repeat_ngram_size num_beam_groups num_beams num_return_sequences
    remove_invalid_values repetition_penalty return_dict_in_generate suppress_tokens temperature tie_encoder_decoder top_k top_p typical_p
    """
)
"""Keys that no family reads a shape from: training noise, token ids, and generation defaults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One ``model_type``: how its config is read, and the keys of its own that change no shape."""

    read: Callable[[Fields, str], ModelSpec]
    inert: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeKeys:
    """How a family spells the sizes all families have, and what its reference implementation takes for an absent one.

    A size whose default is None is required, but for ``kv_heads``, then equal to the attention heads, and
    ``head_dim``, then the hidden size over the attention heads. No spelling at all: the family has no such key.
    """

    layers: tuple[str, ...] = ("num_hidden_layers",)
    hidden: tuple[str, ...] = ("hidden_size",)
    heads: tuple[str, ...] = ("num_attention_heads",)
    kv_heads: tuple[str, ...] = ("num_key_value_heads",)
    head_dim: tuple[str, ...] = ("head_dim",)
    ffn: tuple[str, ...] = ("intermediate_size",)
    positions: tuple[str, ...] = ("max_position_embeddings",)
    default_layers: int | None = None
    default_hidden: int | None = None
    default_heads: int | None = None
    default_kv_heads: int | None = None
    default_head_dim: int | None = None
    default_ffn: int | None = None
    default_ffn_ratio: int | None = None
    """Absent feed-forward width as a multiple of the hidden size."""
    default_vocab: int | None = None
    default_positions: int = 2048
    default_tied: bool = False
    default_rotary_base: float = 10_000.0
    default_norm_epsilon: float = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes of one config, read."""

    num_layers: int
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    ffn_hidden_size: int
    vocab_size: int
    max_position_embeddings: int
    tied_embeddings: bool
    rotary_base: float
    rotary_scaling: str
    norm_epsilon: float

    def model(self, name: str, *, gated_mlp: bool) -> ModelSpec:
        """A model of these sizes, to be completed by its family."""
        return ModelSpec(
            name=name, num_layers=self.num_layers, hidden_size=self.hidden_size, num_attention_heads=self.num_attention_heads,
            num_key_value_heads=self.num_key_value_heads, head_dim=self.head_dim, ffn_hidden_size=self.ffn_hidden_size,
            vocab_size=self.vocab_size, max_position_embeddings=self.max_position_embeddings, gated_mlp=gated_mlp,
            tied_embeddings=self.tied_embeddings, rotary_base=self.rotary_base, rotary_scaling=self.rotary_scaling,
            norm_epsilon=self.norm_epsilon,
        )  # fmt: skip


def read_sizes(fields: Fields, keys: SizeKeys) -> Sizes:
    """Read the sizes every family states."""
    layers = fields.integer(*keys.layers, default=keys.default_layers, maximum=MAX_LAYERS)
    hidden = fields.integer(*keys.hidden, default=keys.default_hidden)
    heads = fields.integer(*keys.heads, default=keys.default_heads)
    kv_heads = fields.integer(*keys.kv_heads, default=keys.default_kv_heads or heads) if keys.kv_heads else heads
    base, scaling = _rotary(fields, keys.default_rotary_base)
    ratio = keys.default_ffn_ratio
    ffn = fields.integer(*keys.ffn, default=ratio * hidden if ratio else keys.default_ffn) if keys.ffn else (ratio or 4) * hidden
    return Sizes(
        num_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=_head_dim(fields, keys, hidden=hidden, heads=heads),
        ffn_hidden_size=ffn,
        vocab_size=fields.integer("vocab_size", default=keys.default_vocab, maximum=MAX_VOCAB),
        max_position_embeddings=fields.integer(*keys.positions, default=keys.default_positions, maximum=MAX_POSITIONS),
        tied_embeddings=fields.flag("tie_word_embeddings", default=keys.default_tied),
        rotary_base=base,
        rotary_scaling=scaling,
        norm_epsilon=fields.number(*_EPSILONS, default=keys.default_norm_epsilon, maximum=0.1),
    )


_EPSILONS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon")
_SCALING_KIND = re.compile(r"[a-z][a-z0-9_]{0,19}")
MAX_SCALING = 99_999


def _rotary(fields: Fields, default: float) -> tuple[float, str]:
    """Base of the rotary positions and how they are stretched; of layers that see everything, where sliding ones have their own."""
    newer, older = fields.nested("rope_parameters", required=False), fields.nested("rope_scaling", required=False)
    if "full_attention" in newer.values:
        newer = newer.nested("full_attention", required=False)
    base = fields.number("rope_theta", "rotary_emb_base", default=0.0, maximum=MAX_ROTARY_BASE)
    base = base or newer.number("rope_theta", default=default, maximum=MAX_ROTARY_BASE)
    said = older.values or newer.values
    return base, scaling_text(said.get("rope_type", said.get("type")), said.get("factor"))


def scaling_text(kind: object, factor: object) -> str:
    """``llama3 x8``; the kind alone where no factor is said; nothing for plain rotary positions and what no one calls a kind."""
    if not isinstance(kind, str) or kind == "default" or _SCALING_KIND.fullmatch(kind) is None:
        return ""
    stated = isinstance(factor, int | float) and not isinstance(factor, bool) and 1 <= factor <= MAX_SCALING
    return f"{kind} x{factor:.6g}" if stated else kind


def _head_dim(fields: Fields, keys: SizeKeys, *, hidden: int, heads: int) -> int:
    stated = fields.optional_integer(*keys.head_dim) if keys.head_dim else None
    if stated is not None:
        return stated
    if keys.default_head_dim is not None:
        return keys.default_head_dim
    if hidden % heads and not fields.faults:
        fields.refuse(keys.heads[0], heads, f"must divide {keys.hidden[0]}={hidden}, or the config must state head_dim")
    return max(1, hidden // heads)


def count_layers(fields: Fields, kind: str, num_layers: int, assumed: Callable[[int], bool]) -> int:
    """How many layers ``layer_types`` says are of ``kind``; where it is absent, those whose index ``assumed`` picks."""
    kinds = fields.words("layer_types", allowed=(FULL, kind), length=num_layers)
    return sum(map(assumed, range(num_layers))) if kinds is None else kinds.count(kind)


def read_window(fields: Fields, num_layers: int, assumed: Callable[[int], bool], *, default: int | None = None) -> tuple[int, int]:
    """Span of the sliding window in tokens, and the number of layers that have it; (0, 0) for none."""
    absent = "sliding_window" not in fields.values
    window = fields.optional_integer("sliding_window", minimum=0, maximum=MAX_POSITIONS)
    if absent:
        window = default
    layers = count_layers(fields, SLIDING, num_layers, assumed)
    return (window, layers) if window and layers else (0, 0)


def every_layer(_index: int) -> bool:
    """All layers are of the kind."""
    return True
