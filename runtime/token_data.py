"""Batches of token ids, each a function of the seed and the step alone: every rank and every run sees the same."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from autopar.costmodel.spec.errors import Fault, InvalidInputError

SYNTHETIC = "synthetic"
LONGEST_STRIDE = 8


class TokenData(Protocol):
    """Where batches come from."""

    def batch(self, step: int) -> Tensor:
        """Token ids of one step, int64, (global batch, sequence)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchShape:
    """What one step takes."""

    global_batch_size: int
    sequence_length: int
    vocab_size: int
    seed: int


@dataclass(frozen=True, slots=True)
class SyntheticTokens:
    """Sequences that count up from a random start by a random stride: a model learns them in a few steps, so the loss falls."""

    shape: BatchShape

    def batch(self, step: int) -> Tensor:
        shape, random = self.shape, _generator(self.shape.seed, step)
        start = torch.randint(shape.vocab_size, (shape.global_batch_size, 1), generator=random)
        stride = torch.randint(1, LONGEST_STRIDE + 1, (shape.global_batch_size, 1), generator=random)
        return (start + stride * torch.arange(shape.sequence_length)) % shape.vocab_size


@dataclass(frozen=True, slots=True)
class FileTokens:
    """Windows at random places of one long sequence of tokens."""

    shape: BatchShape
    tokens: np.ndarray
    path: Path

    def batch(self, step: int) -> Tensor:
        """Raises:
        InvalidInputError: a token is outside the model's vocabulary.
        """
        shape, random = self.shape, _generator(self.shape.seed, step)
        starts = torch.randint(len(self.tokens) - shape.sequence_length + 1, (shape.global_batch_size,), generator=random)
        rows = [np.asarray(self.tokens[start : start + shape.sequence_length], dtype=np.int64) for start in starts.tolist()]
        batch = torch.from_numpy(np.stack(rows))
        if int(batch.max()) >= shape.vocab_size or int(batch.min()) < 0:
            required = f"token ids from 0 to {shape.vocab_size - 1} are needed, the model's vocabulary"
            given = f"{int(batch.min())} to {int(batch.max())}"
            raise InvalidInputError(Fault(field=f"data {self.path}", given=given, required=required))
        return batch


def open_tokens(source: str, shape: BatchShape) -> TokenData:
    """``synthetic``, or a file: ``.npy`` (one dimension of whole numbers), ``.bin`` (uint16), ``.txt`` (one token a byte).

    Raises:
        InvalidInputError: the file cannot be read, is of another kind, or is shorter than one sequence.
    """
    if source == SYNTHETIC:
        return SyntheticTokens(shape)
    path = Path(source)
    tokens = _read(path)
    if len(tokens) < shape.sequence_length:
        raise InvalidInputError(_fault(path, f"holds {len(tokens):,} tokens, one sequence takes {shape.sequence_length:,}"))
    return FileTokens(shape, tokens, path)


def _read(path: Path) -> np.ndarray:
    try:
        match path.suffix:
            case ".npy":
                tokens = np.load(path, mmap_mode="r")
                if not isinstance(tokens, np.ndarray) or tokens.ndim != 1 or tokens.dtype.kind not in "iu":
                    raise InvalidInputError(_fault(path, "one dimension of whole numbers is needed"))
                return tokens
            case ".bin":
                return np.memmap(path, dtype=np.uint16, mode="r")
            case ".txt":
                return np.memmap(path, dtype=np.uint8, mode="r")
    except (OSError, ValueError) as error:
        if isinstance(error, InvalidInputError):
            raise
        raise InvalidInputError(_fault(path, f"cannot be read: {getattr(error, 'strerror', None) or error}")) from None
    raise InvalidInputError(_fault(path, f"{SYNTHETIC}, or a file ending in .npy, .bin (uint16) or .txt is needed"))


def _fault(path: Path, required: str) -> Fault:
    return Fault(field="data", given=repr(str(path)), required=required)


def _generator(seed: int, step: int) -> torch.Generator:
    random = torch.Generator()
    random.manual_seed((seed * 1_000_003 + step) % 2**63)
    return random
