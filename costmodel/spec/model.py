"""What a decoder-only transformer is, as far as its cost goes: shapes, never weights."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from .errors import Fault, raise_if
from .strategy import LEFT_OUT

MAX_LAYERS, MAX_WIDTH, MAX_VOCAB, MAX_EXPERTS = 10_000, 10_000_000, 100_000_000, 100_000
MAX_ROTARY_BASE = 1e12
_SCALING = re.compile(r"([a-z][a-z0-9_]{0,19})(?: x([0-9]{1,6}(?:\.[0-9]{1,6})?))?")


class Norm(StrEnum):
    LAYER_NORM = "layer_norm"
    """Scale and bias: 2 x hidden parameters."""
    LAYER_NORM_NO_BIAS = "layer_norm_no_bias"
    RMS_NORM = "rms_norm"
    NON_PARAMETRIC = "non_parametric"


class PositionEmbedding(StrEnum):
    LEARNED = "learned"
    ROTARY = "rotary"
    ALIBI = "alibi"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention of DeepSeek-V2/V3 (arXiv 2405.04434, section 2.1).

    ``query_lora_rank`` 0 means a full-rank query projection (DeepSeek-V2-Lite, Moonlight).
    """

    query_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int

    @property
    def qk_head_dim(self) -> int:
        return self.qk_nope_head_dim + self.qk_rope_head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureOfExperts:
    """The expert layers of a model: how many, how wide, and which layers have them."""

    num_experts: int
    experts_per_token: int
    ffn_hidden_size: int
    """Width of one routed expert."""
    shared_expert_ffn_hidden_size: int = 0
    """Total width of the shared experts; 0 for none."""
    first_dense_layers: int = 0
    """Layers at the start that keep a dense feed-forward."""
    layer_frequency: int = 1
    """1: every layer after the dense ones is an expert layer; k: every k-th is."""
    router_bias: bool = False
    """One learned or balanced bias an expert (DeepSeek-V3's score correction, gpt-oss)."""
    shared_expert_gate: bool = False
    """A hidden -> 1 gate on the shared expert (Qwen2-MoE)."""
    expert_bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Shapes of a decoder-only transformer.

    ``head_dim`` is of the query, key and value heads unless ``latent_attention`` is given.
    ``sliding_window`` is the span in tokens, held by ``num_sliding_layers`` of the layers.
    """

    name: str
    num_layers: int
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    ffn_hidden_size: int
    vocab_size: int
    max_position_embeddings: int
    gated_mlp: bool
    norm: Norm = Norm.RMS_NORM
    norms_per_layer: int = 2
    final_norm: bool = True
    embedding_norm: bool = False
    position_embedding: PositionEmbedding = PositionEmbedding.ROTARY
    position_embedding_rows: int = 0
    """Rows of a learned position table; 0 takes ``max_position_embeddings`` where positions are learned."""
    tied_embeddings: bool = False
    qkv_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False
    lm_head_bias: bool = False
    qk_norm: bool = False
    qk_norm_per_head: bool = True
    """Normalises each head (head_dim weights); False normalises the whole projection."""
    attention_sinks: bool = False
    sliding_window: int = 0
    num_sliding_layers: int = 0
    embedding_projection_size: int = 0
    """Width of the token embedding where it differs from hidden (OPT-350m); 0 for none."""
    parallel_residual: bool = False
    latent_attention: LatentAttention | None = None
    moe: MixtureOfExperts | None = None
    mtp_layers: int = 0
    """Multi-token-prediction modules trained beside the model (DeepSeek-V3)."""
    rotary_base: float = field(default=0.0, metadata=LEFT_OUT)
    """Base of the rotary frequencies; 0: not said, or no rotary positions. Enters no estimate: exports and imports have it. Since 1.2."""
    rotary_scaling: str = field(default="", metadata=LEFT_OUT)
    """How the published model stretches its rotary positions, ``llama3 x8`` or ``yarn x40``. Enters no estimate. Since 1.2."""
    norm_epsilon: float = field(default=0.0, metadata=LEFT_OUT)
    """Added under the root of every norm; 0: not said. Enters no estimate. Since 1.2."""
    default_sequence_length: int = 0
    default_global_batch_size: int = 0
    source: str = ""

    def __post_init__(self) -> None:
        raise_if(list(_faults(self)))

    # -- layers ---------------------------------------------------------------------------------

    def is_moe_layer(self, index: int) -> bool:
        """Whether decoder layer ``index`` (from 0) holds experts."""
        if self.moe is None or index < self.moe.first_dense_layers:
            return False
        return (index - self.moe.first_dense_layers + 1) % self.moe.layer_frequency == 0

    @property
    def num_moe_layers(self) -> int:
        return sum(self.is_moe_layer(index) for index in range(self.num_layers))

    @property
    def num_dense_layers(self) -> int:
        return self.num_layers - self.num_moe_layers

    # -- parameters -----------------------------------------------------------------------------

    @property
    def attention_parameters(self) -> int:
        """Weights and biases of one attention block, without the layer's norms."""
        hidden, heads, groups = self.hidden_size, self.num_attention_heads, self.num_key_value_heads
        if (mla := self.latent_attention) is not None:
            qk, lora = mla.qk_head_dim, mla.query_lora_rank
            query = hidden * lora + lora + lora * heads * qk if lora else hidden * heads * qk
            down = hidden * (mla.kv_lora_rank + mla.qk_rope_head_dim) + mla.kv_lora_rank
            up = mla.kv_lora_rank * heads * (mla.qk_nope_head_dim + mla.v_head_dim)
            return query + down + up + heads * mla.v_head_dim * hidden
        query_width, kv_width = heads * self.head_dim, groups * self.head_dim
        total = hidden * (query_width + 2 * kv_width) + query_width * hidden
        total += (query_width + 2 * kv_width) * self.qkv_bias + hidden * self.attention_output_bias
        if self.qk_norm:
            total += 2 * self.head_dim if self.qk_norm_per_head else query_width + kv_width
        return total + heads * self.attention_sinks

    def mlp_parameters(self, width: int, *, bias: bool) -> int:
        """Weights and biases of one feed-forward of ``width``."""
        matrices = 3 if self.gated_mlp else 2
        return matrices * self.hidden_size * width + bias * ((matrices - 1) * width + self.hidden_size)

    @property
    def norm_parameters(self) -> int:
        """Parameters of one norm over the hidden dimension."""
        per_width = {Norm.LAYER_NORM: 2, Norm.LAYER_NORM_NO_BIAS: 1, Norm.RMS_NORM: 1, Norm.NON_PARAMETRIC: 0}
        return per_width[self.norm] * self.hidden_size

    @property
    def dense_mlp_parameters(self) -> int:
        return self.mlp_parameters(self.ffn_hidden_size, bias=self.mlp_bias)

    @property
    def expert_parameters(self) -> int:
        """Parameters of one routed expert."""
        return self.mlp_parameters(self.moe.ffn_hidden_size, bias=self.moe.expert_bias) if self.moe else 0

    @property
    def router_and_shared_parameters(self) -> int:
        """Parameters of an expert layer's feed-forward that every token uses: router and shared experts."""
        if self.moe is None:
            return 0
        moe = self.moe
        total = self.hidden_size * moe.num_experts + moe.num_experts * moe.router_bias
        if moe.shared_expert_ffn_hidden_size:
            total += self.mlp_parameters(moe.shared_expert_ffn_hidden_size, bias=False)
        return total + self.hidden_size * moe.shared_expert_gate

    @property
    def embedding_parameters(self) -> int:
        """Token table, position table, embedding norm and input projection: what the first stage holds."""
        width = self.embedding_projection_size or self.hidden_size
        total = self.vocab_size * width
        if self.position_embedding is PositionEmbedding.LEARNED:
            total += (self.position_embedding_rows or self.max_position_embeddings) * self.hidden_size
        if self.embedding_projection_size:
            total += width * self.hidden_size
        return total + self.norm_parameters * self.embedding_norm

    @property
    def head_parameters(self) -> int:
        """Output matrix (0 when tied), its bias, output projection and final norm: what the last stage adds."""
        width = self.embedding_projection_size or self.hidden_size
        total = 0 if self.tied_embeddings else self.vocab_size * width
        if self.embedding_projection_size:
            total += width * self.hidden_size
        return total + self.vocab_size * self.lm_head_bias + self.norm_parameters * self.final_norm

    @property
    def mtp_parameters(self) -> int:
        """One MTP module a depth: a 2h -> h projection, two input norms, one decoder layer and its final norm.

        Embedding and head are shared with the model (DeepSeek-V3, arXiv 2412.19437, section 2.2).
        """
        if not self.mtp_layers:
            return 0
        layer = self.layer_parameters(moe=self.moe is not None)
        return self.mtp_layers * (layer + 2 * self.hidden_size**2 + 3 * self.norm_parameters)

    def layer_parameters(self, *, moe: bool) -> int:
        """All parameters of one decoder layer."""
        norms = self.norms_per_layer * self.norm_parameters
        if moe and self.moe is not None:
            feed_forward = self.router_and_shared_parameters + self.moe.num_experts * self.expert_parameters
        else:
            feed_forward = self.dense_mlp_parameters
        return self.attention_parameters + norms + feed_forward

    @property
    def num_parameters(self) -> int:
        """Every parameter of the model, without MTP modules (which public counts leave out)."""
        layers = self.num_dense_layers * self.layer_parameters(moe=False) + self.num_moe_layers * self.layer_parameters(moe=True)
        return self.embedding_parameters + layers + self.head_parameters

    @property
    def num_active_parameters(self) -> int:
        """Parameters one token passes through: ``experts_per_token`` of the routed experts."""
        if self.moe is None:
            return self.num_parameters
        idle = self.moe.num_experts - self.moe.experts_per_token
        return self.num_parameters - self.num_moe_layers * idle * self.expert_parameters


def _faults(spec: ModelSpec) -> Iterator[Fault]:
    positive = {
        "num_layers": MAX_LAYERS, "hidden_size": MAX_WIDTH, "num_attention_heads": MAX_WIDTH,
        "num_key_value_heads": MAX_WIDTH, "head_dim": MAX_WIDTH, "vocab_size": MAX_VOCAB,
    }  # fmt: skip
    for size, limit in positive.items():
        value = getattr(spec, size)
        if not isinstance(value, int) or not 1 <= value <= limit:
            yield Fault(field=size, given=repr(value), required=f"an integer from 1 to {limit:,}")
            return
    if not 0 <= spec.ffn_hidden_size <= MAX_WIDTH:
        yield Fault(field="ffn_hidden_size", given=repr(spec.ffn_hidden_size), required=f"an integer from 0 to {MAX_WIDTH:,}")
    if spec.num_attention_heads % spec.num_key_value_heads:
        yield Fault(
            field="num_key_value_heads",
            given=str(spec.num_key_value_heads),
            required=f"must divide num_attention_heads={spec.num_attention_heads}",
        )
    if not 0 <= spec.num_sliding_layers <= spec.num_layers:
        yield Fault(field="num_sliding_layers", given=str(spec.num_sliding_layers), required=f"0 to num_layers={spec.num_layers}")
    yield from _numeric_faults(spec)
    if spec.moe is not None:
        yield from _moe_faults(spec.moe, spec.num_layers)


def _numeric_faults(spec: ModelSpec) -> Iterator[Fault]:
    if not 0 <= spec.rotary_base <= MAX_ROTARY_BASE:
        yield Fault(field="rotary_base", given=repr(spec.rotary_base), required=f"0 (not said) to {MAX_ROTARY_BASE:g}")
    if not 0 <= spec.norm_epsilon < 1:
        yield Fault(field="norm_epsilon", given=repr(spec.norm_epsilon), required="0 (not said) to less than 1")
    if spec.rotary_scaling and _SCALING.fullmatch(spec.rotary_scaling) is None:
        yield Fault(field="rotary_scaling", given=repr(spec.rotary_scaling[:40]), required="a kind and a factor, such as 'llama3 x8'")


def _moe_faults(moe: MixtureOfExperts, num_layers: int) -> Iterator[Fault]:
    if not 1 <= moe.num_experts <= MAX_EXPERTS:
        yield Fault(field="num_experts", given=str(moe.num_experts), required=f"an integer from 1 to {MAX_EXPERTS:,}")
    if not 1 <= moe.experts_per_token <= moe.num_experts:
        yield Fault(field="experts_per_token", given=str(moe.experts_per_token), required=f"1 to num_experts={moe.num_experts}")
    if not 1 <= moe.ffn_hidden_size <= MAX_WIDTH:
        yield Fault(field="moe.ffn_hidden_size", given=str(moe.ffn_hidden_size), required=f"an integer from 1 to {MAX_WIDTH:,}")
    if moe.layer_frequency < 1:
        yield Fault(field="moe.layer_frequency", given=str(moe.layer_frequency), required="at least 1")
    if not 0 <= moe.first_dense_layers <= num_layers:
        yield Fault(field="moe.first_dense_layers", given=str(moe.first_dense_layers), required=f"0 to num_layers={num_layers}")
