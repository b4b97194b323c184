"""A model's shape in Megatron's flags, and back."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise

from autopar.costmodel.spec.errors import Fault, InvalidInputError, raise_if
from autopar.costmodel.spec.model import LatentAttention, MixtureOfExperts, ModelSpec, Norm, PositionEmbedding

from .model_numbers import Usual, scaling_note, unsaid_notes, whole
from .settings import Kind, Setting, Settings, Value, integer, is_on, number, text

MODEL_SETTINGS: tuple[Setting, ...] = (
    Setting(name="num-layers", field="model.num_layers", always=True),
    Setting(name="hidden-size", field="model.hidden_size", always=True),
    Setting(name="num-attention-heads", field="model.num_attention_heads", always=True),
    Setting(name="kv-channels", field="model.head_dim", always=True),
    Setting(name="vocab-size", field="model.vocab_size", always=True),
    *(
        Setting(name=name)
        for name in (
            "ffn-hidden-size", "num-query-groups", "max-position-embeddings", "num-experts", "moe-router-topk", "moe-ffn-hidden-size",
            "moe-shared-expert-intermediate-size", "q-lora-rank", "kv-lora-rank", "qk-head-dim", "qk-pos-emb-head-dim", "v-head-dim",
            "mtp-num-layers", "window-attn-skip-freq", "make-vocab-size-divisible-by",
        )
    ),
    *(
        Setting(name=name, kind=Kind.SWITCH)
        for name in (
            "group-query-attention", "swiglu", "disable-bias-linear", "add-qkv-bias", "untie-embeddings-and-output-weights",
            "qk-layernorm", "multi-latent-attention", "moe-shared-expert-gate", "moe-router-enable-expert-bias",
            "use-rotary-position-embeddings", "squared-relu",
        )
    ),
    *(
        Setting(name=name, kind=Kind.TEXT)
        for name in (
            "normalization", "position-embedding-type", "softmax-type", "window-size", "moe-layer-freq", "moe-router-score-function",
        )
    ),
    *(Setting(name=name, kind=Kind.NUMBER) for name in ("rotary-base", "norm-epsilon")),
)  # fmt: skip

_POSITIONS = {
    PositionEmbedding.LEARNED: "learned_absolute",
    PositionEmbedding.ROTARY: "rope",
    PositionEmbedding.NONE: "none",
}
_NORMS = {Norm.LAYER_NORM: "LayerNorm", Norm.RMS_NORM: "RMSNorm"}
USUAL = {"rotary_base": Usual(name="--rotary-base", value=10_000.0), "norm_epsilon": Usual(name="--norm-epsilon", value=1e-5)}


def model_faults(model: ModelSpec) -> Iterator[Fault]:
    """What Megatron's GPT model cannot be told about ``model``."""
    absent = (
        ("position_embedding", model.position_embedding is PositionEmbedding.ALIBI, "has no ALiBi positions"),
        ("norm", model.norm not in _NORMS, f"has {' and '.join(sorted(_NORMS.values()))}, both with weights and LayerNorm with biases"),
        ("norms_per_layer", model.norms_per_layer != 2, "has two norms a layer"),
        ("final_norm", not model.final_norm, "always ends in a norm"),
        ("embedding_norm", model.embedding_norm, "has no norm after the embedding"),
        ("embedding_projection_size", bool(model.embedding_projection_size), "embeds tokens at the hidden size"),
        ("parallel_residual", model.parallel_residual, "runs attention and feed-forward one after the other"),
        ("lm_head_bias", model.lm_head_bias, "has no bias on the output matrix"),
        ("qk_norm_per_head", model.qk_norm and not model.qk_norm_per_head, "normalises queries and keys head by head"),
        ("attention_output_bias", _biases(model) is None, "has biases on all linear layers, on queries, keys and values alone, or none"),
        ("num_sliding_layers", _skip_frequency(model) is None, "has full attention in every n-th layer"),
        ("rotary_base", not float(model.rotary_base).is_integer(), "takes a whole number"),
    )
    for field, is_absent, what in absent:
        if is_absent:
            given = getattr(model, field)
            yield Fault(field=f"model.{field}", given=str(getattr(given, "value", given)), required=f"Megatron's GPT {what}")


def model_notes(model: ModelSpec) -> tuple[str, ...]:
    """What of ``model`` is not said by the plan, or not written."""
    kind, _, factor = model.rotary_scaling.partition(" x")
    factor = factor or "N"
    flags = {"llama3": f"--use-rope-scaling --rope-scaling-factor {factor} adds it"}
    if model.latent_attention is not None:
        flags["yarn"] = f"--rotary-scaling-factor {factor} adds it, with --mscale and --mscale-all-dim of its configuration"
    elif model.position_embedding is PositionEmbedding.ROTARY:
        flags["yarn"] = f"--position-embedding-type yarn --rotary-scaling-factor {factor} adds it"
    return (*unsaid_notes("Megatron", model, USUAL), *scaling_note(model, flags.get(kind, "no flag has it")))


def model_settings(model: ModelSpec, sequence_length: int) -> dict[str, Value]:
    """The flags of ``model`` that are not one field each."""
    learned = model.position_embedding is PositionEmbedding.LEARNED
    rows = model.position_embedding_rows if learned and model.position_embedding_rows else model.max_position_embeddings
    settings: dict[str, Value] = {
        "max-position-embeddings": rows if learned else max(rows, sequence_length),
        "ffn-hidden-size": model.ffn_hidden_size,
        "swiglu": model.gated_mlp,
        "normalization": _NORMS.get(model.norm, ""),
        "position-embedding-type": _POSITIONS.get(model.position_embedding, ""),
        "untie-embeddings-and-output-weights": not model.tied_embeddings,
        "disable-bias-linear": _biases(model) != "all",
        "add-qkv-bias": _biases(model) == "qkv",
        "qk-layernorm": model.qk_norm or model.latent_attention is not None,
        "mtp-num-layers": model.mtp_layers,
        "make-vocab-size-divisible-by": 128,
        "rotary-base": whole(model.rotary_base) if model.position_embedding is PositionEmbedding.ROTARY else 0,
        "norm-epsilon": model.norm_epsilon,
    }
    if model.num_key_value_heads != model.num_attention_heads and model.latent_attention is None:
        settings |= {"group-query-attention": True, "num-query-groups": model.num_key_value_heads}
    if model.attention_sinks:
        settings["softmax-type"] = "learnable"
    if model.num_sliding_layers and model.sliding_window:
        settings["window-size"] = f"({model.sliding_window},0)"
        settings |= {"window-attn-skip-freq": frequency} if (frequency := _skip_frequency(model)) else {}
    if (mla := model.latent_attention) is not None:
        settings |= {
            "multi-latent-attention": True, "q-lora-rank": mla.query_lora_rank, "kv-lora-rank": mla.kv_lora_rank,
            "qk-head-dim": mla.qk_nope_head_dim, "qk-pos-emb-head-dim": mla.qk_rope_head_dim, "v-head-dim": mla.v_head_dim,
        }  # fmt: skip
    if model.moe is not None:
        settings |= _expert_settings(model, model.moe)
    return {name: value for name, value in settings.items() if value is not False and value != 0}


def _expert_settings(model: ModelSpec, moe: MixtureOfExperts) -> dict[str, Value]:
    return {
        "num-experts": moe.num_experts,
        "moe-router-topk": moe.experts_per_token,
        "moe-ffn-hidden-size": moe.ffn_hidden_size,
        "moe-shared-expert-intermediate-size": moe.shared_expert_ffn_hidden_size,
        "moe-shared-expert-gate": moe.shared_expert_gate,
        "moe-layer-freq": layer_pattern([model.is_moe_layer(index) for index in range(model.num_layers)]),
        "moe-router-enable-expert-bias": moe.router_bias,
        "moe-router-score-function": "sigmoid" if moe.router_bias else "softmax",
        "moe-router-pre-softmax": moe.experts_per_token == 1 and not moe.router_bias,
    }


def _biases(model: ModelSpec) -> str | None:
    """``all``, ``qkv`` or ``none``; None for a mixture that Megatron has no flags for."""
    feed_forward = [model.mlp_bias] * bool(model.num_dense_layers) + ([model.moe.expert_bias] if model.moe else [])
    found = {model.qkv_bias, model.attention_output_bias, *feed_forward}
    if len(found) == 1:
        return "all" if model.qkv_bias else "none"
    return "qkv" if model.qkv_bias and not model.attention_output_bias and not any(feed_forward) else None


def _skip_frequency(model: ModelSpec) -> int | None:
    """n, where every n-th layer attends to everything; 0 where all layers slide or none does; None where no n fits."""
    full = model.num_layers - model.num_sliding_layers
    if not model.num_sliding_layers or not full:
        return 0
    return next((n for n in range(2, model.num_layers + 1) if model.num_layers // n == full), None)


# -- back -----------------------------------------------------------------------------------------------------------------


def model_from_settings(settings: Settings) -> ModelSpec:
    """The model that the flags describe, named ``imported``.

    Raises:
        InvalidInputError: a size is missing, or cannot mean a model.
    """
    required = ("num-layers", "hidden-size", "num-attention-heads")
    missing = [name for name in required if name not in settings]
    raise_if([Fault(field=f"--{name}", given="", required="is missing", fix="give it, or --model") for name in missing])
    hidden, heads = integer(settings, "hidden-size", 1), integer(settings, "num-attention-heads", 1)
    gated, mla = is_on(settings, "swiglu"), is_on(settings, "multi-latent-attention")
    grouped = is_on(settings, "group-query-attention")
    all_biased = not is_on(settings, "disable-bias-linear")
    position = _position(settings)
    window = re.findall(r"\d+", text(settings, "window-size"))
    sliding = _sliding_layers(settings) if window else 0
    moe = _experts(settings, integer(settings, "ffn-hidden-size", 0), all_biased)
    return ModelSpec(
        name="imported",
        num_layers=integer(settings, "num-layers", 1),
        hidden_size=hidden,
        num_attention_heads=heads,
        num_key_value_heads=integer(settings, "num-query-groups", heads) if grouped else heads,
        head_dim=integer(settings, "kv-channels", max(1, hidden // max(heads, 1))),
        ffn_hidden_size=integer(settings, "ffn-hidden-size", int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden),
        vocab_size=integer(settings, "vocab-size", 0) or 1,
        max_position_embeddings=integer(settings, "max-position-embeddings", integer(settings, "seq-length", 1)),
        gated_mlp=gated,
        norm=next((norm for norm, name in _NORMS.items() if name == text(settings, "normalization", "LayerNorm")), Norm.LAYER_NORM),
        position_embedding=position,
        tied_embeddings=not is_on(settings, "untie-embeddings-and-output-weights"),
        qkv_bias=all_biased or is_on(settings, "add-qkv-bias"),
        attention_output_bias=all_biased,
        mlp_bias=all_biased and (moe is None or moe.first_dense_layers > 0 or moe.layer_frequency > 1),
        qk_norm=is_on(settings, "qk-layernorm") and not mla,
        attention_sinks=text(settings, "softmax-type", "vanilla") == "learnable",
        sliding_window=int(window[0]) if window else 0,
        num_sliding_layers=sliding,
        latent_attention=_latent(settings) if mla else None,
        moe=moe,
        mtp_layers=integer(settings, "mtp-num-layers", 0),
        rotary_base=number(settings, "rotary-base") if position is PositionEmbedding.ROTARY else 0.0,
        norm_epsilon=number(settings, "norm-epsilon"),
        source="imported from a Megatron-LM command",
    )


def _position(settings: Settings) -> PositionEmbedding:
    given = text(settings, "position-embedding-type", "learned_absolute")
    if is_on(settings, "use-rotary-position-embeddings") or given in ("rope", "yarn", "mrope"):
        return PositionEmbedding.ROTARY
    return PositionEmbedding.NONE if given == "none" else PositionEmbedding.LEARNED


def _sliding_layers(settings: Settings) -> int:
    layers, frequency = integer(settings, "num-layers", 1), integer(settings, "window-attn-skip-freq", 0)
    return layers - layers // frequency if frequency > 1 else layers


def _latent(settings: Settings) -> LatentAttention:
    return LatentAttention(
        query_lora_rank=integer(settings, "q-lora-rank", 0),
        kv_lora_rank=integer(settings, "kv-lora-rank", 32),
        qk_nope_head_dim=integer(settings, "qk-head-dim", 128),
        qk_rope_head_dim=integer(settings, "qk-pos-emb-head-dim", 64),
        v_head_dim=integer(settings, "v-head-dim", 128),
    )


def _experts(settings: Settings, ffn: int, biased: bool) -> MixtureOfExperts | None:
    count = integer(settings, "num-experts", 0)
    if count < 1:
        return None
    first, frequency = _pattern_shape(settings)
    return MixtureOfExperts(
        num_experts=count,
        experts_per_token=integer(settings, "moe-router-topk", 2),
        ffn_hidden_size=integer(settings, "moe-ffn-hidden-size", ffn or 1),
        shared_expert_ffn_hidden_size=integer(settings, "moe-shared-expert-intermediate-size", 0),
        first_dense_layers=first,
        layer_frequency=frequency,
        router_bias=is_on(settings, "moe-router-enable-expert-bias"),
        shared_expert_gate=is_on(settings, "moe-shared-expert-gate"),
        expert_bias=biased,
    )


def _pattern_shape(settings: Settings) -> tuple[int, int]:
    """``(first dense layers, frequency)`` that put experts where ``--moe-layer-freq`` does, or as often where none does exactly.

    Megatron's number n puts experts in layers 0, n, 2n…; the frequency here counts from the layer before the first dense one.

    Raises:
        InvalidInputError: the pattern is not regular, or cannot be read.
    """
    layers = integer(settings, "num-layers", 1)
    given = text(settings, "moe-layer-freq", "1")
    places = [index for index, is_moe in enumerate(parse_pattern(given, layers)) if is_moe]
    if not places:
        return layers, 1
    gaps = {later - earlier for earlier, later in pairwise(places)} or {layers - places[0]}
    if len(gaps) > 1 or places[-1] + max(gaps) < layers:
        fault = "puts experts in layers that are not evenly spaced to the end"
        raise InvalidInputError(Fault(field="--moe-layer-freq", given=repr(given), required=fault, fix="give --model"))
    frequency = gaps.pop()
    return max(0, places[0] - frequency + 1), frequency


_RUN = re.compile(r"\[([01](?:,[01])*)\](?:\*(\d{1,5}))?")


def parse_pattern(given: str, layers: int) -> list[bool]:
    """Which layers hold experts: a number n (layer i does where n divides i), or a list such as ``([0]*3+[1]*58)``.

    Raises:
        InvalidInputError: neither, or a list of another length.
    """
    plain = given.replace(" ", "")
    if plain.isdecimal() and int(plain) > 0:
        return [index % int(plain) == 0 for index in range(layers)]
    parts = plain.strip("()").split("+")
    found: list[bool] = []
    for part in parts:
        part = part.strip("()")
        match = _RUN.fullmatch(part)
        if match is None:
            required = "a number, or lists of 0 and 1 such as ([0]*3+[1]*58), is needed"
            raise InvalidInputError(Fault(field="--moe-layer-freq", given=repr(given), required=required))
        found += [digit == "1" for digit in match[1].split(",")] * int(match[2] or 1)
    if len(found) != layers:
        required = f"lists {len(found)} layers, and the model has {layers}"
        raise InvalidInputError(Fault(field="--moe-layer-freq", given=repr(given), required=required))
    return found


def layer_pattern(is_moe: Sequence[bool]) -> str:
    """``1`` where every layer holds experts, else the list in runs, ``([0]*3+[1]*58)``."""
    if all(is_moe):
        return "1"
    runs = [(kind, len(list(run))) for kind, run in groupby(is_moe)]
    if len(runs) > 4:
        return "([" + ",".join("1" if kind else "0" for kind in is_moe) + "])"
    return "(" + "+".join(f"[{int(kind)}]*{count}" for kind, count in runs) + ")"
