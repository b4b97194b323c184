"""The training task of the runtime's benchmarks: small enough for two cores, large enough that a step is arithmetic."""

from __future__ import annotations

import torch
from torch import Tensor

from autopar.runtime.reference_gpt import ReferenceGPT, ReferenceGPTConfig

RANKS = 2
GLOBAL_BATCH_SIZE = 8
SEQUENCE_LENGTH = 128
LEARNING_RATE = 1e-3
CONFIG = ReferenceGPTConfig(
    vocab_size=8192,
    num_layers=4,
    hidden_size=256,
    num_attention_heads=8,
    num_key_value_heads=8,
    ffn_hidden_size=1024,
    max_position_embeddings=SEQUENCE_LENGTH,
)


def model() -> ReferenceGPT:
    """With the same weights at every call."""
    torch.manual_seed(0)
    return ReferenceGPT(CONFIG)


def token_ids() -> Tensor:
    """The global batch (B, S), the same in every step: what is timed does not depend on it."""
    return torch.randint(CONFIG.vocab_size, (GLOBAL_BATCH_SIZE, SEQUENCE_LENGTH), generator=torch.Generator().manual_seed(1))
