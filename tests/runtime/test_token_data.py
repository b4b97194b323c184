"""Batches of tokens: functions of the seed and the step, and what a bad file says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from autopar.costmodel.spec.errors import InvalidInputError
from autopar.runtime.token_data import BatchShape, open_tokens

SHAPE = BatchShape(global_batch_size=4, sequence_length=16, vocab_size=100, seed=7)


def test_synthetic_batches_depend_on_seed_and_step_alone() -> None:
    data = open_tokens("synthetic", SHAPE)
    first = data.batch(3)
    assert first.shape == (4, 16)
    assert first.dtype == torch.int64
    assert torch.equal(first, open_tokens("synthetic", SHAPE).batch(3))
    assert not torch.equal(first, data.batch(4))
    steps = (first[:, 1:] - first[:, :-1]) % SHAPE.vocab_size
    assert bool((steps == steps[:, :1]).all())


@pytest.mark.parametrize("suffix", [".npy", ".bin", ".txt"])
def test_windows_of_a_file(tmp_path: Path, suffix: str) -> None:
    tokens = np.arange(100)
    path = tmp_path / f"tokens{suffix}"
    if suffix == ".npy":
        np.save(path, tokens)
    else:
        tokens.astype(np.uint16 if suffix == ".bin" else np.uint8).tofile(path)
    batch = open_tokens(str(path), SHAPE).batch(0)
    assert batch.shape == (4, 16)
    assert bool((batch[:, 1:] - batch[:, :-1] == 1).all())
    assert torch.equal(batch, open_tokens(str(path), SHAPE).batch(0))


def test_a_file_of_exactly_one_sequence(tmp_path: Path) -> None:
    np.save(tmp_path / "tokens.npy", np.arange(16))
    assert bool((open_tokens(str(tmp_path / "tokens.npy"), SHAPE).batch(5) == torch.arange(16)).all())


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("absent.npy", None, "No such file"),
        ("tokens.csv", b"1,2", r"\.npy, \.bin \(uint16\) or \.txt"),
        ("tokens.npy", b"no array", "cannot be read"),
        ("tokens.txt", b"short", "holds 5 tokens, one sequence takes 16"),
        ("tokens.bin", b"", "cannot be read"),
    ],
)
def test_bad_files_are_said(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidInputError, match=message):
        open_tokens(str(tmp_path / name), SHAPE)


def test_arrays_of_other_kinds_are_refused(tmp_path: Path) -> None:
    for array in (np.zeros((10, 10), dtype=int), np.zeros(100)):
        np.save(tmp_path / "tokens.npy", array)
        with pytest.raises(InvalidInputError, match="one dimension of whole numbers"):
            open_tokens(str(tmp_path / "tokens.npy"), SHAPE)


def test_tokens_outside_the_vocabulary_are_said(tmp_path: Path) -> None:
    np.save(tmp_path / "tokens.npy", np.full(100, 100))
    with pytest.raises(InvalidInputError, match="0 to 99"):
        open_tokens(str(tmp_path / "tokens.npy"), SHAPE).batch(0)
