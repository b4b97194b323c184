"""A small GPT in plain PyTorch: what examples, tests and benchmarks of the runtime train.

Nothing in it knows of parallelism. Legend of shapes: B batch, S sequence, H hidden, N heads, K key and value heads,
D head_dim, F feed-forward, V vocabulary, T tokens (B x S), E experts, C experts that a token chooses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from autopar.costmodel.spec.errors import Fault, raise_if


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceGPTConfig:
    """Shapes and options of :class:`ReferenceGPT`; ``rotary`` False means learned positions.

    ``num_experts`` above 0 gives every block gated experts of ``ffn_hidden_size`` in place of its feed-forward.
    """

    vocab_size: int = 256
    num_layers: int = 4
    hidden_size: int = 64
    num_attention_heads: int = 4
    num_key_value_heads: int = 4
    ffn_hidden_size: int = 256
    max_position_embeddings: int = 128
    rotary: bool = False
    tied_embeddings: bool = False
    dropout: float = 0.0
    num_experts: int = 0
    experts_per_token: int = 2

    def __post_init__(self) -> None:
        faults = []
        if self.hidden_size % self.num_attention_heads:
            required = f"must be a multiple of num_attention_heads={self.num_attention_heads}"
            faults.append(Fault(field="hidden_size", given=str(self.hidden_size), required=required))
        elif self.rotary and self.head_dim % 2:
            faults.append(Fault(field="head_dim", given=str(self.head_dim), required="must be even for rotary positions"))
        if self.num_attention_heads % self.num_key_value_heads:
            required = f"must divide num_attention_heads={self.num_attention_heads}"
            faults.append(Fault(field="num_key_value_heads", given=str(self.num_key_value_heads), required=required))
        if self.num_experts and not 0 < self.experts_per_token <= self.num_experts:
            required = f"must be 1 to num_experts={self.num_experts}"
            faults.append(Fault(field="experts_per_token", given=str(self.experts_per_token), required=required))
        raise_if(faults)

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads


class Attention(nn.Module):
    """Causal self-attention with grouped key and value heads."""

    def __init__(self, config: ReferenceGPTConfig) -> None:
        super().__init__()
        width, kv_width = config.hidden_size, config.num_key_value_heads * config.head_dim
        self.head_dim, self.rotary, self.dropout_p = config.head_dim, config.rotary, config.dropout
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, kv_width)
        self.value = nn.Linear(width, kv_width)
        self.output = nn.Linear(width, width)

    def forward(self, x_bsh: Tensor, position_bs: Tensor | None = None) -> Tensor:
        batch, sequence, _ = x_bsh.shape
        query, key, value = (
            projection(x_bsh).view(batch, sequence, -1, self.head_dim).transpose(1, 2) for projection in (self.query, self.key, self.value)
        )
        if self.rotary:
            query, key = _rotate(query, position_bs), _rotate(key, position_bs)
        dropout_p = self.dropout_p if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout_p, is_causal=True, enable_gqa=True)
        output: Tensor = self.output(mixed.transpose(1, 2).reshape(batch, sequence, -1))
        return output


class FeedForward(nn.Module):
    """Two linear layers around a GELU."""

    def __init__(self, config: ReferenceGPTConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.hidden_size, config.ffn_hidden_size)
        self.down = nn.Linear(config.ffn_hidden_size, config.hidden_size)

    def forward(self, x_bsh: Tensor) -> Tensor:
        output: Tensor = self.down(F.gelu(self.up(x_bsh)))
        return output


class Experts(nn.Module):
    """Gated feed-forwards of which each token uses some, stacked as Hugging Face's models have them."""

    def __init__(self, config: ReferenceGPTConfig) -> None:
        super().__init__()
        self.num_experts, hidden, width = config.num_experts, config.hidden_size, config.ffn_hidden_size
        self.gate_up_proj = nn.Parameter(torch.empty(self.num_experts, 2 * width, hidden))
        self.down_proj = nn.Parameter(torch.empty(self.num_experts, hidden, width))

    def forward(self, x_th: Tensor, index_tc: Tensor, weights_tc: Tensor) -> Tensor:
        output_th = torch.zeros_like(x_th)
        for expert in range(self.num_experts):
            token, choice = torch.where(index_tc == expert)
            gate, up = F.linear(x_th[token], self.gate_up_proj[expert]).chunk(2, dim=-1)
            done = F.linear(F.silu(gate) * up, self.down_proj[expert]) * weights_tc[token, choice, None]
            output_th = output_th.index_add(0, token, done.to(output_th.dtype))
        return output_th


class SparseFeedForward(nn.Module):
    """A router and its experts: each token's most probable ones, weighted by their probabilities among themselves."""

    def __init__(self, config: ReferenceGPTConfig) -> None:
        super().__init__()
        self.experts_per_token = config.experts_per_token
        self.router = nn.Linear(config.hidden_size, config.num_experts, bias=False)
        self.experts = Experts(config)

    def forward(self, x_bsh: Tensor) -> Tensor:
        x_th = x_bsh.flatten(0, 1)
        weights_tc, index_tc = self.router(x_th).float().softmax(-1).topk(self.experts_per_token)
        output: Tensor = self.experts(x_th, index_tc, weights_tc / weights_tc.sum(-1, keepdim=True))
        return output.view_as(x_bsh)


class Block(nn.Module):
    """A pre-norm decoder layer."""

    def __init__(self, config: ReferenceGPTConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.hidden_size)
        self.attention = Attention(config)
        self.attention_dropout = nn.Dropout(config.dropout)
        self.feed_forward_norm = nn.LayerNorm(config.hidden_size)
        self.feed_forward = SparseFeedForward(config) if config.num_experts else FeedForward(config)
        self.feed_forward_dropout = nn.Dropout(config.dropout)

    def forward(self, x_bsh: Tensor, position_bs: Tensor | None = None) -> Tensor:
        x_bsh = x_bsh + self.attention_dropout(self.attention(self.attention_norm(x_bsh), position_bs))
        output: Tensor = x_bsh + self.feed_forward_dropout(self.feed_forward(self.feed_forward_norm(x_bsh)))
        return output


class ReferenceGPT(nn.Module):
    """Token ids (B, S), and their positions where they are not 0, 1, …, to logits (B, S, V)."""

    def __init__(self, config: ReferenceGPTConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.positions = None if config.rotary else nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = nn.LayerNorm(config.hidden_size)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.apply(self._init_weights)
        if config.tied_embeddings:
            self.head.weight = self.tokens.weight

    def _init_weights(self, module: nn.Module) -> None:
        """GPT-2's initial weights: normal with 0.02, residual projections divided by sqrt(2 layers), biases 0."""
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
        residual_std = 0.02 / math.sqrt(2 * self.config.num_layers)
        if isinstance(module, Attention | FeedForward):
            residual = module.output if isinstance(module, Attention) else module.down
            nn.init.normal_(residual.weight, std=residual_std)
        if isinstance(module, Experts):
            nn.init.normal_(module.gate_up_proj, std=0.02)
            nn.init.normal_(module.down_proj, std=residual_std)

    def forward(self, input_ids: Tensor, position_ids: Tensor | None = None) -> Tensor:
        x_bsh = self.tokens(input_ids)
        if self.positions is not None:
            x_bsh = x_bsh + self.positions(_positions(input_ids, 1) if position_ids is None else position_ids)
        x_bsh = self.dropout(x_bsh)
        for block in self.blocks:
            x_bsh = block(x_bsh, position_ids)
        logits: Tensor = self.head(self.norm(x_bsh))
        return logits


def _positions(tensor: Tensor, dim: int) -> Tensor:
    """0, 1, … along ``dim``, one row."""
    return torch.arange(tensor.shape[dim], device=tensor.device)[None]


def _rotate(x_bnsd: Tensor, position_bs: Tensor | None) -> Tensor:
    """Rotary positions over the whole head, base 10,000 (RoFormer, arXiv 2104.09864)."""
    half = x_bnsd.shape[-1] // 2
    frequency = 10_000.0 ** (-torch.arange(half, device=x_bnsd.device, dtype=torch.float32) / half)
    position_bs = _positions(x_bnsd, 2) if position_bs is None else position_bs
    angle_b1sd = position_bs[:, None, :, None].float() * frequency
    cos, sin = angle_b1sd.cos().to(x_bnsd.dtype), angle_b1sd.sin().to(x_bnsd.dtype)
    first, second = x_bnsd.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
