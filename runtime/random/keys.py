"""Keys of random streams, and random words by hashing a counter: both depend on a seed and on names, never on the layout."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

# Two rounds of xor-shift and multiply that spread every bit over all 32; the constants were found by search
# (https://github.com/skeeto/hash-prospector: bias 0.11 with the closing xor-shift by 15, which only low bits notice).
_ROUNDS = ((16, 0x21F0AAAD), (15, 0x735A2D97))


def key(*words: int | str) -> int:
    """A 63-bit number from ``words``; other words give another number, but for chance."""
    digest = hashlib.blake2b("\x1f".join(map(str, words)).encode(), digest_size=8)
    return int.from_bytes(digest.digest(), "little") >> 1


def mix_(words: Tensor) -> Tensor:
    """Scramble int32 ``words`` in place, read as unsigned; the high bits of the result are the good ones."""
    for shift, multiplier in _ROUNDS:
        words ^= (words >> shift) & ((1 << (32 - shift)) - 1)  # the shift of an int32 keeps its sign; the mask takes it away
        words *= _as_int32(multiplier)
    return words


def words_of(counters: Tensor, streams: Tensor) -> Tensor:
    """Random int32 words for int32 ``counters`` (broadcast against ``streams``).

    Args:
        counters: int32, any shape.
        streams: int32, a last dimension of 2 more than ``counters``: the two halves of a :func:`key` (see :func:`halves`).
    """
    low, high = streams.unbind(-1)
    words = mix_(counters + low)
    words ^= (words >> 15) & 0x1FFFF
    return mix_(words + high)


def halves(streams: list[int], device: torch.device) -> Tensor:
    """Keys as int32 ``[len(streams), 2]``."""
    return torch.tensor([[_as_int32(stream & 0xFFFFFFFF), _as_int32(stream >> 32)] for stream in streams], dtype=torch.int32, device=device)


def _as_int32(word: int) -> int:
    return word - (1 << 32) if word >= 1 << 31 else word
